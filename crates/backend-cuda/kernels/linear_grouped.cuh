// The same for parts whose scales are of smaller groups or of 32 bits, or that have biases: results as in `linear.cuh`, bit
// for bit.
//
// A thread block has COLUMNS activation rows, which its warps share through shared memory, and eight blocks of 32 weight
// rows, one a warp. Codes are unpacked in registers, straight into the shape that the matrix units take. Sums of a group
// are integers; groups, slices and residuals are added as in the narrow kernels.
#pragma once

#include "linear.cuh"

namespace grouped {

using linear::Block;

constexpr u32 WARPS = 8;
constexpr u32 COLUMNS = 32;
constexpr u32 TILES = COLUMNS / 8;

// One number for each weight row and activation row of a warp, as the matrix units spread them: [16 weight rows][8
// activation rows][place].
template <typename T>
using Spread = T[2][TILES][4];

// One record of 128 columns of COLUMNS activation rows.
struct Record {
    // One unit of padding: eight rows lie in eight different places of the banks.
    uint4 codes[COLUMNS][9];
    u32 low[COLUMNS][4];
    // Sums of the first 32, 64, 96 and 128 columns.
    i32 sums[COLUMNS][4];
    float scales[COLUMNS];
};

// A thread's share of a record, on its way from memory.
template <bool NINE>
struct Share {
    uint4 codes;
    uint4 low;
    int4 sums;
    float scale;

    __device__ void load(const Prepared& x, u32 record, u32 count) {
        const u32 thread = threadIdx.x, row = thread / 8;
        codes = make_uint4(0, 0, 0, 0);
        if (row < count) {
            codes = reinterpret_cast<const uint4*>(x.codes + u64(row) * x.padded + record * GROUP)[thread % 8];
        }
        if (thread >= count) return;
        const u64 piece = u64(thread) * (x.padded / 32) + 4 * record;
        sums = *reinterpret_cast<const int4*>(x.sums + piece);
        if (NINE) low = *reinterpret_cast<const uint4*>(x.low + piece);
        scale = x.scales[u64(thread) * (x.padded / GROUP) + record];
    }

    __device__ void store(Record& to, u32 count) const {
        const u32 thread = threadIdx.x;
        to.codes[thread / 8][thread % 8] = codes;
        if (thread >= count) return;
        to.sums[thread][0] = sums.x;
        to.sums[thread][1] = sums.x + sums.y;
        to.sums[thread][2] = sums.x + sums.y + sums.z;
        to.sums[thread][3] = sums.x + sums.y + sums.z + sums.w;
        to.scales[thread] = scale;
        if (!NINE) return;
        to.low[thread][0] = low.x;
        to.low[thread][1] = low.y;
        to.low[thread][2] = low.z;
        to.low[thread][3] = low.w;
    }
};

// Exact below 2^22, and cheaper than a conversion.
__device__ __forceinline__ float small_float(i32 x) { return __int_as_float(x + 0x4b400000) - 12582912.0f; }

// Bytes of codes for the matrix units: columns 4 t.. and 16 + 4 t.. of 32 columns, whose BITS words these are.
template <u32 BITS>
__device__ __forceinline__ void unpack(const u32* words, u32 t, u32& first, u32& second) {
    if (BITS == 4) {
        first = linear::four_codes<4>(t < 2 ? words[0] : words[1], t % 2);
        second = linear::four_codes<4>(t < 2 ? words[2] : words[3], t % 2);
    } else {
        first = linear::four_codes<BITS>(words[0], t);
        second = linear::four_codes<BITS>(words[BITS / 2], BITS == 1 ? t + 4 : t);
    }
}

// A unit of codes of the lane's four weight rows.
struct Unit {
    uint4 rows[4];

    __device__ void load(const Block& block, u32 unit, u32 g) {
        const uint4* from = reinterpret_cast<const uint4*>(block.part.codes) +
                            (u64(block.index) * block.part.units + unit) * BLOCK_ROWS + g;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) rows[i] = unchanging(from + 8 * i);
    }
};

