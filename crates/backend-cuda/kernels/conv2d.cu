// Convolution of pictures as a product: a thread block has PIXELS pixels and OUTPUTS channels, and goes over the columns of the weight
// (taps, and the channels of each) in chunks. Inputs are normed on their way into shared memory.
#include "common.cuh"

namespace {

constexpr u32 THREADS = 256;
constexpr u32 PIXELS = 128;
constexpr u32 OUTPUTS = 64;
constexpr u32 CHUNK = 16;
// Pixels and outputs of a thread.
constexpr u32 OWN_PIXELS = 8;
constexpr u32 OWN_OUTPUTS = 4;

template <u32 FORMAT>
struct Work {
    static constexpr u32 PER_UNIT = FORMAT == DENSE_F32 ? 4 : 8;
    // A thread brings so many columns of one pixel, and one unit of one row of the weight, where there is one for it.
    static constexpr u32 COLUMNS = PIXELS * CHUNK / THREADS;
    static constexpr u32 UNITS = CHUNK / PER_UNIT;

    const Conv2dParams& p;
    // The thread's pixel of the output.
    bool is_there;
    u32 y;
    u32 x;
    float inputs[COLUMNS];
    float weights[PER_UNIT];

    __device__ explicit Work(const Conv2dParams& p) : p(p) {
        const u32 pixel = blockIdx.x * PIXELS + threadIdx.x % PIXELS;
        is_there = pixel < p.height * p.width;
        y = pixel / p.width;
        x = pixel % p.width;
    }

    __device__ float normed(float v, u32 channel) const {
        if (p.affine == nullptr) return v;
        v = fmaf(p.affine[channel], v, p.affine[p.channels + channel]);
        return p.silu ? silu(v) : v;
    }

    // First value of a tap's pixel; null outside.
    __device__ const float* pixel_of(u32 tap) const {
        const u32 reach = p.kernel / 2, dy = y + tap / p.kernel, dx = x + tap % p.kernel;
        if (!is_there || dy < reach || dx < reach || dy - reach >= p.height || dx - reach >= p.width) return nullptr;
        const u32 row = (dy - reach) / p.times * (p.width / p.times) + (dx - reach) / p.times;
        return p.x.data + u64(row) * p.x.row_stride;
    }

