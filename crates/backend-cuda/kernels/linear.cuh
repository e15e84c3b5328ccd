// Products over weights that stay packed: y = epilogue(x W^T), for few rows at a time.
//
// A warp computes one block of 32 weight rows, a row a lane, so nothing is exchanged inside it: the codes of the lanes
// lie side by side, and all lanes read the same activations. The warps of a thread block share the columns: the records of 128
// columns fall into `slices` equal slices. The order of every row's sum is thereby fixed: groups in ascending order inside a
// slice, then the slices in order. The number of slices is a function of the width alone (`launch.rs`).
#pragma once

#include "common.cuh"

namespace linear {

// Most slices of a row, and the warps that share them.
constexpr u32 MOST_SLICES = 16;
constexpr u32 WARPS = 8;

// Thread blocks that a multiprocessor should hold at least: bounds the registers, which the compiler would fill with
// loads.
constexpr u32 blocks(u32 rows) { return rows >= 4 ? 1 : 2; }

// Codes that are loaded together: at least a 16-byte unit, at least 32 columns.
template <u32 BITS>
struct Chunk {
    static constexpr u32 UNITS = BITS == 8 ? 2 : 1;
    static constexpr u32 WORDS = 4 * UNITS;
    // Pieces of 32 columns.
    static constexpr u32 PIECES = WORDS / BITS;
    static constexpr u32 PER_RECORD = 4 / PIECES;

    uint4 units[UNITS];

    __device__ void words(u32 (&words)[WORDS]) const {
#pragma unroll
        for (u32 u = 0; u < UNITS; ++u) {
            words[4 * u] = units[u].x;
            words[4 * u + 1] = units[u].y;
            words[4 * u + 2] = units[u].z;
            words[4 * u + 3] = units[u].w;
        }
    }
};

// The 32 rows of a block of a part, one of them this lane's.
struct Block {
    const Part& part;
    u32 index;
    u32 lane;

    __device__ const uint4* units(u32 first) const {
        return reinterpret_cast<const uint4*>(part.codes) + (u64(index) * part.units + first) * BLOCK_ROWS + lane;
    }

    __device__ u64 group(u32 g) const { return (u64(index) * part.groups + g) * BLOCK_ROWS + lane; }
};

// One byte a code: four neighbouring columns, `k`-th of a word. Eight bits are signed, `code - 128`.
template <u32 BITS>
__device__ __forceinline__ u32 four_codes(u32 word, u32 k) {
    if (BITS == 8) return word;
    return word >> (BITS * k) & (((1u << BITS) - 1) * 0x01010101u);
}

// What is taken off a code before it is stored.
template <u32 BITS>
constexpr i32 STORED_LESS = BITS == 8 ? 128 : 0;

// ---- integer activations -------------------------------------------------------------------------------------------

// Adds the products of 32 columns, the `piece`-th: `words` are BITS words of codes.
template <u32 BITS, bool NINE, u32 M>
__device__ __forceinline__ void integer_dots(const Prepared& x, const u32* words, u32 piece, i32 (&dot)[M]) {
    u32 codes[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) codes[i] = four_codes<BITS>(words[i * BITS / 8], i % (8 / BITS));
    const u8* values = reinterpret_cast<const u8*>(x.codes) + 32 * piece;
#pragma unroll
    for (u32 m = 0; m < M; ++m, values += x.padded) {
        const uint4 a = reinterpret_cast<const uint4*>(values)[0], b = reinterpret_cast<const uint4*>(values)[1];
        const u32 q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        i32 sum = 0;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) sum = add_products(codes[i], q[i], sum);
        if (NINE) {
            // The values are 2 q + low.
            sum *= 2;
            const u32 low = x.low[m * (x.padded / 32) + piece];
            if (BITS == 1) {
                sum += __popc(words[0] & low);
            } else {
#pragma unroll
                for (u32 i = 0; i < 8; ++i) sum = add_products(codes[i], low >> i & 0x01010101u, sum);
            }
        }
        dot[m] += sum;
    }
}

