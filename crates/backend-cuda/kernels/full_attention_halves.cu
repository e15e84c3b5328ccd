// Softmax attention between all rows of a step on the matrix units, as exact as with floats: every query, key, value and weight is the
// sum of two numbers of half precision, 22 bits, and three of the four products are added. `largest_halves` and
// `split_halves` bring queries, keys and values into that form once; then a thread block has 64 queries of one head and goes over all
// keys once, 32 at a time, without a matrix of all pairs.
//
// Numbers are multiplied with a power of two first, one for each head of queries, keys and values, so that the largest is near 2^14:
// what a half cannot hold is then below 2^-38 of it. Heads wider than 128 come in chunks, and have their values in slices of
// as many, by the third dimension of the grid.
#include "common.cuh"

#ifdef PIECES_OF_16_BITS

namespace {

constexpr u32 WARPS = 4;
constexpr u32 THREADS = WARPS * WARP;
// Queries of a warp and of a block, keys of a tile.
constexpr u32 OWN = 16;
constexpr u32 QUERIES = WARPS * OWN;
constexpr u32 KEYS = 32;
// Pieces of keys or values in shared memory: one that is read, others on their way.
constexpr u32 STAGES = 4;
// Rows of a block of the kernels that split.
constexpr u32 SPLIT_ROWS = 64;
constexpr u32 SPLIT_THREADS = 256;

// Values `first..` of a head of a row, zeros behind its dimension.
__device__ __forceinline__ float4 four(const View& view, u32 row, u32 head, u32 first) {
    const float* from = view.data + u64(row) * view.row_stride + head * view.head_stride + first;
    if (first + 4 <= view.dim && reinterpret_cast<u64>(from) % 16 == 0) return *reinterpret_cast<const float4*>(from);
    float v[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) v[i] = first + i < view.dim ? from[i] : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

__device__ __forceinline__ const View& view_of(const HalvesParams& p, u32 which) {
    return which == 0 ? p.q : which == 1 ? p.k : p.v;
}

// The power of two that brings a number with these bits near 2^14; no number where it is none.
__device__ __forceinline__ float lift(u32 largest) {
    const u32 exponent = largest >> 23;
    if (exponent == 255) return not_a_number();
    return __uint_as_float(min(267 - exponent, 254u) << 23);
}

// A pair of floats as the sums of two halves each.
__device__ __forceinline__ void split(float a, float b, u32& high, u32& low) {
    high = half_pair(a, b);
    const float2 near = pair_values(high);
    low = half_pair(a - near.x, b - near.y);
}

template <u32 DIM>
struct Shape {
    static constexpr u32 CHUNK = DIM < 128 ? DIM : 128;
    static constexpr u32 CHUNKS = DIM / CHUNK;
    // 16-byte units of a row of a chunk: high halves, then low ones.
    static constexpr u32 UNITS = CHUNK / 8;
    static constexpr u32 PIECE = KEYS * 2 * UNITS;
    // The same of a whole row.
    static constexpr u32 ROW = DIM / 4;
};

// Units of a row are exchanged, so that eight rows lie in different banks.
__device__ __forceinline__ u32 place(u32 row, u32 unit, u32 units) { return row * units + (unit ^ row % 8); }

template <u32 DIM>
__device__ __forceinline__ void run(const HalvesParams& p) {
    using S = Shape<DIM>;
    DYNAMIC_SHARED(memory);
    uint4* const queries = reinterpret_cast<uint4*>(memory);
    uint4* const ring = queries + QUERIES * S::ROW;
    let_next_start();
    wait_for_previous();
    const u32 rows = *p.rows, begin = blockIdx.x * QUERIES, head = blockIdx.y, kv = head / (p.q.heads / p.k.heads), slice = blockIdx.z;
    if (begin >= rows) return;
    const u32 lane = threadIdx.x % WARP, own = threadIdx.x / WARP * OWN, g = lane / 4, t = lane % 4;
    const uint4* const from_queries = p.halves[0] + (u64(head) * p.padded_rows + begin) * S::ROW;
    const uint4* const keys = p.halves[1] + u64(kv) * p.padded_rows * S::ROW;
    const uint4* const values = p.halves[2] + u64(kv) * p.padded_rows * S::ROW + slice * S::UNITS;
    const u32 tiles = (rows + KEYS - 1) / KEYS, pieces = tiles * (S::CHUNKS + 1);

    // Brings piece `n`: the chunks of a tile's keys one by one, then its values.
    const auto bring = [&](u32 n) {
        if (n < pieces) {
            const u32 tile = n / (S::CHUNKS + 1), c = n % (S::CHUNKS + 1);
            const uint4* const from = (c < S::CHUNKS ? keys + c * S::UNITS : values) + u64(tile) * KEYS * S::ROW;
            uint4* const to = ring + n % STAGES * S::PIECE;
#pragma unroll
            for (u32 i = 0; i < S::PIECE / THREADS; ++i) {
                const u32 item = threadIdx.x + i * THREADS, row = item / (2 * S::UNITS), unit = item % (2 * S::UNITS);
                const u32 apart = unit < S::UNITS ? unit : unit - S::UNITS + DIM / 8;
                copy_16(to + place(row, unit, 2 * S::UNITS), from + row * S::ROW + apart);
            }
        }
        close_copies();
    };
#pragma unroll 8
    for (u32 i = threadIdx.x; i < QUERIES * S::ROW; i += THREADS) {
        copy_16(queries + place(i / S::ROW, i % S::ROW, S::ROW), from_queries + i);
    }
    // The queries belong to the first group.
    for (u32 n = 0; n + 1 < STAGES; ++n) bring(n);

    const float* const factors = p.factors;
    // Scores are logarithms of weights to the base of two; weights are 2^13 at most, so that their low halves are no small numbers.
    constexpr float LARGEST_WEIGHT = 13.0f;
    const float scale = p.scale * 1.44269504f * factors[head] * factors[p.q.heads + kv];
    float largest[2] = {-infinity(), -infinity()}, sum[2] = {0.0f, 0.0f}, mixed[S::CHUNK / 8][4];
#pragma unroll
    for (u32 i = 0; i < S::CHUNK / 2; ++i) mixed[i / 4][i % 4] = 0.0f;
    u32 n = 0;
    // Who brings a piece has the barrier behind the last reader of its place.
    const auto next = [&]() {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        bring(n + STAGES - 1);
        return ring + n++ % STAGES * S::PIECE;
    };
#pragma unroll 1
    for (u32 base = 0; base < rows; base += KEYS) {
        float score[KEYS / 8][4], rest[KEYS / 8][4];
#pragma unroll
        for (u32 i = 0; i < KEYS / 2; ++i) score[i / 4][i % 4] = rest[i / 4][i % 4] = 0.0f;
#pragma unroll 1
        for (u32 c = 0; c < S::CHUNKS; ++c) {
            const uint4* const piece = next();
#pragma unroll
            for (u32 k = 0; k < S::CHUNK / 16; ++k) {
                const u32 row = own + lane % 16, unit = c * S::UNITS + 2 * k + lane / 16;
                const uint4 high = spread_rows(queries + place(row, unit, S::ROW));
                const uint4 low = spread_rows(queries + place(row, unit + DIM / 8, S::ROW));
                const u32 a[2][4] = {{high.x, high.y, high.z, high.w}, {low.x, low.y, low.z, low.w}};
                uint4 b[KEYS / 8];
#pragma unroll
                for (u32 j = 0; j < KEYS / 8; ++j) {
                    const u32 own_unit = 2 * k + lane / 8 % 2 + lane / 16 * S::UNITS;
                    b[j] = spread_rows(piece + place(8 * j + lane % 8, own_unit, 2 * S::UNITS));
                }
                // Sums side by side, so that the matrix units need not wait for one that is under way.
#pragma unroll
                for (u32 j = 0; j < KEYS / 8; ++j) multiply_halves(rest[j], a[0], b[j].z, b[j].w);
#pragma unroll
                for (u32 j = 0; j < KEYS / 8; ++j) multiply_halves(score[j], a[0], b[j].x, b[j].y);
#pragma unroll
                for (u32 j = 0; j < KEYS / 8; ++j) multiply_halves(rest[j], a[1], b[j].x, b[j].y);
            }
        }
        u32 weights[2][KEYS / 8][2];
#pragma unroll
        for (u32 r = 0; r < 2; ++r) {
            float most = -infinity();
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; ++j) {
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    float& s = score[j][2 * r + e];
                    s = base + 8 * j + 2 * t + e < rows ? (s + rest[j][2 * r + e]) * scale : -infinity();
                    most = fmaxf(most, s);
                }
            }
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            const float top = fmaxf(largest[r], most), shift = top - LARGEST_WEIGHT;
            if (top != largest[r]) {
                const float keep = power_of_two(largest[r] - top);
                sum[r] *= keep;
#pragma unroll
                for (u32 d = 0; d < S::CHUNK / 8; ++d) {
                    mixed[d][2 * r] *= keep;
                    mixed[d][2 * r + 1] *= keep;
                }
                largest[r] = top;
            }
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; ++j) {
                const float a = power_of_two(score[j][2 * r] - shift), b = power_of_two(score[j][2 * r + 1] - shift);
                sum[r] += a + b;
                split(a, b, weights[0][j][r], weights[1][j][r]);
            }
        }
        const uint4* const piece = next();
#pragma unroll
        for (u32 k = 0; k < KEYS / 16; ++k) {
            u32 a[2][4];
#pragma unroll
            for (u32 i = 0; i < 8; ++i) a[i / 4][i % 4] = weights[i / 4][2 * k + i % 4 / 2][i % 2];
            constexpr u32 TOGETHER = 4;
#pragma unroll
            for (u32 d = 0; d < S::CHUNK / 8; d += TOGETHER) {
                uint4 b[TOGETHER];
#pragma unroll
                for (u32 j = 0; j < TOGETHER; ++j) {
                    const u32 row = 16 * k + lane % 16, unit = d + j + lane / 16 * S::UNITS;
                    b[j] = spread_columns(piece + place(row, unit, 2 * S::UNITS));
                }
#pragma unroll
                for (u32 j = 0; j < TOGETHER; ++j) multiply_halves(mixed[d + j], a[0], b[j].x, b[j].y);
#pragma unroll
                for (u32 j = 0; j < TOGETHER; ++j) multiply_halves(mixed[d + j], a[0], b[j].z, b[j].w);
#pragma unroll
                for (u32 j = 0; j < TOGETHER; ++j) multiply_halves(mixed[d + j], a[1], b[j].x, b[j].y);
            }
        }
    }
    const float factor = factors[2 * p.q.heads + kv];
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 1);
        sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 2);
        const u32 row = begin + own + 8 * r + g;
        if (row >= rows) continue;
        float* const out = p.out + u64(row) * p.out_stride + head * p.q.dim;
