// Convolution of pictures on the matrix units, for weights of bf16: every input is the sum of two numbers of bf16, so that products are
// exact and the input is off by 2^-18 of itself at most.
//
// A thread block has a rectangle of 8 x 16 pixels and OUTPUTS channels. It brings some channels of all pixels that the rectangle
// sees into shared memory once, normed and split, and goes over the taps there: a tap is another place to read from. Warps have two
// rows of pixels and half of the outputs each.
#include "common.cuh"

#ifdef PIECES_OF_16_BITS

namespace {

constexpr u32 THREADS = 256;
constexpr u32 TALL = 8;
constexpr u32 WIDE = 16;
constexpr u32 OUTPUTS = 128;
// Of a warp: rows of pixels, pieces of eight outputs.
constexpr u32 OWN_ROWS = 2;
constexpr u32 OWN_PIECES = OUTPUTS / 2 / 8;

template <u32 KERNEL>
struct Shape {
    static constexpr u32 REACH = KERNEL / 2;
    static constexpr u32 COLUMNS = WIDE + 2 * REACH;
    static constexpr u32 PIXELS = (TALL + 2 * REACH) * COLUMNS;
    // Channels of a turn, and their 16-byte units: the high parts of a pixel, then the low ones.
    static constexpr u32 CHANNELS = KERNEL == 3 ? 16 : 32;
    static constexpr u32 UNITS = CHANNELS / 8;
    static constexpr u32 TAPS = KERNEL * KERNEL;
    static constexpr u32 QUADS = PIXELS * CHANNELS / 4;
    static constexpr u32 OWN_QUADS = (QUADS + THREADS - 1) / THREADS;
    static constexpr u32 OWN_WEIGHTS = TAPS * UNITS * OUTPUTS / THREADS;

    // Units are exchanged, so that those of eight neighbours lie in different banks.
    __device__ static u32 place(u32 pixel, u32 unit) {
        return pixel * 2 * UNITS + (unit ^ (KERNEL == 3 ? pixel / 2 % 4 : pixel % 8));
    }
};

template <u32 KERNEL>
struct Stage {
    uint4 inputs[Shape<KERNEL>::PIXELS * 2 * Shape<KERNEL>::UNITS];
    uint4 weights[Shape<KERNEL>::TAPS * Shape<KERNEL>::UNITS][OUTPUTS];
};

template <u32 KERNEL>
struct Work {
    using S = Shape<KERNEL>;

    const Conv2dParams& p;
    // First pixel of the rectangle, first output.
    u32 y;
    u32 x;
    u32 output;
    float4 quads[S::OWN_QUADS];
    // A bit for each of them.
    u32 is_there;

    __device__ explicit Work(const Conv2dParams& p) : p(p), output(blockIdx.y * OUTPUTS) {
        const u32 across = (p.width + WIDE - 1) / WIDE;
        y = blockIdx.x / across * TALL;
        x = blockIdx.x % across * WIDE;
    }

    // Where a row or column of pixels, as the taps see it, lies among those that were brought.
    __device__ u32 source(u32 at) const { return p.times == 2 ? (at + S::REACH) / 2 : at; }

    __device__ void bring_weights(Stage<KERNEL>& to, u32 channel) const {
        const u32 last = (p.part.rows + BLOCK_ROWS - 1) / BLOCK_ROWS - 1;
#pragma unroll
        for (u32 i = 0; i < S::OWN_WEIGHTS; ++i) {
            const u32 item = threadIdx.x + i * THREADS, row = item % OUTPUTS, unit = item / OUTPUTS;
            const u32 from = (unit / S::UNITS * p.channels + channel) / 8 + unit % S::UNITS, block = min((output + row) / BLOCK_ROWS, last);
            const u64 at = (u64(block) * p.part.units + from) * BLOCK_ROWS + row % BLOCK_ROWS;
            copy_16(&to.weights[unit][row], reinterpret_cast<const uint4*>(p.part.codes) + at);
        }
        close_copies();
    }

