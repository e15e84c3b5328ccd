// Products of few rows with 1-bit codes whose scales stand for whole records of 128 columns, at the speed of memory: the same
// results as in `linear.cuh`, bit for bit. Scales have 16 bits, and there are no biases.
//
// A thread block has one block of 32 weight rows (of two weights, where they are gate and up). It orders all their codes and
// scales into shared memory at once, before the kernel in front has ended: what is on its way takes no registers, and a
// multiprocessor has room for some hundred kilobytes of it.
//
// A warp has 16 of the rows and four slices of the columns, of which it takes a record each at a time. The matrix units take
// the codes as they are stored: eight columns of theirs are the eight binary digits of one activation row. A second product on the
// matrix units weighs and adds the digits of four records; it leaves each lane with the sums of two rows, in the slice of its
// place in its quad, whose records so come to it in ascending order.
#pragma once

#include "conv.cuh"
#include "linear.cuh"

#ifdef BIT_PIECES

namespace stream {

using linear::Block;
using linear::MOST_SLICES;

// A record of one block, and of one activation row.
constexpr u32 CODE_BYTES = BLOCK_ROWS * 16;
constexpr u32 SCALE_BYTES = BLOCK_ROWS * 2;
constexpr u32 PLANE_BYTES = GROUP;

// Slices of a warp.
constexpr u32 QUAD = 4;

// Factor and sum of a record of activations.
struct Step {
    float scale;
    i32 total;
};

// `1 / rms` of row `m` of an input that has yet to be divided by it, by one warp.
__device__ __forceinline__ float inverse_of(const Prepared& x, u32 m) {
    const u32 lane = threadIdx.x % WARP, count = x.cols / 32;
    const float* squares = x.squares + m * (x.padded / 32);
    float sum = 0.0f;
    constexpr u32 TOGETHER = 5;
    for (u32 base = lane; base < count; base += TOGETHER * WARP) {
        float v[TOGETHER];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; ++i) v[i] = base + i * WARP < count ? squares[base + i * WARP] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < TOGETHER; ++i) sum += v[i];
    }
    sum = warp_sum(sum);
    float scale = 1.0f;
    if (sum == infinity()) {
        scale = DOWN;
        sum = row_squares(x.raw + u64(m) * x.raw_stride, count, DOWN);
    }
    return inverse_root(sum, float(x.cols), x.eps, scale);
}

// What the blocks of a cluster tell each other: the largest magnitude of each one's 32 values of a row.
template <u32 M>
struct Letters {
    u64 box;
    float largest[M][GROUP / BLOCK_ROWS];
};

