// RMS norm of blocks of values, plain or gated: x * rsqrt(mean(x^2) + eps) * gain [* silu(z)].
#include "common.cuh"

namespace {

template <bool GATED>
__device__ __forceinline__ void write(const NormParams& p, u32 r, u32 head, float inverse, u32 first, u32 step) {
    const float* x = p.x.data + u64(r) * p.x.row_stride + head * p.x.head_stride;
    float* out = p.out + u64(r) * p.out_stride + head * p.x.dim;
    for (u32 i = first; i < p.x.dim; i += step) {
        const float y = x[i] * inverse * p.gain[i];
        out[i] = GATED ? y * silu(*at(p.z, r, head * p.x.dim + i)) : y;
    }
}

// One warp a block of values.
template <bool GATED>
__device__ __forceinline__ void norm_heads(const NormParams& p) {
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.y, head = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (r >= *p.rows || head >= p.x.heads) return;
    const float* x = p.x.data + u64(r) * p.x.row_stride + head * p.x.head_stride;
    write<GATED>(p, r, head, warp_inverse(x, p.x.dim, p.eps), lane, WARP);
}

// One thread block a block of values.
template <bool GATED>
__device__ __forceinline__ void norm_row(const NormParams& p) {
    __shared__ float partial[WARP];
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.y, head = blockIdx.x;
    if (r >= *p.rows) return;
    const float* x = p.x.data + u64(r) * p.x.row_stride + head * p.x.head_stride;
    float scale;
    const float sum = sum_in_range(
        scale, [&](float by) { return block_sum(squares(x, p.x.dim, threadIdx.x, blockDim.x, by), partial); });
    write<GATED>(p, r, head, inverse_root(sum, float(p.x.dim), p.eps, scale), threadIdx.x, blockDim.x);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) rms_norm_heads(const __grid_constant__ NormParams p) {
    norm_heads<false>(p);
}

extern "C" __global__ void __launch_bounds__(256) rms_norm_row(const __grid_constant__ NormParams p) {
    norm_row<false>(p);
}

extern "C" __global__ void __launch_bounds__(256) gated_norm_heads(const __grid_constant__ NormParams p) {
    norm_heads<true>(p);
}

extern "C" __global__ void __launch_bounds__(256) gated_norm_row(const __grid_constant__ NormParams p) {
    norm_row<true>(p);
}