template <u32 BITS, bool NINE>
struct Product {
    const Block& block;
    u32 g;
    u32 t;
    Spread<i32> dot;
    Spread<float> sum;

    __device__ Product(const Block& block) : block(block), g(threadIdx.x % WARP / 4), t(threadIdx.x % 4) {}

    // Adds the products of 32 columns, the `piece`-th of the record; `words` of the lane's four rows.
    __device__ void add(const Record& record, u32 piece, const u32 (&words)[4][BITS]) {
        u32 a[2][4];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            unpack<BITS>(words[2 * i], t, a[i][0], a[i][2]);
            unpack<BITS>(words[2 * i + 1], t, a[i][1], a[i][3]);
        }
        if (NINE) {
            // Values are 2 q + low: twice the code times q, and the code times the lowest bit.
#pragma unroll
            for (u32 n = 0; n < TILES; ++n) {
                const u32 low = record.low[8 * n + g][piece];
                const u32 b0 = low >> t & 0x01010101u, b1 = low >> (t + 4) & 0x01010101u;
                multiply_pieces(dot[0][n], a[0], b0, b1);
                multiply_pieces(dot[1][n], a[1], b0, b1);
            }
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                a[0][i] *= 2;
                a[1][i] *= 2;
            }
        }
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
            const u32* b = reinterpret_cast<const u32*>(record.codes[8 * n + g]) + 8 * piece + t;
            multiply_pieces(dot[0][n], a[0], b[0], b[4]);
            multiply_pieces(dot[1][n], a[1], b[0], b[4]);
        }
    }

    // Closes group `group` of the weight, which ends behind piece `piece` of the record.
    __device__ void close(const Record& record, u32 piece, u32 group) {
        const Part& part = block.part;
        const bool affine = part.biases != nullptr;
        const u32 before = piece + 1 - part.group / 32;
        const u64 at = (u64(block.index) * part.groups + group) * BLOCK_ROWS + g;
        float scale[4], bias[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            scale[i] = parameter(part.scales, part.scale_type, at + 8 * i);
            bias[i] = affine ? parameter(part.biases, part.bias_type, at + 8 * i) : 0.0f;
            if (!affine) scale[i] *= part.factor;
        }
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
#pragma unroll
            for (u32 e = 0; e < 2; ++e) {
                const u32 column = 8 * n + 2 * t + e;
                const i32 total = record.sums[column][piece] - (before > 0 ? record.sums[column][before - 1] : 0);
                const float step = record.scales[column];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    i32& d = dot[i / 2][n][i % 2 * 2 + e];
                    float& s = sum[i / 2][n][i % 2 * 2 + e];
                    const float term = affine ? fmaf(scale[i], small_float(d), bias[i] * small_float(total))
                                              : scale[i] * small_float(2 * d - i32(part.center) * total);
                    s = fmaf(step, term, s);
                    d = 0;
                }
            }
        }
    }

    // One record, whose first unit `unit` is there already; leaves the first unit of the next one in its place.
    __device__ void compute(const Record& record, u32 r, Unit& unit, bool more) {
#pragma unroll
        for (u32 u = 0; u < BITS; ++u) {
            const Unit now = unit;
            if (u + 1 < BITS || more) unit.load(block, r * BITS + u + 1, g);
#pragma unroll
            for (u32 i = 0; i < 4 / BITS; ++i) {
                const u32 piece = u * 4 / BITS + i;
                u32 words[4][BITS];
#pragma unroll
                for (u32 row = 0; row < 4; ++row) {
                    const u32 all[4] = {now.rows[row].x, now.rows[row].y, now.rows[row].z, now.rows[row].w};
#pragma unroll
                    for (u32 j = 0; j < BITS; ++j) words[row][j] = all[i * BITS + j];
                }
                add(record, piece, words);
                const u32 columns = r * GROUP + (piece + 1) * 32;
                if (columns % block.part.group == 0) close(record, piece, columns / block.part.group - 1);
            }
        }
    }
};