// Rounds a row's value `y` of weight row `column` as the next product's input. The blocks of a group are a cluster; one warp of
// each has the row.
template <u32 M>
__device__ __forceinline__ void round(const LinearParams& p, Letters<M>& letters, u32 m, u32 column, float y, float gain) {
    const Prepared& x = p.next;
    const u32 lane = threadIdx.x % WARP, rank = cluster_rank();
    const float v = y * gain;
    float largest = warp_max(fabsf(v));
    if (!__all_sync(ALL_LANES, is_finite(v))) largest = infinity();
    if (lane < GROUP / BLOCK_ROWS) send(&letters.largest[m][rank], &letters.box, lane, largest);
    const float square = warp_sum(y * y);
    wait_for_arrivals(&letters.box);
    largest = 0.0f;
#pragma unroll
    for (u32 i = 0; i < GROUP / BLOCK_ROWS; ++i) largest = fmaxf(largest, letters.largest[m][i]);
    const float limit = 127.0f, scale = largest < infinity() ? largest / limit : not_a_number();
    const i32 q = rounded(v, scale > 0.0f ? 1.0f / scale : 0.0f, limit);
    i32 sum = q;
#pragma unroll
    for (u32 offset = 1; offset < WARP; offset *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    // Value e stands at bit e / 4 + 8 * (e % 4).
    const i32 placed = __shfl_sync(ALL_LANES, q, 4 * (lane % 8) + lane / 8);
    u32 plane = 0;
#pragma unroll
    for (u32 digit = 0; digit < 8; ++digit) {
        const u32 bits = __ballot_sync(ALL_LANES, placed >> digit & 1);
        if (lane == digit) plane = bits;
    }
    const u32 block = column / BLOCK_ROWS, group = column / GROUP;
    if (lane < 8) x.planes[m * (x.padded / 4) + group * WARP + 4 * lane + rank] = plane;
    if (lane != 0) return;
    x.sums[m * (x.padded / 32) + block] = sum;
    if (x.squares != nullptr) x.squares[m * (x.padded / 32) + block] = square;
    if (rank == 0) x.scales[m * (x.padded / GROUP) + group] = scale;
}

// Orders `bytes` bytes of weights into shared memory, by the whole block.
__device__ __forceinline__ void order(u8* to, const u8* from, u32 bytes) {
#pragma unroll 1
    for (u32 at = 16 * threadIdx.x; at < bytes; at += 16 * blockDim.x) start_copy(to + at, from + at);
}

// The parameters of a launch come from memory at their first use; all of them together before they are needed.
__device__ __forceinline__ void fetch(const LinearParams& p) {
    const u32* words = reinterpret_cast<const u32*>(&p);
#pragma unroll
    for (u32 line = 0; line < sizeof(LinearParams) / 64; ++line) asm volatile("" ::"r"(words[16 * line]));
}

// BLOCKS: 2 where gate and up are multiplied together, else 1. Two warps for every four slices, and M at least.
template <u32 M, u32 BLOCKS>
__device__ __forceinline__ void run(const LinearParams& p) {
    using Narrow = linear::Packed<linear::Integers<1, false, 1>, 1>;
    __shared__ float sums[BLOCKS][MOST_SLICES][M][BLOCK_ROWS + 1];
    __shared__ Letters<M> letters;
    fetch(p);
    const bool rounds = p.next.planes != nullptr;
    u32 i = 0;
    while (BLOCKS == 1 && i + 1 < p.part_count && blockIdx.x >= p.parts[i + 1].first_block) ++i;
    const Part* parts = p.parts + i;
    const u32 index = blockIdx.x - parts[0].first_block, lane = threadIdx.x % WARP, warp = warp_index();
    const u32 records = p.x.padded / GROUP, share = (records + p.slices - 1) / p.slices;
    // Whole slices: behind the last record anything may lie, which is read and left out.
    const u32 room = p.slices * share;
    DYNAMIC_SHARED(codes);
    u8* scales = codes + BLOCKS * room * CODE_BYTES;
    Step* steps = reinterpret_cast<Step*>(scales + BLOCKS * room * SCALE_BYTES);
    u8* planes = reinterpret_cast<u8*>(steps + M * room);
#pragma unroll
    for (u32 b = 0; b < BLOCKS; ++b) {
        order(codes + b * room * CODE_BYTES, parts[b].codes + u64(index) * records * CODE_BYTES, records * CODE_BYTES);
        order(scales + b * room * SCALE_BYTES, parts[b].scales + u64(index) * records * SCALE_BYTES, records * SCALE_BYTES);
    }
    if (!p.alone) let_next_start();
    if (rounds) {
        if (threadIdx.x == 0) {
            make_barrier(&letters.box);
            expect_bytes(&letters.box, sizeof(letters.largest));
        }
        cluster_start();
    }
    float factor[BLOCKS];
    bool wide[BLOCKS];
#pragma unroll
    for (u32 b = 0; b < BLOCKS; ++b) {
        factor[b] = parts[b].factor;
        wide[b] = parts[b].scale_type == PARAM_BF16;
    }
    // The lane gets the sums of rows g and g + 8 of the warp's half, in slice quad + t.
    const u32 g = lane / 4, t = lane % 4, half = warp % 2, quad = warp / 2 * QUAD;
    const u32 own = (quad + t) * share;
    // What a convolution behind it needs beside the result.
    const bool convolves = M == 1 && BLOCKS == 1 && p.conv.weight != nullptr;
    const u32 row = index * BLOCK_ROWS + lane, column = parts[0].first_row + row, channels = p.conv.x.heads * p.conv.x.dim;
    const bool is_channel = convolves && warp == 0 && row < parts[0].rows && column < channels;
    Channel::OneOfFour taps;
    if (is_channel) {
        const Segment segment = p.conv.step.segments[0];
        const Channel c{p.conv, segment, column, channels};
        if (p.conv.step.header->rows > 0 && c.is_one_of_four()) taps.load(c);
    }
    // Digits 2 t and 2 t + 1 of record i, bytes 2 i and 2 i + 1 of a pair, count for column 2 i.
    const u32 two = t == 3 ? 0x8040u : 0x0201u << 2 * t;
    const u32 weights[2] = {unknown(g == 0 ? two : g == 2 ? two << 16 : 0), unknown(g == 4 ? two : g == 6 ? two << 16 : 0)};
    float gain = 1.0f;
    if (rounds && warp < M && p.next_gain != nullptr && row < parts[0].rows) gain = p.next_gain[column];
    wait_for_previous();
    // Rows behind the last one are computed of what lies behind them.
    if (M == 1) {
        for (u32 at = 16 * threadIdx.x; at < records * PLANE_BYTES; at += 16 * blockDim.x) {
            start_copy(planes + at, reinterpret_cast<const u8*>(p.x.planes) + at);
        }
    }
    // Of many blocks that ask for one number, few warps need it.
    const u32 m = warp, rows = m < M ? *p.rows : 0;
    const bool has_row = m < M && row < parts[0].rows;
    float residual = 0.0f;
    // A single row is there even where the step has none.
    if (has_row && (M == 1 || m < rows) && p.epilogue == EPILOGUE_RESIDUAL) residual = *at(p.residual, m, column);
    // A warp a row, as far as there are warps; the last ones first, since the others have rows to finish.
    const u32 warps = blockDim.x / WARP;
#pragma unroll 1
    for (u32 r = warps - 1 - warp; r < M * ((records + WARP - 1) / WARP); r += warps) {
        const u32 of = r % M, record = r / M * WARP + lane, at = min(record, records - 1);
        const int4 s = *reinterpret_cast<const int4*>(p.x.sums + of * (p.x.padded / 32) + 4 * at);
        const float scale = p.x.scales[of * (p.x.padded / GROUP) + at];
        const float inverse = p.x.squares == nullptr ? 1.0f : inverse_of(p.x, of);
        if (record < records) steps[of * room + record] = {scale * inverse, s.x + s.y + s.z + s.w};
    }
    close_copies();
    wait_for_copies<0>();
    __syncthreads();
    if (p.alone) let_next_start();
    float sum[BLOCKS][M][2] = {};
    // Where the lane's row lies that `spread_rows` is told: of the first of two records, then of the second.
    const u32 piece = unknown(16 * half + lane % 16 + lane / 16 * share * BLOCK_ROWS);
    const uint4* own_codes = reinterpret_cast<const uint4*>(codes) + quad * share * BLOCK_ROWS + piece;
    const u16* own_scales = reinterpret_cast<const u16*>(scales) + own * BLOCK_ROWS + 16 * half + g;
    const u32* own_planes = reinterpret_cast<const u32*>(planes) + quad * share * WARP + lane;
    const Step* own_steps = steps + own;
    // More warps than slices need have rows to finish.
    const u32 turns = quad < p.slices ? share : 0, own_records = unknown(max(records, own) - own);
#pragma unroll 1
    for (u32 r = 0; r < turns; ++r) {
        const bool valid = r < own_records;
        u32 plane[M][QUAD];
#pragma unroll
        for (u32 k = 0; k < M; ++k) {
#pragma unroll
            for (u32 j = 0; j < QUAD; ++j) {
                const u32 record = min((quad + j) * share + r, records - 1);
                plane[k][j] = M == 1 ? own_planes[j * share * WARP] : p.x.planes[k * (p.x.padded / 4) + record * WARP + lane];
            }
        }
#pragma unroll
        for (u32 b = 0; b < BLOCKS; ++b) {
            const uint4 first = spread_rows(own_codes + b * room * BLOCK_ROWS);
            const uint4 second = spread_rows(own_codes + (b * room + 2 * share) * BLOCK_ROWS);
            const u16* stored = own_scales + b * room * BLOCK_ROWS;
            float scale[2];
#pragma unroll
            for (u32 k = 0; k < 2; ++k) {
                scale[k] = factor[b] * (wide[b] ? bf16_value(stored[8 * k]) : half_value(stored[8 * k]));
            }
#pragma unroll
            for (u32 k = 0; k < M; ++k) {
                i32 c[QUAD][4], dots[4];
                common_bits(c[0], first.x, first.y, plane[k][0]);
                common_bits(c[1], first.z, first.w, plane[k][1]);
                common_bits(c[2], second.x, second.y, plane[k][2]);
                common_bits(c[3], second.z, second.w, plane[k][3]);
                const u32 bytes[4] = {
                    low_bytes(c[0][0], c[0][1], c[1][0], c[1][1]), low_bytes(c[0][2], c[0][3], c[1][2], c[1][3]),
                    low_bytes(c[2][0], c[2][1], c[3][0], c[3][1]), low_bytes(c[2][2], c[2][3], c[3][2], c[3][3])};
                weigh_pieces(dots, bytes, weights[0], weights[1]);
                const Step step = own_steps[k * room];
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    const float term = scale[e] * float(2 * dots[2 * e] - step.total);
                    if (valid) sum[b][k][e] = fmaf(step.scale, term, sum[b][k][e]);
                }
            }
        }
        own_codes += BLOCK_ROWS;
        own_scales += BLOCK_ROWS;
        own_planes += WARP;
        own_steps += 1;
    }
#pragma unroll
    for (u32 b = 0; b < BLOCKS; ++b) {
#pragma unroll
        for (u32 k = 0; k < M; ++k) {
#pragma unroll
            for (u32 e = 0; e < 2; ++e) sums[b][quad + t][k][16 * half + 8 * e + g] = sum[b][k][e];
        }
    }
    __syncthreads();
    if (rounds) cluster_started();
    if (m >= M) return;
    // A copy: behind every store what the segment says would be read anew.
    Segment segment = {};
    if (is_channel) segment = p.conv.step.segments[0];
    const auto finished = [&](u32 b) {
        float total = 0.0f;
#pragma unroll 4
        for (u32 s = 0; s < p.slices; ++s) total += sums[b][s][m][lane];
        return total + Narrow::residuals(linear::from_row(p.x, m), Block{parts[b], index, lane});
    };
    float y = 0.0f;
    if (has_row && m < rows) {
        y = finished(0);
        if (BLOCKS == 2) y = silu(y) * finished(BLOCKS - 1);
        if (p.epilogue == EPILOGUE_RESIDUAL) y += residual;
        if (p.out != nullptr) p.out[u64(m) * p.out_stride + column] = y;
        if (is_channel) {
            const Channel c{p.conv, segment, column, channels, true, y};
            if (c.is_one_of_four()) taps.finish(c, y);
            else c.only_row();
        }
    }
    if (rounds) round<M>(p, letters, m, column, y, gain);
}

}  // namespace stream

#define LINEAR_STREAM(M)                                                                           \
    extern "C" __global__ void __launch_bounds__(256, M >= 4 ? 2 : 4)                              \
        linear_bits1_stream_m##M(const __grid_constant__ LinearParams p) {                         \
        stream::run<M, 1>(p);                                                                      \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, M >= 4 ? 2 : 4)                              \
        linear_bits1_stream_pair_m##M(const __grid_constant__ LinearParams p) {                    \
        stream::run<M, 2>(p);                                                                      \
    }

#endif
