// Products of few rows of integers with packed weights whose scales stand for whole records of 128 columns: the same results
// as in `linear.cuh`, bit for bit, near the speed of memory.
//
// The four lanes of a quad share the weight rows g, g + 8, g + 16 and g + 24 of a block, a quarter of a record's columns
// each. So a load of a warp is 128 bytes side by side, and what a lane reads of the activations serves four rows. Three
// exchanges then leave each lane with the exact sum of one row, for which it does what floats there are.
//
// A warp has a slice of the columns. The codes of its next records are on their way while it computes, the first ones before the
// kernel in front has ended.
#pragma once

#include "linear.cuh"

namespace quads {

using linear::Block;
using linear::MOST_SLICES;

// What a lane has of a record of a weight: of each unit one word of four rows.
template <u32 BITS>
struct Codes {
    u32 words[BITS][4];

    // `from`: the lane's first word of the block.
    __device__ void load(const u32* from, u32 record) {
        from += record * (BITS * BLOCK_ROWS * 4);
#pragma unroll
        for (u32 u = 0; u < BITS; ++u) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) words[u][i] = unchanging(from + u * (BLOCK_ROWS * 4) + i * WARP);
        }
    }
};

// The four lanes' sums for four rows each, the `i`-th of them for the `i`-th lane.
__device__ __forceinline__ i32 quad_sum(const i32 (&v)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    const i32 a = (odd ? v[1] : v[0]) + __shfl_xor_sync(ALL_LANES, odd ? v[0] : v[1], 1);
    const i32 b = (odd ? v[3] : v[2]) + __shfl_xor_sync(ALL_LANES, odd ? v[2] : v[3], 1);
    return (high ? b : a) + __shfl_xor_sync(ALL_LANES, high ? a : b, 2);
}

// What a lane reads of a record of activations. `dots` gives its part of the products with four weight rows.
template <u32 BITS, bool NINE>
struct Bytes {
    static constexpr u32 BITS_ = BITS;

    // Columns of a word, and words of activations that they are.
    static constexpr u32 COLUMNS = 32 / BITS;
    static constexpr u32 WORDS = COLUMNS / 4;

    u32 values[BITS][WORDS];
    u32 low[NINE ? BITS : 1];

    static __device__ u32 column(u32 unit) { return (4 * unit + threadIdx.x % 4) * COLUMNS; }

    __device__ void load(const Prepared& x, u32 record) {
#pragma unroll
        for (u32 u = 0; u < BITS; ++u) {
            const i8* at = x.codes + record * GROUP + column(u);
            if (WORDS == 8) {
                const uint4 a = reinterpret_cast<const uint4*>(at)[0], b = reinterpret_cast<const uint4*>(at)[1];
                const u32 all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
                for (u32 k = 0; k < WORDS; ++k) values[u][k] = all[k];
            } else if (WORDS == 4) {
                const uint4 a = *reinterpret_cast<const uint4*>(at);
                const u32 all[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
                for (u32 k = 0; k < WORDS; ++k) values[u][k] = all[k];
            } else {
#pragma unroll
                for (u32 k = 0; k < WORDS; ++k) values[u][k] = reinterpret_cast<const u32*>(at)[k];
            }
            if (NINE) low[u] = x.low[4 * record + column(u) / 32] >> column(u) % 32 / 4;
        }
    }

    __device__ void dots(const Codes<BITS>& codes, i32 (&v)[4]) const {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            i32 sum = 0, odd = 0;
#pragma unroll
            for (u32 u = 0; u < BITS; ++u) {
#pragma unroll
                for (u32 k = 0; k < WORDS; ++k) {
                    const u32 four = linear::four_codes<BITS>(codes.words[u][i], k);
                    sum = add_products(four, values[u][k], sum);
                    if (NINE && BITS > 1) odd = add_products(four, low[u] >> k & 0x01010101u, odd);
                }
                if (NINE && BITS == 1) odd += __popc(codes.words[u][i] & low[u]);
            }
            v[i] = NINE ? 2 * sum + odd : sum;
        }
    }
};

