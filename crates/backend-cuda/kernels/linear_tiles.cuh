// A piece of a product on the matrix units: 32 weight rows a pair of tiles, 8 activation rows a tile, a record of 128 columns at
// a time. The same results as in `linear.cuh`, bit for bit.
//
// Codes go from memory straight into the registers that the matrix units read: a lane unpacks 32 neighbouring columns of four
// rows. The columns of a record may be taken in any order, as long as codes and activations agree: lane t of four has columns
// 32 t.. of both. Sums of a group are integers; they begin at a number that makes the finished sum a float by its bits, with the
// center of the codes already taken off, so that a sum costs two instructions: times the scale, and onto the sum of the
// slice. So a scale is that of a whole record and short enough for its product with that number to be exact: f16 or bf16 (in bf16
// below 2^104: one above gives no number). Other parts take `linear_grouped.cuh`.
#pragma once

#include "linear.cuh"

namespace tiles {

// Integers below 2^22 are the bits of this float plus themselves.
constexpr i32 MAGIC_BITS = 0x4b400000;
constexpr float MAGIC = 12582912.0f;

// Twice the code that means zero.
template <u32 BITS>
constexpr i32 CENTER = BITS == 4 ? 16 : BITS;

// One record of N activation rows in shared memory. 16-byte units of a row are exchanged so that eight rows lie in different banks.
template <u32 N, bool NINE>
struct alignas(16) Record {
    uint4 codes[N][8];
    u32 low[NINE ? N : 1][4];
    // What the sums of a group begin at, twice for each two rows as the matrix units take them, and what they are multiplied by.
    i32 start[N / 2][4];
    float step[N];

    __device__ static u32 place(u32 row, u32 unit) { return unit ^ (row % 8); }
};

// What goes with a record beside its codes, on its way from memory, record by record: a lane has one row.
template <u32 BITS, bool NINE>
struct Share {
    const int4* sums_at;
    const uint4* low_at;
    const float* step_at;
    int4 sums;
    uint4 low;
    float step;

    __device__ Share(const Prepared& x, u32 row) {
        const u64 piece = u64(row) * (x.padded / 32);
        sums_at = reinterpret_cast<const int4*>(x.sums + piece);
        low_at = reinterpret_cast<const uint4*>(x.low + piece);
        step_at = x.scales + u64(row) * (x.padded / GROUP);
    }

    __device__ void load() {
        sums = *sums_at++;
        if (NINE) low = *low_at++;
        step = *step_at++;
    }

    template <u32 N>
    __device__ void store(Record<N, NINE>& to, u32 row) const {
        const i32 start = MAGIC_BITS - CENTER<BITS> * (sums.x + sums.y + sums.z + sums.w);
        to.start[row / 2][row % 2] = to.start[row / 2][row % 2 + 2] = start;
        to.step[row] = step;
        if (NINE) *reinterpret_cast<uint4*>(to.low[row]) = low;
    }
};

// 16 rows of a block of a part.
struct Tile {
    const Part* part;
    u32 block;
    u32 first;
};

// Codes of one record of the lane's four rows, and their scales as stored.
template <u32 BITS>
struct Codes {
    u32 words[4][BITS];
    u16 scales[4];

    // The lane's part of a row's units, which lie `stride` bytes apart.
    static __device__ u32 place(u32 stride) {
        const u32 t = threadIdx.x % 4;
        return BITS * t / 4 * stride + 4 * BITS * t % 16;
    }

    __device__ void take(u32 row, const u8* from) {
        if (BITS == 1) {
            words[row][0] = *reinterpret_cast<const u32*>(from);
        } else if (BITS == 2) {
            const uint2 two = *reinterpret_cast<const uint2*>(from);
            words[row][0] = two.x;
            words[row][1 % BITS] = two.y;
        } else {
            const uint4 four = *reinterpret_cast<const uint4*>(from);
            words[row][0] = four.x;
            words[row][1 % BITS] = four.y;
            words[row][2 % BITS] = four.z;
            words[row][3 % BITS] = four.w;
        }
    }

