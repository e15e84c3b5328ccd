// Gate and up of one row as in `linear_stream.cuh`, bit for bit, in less shared memory: it holds the codes alone, while scales and
// digits are in registers. So where a multiprocessor has room for four blocks of that kernel it has room for five of these, and a large
// weight needs no second turn. The code is longer, which costs more than it gives where that is not so.
#pragma once

#include "linear_stream.cuh"

#ifdef BIT_PIECES

namespace lean {

using linear::Block;
using stream::CODE_BYTES;
using stream::QUAD;
using stream::Step;

constexpr u32 SLICES = 8;
constexpr u32 PAIR = 2;

// SHARE records a slice.
template <u32 SHARE>
__device__ __forceinline__ void run(const LinearParams& p) {
    using Narrow = linear::Packed<linear::Integers<1, false, 1>, 1>;
    constexpr u32 ROOM = SLICES * SHARE, STRIDE = BLOCK_ROWS + 1;
    __shared__ stream::Letters<1> letters;
    stream::fetch(p);
    const bool rounds = p.next.planes != nullptr;
    const Part* parts = p.parts;
    const u32 index = blockIdx.x, lane = threadIdx.x % WARP, warp = warp_index(), records = p.x.padded / GROUP;
    DYNAMIC_SHARED(codes);
    Step* steps = reinterpret_cast<Step*>(codes + PAIR * ROOM * CODE_BYTES);
    // Sums of the slices, where codes were.
    float* sums = reinterpret_cast<float*>(codes);
#pragma unroll
    for (u32 b = 0; b < PAIR; ++b) {
        const u8* from = parts[b].codes + u64(index) * records * CODE_BYTES;
        stream::order(codes + b * ROOM * CODE_BYTES, from, records * CODE_BYTES);
    }
    if (!p.alone) let_next_start();
    // The lane gets the sums of rows g and g + 8 of the warp's half, in slice quad + t.
    const u32 g = lane / 4, t = lane % 4, half = warp % 2, quad = warp / 2 * QUAD, own = (quad + t) * SHARE;
    // Scales of both rows as they are stored.
    u32 stored[PAIR][SHARE];
#pragma unroll
    for (u32 b = 0; b < PAIR; ++b) {
        const u16* from = reinterpret_cast<const u16*>(parts[b].scales) + u64(index) * records * BLOCK_ROWS + 16 * half + g;
#pragma unroll
        for (u32 r = 0; r < SHARE; ++r) {
            const u16* at = from + min(own + r, records - 1) * BLOCK_ROWS;
            stored[b][r] = u32(unchanging(at)) | u32(unchanging(at + 8)) << 16;
        }
    }
    if (rounds) {
        if (threadIdx.x == 0) {
            make_barrier(&letters.box);
            expect_bytes(&letters.box, sizeof(letters.largest));
        }
        cluster_start();
    }
    float factor[PAIR];
    bool wide[PAIR];
#pragma unroll
    for (u32 b = 0; b < PAIR; ++b) {
        factor[b] = parts[b].factor;
        wide[b] = parts[b].scale_type == PARAM_BF16;
    }
    const u32 row = index * BLOCK_ROWS + lane;
    // Digits 2 t and 2 t + 1 of record i, bytes 2 i and 2 i + 1 of a pair, count for column 2 i.
    const u32 two = t == 3 ? 0x8040u : 0x0201u << 2 * t;
    const u32 weights[2] = {unknown(g == 0 ? two : g == 2 ? two << 16 : 0), unknown(g == 4 ? two : g == 6 ? two << 16 : 0)};
    const bool has_row = warp == 0 && row < parts[0].rows;
    float gain = 1.0f;
    if (rounds && p.next_gain != nullptr && has_row) gain = p.next_gain[row];
    wait_for_previous();
    u32 plane[SHARE][QUAD];
    const u32* digits = p.x.planes + lane;
#pragma unroll
    for (u32 r = 0; r < SHARE; ++r) {
#pragma unroll
        for (u32 j = 0; j < QUAD; ++j) plane[r][j] = digits[min((quad + j) * SHARE + r, records - 1) * WARP];
    }
    const u32 rows = warp == 0 ? *p.rows : 0;
    constexpr u32 WARPS = SLICES / 2;
#pragma unroll 1
    for (u32 r = WARPS - 1 - warp; r < (records + WARP - 1) / WARP; r += WARPS) {
        const u32 record = r * WARP + lane, at = min(record, records - 1);
        const int4 s = *reinterpret_cast<const int4*>(p.x.sums + 4 * at);
        const float scale = p.x.scales[at];
        const float inverse = p.x.squares == nullptr ? 1.0f : stream::inverse_of(p.x, 0);
        if (record < records) steps[record] = {scale * inverse, s.x + s.y + s.z + s.w};
    }
    close_copies();
    wait_for_copies<0>();
    __syncthreads();
    if (p.alone) let_next_start();
    float sum[PAIR][2] = {};
    const u32 piece = unknown(16 * half + lane % 16 + lane / 16 * SHARE * BLOCK_ROWS);
    const uint4* own_codes = reinterpret_cast<const uint4*>(codes) + quad * SHARE * BLOCK_ROWS + piece;
    const u32 own_records = unknown(max(records, own) - own);
#pragma unroll
    for (u32 r = 0; r < SHARE; ++r) {
        const bool valid = r < own_records;
        const Step step = steps[own + r];
#pragma unroll
        for (u32 b = 0; b < PAIR; ++b) {
            const uint4 first = spread_rows(own_codes + (b * ROOM + r) * BLOCK_ROWS);
            const uint4 second = spread_rows(own_codes + (b * ROOM + 2 * SHARE + r) * BLOCK_ROWS);
            i32 c[QUAD][4], dots[4];
            common_bits(c[0], first.x, first.y, plane[r][0]);
            common_bits(c[1], first.z, first.w, plane[r][1]);
            common_bits(c[2], second.x, second.y, plane[r][2]);
            common_bits(c[3], second.z, second.w, plane[r][3]);
            const u32 bytes[4] = {
                low_bytes(c[0][0], c[0][1], c[1][0], c[1][1]), low_bytes(c[0][2], c[0][3], c[1][2], c[1][3]),
                low_bytes(c[2][0], c[2][1], c[3][0], c[3][1]), low_bytes(c[2][2], c[2][3], c[3][2], c[3][3])};
            weigh_pieces(dots, bytes, weights[0], weights[1]);
#pragma unroll
            for (u32 e = 0; e < 2; ++e) {
                const u16 bits = u16(stored[b][r] >> 16 * e);
                const float scale = factor[b] * (wide[b] ? bf16_value(bits) : half_value(bits));
                const float term = scale * float(2 * dots[2 * e] - step.total);
                if (valid) sum[b][e] = fmaf(step.scale, term, sum[b][e]);
            }
        }
    }
    // All codes have been read.
    __syncthreads();
#pragma unroll
    for (u32 b = 0; b < PAIR; ++b) {
#pragma unroll
        for (u32 e = 0; e < 2; ++e) sums[(b * SLICES + quad + t) * STRIDE + 16 * half + 8 * e + g] = sum[b][e];
    }
    __syncthreads();
    if (rounds) cluster_started();
    if (warp != 0) return;
    const auto finished = [&](u32 b) {
        float total = 0.0f;
#pragma unroll
        for (u32 s = 0; s < SLICES; ++s) total += sums[(b * SLICES + s) * STRIDE + lane];
        return total + Narrow::residuals(linear::from_row(p.x, 0), Block{parts[b], index, lane});
    };
    float y = 0.0f;
    if (has_row && rows > 0) {
        y = finished(0);
        y = silu(y) * finished(1);
        if (p.out != nullptr) p.out[row] = y;
    }
    if (rounds) stream::round<1>(p, letters, 0, row, y, gain);
}

}  // namespace lean

#define LINEAR_LEAN(SHARE)                                                               \
    extern "C" __global__ void __launch_bounds__(128, 5)                                 \
        linear_bits1_lean_pair_##SHARE(const __grid_constant__ LinearParams p) {         \
        lean::run<SHARE>(p);                                                             \
    }

#endif