#pragma unroll
        for (u32 i = 0; i < S::CHUNK / 4; ++i) {
            const u32 d = slice * S::CHUNK + i / 2 * 8 + 2 * t + i % 2;
            if (d < p.q.dim) out[d] = mixed[i / 2][2 * r + i % 2] / sum[r] * factor;
        }
    }
}

}  // namespace

// The largest number of some rows of a head, by the bits of its size: a block for each, and for queries, keys and values.
extern "C" __global__ void __launch_bounds__(256) largest_halves(const __grid_constant__ HalvesParams p) {
    __shared__ u32 partial[SPLIT_THREADS / WARP];
    let_next_start();
    wait_for_previous();
    const u32 rows = *p.rows, head = blockIdx.y, which = blockIdx.z, quads = p.dim / 4;
    const View& view = view_of(p, which);
    if (head >= view.heads) return;
    u32 most = 0;
    for (u32 i = threadIdx.x; i < SPLIT_ROWS * quads; i += SPLIT_THREADS) {
        const u32 row = blockIdx.x * SPLIT_ROWS + i / quads;
        if (row >= rows) break;
        const float4 v = four(view, row, head, i % quads * 4);
        const float all[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (u32 j = 0; j < 4; ++j) most = max(most, __float_as_uint(all[j]) & 0x7fffffffu);
    }
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) most = max(most, __shfl_xor_sync(ALL_LANES, most, offset));
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = most;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 w = 1; w < SPLIT_THREADS / WARP; ++w) most = max(most, partial[w]);
    p.largest[(which * p.q.heads + head) * gridDim.x + blockIdx.x] = most;
}

