// Small pieces that several kernels share.
#pragma once

#include "intrinsics.cuh"
#include "params.cuh"

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fffffff); }

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) < infinity(); }

__device__ __forceinline__ float bf16_value(u16 bits) { return __uint_as_float(u32(bits) << 16); }

// exp(x) through a power of two: the rounding of x log2(e) costs |x| units.
__device__ __forceinline__ float fast_exp(float x) { return power_of_two(x * 1.44269504f); }

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Logarithm of the decay that the delta rule's gate `x` means; as in the reference implementation, and a number that is none
// stays none.
__device__ __forceinline__ float log_decay(float x, float rate) {
    const float softplus = x > 20.0f ? x : log1pf(expf(x));
    return rate * softplus;
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// Column `c` of a view in row `r`.
__device__ __forceinline__ float* at(const View& view, u32 r, u32 c) {
    if (view.heads == 1) return view.data + u64(r) * view.row_stride + c;
    const u32 head = c / view.dim;
    return view.data + u64(r) * view.row_stride + head * view.head_stride + (c - head * view.dim);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// The warp of its block that a thread belongs to, as one number for all lanes.
__device__ __forceinline__ u32 warp_index() { return __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0); }

// The largest value that is a number; a warp of others gives one of them.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

// A sum over the block in a fixed order: the tree of each warp, then the warps in order. `partial` holds one float a
// warp; all threads get the sum.
__device__ __forceinline__ float block_sum(float x, float* partial) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0.0f;
    for (u32 w = 0; w < blockDim.x / WARP; ++w) sum += partial[w];
    return sum;
}

// Squares of numbers above 2^63 leave the range of floats: their sum is then taken of values scaled down by this.
constexpr float DOWN = 1.0f / (1ull << 40) / (1ull << 40);

// Sum of squares of the values `first`, `first + step`, ..., each times `scale`.
__device__ __forceinline__ float squares(const float* x, u32 count, u32 first, u32 step, float scale) {
    // So many reads are on their way together; a square of nothing changes no sum.
    constexpr u32 TOGETHER = 4;
    float sum = 0.0f;
#pragma unroll 1
    for (u32 base = first; base < count; base += TOGETHER * step) {
        float v[TOGETHER];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; ++i) v[i] = base + i * step < count ? x[base + i * step] * scale : 0.0f;
#pragma unroll
        for (u32 i = 0; i < TOGETHER; ++i) sum = fmaf(v[i], v[i], sum);
    }
    return sum;
}

// `1 / sqrt(sum / count + eps)`, where `sum` is the sum of squares of values times `scale`.
__device__ __forceinline__ float inverse_root(float sum, float count, float eps, float scale) {
    return scale / sqrtf(sum / count + eps * scale * scale);
}

// `sum_of(scale)`, the sum of the squares of values times `scale`: as they are, or scaled down where that leaves the range of
// floats. The code is there once.
template <typename F>
__device__ __forceinline__ float sum_in_range(float& scale, F sum_of) {
    scale = 1.0f;
    float sum = 0.0f;
#pragma unroll 1
    for (u32 turn = 0; turn < 2; ++turn) {
        sum = sum_of(scale);
        if (turn == 1 || sum != infinity()) break;
        scale = DOWN;
    }
    return sum;
}

// `1 / rms` of values, by one warp.
__device__ __forceinline__ float warp_inverse(const float* x, u32 count, float eps) {
    float scale;
    const float sum = sum_in_range(
        scale, [&](float by) { return warp_sum(squares(x, count, threadIdx.x % WARP, WARP, by)); });
    return inverse_root(sum, float(count), eps, scale);
}

// Sum of the squares of 32 values, each times `scale`, by one warp: a value a lane, and the order in which `round` of
// `linear_stream.cuh` and `prepare` add them. Then the sum of `count` such sums.
__device__ __forceinline__ float row_squares(const float* x, u32 count, float scale) {
    const u32 lane = threadIdx.x % WARP;
    float own = 0.0f;
#pragma unroll 1
    for (u32 b = 0; b < count; ++b) {
        const float v = x[b * 32 + lane] * scale, sum = warp_sum(v * v);
        if (b % WARP == lane) own += sum;
    }
    return warp_sum(own);
}

// `x` rounded to an integer within `limit`, ties to even. The clamp matters where 1 / scale rounds up.
__device__ __forceinline__ i32 rounded(float x, float inverse, float limit) {
    // A number that is none becomes 0; its group's scale says it.
    const float v = rintf(x * inverse);
    return v >= -limit ? i32(fminf(v, limit)) : (v < -limit ? i32(-limit) : 0);
}

// Cosine and sine of a pair at a position (time, height, width), times a factor. The angle is the product of two floats, as in
// the reference; from there on it is in double precision, because angles are large: in turns, of which the whole ones do
// not count, and then in half turns.
__device__ __forceinline__ float2 rotation(const RopePair& pair, const u32* position, float factor) {
    const float angle = float(position[pair.axis]) * pair.inv_freq;
    const double turned = double(angle) * 0.15915494309189535;
    float sine, cosine;
    sincospif(float(2.0 * (turned - rint(turned))), &sine, &cosine);
    return make_float2(cosine * factor, sine * factor);
}

// A scale or bias of a weight, as it was stored.
__device__ __forceinline__ float parameter(const u8* values, u32 type, u64 index) {
    switch (type) {
        case PARAM_F16: return half_value(unchanging(reinterpret_cast<const u16*>(values) + index));
        case PARAM_BF16: return bf16_value(unchanging(reinterpret_cast<const u16*>(values) + index));
        default: return unchanging(reinterpret_cast<const float*>(values) + index);
    }
}
