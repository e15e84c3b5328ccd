// Softmax attention between the rows of a step, without a cache: a thread block has some queries of one head and goes over all keys
// once, 64 at a time.
//
// Keys and values come through shared memory in chunks. A warp has QUERIES rows, half of them for each half-warp; a lane of sixteen
// takes the keys lane, lane + 16, lane + 32 and lane + 48 for scores, and groups of four neighbouring dimensions, 64 apart, for
// values. Heads wider than 256 have their values in slices of that, by the third dimension of the grid.
#include "common.cuh"

namespace {

constexpr u32 WARPS = 4;
constexpr u32 THREADS = WARPS * WARP;
constexpr u32 KEYS = 64;
// Dimensions of a chunk of keys.
constexpr u32 KEY_DIMS = 32;

template <u32 DIM>
struct Shape {
    static constexpr u32 VALUES = DIM < 256 ? DIM : 256;
    static constexpr u32 QUERIES = DIM > 128 ? 8 : 16;
    static constexpr u32 ROWS = WARPS * QUERIES;
    // Padded, so that neighbouring dimensions or keys lie in different banks.
    static constexpr u32 STRIDE = ROWS + 4;
    // Keys of a chunk of values; as large as a chunk of keys.
    static constexpr u32 TOKENS = KEY_DIMS * KEYS / VALUES;
};

template <u32 DIM>
struct Shared {
    float queries[DIM][Shape<DIM>::STRIDE];
    float weights[KEYS][Shape<DIM>::STRIDE];
    float chunks[2][KEY_DIMS * KEYS];
};

__device__ __forceinline__ float part_of(const float4& v, u32 i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Values `first..` of a head of a row, zeros behind its dimension.
__device__ __forceinline__ float4 four(const View& view, u32 row, u32 head, u32 first, bool aligned) {
    const float* from = view.data + u64(row) * view.row_stride + head * view.head_stride + first;
    if (aligned && first + 4 <= view.dim) return *reinterpret_cast<const float4*>(from);
    float v[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) v[i] = first + i < view.dim ? from[i] : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

__device__ __forceinline__ bool is_aligned(const View& view) {
    return (reinterpret_cast<u64>(view.data) | view.row_stride * 4ull | view.head_stride * 4ull) % 16 == 0;
}

template <u32 DIM>
__device__ __forceinline__ void run(const FullAttentionParams& p) {
    using S = Shape<DIM>;
    constexpr u32 ROWS = S::QUERIES / 2, QUADS = S::VALUES / 64, ITEMS = KEY_DIMS * KEYS / 4 / THREADS;
    DYNAMIC_SHARED(memory);
    Shared<DIM>& shared = *reinterpret_cast<Shared<DIM>*>(memory);
    let_next_start();
    wait_for_previous();
    const u32 rows = *p.rows, begin = blockIdx.y * S::ROWS, head = blockIdx.x, kv = head / (p.q.heads / p.k.heads);
    if (begin >= rows) return;
    const u32 lane = threadIdx.x % 16, own = threadIdx.x / WARP * S::QUERIES + threadIdx.x % WARP / 16 * ROWS;
    const u32 slice = blockIdx.z * S::VALUES, dim = p.q.dim;
    const bool q_aligned = is_aligned(p.q), k_aligned = is_aligned(p.k), v_aligned = is_aligned(p.v);
    for (u32 i = threadIdx.x; i < S::ROWS * DIM / 4; i += THREADS) {
        const u32 row = i / (DIM / 4), d = i % (DIM / 4) * 4;
        const float4 q = row + begin < rows ? four(p.q, row + begin, head, d, q_aligned) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) shared.queries[d + j][row] = part_of(q, j);
    }
    float largest[ROWS], sum[ROWS], values[ROWS][QUADS][4];
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
        largest[i] = -infinity();
        sum[i] = 0.0f;
#pragma unroll
        for (u32 j = 0; j < 4 * QUADS; ++j) values[i][j / 4][j % 4] = 0.0f;
    }
    const auto seen = [&](u32 i) { return p.causal ? min(p.keys, begin + own + i + 1) : min(p.keys, rows); };
    const u32 end = p.causal ? min(p.keys, min(rows, begin + S::ROWS)) : min(p.keys, rows);
    const u32 chunks = (dim + KEY_DIMS - 1) / KEY_DIMS;
#pragma unroll 1
    for (u32 base = 0; base < end; base += KEYS) {
        float score[ROWS][4];
#pragma unroll
        for (u32 i = 0; i < 4 * ROWS; ++i) score[i / 4][i % 4] = 0.0f;
        float4 next[ITEMS];
        const auto load_keys = [&](u32 c) {
#pragma unroll
            for (u32 i = 0; i < ITEMS; ++i) {
                // Neighbouring threads have the keys of neighbouring places.
                const u32 item = threadIdx.x + i * THREADS, at = item % KEYS, key = base + at % 4 * 16 + at / 4;
                next[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (key < end) next[i] = four(p.k, key, kv, c * KEY_DIMS + item / KEYS * 4, k_aligned);
            }
        };
        const auto load_values = [&](u32 c) {
#pragma unroll
            for (u32 i = 0; i < ITEMS; ++i) {
                const u32 item = threadIdx.x + i * THREADS, key = base + c * S::TOKENS + item / (S::VALUES / 4);
                next[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (key < end) next[i] = four(p.v, key, kv, slice + item % (S::VALUES / 4) * 4, v_aligned);
            }
        };
        load_keys(0);
        // Who reads a chunk is two barriers behind its writer.
        __syncthreads();
        for (u32 c = 0; c < chunks; ++c) {
            float* chunk = shared.chunks[c % 2];
#pragma unroll
            for (u32 i = 0; i < ITEMS; ++i) {
                const u32 item = threadIdx.x + i * THREADS;
#pragma unroll
                for (u32 j = 0; j < 4; ++j) chunk[(item / KEYS * 4 + j) * KEYS + item % KEYS] = part_of(next[i], j);
            }
            __syncthreads();
            if (c + 1 < chunks) load_keys(c + 1);
#pragma unroll 4
            for (u32 d = 0; d < KEY_DIMS; ++d) {
                const float4 k = *reinterpret_cast<const float4*>(chunk + d * KEYS + 4 * lane);
                const float* q = shared.queries[c * KEY_DIMS + d] + own;
#pragma unroll
                for (u32 i = 0; i < ROWS; i += 4) {
                    const float4 four_rows = *reinterpret_cast<const float4*>(q + i);
#pragma unroll
                    for (u32 j = 0; j < 16; ++j) {
                        score[i + j / 4][j % 4] = fmaf(part_of(four_rows, j / 4), part_of(k, j % 4), score[i + j / 4][j % 4]);
                    }
                }
            }
        }
        load_values(0);
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) {
            const u32 visible = seen(i);
            float most = -infinity();
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                score[i][j] = base + lane + 16 * j < visible ? score[i][j] * p.scale : -infinity();
                most = fmaxf(most, score[i][j]);
            }
#pragma unroll
            for (u32 offset = 8; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, offset));
            const float top = fmaxf(largest[i], most), shift = top == -infinity() ? 0.0f : top;
            const float keep = largest[i] == top ? 1.0f : fast_exp(largest[i] - shift);
            float total = 0.0f;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                score[i][j] = base + lane + 16 * j < visible ? fast_exp(score[i][j] - shift) : 0.0f;
                total += score[i][j];
            }
#pragma unroll
            for (u32 offset = 8; offset > 0; offset /= 2) total += __shfl_xor_sync(ALL_LANES, total, offset);
            largest[i] = top;
            sum[i] = fmaf(sum[i], keep, total);
#pragma unroll
            for (u32 j = 0; j < 4 * QUADS; ++j) values[i][j / 4][j % 4] *= keep;
        }
        // The weights of the keys before have been read by their own warp.
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
#pragma unroll
            for (u32 i = 0; i < ROWS; i += 4) {
                *reinterpret_cast<float4*>(shared.weights[lane + 16 * j] + own + i) =
                    make_float4(score[i][j], score[i + 1][j], score[i + 2][j], score[i + 3][j]);
            }
        }
        // Both chunks of keys have been read.
        __syncthreads();
        const bool all_seen = base + KEYS <= (p.causal ? min(p.keys, begin + 1) : end);
