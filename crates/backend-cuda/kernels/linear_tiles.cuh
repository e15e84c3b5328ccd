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
        sums = __ldg(sums_at++);
        if (NINE) low = __ldg(low_at++);
        step = __ldg(step_at++);
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

// Codes and scales of a pair of tiles straight from memory, record by record.
template <u32 BITS>
struct Source {
    const u8* codes[2];
    const u16* scales[2];

    Source() = default;

    __device__ Source(const Tile (&tiles)[2], u32 record) {
        const u32 g = threadIdx.x % WARP / 4;
#pragma unroll
        for (u32 m = 0; m < 2; ++m) {
            const Part& part = *tiles[m].part;
            const u32 row = tiles[m].first + g;
            const u64 unit = u64(tiles[m].block) * part.units + record * BITS;
            codes[m] = part.codes + (unit * BLOCK_ROWS + row) * 16 + Codes<BITS>::place(16 * BLOCK_ROWS);
            const u64 group = u64(tiles[m].block) * part.groups + record;
            scales[m] = reinterpret_cast<const u16*>(part.scales) + group * BLOCK_ROWS + row;
        }
    }

    __device__ void load(Codes<BITS>& to) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            to.take(i, codes[i / 2] + 128 * (i % 2));
            to.scales[i] = __ldg(scales[i / 2] + 8 * (i % 2));
        }
#pragma unroll
        for (u32 m = 0; m < 2; ++m) {
            codes[m] += 16 * BLOCK_ROWS * BITS;
            scales[m] += BLOCK_ROWS;
        }
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

    __device__ explicit WeightCopies(const Tile (&tiles)[2]) {
        const u32 lane = threadIdx.x % WARP;
        const Tile& tile = tiles[lane / 16];
        codes = tile.part->codes + (u64(tile.block) * tile.part->units * BLOCK_ROWS + tile.first + lane % 16) * 16;
        // Four lanes have eight scales each.
        const Tile& other = tiles[lane / 2 % 2];
        scales = other.part->scales + (u64(other.block) * other.part->groups * BLOCK_ROWS + other.first + lane % 2 * 8) * 2;
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

// The sums of a pair of weight tiles and TILES activation tiles, as the matrix units spread them: [activation tile][weight
// tile][place].
template <u32 BITS, bool NINE, u32 TILES>
struct Product {
    float sum[TILES][2][4];

    __device__ void clear() {
#pragma unroll
        for (u32 i = 0; i < 8 * TILES; ++i) sum[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }

    // Two bytes-of-four times the columns of one activation tile; `d` begins at `start`.
    template <u32 FIRST, u32 LAST>
    static __device__ void multiply(i32 (&d)[4], const u32 (&a)[4][4], const u32 (&b)[8], const i32 (&start)[4]) {
        multiply_pieces(d, a[FIRST], b[2 * FIRST], b[2 * FIRST + 1], start);
#pragma unroll
        for (u32 k = FIRST + 1; k < LAST; ++k) multiply_pieces(d, a[k], b[2 * k], b[2 * k + 1], d);
    }

    // One record.
    __device__ void add(const Record<8 * TILES, NINE>& record, const Codes<BITS>& codes, const Scaling& scaling) {
        const u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
        u32 a[2][4][4];
        float scale[4], less[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
#pragma unroll
            for (u32 k = 0; k < 8; ++k) a[i / 2][k / 2][i % 2 + 2 * (k % 2)] = codes.doubled(i, k);
            scale[i] = scaling(i / 2, codes.scales[i]);
            less[i] = -MAGIC * scale[i];
        }
#pragma unroll
        for (u32 n = 0; n < TILES; ++n) {
            const u32 row = 8 * n + g;
            const uint4 first = record.codes[row][record.place(row, 2 * t)];
            const uint4 second = record.codes[row][record.place(row, 2 * t + 1)];
            const u32 b[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
            const int4 begin = *reinterpret_cast<const int4*>(record.start[4 * n + t]);
            const float2 step = *reinterpret_cast<const float2*>(record.step + 8 * n + 2 * t);
            const i32 start[4] = {begin.x, begin.y, begin.z, begin.w}, zero[4] = {0, 0, 0, 0};
            const u32 low = record.low[NINE ? row : 0][t];
#pragma unroll
            for (u32 m = 0; m < 2; ++m) {
                i32 d[4];
                multiply<0, 4>(d, a[m], b, NINE ? zero : start);
                if (NINE) {
                    // Values are 2 q + low.
                    u32 bits[8];
#pragma unroll
                    for (u32 k = 0; k < 8; ++k) bits[k] = low >> k & 0x01010101u;
#pragma unroll
                    for (u32 e = 0; e < 4; ++e) d[e] = 2 * d[e] + start[e];
                    multiply<0, 4>(d, a[m], bits, d);
                }
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    const u32 i = 2 * m + e / 2;
                    const float term = fmaf(__int_as_float(d[e]), scale[i], less[i]);
                    sum[n][m][e] = fmaf(e % 2 == 0 ? step.x : step.y, term, sum[n][m][e]);
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
#pragma unroll 1
    for (u32 i = lane / width; i < count; i += WARP / width) {
        const Prepared own = linear::from_row(x, column + i);
        const u32 r = first + column + i;
        float y = sums[i][row] + residuals<BITS, NINE>(own, tile, row % 16);
        if (gated) y = silu(y) * (sums[i][16 + row] + residuals<BITS, NINE>(own, tiles[1], row));
        if (p.epilogue == EPILOGUE_RESIDUAL) y += *at(p.residual, r, c);
        p.out[u64(r) * p.out_stride + c] = y;
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