// How one kind of weights is multiplied: `Input` of M rows, codes of AHEAD records on their way. PLAIN: scales of 16 bits
// and no biases.
template <typename Input, u32 M, u32 AHEAD, bool PLAIN>
struct Slice {
    static constexpr u32 BITS = Input::BITS_;
    static constexpr i32 LESS = linear::STORED_LESS<BITS>;

    const Block& block;
    // The lane's own in record 0.
    const u32* first_code;
    const u16* first_scale;
    // Of a product with integers of `2 code - center`.
    i32 center;
    float factor;
    bool wide_exponent;
    Codes<BITS> codes[AHEAD];
    u16 scales[AHEAD];

    __device__ Slice(const Block& block) : block(block) {
        first_code = reinterpret_cast<const u32*>(block.part.codes) +
                     u64(block.index) * block.part.units * (BLOCK_ROWS * 4) + threadIdx.x % WARP;
        first_scale = reinterpret_cast<const u16*>(block.part.scales) + block.group(0);
        center = i32(block.part.center) - 2 * LESS;
        factor = block.part.factor;
        wide_exponent = block.part.scale_type == PARAM_BF16;
    }

    __device__ void load(u32 slot, u32 record) {
        record = unknown(record);
        codes[slot].load(first_code, record);
        if (PLAIN) scales[slot] = unchanging(first_scale + record * BLOCK_ROWS);
    }

    __device__ void begin(u32 first, u32 end) {
#pragma unroll
        for (u32 k = 0; k < AHEAD; ++k) {
            if (first + k < end) load(k, first + k);
        }
    }

    // `xs * (scale * dot + bias * total)` of a record, as in `linear::Integers::close`. `dot` is the lane's own row's.
    __device__ float term(const i32 (&v)[4], i32 sum, u32 record, u32 slot) const {
        if (PLAIN) {
            const i32 off = center * sum;
            const i32 whole[4] = {2 * v[0] - off, 2 * v[1] - off, 2 * v[2] - off, 2 * v[3] - off};
            const float scale = wide_exponent ? bf16_value(scales[slot]) : half_value(scales[slot]);
            return factor * scale * float(quad_sum(whole));
        }
        const Part& part = block.part;
        const i32 dot = quad_sum(v);
        const float scale = parameter(part.scales, part.scale_type, block.group(record));
        i32 total = sum + __shfl_xor_sync(ALL_LANES, sum, 1);
        total += __shfl_xor_sync(ALL_LANES, total, 2);
        if (part.biases == nullptr) return factor * scale * float(2 * dot - center * total);
        const float bias = parameter(part.biases, part.bias_type, block.group(record));
        return fmaf(scale, float(dot + LESS * total), bias * float(total));
    }

    // The records from `first` to `end`, whose codes are on their way.
    __device__ void run(const Prepared& x, u32 first, u32 end, float (&sum)[M]) {
        for (u32 base = first; base < end; base += AHEAD) {
#pragma unroll
            for (u32 k = 0; k < AHEAD; ++k) {
                const u32 record = base + k;
                if (record >= end) break;
#pragma unroll
                for (u32 m = 0; m < M; ++m) {
                    const Prepared row = linear::from_row(x, m);
                    const u32 from = unknown(record);
                    Input input;
                    input.load(row, from);
                    i32 v[4];
                    input.dots(codes[k], v);
                    sum[m] = fmaf(row.scales[from], term(v, row.sums[4 * from + threadIdx.x % 4], record, k), sum[m]);
                }
                if (record + AHEAD < end) load(k, record + AHEAD);
            }
        }
    }
};

// The row of its block whose sums a lane holds.
__device__ __forceinline__ u32 own_row() { return threadIdx.x % WARP / 4 + 8 * (threadIdx.x % 4); }

