// Rotary embedding: pairs (i, i + n) of every head turn by an angle of the row's position.
#include "common.cuh"

namespace {

// Pairs whose angles are known at a time.
constexpr u32 PAIRS = 256;

}  // namespace

extern "C" __global__ void __launch_bounds__(256) rope(const __grid_constant__ RopeParams p) {
    __shared__ float2 turns[PAIRS];
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.x, dim = p.x.dim;
    if (r >= *p.rows) return;
    float* out = p.out + u64(r) * p.out_stride;
    for (u32 first = 0; first < p.pairs; first += PAIRS) {
        const u32 count = min(p.pairs - first, PAIRS);
        __syncthreads();
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            turns[i] = rotation(p.table[first + i], p.positions + 3 * u64(r), p.attention_factor);
        }
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