// Inputs as rounded integers: what a group has summed up.
template <u32 BITS_, bool NINE, u32 M>
struct Integers {
    static constexpr u32 BITS = BITS_;

    i32 dot[M] = {};
    i32 total[M] = {};

    __device__ void add(const Prepared& x, const u32* words, u32 piece) {
        integer_dots<BITS, NINE, M>(x, words, piece, dot);
#pragma unroll
        for (u32 m = 0; m < M; ++m) total[m] += x.sums[m * (x.padded / 32) + piece];
    }

    // Adds `xs * (scale * dot + bias * total)` of group `g` to the sums and begins anew.
    __device__ void close(const Prepared& x, const Block& block, u32 g, float (&sum)[M]) {
        const Part& part = block.part;
        const float scale = parameter(part.scales, part.scale_type, block.group(g));
        const bool affine = part.biases != nullptr;
        const float bias = affine ? parameter(part.biases, part.bias_type, block.group(g)) : 0.0f;
        const float* step = x.scales + g * part.group / GROUP;
#pragma unroll
        for (u32 m = 0; m < M; ++m, step += x.padded / GROUP) {
            float term;
            if (affine) {
                term = fmaf(scale, float(dot[m] + STORED_LESS<BITS> * total[m]), bias * float(total[m]));
            } else {
                // 2 code - center is an integer, too.
                const i32 center = i32(part.center) - 2 * STORED_LESS<BITS>;
                term = part.factor * scale * float(2 * dot[m] - center * total[m]);
            }
            sum[m] = fmaf(*step, term, sum[m]);
            dot[m] = 0;
            total[m] = 0;
        }
    }

    // `residual * sum(x)` of a group in row 0.
    static __device__ float residual(const Prepared& x, u32 g, u32 size, float value) {
        i32 total = 0;
#pragma unroll 1
        for (u32 i = 0; i < size / 32; ++i) total += x.sums[g * size / 32 + i];
        return x.scales[g * size / GROUP] * (value * float(total));
    }
};

// ---- float activations ---------------------------------------------------------------------------------------------

template <u32 BITS_, u32 M>
struct Floats {
    static constexpr u32 BITS = BITS_;

    float dot[M] = {};
    float total[M] = {};

    __device__ void add(const Prepared& x, const u32* words, u32 piece) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const u32 codes = four_codes<BITS>(words[i * BITS / 8], i % (8 / BITS));
            float w[4];
#pragma unroll
            for (u32 j = 0; j < 4; ++j) w[j] = BITS == 8 ? float(i8(codes >> 8 * j)) : float(u8(codes >> 8 * j));
            const float* values = x.floats + 32 * piece + 4 * i;
#pragma unroll
            for (u32 m = 0; m < M; ++m, values += x.padded) {
                const float4 v = *reinterpret_cast<const float4*>(values);
                dot[m] = fmaf(w[0], v.x, dot[m]);
                dot[m] = fmaf(w[1], v.y, dot[m]);
                dot[m] = fmaf(w[2], v.z, dot[m]);
                dot[m] = fmaf(w[3], v.w, dot[m]);
            }
        }
#pragma unroll
        for (u32 m = 0; m < M; ++m) total[m] += x.float_sums[m * (x.padded / 32) + piece];
    }

    __device__ void close(const Prepared&, const Block& block, u32 g, float (&sum)[M]) {
        const Part& part = block.part;
        const float scale = parameter(part.scales, part.scale_type, block.group(g));
        const bool affine = part.biases != nullptr;
        const float bias = affine ? parameter(part.biases, part.bias_type, block.group(g)) : 0.0f;
#pragma unroll
        for (u32 m = 0; m < M; ++m) {
            if (affine) {
                const float codes = fmaf(float(STORED_LESS<BITS>), total[m], dot[m]);
                sum[m] += fmaf(scale, codes, bias * total[m]);
            } else {
                const float center = float(i32(part.center) - 2 * STORED_LESS<BITS>);
                sum[m] += part.factor * scale * fmaf(-center, total[m], 2.0f * dot[m]);
            }
            dot[m] = 0.0f;
            total[m] = 0.0f;
        }
    }

    static __device__ float residual(const Prepared& x, u32 g, u32 size, float value) {
        float total = 0.0f;
        for (u32 i = 0; i < size / 32; ++i) total += x.float_sums[g * size / 32 + i];
        return value * total;
    }
};