#pragma unroll 1
        for (u32 c = 0; c < KEYS / S::TOKENS; ++c) {
            float4* chunk = reinterpret_cast<float4*>(shared.chunks[c % 2]);
#pragma unroll
            for (u32 i = 0; i < ITEMS; ++i) chunk[threadIdx.x + i * THREADS] = next[i];
            __syncthreads();
            if (c + 1 < KEYS / S::TOKENS) load_values(c + 1);
            const auto add = [&](u32 t) {
                float4 v[QUADS];
#pragma unroll
                for (u32 n = 0; n < QUADS; ++n) v[n] = chunk[t * (S::VALUES / 4) + 16 * n + lane];
#pragma unroll
                for (u32 i = 0; i < ROWS; i += 4) {
                    const float4 weights = *reinterpret_cast<const float4*>(shared.weights[c * S::TOKENS + t] + own + i);
#pragma unroll
                    for (u32 r = 0; r < 4; ++r) {
                        // What a row does not see may be anything.
                        if (!all_seen && base + c * S::TOKENS + t >= seen(i + r)) continue;
#pragma unroll
                        for (u32 j = 0; j < 4 * QUADS; ++j) {
                            float& to = values[i + r][j / 4][j % 4];
                            to = fmaf(part_of(weights, r), part_of(v[j / 4], j % 4), to);
                        }
                    }
                }
            };
#pragma unroll 2
            for (u32 t = 0; t < S::TOKENS; ++t) add(t);
        }
    }
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
        if (begin + own + i >= rows) continue;
        float* out = p.out + u64(begin + own + i) * p.out_stride + head * dim;
#pragma unroll
        for (u32 j = 0; j < 4 * QUADS; ++j) {
            const u32 d = slice + j / 4 * 64 + 4 * lane + j % 4;
            if (d < dim) out[d] = values[i][j / 4][j % 4] / sum[i];
        }
    }
}

}  // namespace

#define FULL_ATTENTION(DIM)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128, 2) full_attention_d##DIM(const __grid_constant__ FullAttentionParams p) { \
        run<DIM>(p);                                                                                                     \
    }

// Heads up to this dimension.
FULL_ATTENTION(64)
FULL_ATTENTION(128)
FULL_ATTENTION(256)
FULL_ATTENTION(512)
