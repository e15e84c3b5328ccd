// Rotary embedding: pairs (i, i + n) of every head turn by an angle of the row's position.
#include "common.cuh"

// Cosines, then sines, of the row's pairs.
extern __shared__ float turns[];

extern "C" __global__ void __launch_bounds__(256) rope(const __grid_constant__ RopeParams p) {
    const u32 r = blockIdx.x;
    if (r >= *p.rows) return;
    float* cosines = turns;
    float* sines = turns + p.pairs;
    for (u32 i = threadIdx.x; i < p.pairs; i += blockDim.x) {
        const RopePair pair = p.table[i];
        // The product of two floats, as in the reference; from there on in double precision, because angles are large:
        // turns, of which the whole ones do not count, then half turns.
        const float angle = float(p.positions[3 * u64(r) + pair.axis]) * pair.inv_freq;
        const double turned = double(angle) * 0.15915494309189535;
        float sine, cosine;
        sincospif(float(2.0 * (turned - rint(turned))), &sine, &cosine);
        cosines[i] = cosine * p.attention_factor;
        sines[i] = sine * p.attention_factor;
    }
    __syncthreads();
    const u32 cols = p.x.heads * p.x.dim;
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) {
        const u32 d = c % p.x.dim;
        const float* head = at(p.x, r, c - d);
        float y = head[d];
        if (d < p.pairs) {
            y = y * cosines[d] - head[d + p.pairs] * sines[d];
        } else if (d < 2 * p.pairs) {
            const u32 i = d - p.pairs;
            y = y * cosines[i] + head[i] * sines[i];
        }
        p.out[u64(r) * p.out_stride + c] = y;
    }
}