// ---- whole kernels -------------------------------------------------------------------------------------------------

// Packed weights, with `Inputs` of M rows.
template <typename Inputs, u32 M>
struct Packed {
    using Codes = Chunk<Inputs::BITS>;

    static __device__ Codes load(const Block& block, u32 chunk) {
        Codes codes;
#pragma unroll
        for (u32 u = 0; u < Codes::UNITS; ++u) codes.units[u] = unchanging(block.units(chunk * Codes::UNITS + u));
        return codes;
    }

    // The records from `first` to `end`.
    static __device__ void slice(const Prepared& x, const Block& block, u32 first, u32 end, float (&sum)[M]) {
        Inputs inputs;
        const u32 stop = end * Codes::PER_RECORD;
        Codes next = {};
        if (first < end) next = load(block, first * Codes::PER_RECORD);
        for (u32 chunk = first * Codes::PER_RECORD; chunk < stop; ++chunk) {
            u32 words[Codes::WORDS];
            next.words(words);
            // The next codes are on their way while these are computed.
            if (chunk + 1 < stop) next = load(block, chunk + 1);
#pragma unroll
            for (u32 i = 0; i < Codes::PIECES; ++i) {
                const u32 piece = chunk * Codes::PIECES + i;
                inputs.add(x, words + i * Inputs::BITS, piece);
                const u32 columns = (piece + 1) * 32;
                if (columns % block.part.group == 0) inputs.close(x, block, columns / block.part.group - 1, sum);
            }
        }
    }

    // The residuals of this lane's row for row 0 of `x`, in the order of its groups.
    static __device__ float residuals(const Prepared& x, const Block& block) {
        float sum = 0.0f;
        if (block.part.residual_first == nullptr) return sum;
        const u32 end = block.part.residual_first[block.index + 1];
#pragma unroll 1
        for (u32 e = block.part.residual_first[block.index]; e < end; ++e) {
            const Residual residual = block.part.residuals[e];
            if (residual.place % BLOCK_ROWS != block.lane) continue;
            sum += Inputs::residual(x, residual.place / BLOCK_ROWS, block.part.group, residual.value);
        }
        return sum;
    }
};

// Dense weights of type `FORMAT`; they always meet floats.
template <u32 FORMAT, u32 M>
struct Dense {
    static constexpr u32 PER_UNIT = FORMAT == DENSE_F32 ? 4 : 8;

    static __device__ void slice(const Prepared& x, const Block& block, u32 first, u32 end, float (&sum)[M]) {
        const u32 stop = min(end * (GROUP / PER_UNIT), block.part.units);
#pragma unroll(M == 8 ? 1 : 4)
        for (u32 u = first * (GROUP / PER_UNIT); u < stop; ++u) {
            const uint4 unit = unchanging(block.units(u));
            const u32 words[4] = {unit.x, unit.y, unit.z, unit.w};
            float w[PER_UNIT];
#pragma unroll
            for (u32 i = 0; i < PER_UNIT; ++i) {
                if (FORMAT == DENSE_F32) {
                    w[i] = __uint_as_float(words[i]);
                } else {
                    const u16 bits = u16(words[i / 2] >> 16 * (i % 2));
                    w[i] = FORMAT == DENSE_F16 ? half_value(bits) : bf16_value(bits);
                }
            }
            const float* values = x.floats + u * PER_UNIT;
#pragma unroll
            for (u32 m = 0; m < M; ++m, values += x.padded) {
#pragma unroll
                for (u32 i = 0; i < PER_UNIT; i += 4) {
                    const float4 v = *reinterpret_cast<const float4*>(values + i);
                    sum[m] = fmaf(w[i], v.x, sum[m]);
                    sum[m] = fmaf(w[i + 1], v.y, sum[m]);
                    sum[m] = fmaf(w[i + 2], v.z, sum[m]);
                    sum[m] = fmaf(w[i + 3], v.w, sum[m]);
                }
            }
        }
    }