    // Twice the codes of the lane's columns 4 k.. as bytes.
    __device__ u32 doubled(u32 row, u32 k) const {
        constexpr u32 MASK = ((1u << BITS) - 1) * 0x02020202u;
        const u32 word = words[row][k * BITS / 8], shift = k % (8 / BITS) * BITS;
        return (shift > 0 ? word >> (shift - 1) : word << 1) & MASK;
    }
};

// How a pair of tiles reads its scales.
struct Scaling {
    float factor[2];
    bool is_half[2];

    Scaling() = default;

    __device__ explicit Scaling(const Tile (&tiles)[2]) {
#pragma unroll
        for (u32 m = 0; m < 2; ++m) {
            factor[m] = tiles[m].part->factor;
            is_half[m] = tiles[m].part->scale_type == PARAM_F16;
        }
    }

    __device__ float operator()(u32 m, u16 stored) const {
        return factor[m] * (is_half[m] ? half_value(stored) : bf16_value(stored));
    }
};

// Codes and scales of a pair of tiles in shared memory, one record.
template <u32 BITS>
struct alignas(16) Weights {
    // Units are padded, so that those of a row lie in different banks.
    uint4 codes[BITS][BLOCK_ROWS + 2];
    u16 scales[BLOCK_ROWS];

    __device__ void take(Codes<BITS>& to) const {
        const u32 g = threadIdx.x % WARP / 4;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            to.take(i, reinterpret_cast<const u8*>(&codes[0][g + 8 * i]) + Codes<BITS>::place(sizeof(codes[0])));
            to.scales[i] = scales[g + 8 * i];
        }
    }
};

// A warp's copies of them, record by record.
template <u32 BITS>
struct WeightCopies {
    const u8* codes;
    const u8* scales;

    __device__ WeightCopies(const Tile (&tiles)[2], u32 record) {
        const u32 lane = threadIdx.x % WARP;
        const Tile& tile = tiles[lane / 16];
        const u64 unit = u64(tile.block) * tile.part->units + record * BITS;
        codes = tile.part->codes + (unit * BLOCK_ROWS + tile.first + lane % 16) * 16;
        // Four lanes have eight scales each.
        const Tile& other = tiles[lane / 2 % 2];
        const u64 group = u64(other.block) * other.part->groups + record;
        scales = other.part->scales + (group * BLOCK_ROWS + other.first + lane % 2 * 8) * 2;
    }

    __device__ void bring(Weights<BITS>& to) {
        const u32 lane = threadIdx.x % WARP;
#pragma unroll
        for (u32 u = 0; u < BITS; ++u) copy_16(&to.codes[u][lane], codes + u * 16 * BLOCK_ROWS);
        if (lane < 4) copy_16(to.scales + 8 * lane, scales);
        codes += 16 * BLOCK_ROWS * BITS;
        scales += 2 * BLOCK_ROWS;
    }
};

// The sums of PAIRS pairs of weight tiles and TILES activation tiles, as the matrix units spread them: [activation tile][weight
// tile][place].
template <u32 BITS, bool NINE, u32 TILES, u32 PAIRS = 1>
struct Product {
    float sum[TILES][2 * PAIRS][4];

    __device__ void clear() {
#pragma unroll
        for (u32 i = 0; i < 8 * TILES * PAIRS; ++i) sum[i / (8 * PAIRS)][i / 4 % (2 * PAIRS)][i % 4] = 0.0f;
    }

    // The pair of tiles `i` from number `first` of activation tiles on.
    template <u32 COUNT>
    __device__ void part(u32 pair, u32 first, float (&out)[COUNT][2][4]) const {
#pragma unroll
        for (u32 i = 0; i < 8 * COUNT; ++i) out[i / 8][i / 4 % 2][i % 4] = sum[first + i / 8][2 * pair + i / 4 % 2][i % 4];
    }

