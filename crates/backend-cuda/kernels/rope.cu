// Rotary embedding: pairs (i, i + n) of every head turn by an angle of the row's position.
#include "common.cuh"

namespace {

// Pairs whose angles are known at a time.
constexpr u32 PAIRS = 256;

// Cosine and sine of a pair at the row's position. The angle is the product of two floats, as in the reference; from
// there on it is in double precision, because angles are large: in turns, of which the whole ones do not count, and then
// in half turns.
__device__ __forceinline__ float2 turn(const RopeParams& p, u32 r, u32 i) {
    const RopePair pair = p.table[i];
    const float angle = float(p.positions[3 * u64(r) + pair.axis]) * pair.inv_freq;
    const double turned = double(angle) * 0.15915494309189535;
    float sine, cosine;
    sincospif(float(2.0 * (turned - rint(turned))), &sine, &cosine);
    return make_float2(cosine * p.attention_factor, sine * p.attention_factor);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) rope(const __grid_constant__ RopeParams p) {
    __shared__ float2 turns[PAIRS];
    const u32 r = blockIdx.x, dim = p.x.dim;
    if (r >= *p.rows) return;
    float* out = p.out + u64(r) * p.out_stride;
    for (u32 first = 0; first < p.pairs; first += PAIRS) {
        const u32 count = min(p.pairs - first, PAIRS);
        __syncthreads();
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) turns[i] = turn(p, r, first + i);
        __syncthreads();
        for (u32 j = threadIdx.x; j < p.x.heads * count; j += blockDim.x) {
            const u32 head = j / count, i = j % count;
            const float* x = at(p.x, r, head * dim) + first + i;
            float* y = out + head * dim + first + i;
            const float a = x[0], b = x[p.pairs];
            y[0] = a * turns[i].x - b * turns[i].y;
            y[p.pairs] = b * turns[i].x + a * turns[i].y;
        }
    }
    // Dimensions that do not turn.
    const u32 still = dim - 2 * p.pairs;
    for (u32 j = threadIdx.x; j < p.x.heads * still; j += blockDim.x) {
        const u32 head = j / still, d = 2 * p.pairs + j % still;
        out[head * dim + d] = *at(p.x, r, head * dim + d);
    }
}