    static __device__ float residuals(const Prepared&, const Block&) { return 0.0f; }
};

// Prepared activations from row `first` on.
__device__ __forceinline__ Prepared from_row(Prepared x, u32 first) {
    x.floats += u64(first) * x.padded;
    x.float_sums += u64(first) * (x.padded / 32);
    x.codes += u64(first) * x.padded;
    x.low += u64(first) * (x.padded / 32);
    x.planes += u64(first) * (x.padded / 4);
    x.scales += u64(first) * (x.padded / GROUP);
    x.sums += u64(first) * (x.padded / 32);
    return x;
}

// The same from record `first` on.
__device__ __forceinline__ Prepared from_record(Prepared x, u32 first) {
    x.floats += u64(first) * GROUP;
    x.float_sums += 4 * u64(first);
    x.codes += u64(first) * GROUP;
    x.low += 4 * u64(first);
    x.planes += u64(first) * (GROUP / 4);
    x.scales += first;
    x.sums += 4 * u64(first);
    return x;
}

// The finished sums of one block: of the activation row and the weight row of this thread. All M rows of `x` are read;
// there is memory behind the last.
template <typename Kind, u32 M>
__device__ __forceinline__ float product(
    const Prepared& x, const Part& part, u32 index, u32 slices, float (&sums)[MOST_SLICES][M][WARP]
) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const Block block{part, index, lane};
    const u32 records = x.padded / GROUP;
    const u32 slice = (records + slices - 1) / slices;
    // What an earlier call left has been read.
    __syncthreads();
    for (u32 s = warp; s < slices; s += WARPS) {
        float sum[M] = {};
        Kind::slice(x, block, min(s * slice, records), min((s + 1) * slice, records), sum);
#pragma unroll
        for (u32 m = 0; m < M; ++m) sums[s][m][lane] = sum[m];
    }
    __syncthreads();
    float total = 0.0f;
    if (warp < M) {
        for (u32 s = 0; s < slices; ++s) total += sums[s][warp][lane];
        total += Kind::residuals(from_row(x, warp), block);
    }
    return total;
}

template <typename Kind, u32 M>
__device__ __forceinline__ void run(const LinearParams& p) {
    __shared__ float sums[MOST_SLICES][M][WARP];
    let_next_start();
    wait_for_previous();
    const u32 count = *p.rows, first = blockIdx.y * M;
    if (first >= count) return;
    u32 i = 0;
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    while (!gated && i + 1 < p.part_count && blockIdx.x >= p.parts[i + 1].first_block) ++i;
    const Part& part = p.parts[i];
    const u32 index = blockIdx.x - part.first_block;
    const Prepared x = from_row(p.x, first);
    float y = product<Kind, M>(x, part, index, p.slices, sums);
    if (gated) y = silu(y) * product<Kind, M>(x, p.parts[1], index, p.slices, sums);
    const u32 m = threadIdx.x / WARP, row = index * BLOCK_ROWS + threadIdx.x % WARP;
    if (m >= M || first + m >= count || row >= part.rows) return;
    const u32 r = first + m, column = part.first_row + row;
    if (p.epilogue == EPILOGUE_RESIDUAL) y += *at(p.residual, r, column);
    p.out[u64(r) * p.out_stride + column] = y;
}

}  // namespace linear

#define LINEAR(NAME, M, ...)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, linear::blocks(M))                                            \
        linear_##NAME##_m##M(const __grid_constant__ LinearParams p) {                                              \
        linear::run<__VA_ARGS__, M>(p);                                                                             \
    }

// One kind of packed weights with every kind of activations.
#define LINEAR_PACKED(NAME, BITS, M)                                          \
    LINEAR(NAME##_f32, M, linear::Packed<linear::Floats<BITS, M>, M>)         \
    LINEAR(NAME##_i8, M, linear::Packed<linear::Integers<BITS, false, M>, M>) \
    LINEAR(NAME##_i9, M, linear::Packed<linear::Integers<BITS, true, M>, M>)