    // One record, of activation rows from `column` on.
    template <u32 N>
    __device__ void add(
        const Record<N, NINE>& record, u32 column, const Codes<BITS> (&codes)[PAIRS], const Scaling (&scaling)[PAIRS]
    ) {
        const u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
        u32 a[2 * PAIRS][4][4];
        float scale[4 * PAIRS], less[4 * PAIRS];
#pragma unroll
        for (u32 i = 0; i < 4 * PAIRS; ++i) {
#pragma unroll
            for (u32 k = 0; k < 8; ++k) a[i / 2][k / 2][i % 2 + 2 * (k % 2)] = codes[i / 4].doubled(i % 4, k);
            scale[i] = scaling[i / 4](i / 2 % 2, codes[i / 4].scales[i % 4]);
            less[i] = -MAGIC * scale[i];
        }
        // So many tiles side by side that the matrix units need not wait for a sum that is under way.
        constexpr u32 TOGETHER = 2;
#pragma unroll
        for (u32 n = 0; n < TILES; n += TOGETHER) {
            u32 b[TOGETHER][8];
            i32 d[TOGETHER][2 * PAIRS][4], start[TOGETHER][4];
#pragma unroll
            for (u32 j = 0; j < TOGETHER; ++j) {
                const u32 row = column + 8 * (n + j) + g, pair = column + 8 * (n + j) + 2 * t;
                const uint4 first = record.codes[row][record.place(row, 2 * t)];
                const uint4 second = record.codes[row][record.place(row, 2 * t + 1)];
                const u32 all[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
                for (u32 k = 0; k < 8; ++k) b[j][k] = all[k];
                const int4 begin = *reinterpret_cast<const int4*>(record.start[pair / 2]);
                start[j][0] = begin.x;
                start[j][1] = begin.y;
                start[j][2] = begin.z;
                start[j][3] = begin.w;
            }
            const i32 zero[4] = {0, 0, 0, 0};
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
#pragma unroll
                for (u32 j = 0; j < TOGETHER; ++j) {
#pragma unroll
                    for (u32 m = 0; m < 2 * PAIRS; ++m) {
                        if (k == 0 && NINE) {
                            multiply_pieces(d[j][m], a[m][k], b[j][0], b[j][1], zero);
                        } else if (k == 0) {
                            multiply_pieces(d[j][m], a[m][k], b[j][0], b[j][1], start[j]);
                        } else {
                            multiply_pieces(d[j][m], a[m][k], b[j][2 * k], b[j][2 * k + 1]);
                        }
                    }
                }
            }
            if (NINE) add_lowest(record, column + 8 * n, a, start, d);
#pragma unroll
            for (u32 j = 0; j < TOGETHER; ++j) {
                const float2 step = *reinterpret_cast<const float2*>(record.step + column + 8 * (n + j) + 2 * t);
#pragma unroll
                for (u32 m = 0; m < 2 * PAIRS; ++m) {
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) {
                        const u32 i = 2 * m + e / 2;
                        const float term = fmaf(__int_as_float(d[j][m][e]), scale[i], less[i]);
                        sum[n + j][m][e] = fmaf(e % 2 == 0 ? step.x : step.y, term, sum[n + j][m][e]);
                    }
                }
            }
        }
    }

    // Nine-bit values are twice the code and the lowest bit.
    template <u32 N, u32 TOGETHER>
    static __device__ void add_lowest(
        const Record<N, NINE>& record, u32 column, const u32 (&a)[2 * PAIRS][4][4], const i32 (&start)[TOGETHER][4],
        i32 (&d)[TOGETHER][2 * PAIRS][4]
    ) {
#pragma unroll
        for (u32 j = 0; j < TOGETHER; ++j) {
            const u32 low = record.low[NINE ? column + 8 * j + threadIdx.x % WARP / 4 : 0][threadIdx.x % 4];
#pragma unroll
            for (u32 m = 0; m < 2 * PAIRS; ++m) {
#pragma unroll
                for (u32 e = 0; e < 4; ++e) d[j][m][e] = 2 * d[j][m][e] + start[j][e];
#pragma unroll
                for (u32 k = 0; k < 4; ++k) {
                    multiply_pieces(d[j][m], a[m][k], low >> 2 * k & 0x01010101u, low >> (2 * k + 1) & 0x01010101u);
                }
            }
        }
    }
};

// The residuals of one weight row for one activation row, the first of `x`.
template <u32 BITS, bool NINE>
__device__ __forceinline__ float residuals(const Prepared& x, const Tile& tile, u32 row) {
    using Narrow = linear::Packed<linear::Integers<BITS, NINE, 1>, 1>;
    return Narrow::residuals(x, linear::Block{*tile.part, tile.block, tile.first + row});
}

