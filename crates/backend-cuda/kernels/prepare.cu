// The input of a product, once for all parts of its weight: norm, rounding to integers, sums of 32.
#include "rounding.cuh"

namespace {

// Sum of the squares of a row, each value times `scale`, by the whole thread block: sums of 32 values by a tree, and of these as
// `row_squares` adds them.
__device__ __forceinline__ float row_sum(const float* x, u32 count, float scale) {
    constexpr u32 GROUPS = 128;
    __shared__ float partial[4 * GROUPS];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, groups = (count + GROUP - 1) / GROUP;
    float own = 0.0f;
    for (u32 base = 0; base < groups; base += GROUPS) {
        const u32 end = min(groups - base, GROUPS);
#pragma unroll 4
        for (u32 g = warp; g < end; g += blockDim.x / WARP) {
            float s[4];
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const u32 c = (base + g) * GROUP + 4 * lane + j;
                const float v = c < count ? x[c] * scale : 0.0f;
                s[j] = v * v;
#pragma unroll
                for (u32 offset = 4; offset > 0; offset /= 2) s[j] += __shfl_xor_sync(ALL_LANES, s[j], offset);
            }
            if (lane % 8 == 0) partial[4 * g + lane / 8] = (s[0] + s[2]) + (s[1] + s[3]);
        }
        __syncthreads();
        for (u32 b = lane; b < 4 * end; b += WARP) own += partial[b];
        __syncthreads();
    }
    return warp_sum(own);
}

// `1 / rms` of the row, by the whole thread block.
__device__ __forceinline__ float row_inverse(const float* x, u32 count, float eps) {
    float scale;
    const float sum = sum_in_range(scale, [&](float by) { return row_sum(x, count, by); });
    return inverse_root(sum, float(count), eps, scale);
}

}  // namespace

// The groups of a row are shared among the blocks of the second dimension.
extern "C" __global__ void __launch_bounds__(512) prepare(const __grid_constant__ PrepareParams p) {
    let_next_start();
    const u32 r = blockIdx.x, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const u32 first = blockIdx.y * warps + threadIdx.x / WARP, step = gridDim.y * warps;
    Values v;
    v.load_gain(p, first, lane);
    wait_for_previous();
    if (r >= *p.rows) return;
    // On their way while the row is summed up.
    v.load(p, r, first, lane);
    v.load_gate(p, r, first, lane);
    float inverse = 1.0f;
    if (p.input == INPUT_NORM) inverse = row_inverse(at(p.x, r, 0), p.out.cols, p.eps);
    for (u32 group = first; group < p.out.padded / GROUP; group += step) {
        if (group != first) {
            v.load_gain(p, group, lane);
            v.load(p, r, group, lane);
            v.load_gate(p, r, group, lane);
        }
        if (p.input == INPUT_GATED_NORM) inverse = warp_inverse(at(p.x, r, group * GROUP), GROUP, p.eps);
        v.finish(p, r, group, lane, inverse);
    }
}