    __device__ void load(u32 channel) {
        const u32 tall = p.height / p.times, wide = p.width / p.times;
        is_there = 0;
#pragma unroll
        for (u32 i = 0; i < S::OWN_QUADS; ++i) {
            const u32 item = threadIdx.x + i * THREADS, pixel = item / (S::CHANNELS / 4), c = channel + item % (S::CHANNELS / 4) * 4;
            // Above and left of the picture they wrap to what lies far behind it.
            const u32 row = y / p.times + pixel / S::COLUMNS - S::REACH, column = x / p.times + pixel % S::COLUMNS - S::REACH;
            quads[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (item >= S::QUADS || row >= tall || column >= wide) continue;
            quads[i] = *reinterpret_cast<const float4*>(p.x.data + u64(row * wide + column) * p.x.row_stride + c);
            is_there |= 1u << i;
        }
    }

    // Norms and splits what `load` has brought; around the picture there are zeros behind the norm.
    __device__ void store(Stage<KERNEL>& to, u32 channel) const {
#pragma unroll
        for (u32 i = 0; i < S::OWN_QUADS; ++i) {
            const u32 item = threadIdx.x + i * THREADS, pixel = item / (S::CHANNELS / 4), quad = item % (S::CHANNELS / 4);
            if (item >= S::QUADS) break;
            float4 v = quads[i];
            if (p.affine != nullptr && (is_there >> i & 1)) {
                const float4 factor = reinterpret_cast<const float4*>(p.affine + channel)[quad];
                const float4 offset = reinterpret_cast<const float4*>(p.affine + p.channels + channel)[quad];
                v = make_float4(fmaf(factor.x, v.x, offset.x), fmaf(factor.y, v.y, offset.y), fmaf(factor.z, v.z, offset.z),
                                fmaf(factor.w, v.w, offset.w));
                if (p.silu) v = make_float4(silu(v.x), silu(v.y), silu(v.z), silu(v.w));
            }
            const uint2 high = make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
            const auto rest = [](float a, float b, u32 near) {
                return bf16_pair(a - __uint_as_float(near << 16), b - __uint_as_float(near & 0xffff0000u));
            };
            reinterpret_cast<uint2*>(to.inputs + S::place(pixel, quad / 2))[quad % 2] = high;
            reinterpret_cast<uint2*>(to.inputs + S::place(pixel, quad / 2 + S::UNITS))[quad % 2] =
                make_uint2(rest(v.x, v.y, high.x), rest(v.z, v.w, high.y));
        }
    }
};

template <u32 KERNEL>
__device__ __forceinline__ void run(const Conv2dParams& p) {
    using S = Shape<KERNEL>;
    DYNAMIC_SHARED(memory);
    Stage<KERNEL>* const stages = reinterpret_cast<Stage<KERNEL>*>(memory);
    let_next_start();
    Work<KERNEL> work(p);
    work.bring_weights(stages[0], 0);
    wait_for_previous();
    work.load(0);
    work.store(stages[0], 0);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const u32 own_row = warp / 2 * OWN_ROWS, own_output = warp % 2 * OWN_PIECES * 8;
    u32 columns[KERNEL];
#pragma unroll
    for (u32 i = 0; i < KERNEL; ++i) columns[i] = work.source(lane % 16 + i);
    float sums[OWN_ROWS][OWN_PIECES][4] = {};
    u32 now = 0;
#pragma unroll 1
    for (u32 channel = 0; channel < p.channels; channel += S::CHANNELS, now ^= 1) {
        wait_for_copies<0>();
        // What follows goes where everybody has read.
        __syncthreads();
        const bool more = channel + S::CHANNELS < p.channels;
        if (more) {
            work.bring_weights(stages[now ^ 1], channel + S::CHANNELS);
            work.load(channel + S::CHANNELS);
        }
        const Stage<KERNEL>& stage = stages[now];
#pragma unroll 1
        for (u32 down = 0; down < KERNEL; ++down) {
            u32 rows[OWN_ROWS];
#pragma unroll
            for (u32 i = 0; i < OWN_ROWS; ++i) rows[i] = work.source(own_row + i + down) * S::COLUMNS;
#pragma unroll
            for (u32 step = 0; step < KERNEL * (S::CHANNELS / 16); ++step) {
                const u32 across = step / (S::CHANNELS / 16), k = step % (S::CHANNELS / 16);
                u32 a[OWN_ROWS][2][4];
#pragma unroll
                for (u32 i = 0; i < 2 * OWN_ROWS; ++i) {
                    const u32 pixel = rows[i / 2] + columns[across];
                    const uint4 v = spread_rows(stage.inputs + S::place(pixel, 2 * k + lane / 16 + i % 2 * S::UNITS));
                    u32(&to)[4] = a[i / 2][i % 2];
                    to[0] = v.x;
                    to[1] = v.y;
                    to[2] = v.z;
                    to[3] = v.w;
                }
#pragma unroll
                for (u32 j = 0; j < OWN_PIECES; j += 2) {
                    const u32 row = own_output + 8 * j + lane / 16 * 8 + lane % 8;
                    const uint4 b = spread_rows(&stage.weights[(down * KERNEL + across) * S::UNITS + 2 * k + lane / 8 % 2][row]);
#pragma unroll
                    for (u32 term = 2; term-- > 0;) {
#pragma unroll
                        for (u32 i = 0; i < OWN_ROWS; ++i) {
                            multiply_bf16(sums[i][j], a[i][term], b.x, b.y);
                            multiply_bf16(sums[i][j + 1], a[i][term], b.z, b.w);
                        }
                    }
                }
            }
        }
        if (more) work.store(stages[now ^ 1], channel + S::CHANNELS);
    }
#pragma unroll
    for (u32 i = 0; i < OWN_ROWS * OWN_PIECES * 4; ++i) {
        const u32 r = i / 4 / OWN_PIECES, j = i / 4 % OWN_PIECES, e = i % 4;
        const u32 row = work.y + own_row + r, column = work.x + g + 8 * (e / 2), output = work.output + own_output + 8 * j + 2 * t + e % 2;
        if (row >= p.height || column >= p.width || output >= p.part.rows) continue;
        const u32 pixel = row * p.width + column;
        float v = sums[r][j][e] + p.bias[output];
        if (p.residual.data != nullptr) v += *at(p.residual, pixel, output);
        p.out[u64(pixel) * p.out_stride + output] = v;
    }
}

}  // namespace

#define CONV2D_PIECES(KERNEL)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 2) conv2d_pieces_k##KERNEL(const __grid_constant__ Conv2dParams p) { \
        run<KERNEL>(p);                                                                                                     \
    }

CONV2D_PIECES(1)
CONV2D_PIECES(3)
#endif