// Finished sums of a warp's pair of tiles, on their way out: a row of activations each.
template <u32 N>
using Finished = float[N][WARP];

// Puts sums there: a lane has a weight row then.
template <u32 TILES>
__device__ __forceinline__ void spread(const float (&sum)[TILES][2][4], Finished<8 * TILES>& to) {
    const u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (u32 i = 0; i < 8 * TILES; ++i) {
        const u32 n = i / 8, m = i / 4 % 2, e = i % 4;
        to[8 * n + 2 * t + e % 2][16 * m + 8 * (e / 2) + g] = sum[n][m][e];
    }
}

// Adds what is left and stores: 32 weight rows of `count` rows from `column` on, or 16 of gate and of up. `x` begins at row `first`.
template <u32 BITS, bool NINE, u32 N>
__device__ __forceinline__ void finish(
    const LinearParams& p, const Prepared& x, u32 first, u32 column, u32 count, const Tile (&tiles)[2], const Finished<N>& sums
) {
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    const u32 lane = threadIdx.x % WARP, width = gated ? WARP / 2 : WARP, row = lane % width;
    const Tile& tile = tiles[row / 16];
    const u32 in_part = tile.block * BLOCK_ROWS + tile.first + row % 16, c = tile.part->first_row + in_part;
    if (in_part >= tile.part->rows) return;
    const bool bare = tile.part->residual_first == nullptr && tiles[1].part->residual_first == nullptr;
    float* out = p.out + u64(first + column) * p.out_stride + c;
    const float* added = p.epilogue == EPILOGUE_RESIDUAL ? at(p.residual, first + column, c) : nullptr;
    // Some rows together, so that what is added to them is on its way at once.
    constexpr u32 TOGETHER = N < 8 ? N : 8;
    const u32 step = WARP / width;
#pragma unroll 1
    for (u32 base = lane / width; base < count; base += TOGETHER * step) {
        float beside[TOGETHER];
#pragma unroll
        for (u32 k = 0; k < TOGETHER; ++k) {
            const u32 i = base + k * step;
            beside[k] = added != nullptr && i < count ? added[u64(i) * p.residual.row_stride] : 0.0f;
        }
#pragma unroll
        for (u32 k = 0; k < TOGETHER; ++k) {
            const u32 i = base + k * step;
            if (i >= count) break;
            float rest[2] = {0.0f, 0.0f};
            if (!bare) {
                const Prepared own = linear::from_row(x, column + i);
                rest[0] = residuals<BITS, NINE>(own, tile, row % 16);
                if (gated) rest[1] = residuals<BITS, NINE>(own, tiles[1], row);
            }
            float y = sums[i][row] + rest[0];
            if (gated) y = silu(y) * (sums[i][16 + row] + rest[1]);
            if (added != nullptr) y += beside[k];
            out[u64(i) * p.out_stride] = y;
        }
    }
}

// The pair of weight tiles with this number among those of the launch: a whole block, or half a block of gate and of up. False
// behind the last, which is then given.
__device__ __forceinline__ bool find(const LinearParams& p, u32 wanted, Tile (&tiles)[2]) {
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    const Part& last = p.parts[gated ? 0 : p.part_count - 1];
    const u32 blocks = last.first_block + (last.rows + BLOCK_ROWS - 1) / BLOCK_ROWS, pairs = gated ? 2 * blocks : blocks;
    const u32 found = min(wanted, pairs - 1);
    if (gated) {
        tiles[0] = Tile{&p.parts[0], found / 2, found % 2 * 16};
        tiles[1] = Tile{&p.parts[1], found / 2, found % 2 * 16};
    } else {
        u32 i = 0;
        while (i + 1 < p.part_count && found >= p.parts[i + 1].first_block) ++i;
        const u32 block = found - p.parts[i].first_block;
        tiles[0] = Tile{&p.parts[i], block, 0};
        tiles[1] = Tile{&p.parts[i], block, 16};
    }
    return wanted == found;
}

}  // namespace tiles