    __device__ void load(u32 first) {
        const u32 column = first + threadIdx.x / PIXELS * COLUMNS, cols = p.kernel * p.kernel * p.channels;
        if (p.channels % COLUMNS == 0 && p.x.row_stride % 4 == 0 && reinterpret_cast<u64>(p.x.data) % 16 == 0) {
            const u32 channel = column % p.channels;
            const float* from = column < cols ? pixel_of(column / p.channels) : nullptr;
#pragma unroll
            for (u32 i = 0; i < COLUMNS; i += 4) {
                float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (from != nullptr) v = *reinterpret_cast<const float4*>(from + channel + i);
                inputs[i] = v.x;
                inputs[i + 1] = v.y;
                inputs[i + 2] = v.z;
                inputs[i + 3] = v.w;
#pragma unroll
                for (u32 j = i; j < i + 4; ++j) {
                    if (from != nullptr) inputs[j] = normed(inputs[j], channel + j);
                }
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < COLUMNS; ++i) {
                const u32 tap = (column + i) / p.channels, channel = (column + i) % p.channels;
                const float* from = column + i < cols ? pixel_of(tap) : nullptr;
                inputs[i] = from != nullptr ? normed(from[channel], channel) : 0.0f;
            }
        }
        if (threadIdx.x >= OUTPUTS * UNITS) return;
        const u32 row = blockIdx.y * OUTPUTS + threadIdx.x % OUTPUTS, unit = first / PER_UNIT + threadIdx.x / OUTPUTS;
        uint4 stored = make_uint4(0, 0, 0, 0);
        if (row < p.part.rows && unit < p.part.units) {
            const u64 at = (u64(row / BLOCK_ROWS) * p.part.units + unit) * BLOCK_ROWS + row % BLOCK_ROWS;
            stored = reinterpret_cast<const uint4*>(p.part.codes)[at];
        }
        const u32 words[4] = {stored.x, stored.y, stored.z, stored.w};
#pragma unroll
        for (u32 i = 0; i < PER_UNIT; ++i) {
            if (FORMAT == DENSE_F32) {
                weights[i] = __uint_as_float(words[i % 4]);
            } else {
                const u16 bits = u16(words[i / 2] >> 16 * (i % 2));
                weights[i] = FORMAT == DENSE_F16 ? half_value(bits) : bf16_value(bits);
            }
        }
    }
};

template <u32 FORMAT>
__device__ __forceinline__ void run(const Conv2dParams& p) {
    using Work = Work<FORMAT>;
    __shared__ float inputs[2][CHUNK][PIXELS + 4];
    __shared__ float weights[2][CHUNK][OUTPUTS + 4];
    let_next_start();
    wait_for_previous();
    Work work(p);
    const u32 cols = p.kernel * p.kernel * p.channels;
    const u32 own_pixel = threadIdx.x / (OUTPUTS / OWN_OUTPUTS) * OWN_PIXELS, own_output = threadIdx.x % (OUTPUTS / OWN_OUTPUTS) * OWN_OUTPUTS;
    float sums[OWN_PIXELS][OWN_OUTPUTS] = {};
    work.load(0);
    u32 turn = 0;
    for (u32 first = 0; first < cols; first += CHUNK, turn ^= 1) {
#pragma unroll
        for (u32 i = 0; i < Work::COLUMNS; ++i) {
            inputs[turn][threadIdx.x / PIXELS * Work::COLUMNS + i][threadIdx.x % PIXELS] = work.inputs[i];
        }
        if (threadIdx.x < OUTPUTS * Work::UNITS) {
#pragma unroll
            for (u32 i = 0; i < Work::PER_UNIT; ++i) {
                weights[turn][threadIdx.x / OUTPUTS * Work::PER_UNIT + i][threadIdx.x % OUTPUTS] = work.weights[i];
            }
        }
        // Who reads a chunk is two barriers behind its writer.
        __syncthreads();
        if (first + CHUNK < cols) work.load(first + CHUNK);
#pragma unroll
        for (u32 k = 0; k < CHUNK; ++k) {
            float x[OWN_PIXELS], w[OWN_OUTPUTS];
#pragma unroll
            for (u32 i = 0; i < OWN_PIXELS; i += 4) {
                const float4 v = *reinterpret_cast<const float4*>(&inputs[turn][k][own_pixel + i]);
                x[i] = v.x;
                x[i + 1] = v.y;
                x[i + 2] = v.z;
                x[i + 3] = v.w;
            }
            const float4 v = *reinterpret_cast<const float4*>(&weights[turn][k][own_output]);
            w[0] = v.x;
            w[1] = v.y;
            w[2] = v.z;
            w[3] = v.w;
#pragma unroll
            for (u32 i = 0; i < OWN_PIXELS; ++i) {
#pragma unroll
                for (u32 j = 0; j < OWN_OUTPUTS; ++j) sums[i][j] = fmaf(x[i], w[j], sums[i][j]);
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < OWN_PIXELS; ++i) {
        const u32 pixel = blockIdx.x * PIXELS + own_pixel + i;
        if (pixel >= p.height * p.width) continue;
#pragma unroll
        for (u32 j = 0; j < OWN_OUTPUTS; ++j) {
            const u32 output = blockIdx.y * OUTPUTS + own_output + j;
            if (output >= p.part.rows) continue;
            float v = sums[i][j] + p.bias[output];
            if (p.residual.data != nullptr) v += *at(p.residual, pixel, output);
            p.out[u64(pixel) * p.out_stride + output] = v;
        }
    }
}

}  // namespace

#define CONV2D(NAME, FORMAT)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, 2) conv2d_##NAME(const __grid_constant__ Conv2dParams p) { \
        run<FORMAT>(p);                                                                                            \
    }

CONV2D(f32, DENSE_F32)
CONV2D(f16, DENSE_F16)
CONV2D(bf16, DENSE_BF16)