// The finished sums of the warp's block, without residuals. All warps of the thread block come here together.
template <u32 BITS, bool NINE>
__device__ __forceinline__ void product(
    const Prepared& x, const Block& block, u32 count, u32 slices, Record (&records)[2], Spread<float>& total
) {
    const u32 end = x.padded / GROUP, slice = (end + slices - 1) / slices;
    Product<BITS, NINE> work(block);
#pragma unroll
    for (u32 i = 0; i < 8 * TILES; ++i) {
        total[i / 4 / TILES][i / 4 % TILES][i % 4] = 0.0f;
        work.sum[i / 4 / TILES][i / 4 % TILES][i % 4] = 0.0f;
        work.dot[i / 4 / TILES][i / 4 % TILES][i % 4] = 0;
    }
    Share<NINE> share;
    Unit unit;
    share.load(x, 0, count);
    unit.load(block, 0, work.g);
    // What an earlier product left has been read.
    __syncthreads();
    share.store(records[0], count);
    __syncthreads();
    for (u32 r = 0; r < end; ++r) {
        // The next record is on its way while this one is computed.
        const bool more = r + 1 < end;
        if (more) share.load(x, r + 1, count);
        work.compute(records[r % 2], r, unit, more);
        if (more) share.store(records[(r + 1) % 2], count);
        __syncthreads();
        if ((r + 1) % slice != 0 && more) continue;
#pragma unroll
        for (u32 i = 0; i < 8 * TILES; ++i) {
            float& s = work.sum[i / 4 / TILES][i / 4 % TILES][i % 4];
            total[i / 4 / TILES][i / 4 % TILES][i % 4] += s;
            s = 0.0f;
        }
    }
}

template <u32 BITS, bool NINE>
__device__ __forceinline__ void run(const LinearParams& p) {
    using Narrow = linear::Packed<linear::Integers<BITS, NINE, 1>, 1>;
    __shared__ Record records[2];
    let_next_start();
    wait_for_previous();
    const u32 first = blockIdx.y * COLUMNS;
    if (first >= *p.rows) return;
    const u32 count = min(*p.rows - first, COLUMNS), lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    // Warps behind the last block repeat it, since all are needed to bring records, and store nothing.
    const Part& last = p.parts[gated ? 0 : p.part_count - 1];
    const u32 blocks = last.first_block + (last.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const u32 wanted = blockIdx.x * WARPS + threadIdx.x / WARP, found = min(wanted, blocks - 1);
    u32 i = 0;
    while (!gated && i + 1 < p.part_count && found >= p.parts[i + 1].first_block) ++i;
    const Part& part = p.parts[i];
    const Prepared x = linear::from_row(p.x, first);
    const Block block{part, found - part.first_block, lane};
    Spread<float> y, up;
    product<BITS, NINE>(x, block, count, p.slices, records, y);
    const Block other{p.parts[1], block.index, lane};
    if (gated) product<BITS, NINE>(x, other, count, p.slices, records, up);
    if (wanted != found) return;
#pragma unroll
    for (u32 j = 0; j < 8 * TILES; ++j) {
        const u32 m = j / 4 / TILES, n = j / 4 % TILES, place = j % 4;
        const u32 in_block = 16 * m + 8 * (place / 2) + g, row = block.index * BLOCK_ROWS + in_block;
        const u32 column = 8 * n + 2 * t + place % 2;
        if (column >= count || row >= part.rows) continue;
        const Prepared own = linear::from_row(x, column);
        float value = y[m][n][place] + Narrow::residuals(own, Block{part, block.index, in_block});
        if (gated) {
            value = silu(value) * (up[m][n][place] + Narrow::residuals(own, Block{other.part, block.index, in_block}));
        }
        const u32 r = first + column, c = part.first_row + row;
        if (p.epilogue == EPILOGUE_RESIDUAL) value += *at(p.residual, r, c);
        p.out[u64(r) * p.out_stride + c] = value;
    }
}

}  // namespace grouped