// The halves of the same rows, zeros behind the last; and what results are to be multiplied with.
extern "C" __global__ void __launch_bounds__(256) split_halves(const __grid_constant__ HalvesParams p) {
    let_next_start();
    wait_for_previous();
    const u32 rows = *p.rows, head = blockIdx.y, which = blockIdx.z, quads = p.dim / 4, lane = threadIdx.x % WARP;
    const View& view = view_of(p, which);
    if (head >= view.heads) return;
    u32 most = 0;
    const u32* const found = p.largest + (which * p.q.heads + head) * gridDim.x;
    for (u32 i = lane; i < gridDim.x; i += WARP) most = max(most, found[i]);
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) most = max(most, __shfl_xor_sync(ALL_LANES, most, offset));
    const float factor = lift(most);
    if (blockIdx.x == 0 && threadIdx.x == 0) p.factors[which * p.q.heads + head] = 1.0f / factor;
    uint2* const to = reinterpret_cast<uint2*>(p.halves[which]) + u64(head) * p.padded_rows * (2 * quads);
    for (u32 i = threadIdx.x; i < SPLIT_ROWS * quads; i += SPLIT_THREADS) {
        const u32 row = blockIdx.x * SPLIT_ROWS + i / quads;
        uint2 high = make_uint2(0, 0), low = make_uint2(0, 0);
        if (row < rows) {
            const float4 v = four(view, row, head, i % quads * 4);
            split(v.x * factor, v.y * factor, high.x, low.x);
            split(v.z * factor, v.w * factor, high.y, low.y);
        }
        uint2* const place = to + u64(row) * (2 * quads) + i % quads;
        place[0] = high;
        place[quads] = low;
    }
}

#define FULL_ATTENTION_HALVES(DIM, BLOCKS)                                           \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS)                        \
        full_attention_halves_d##DIM(const __grid_constant__ HalvesParams p) {      \
        run<DIM>(p);                                                                 \
    }

// Heads up to this dimension, as thread blocks have room beside each other.
FULL_ATTENTION_HALVES(64, 3)
FULL_ATTENTION_HALVES(128, 2)
FULL_ATTENTION_HALVES(256, 1)
FULL_ATTENTION_HALVES(512, 1)
#endif