// One slice of one block, into `out`: [row of activations][row of the block].
template <typename Input, u32 M, u32 AHEAD, bool PLAIN>
__device__ __forceinline__ void slice(
    const Prepared& x, const Block& block, u32 first, u32 end, bool& waited, float (&out)[M][WARP]
) {
    Slice<Input, M, AHEAD, PLAIN> work(block);
    work.begin(first, end);
    if (!waited) wait_for_previous();
    waited = true;
    float sum[M] = {};
    work.run(x, first, end, sum);
#pragma unroll
    for (u32 m = 0; m < M; ++m) out[m][block.lane] = sum[m];
}

// `Narrow` adds the residuals.
template <typename Input, typename Narrow, u32 M, u32 AHEAD>
__device__ __forceinline__ void run(const LinearParams& p) {
    // Of two products where they are gate and up.
    __shared__ float sums[2 * MOST_SLICES][M][WARP];
    let_next_start();
    const u32 first = blockIdx.y * M, warps = blockDim.x / WARP;
    if (first > 0 && first >= *p.rows) {
        wait_for_previous();
        return;
    }
    u32 i = 0;
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    while (!gated && i + 1 < p.part_count && blockIdx.x >= p.parts[i + 1].first_block) ++i;
    const Part& part = p.parts[i];
    const u32 index = blockIdx.x - part.first_block;
    const Prepared x = linear::from_row(p.x, first);
    const u32 records = x.padded / GROUP, share = (records + p.slices - 1) / p.slices;
    bool waited = false;
    for (u32 job = threadIdx.x / WARP; job < (gated ? 2 : 1) * p.slices; job += warps) {
        const u32 s = job % p.slices;
        const Part& own = job < p.slices ? part : p.parts[1];
        const Block block{own, index, own_row()};
        const u32 start = min(s * share, records), end = min(start + share, records);
        if (own.biases == nullptr && own.scale_type != PARAM_F32) {
            slice<Input, M, AHEAD, true>(x, block, start, end, waited, sums[job]);
        } else {
            slice<Input, M, 1, false>(x, block, start, end, waited, sums[job]);
        }
    }
    if (!waited) wait_for_previous();
    __syncthreads();
    // Rows behind the last one were computed of what lies behind them.
    const u32 m = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = index * BLOCK_ROWS + lane;
    if (m >= M || first + m >= *p.rows || row >= part.rows) return;
    const auto finished = [&](u32 job, const Part& of) {
        float total = 0.0f;
        for (u32 s = 0; s < p.slices; ++s) total += sums[job + s][m][lane];
        return total + Narrow::residuals(linear::from_row(x, m), Block{of, index, lane});
    };
    float y = finished(0, part);
    if (gated) y = silu(y) * finished(p.slices, p.parts[1]);
    const u32 r = first + m, column = part.first_row + row;
    if (p.epilogue == EPILOGUE_RESIDUAL) y += *at(p.residual, r, column);
    p.out[u64(r) * p.out_stride + column] = y;
}

template <u32 BITS, bool NINE>
using Narrow = linear::Packed<linear::Integers<BITS, NINE, 1>, 1>;

}  // namespace quads

#define LINEAR_QUADS(NAME, BITS, NINE, M, AHEAD, ...)                            \
    extern "C" __global__ void __launch_bounds__(512, M == 1 ? 2 : 1)           \
        linear_##NAME##_quads_m##M(const __grid_constant__ LinearParams p) {     \
        quads::run<__VA_ARGS__, quads::Narrow<BITS, NINE>, M, AHEAD>(p);         \
    }

// Both kinds of integers.
#define LINEAR_QUADS_BYTES(NAME, BITS, M, AHEAD)                                          \
    LINEAR_QUADS(NAME##_i8, BITS, false, M, AHEAD, quads::Bytes<BITS, false>)             \
    LINEAR_QUADS(NAME##_i9, BITS, true, M, AHEAD, quads::Bytes<BITS, true>)
