// Attention of segments with many rows: a thread block has neighbouring rows of one segment and one query head, and reads each page
// once for all of them. The same sums in the same order as in `attention.cuh`, so the same bits.
//
// Keys and values come through shared memory in chunks, as floats. A warp has QUERIES rows. Its half-warps take half of them each; a
// lane of sixteen takes the tokens lane, lane + 16, lane + 32 and lane + 48 for scores, so that the tree over the tokens begins
// inside it, and for values groups of four neighbouring dimensions, 64 apart.
#pragma once

#include "attention.cuh"

namespace attention_tile {

constexpr u32 WARPS = 4;
constexpr u32 THREADS = WARPS * WARP;
// Dimensions of a chunk of keys.
constexpr u32 KEY_DIMS = 32;

// Rows of a warp: as many as its registers hold values of.
template <u32 DIM>
constexpr u32 QUERIES = DIM > 128 ? 8 : 16;

template <u32 DIM>
struct Shared {
    static constexpr u32 ROWS = WARPS * QUERIES<DIM>;
    // Padded, so that neighbouring dimensions or tokens lie in different banks.
    static constexpr u32 STRIDE = ROWS + 4;
    // Tokens of a chunk of values; as large as a chunk of keys.
    static constexpr u32 TOKENS = KEY_DIMS * PAGE_ROWS / DIM;

    float queries[DIM][STRIDE];
    float weights[PAGE_ROWS][STRIDE];
    float chunks[2][KEY_DIMS * PAGE_ROWS];
};

__device__ __forceinline__ float component(const float4& v, u32 i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Where a token's scores lie in a chunk of keys: a lane's four side by side.
__device__ __forceinline__ u32 token_place(u32 token) { return token % 16 * 4 + token / 16; }
__device__ __forceinline__ u32 token_at(u32 place) { return place % 4 * 16 + place / 4; }

// A thread's share of a chunk of keys, on its way.
template <u32 FORMAT>
struct Keys {
    static constexpr u32 N = KvHead<FORMAT>::PER_UNIT;
    static constexpr u32 UNITS = KEY_DIMS / N;
    static constexpr u32 ITEMS = (UNITS * PAGE_ROWS + THREADS - 1) / THREADS;

    float values[ITEMS][N];

    __device__ void load(const KvHead<FORMAT>& keys, u32 chunk) {
#pragma unroll
        for (u32 i = 0; i < ITEMS; ++i) {
            const u32 item = threadIdx.x + i * THREADS, unit = chunk * UNITS + item / PAGE_ROWS;
            if (UNITS * PAGE_ROWS < THREADS && item >= UNITS * PAGE_ROWS) return;
            if (unit < keys.units()) {
                keys.key(unit, token_at(item % PAGE_ROWS), values[i]);
            } else {
#pragma unroll
                for (u32 j = 0; j < N; ++j) values[i][j] = 0.0f;
            }
        }
    }

    __device__ void store(float* to) const {
#pragma unroll
        for (u32 i = 0; i < ITEMS; ++i) {
            const u32 item = threadIdx.x + i * THREADS;
            if (UNITS * PAGE_ROWS < THREADS && item >= UNITS * PAGE_ROWS) return;
#pragma unroll
            for (u32 j = 0; j < N; ++j) to[(item / PAGE_ROWS * N + j) * PAGE_ROWS + item % PAGE_ROWS] = values[i][j];
        }
    }
};

// The same of values: four dimensions of some tokens.
template <u32 FORMAT, u32 DIM>
struct Values {
    static constexpr u32 ITEMS = KEY_DIMS * PAGE_ROWS / 4 / THREADS;

    float values[ITEMS][4];

    __device__ void load(const KvHead<FORMAT>& kv, u32 chunk, u32 dim) {
#pragma unroll
        for (u32 i = 0; i < ITEMS; ++i) {
            const u32 item = threadIdx.x + i * THREADS, token = chunk * Shared<DIM>::TOKENS + item / (DIM / 4);
            const u32 first = item % (DIM / 4) * 4;
            if (first < dim) {
                kv.template value<4>(token, first, values[i]);
            } else {
#pragma unroll
                for (u32 j = 0; j < 4; ++j) values[i][j] = 0.0f;
            }
        }
    }

    __device__ void store(float* to) const {
#pragma unroll
        for (u32 i = 0; i < ITEMS; ++i) {
            reinterpret_cast<float4*>(to)[threadIdx.x + i * THREADS] =
                make_float4(values[i][0], values[i][1], values[i][2], values[i][3]);
        }
    }
};

template <u32 FORMAT, u32 DIM>
struct Work {
    // Rows and values of a lane.
    static constexpr u32 ROWS = QUERIES<DIM> / 2;
    static constexpr u32 QUADS = DIM / 64;

    const AttentionParams& p;
    Shared<DIM>& shared;
    const Segment& segment;
    // First row of the thread block in the segment, and how many it has.
    u32 first;
    u32 count;
    u32 head;
    // First row of the lane in the thread block, and the lane among sixteen.
    u32 own;
    u32 lane;

    float largest[ROWS];
    float sum[ROWS];
    float part[ROWS][QUADS][4];
    float whole_largest[ROWS];
    float whole_sum[ROWS];

    // Tokens of a page that row `i` of the lane sees.
    __device__ u32 seen(u32 page, u32 i) const {
        const u32 tokens = segment.past + first + own + i + 1, before = page * PAGE_ROWS;
        return tokens <= before ? 0 : min(tokens - before, PAGE_ROWS);
    }

    __device__ float* out(u32 i, u32 quad) const {
        const u32 row = segment.first_row + first + own + i;
        return p.out + u64(row) * p.out_stride + head * p.v.dim + quad * 64 + 4 * lane;
    }

    __device__ void begin_part() {
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) {
            largest[i] = -infinity();
            sum[i] = 0.0f;
#pragma unroll
            for (u32 j = 0; j < 4 * QUADS; ++j) part[i][j / 4][j % 4] = 0.0f;
        }
    }

    __device__ void load_queries() {
        for (u32 i = threadIdx.x; i < Shared<DIM>::ROWS * DIM; i += THREADS) {
            const u32 row = i / DIM, d = i % DIM;
            const bool is_there = row < count && d < p.q.dim;
            shared.queries[d][row] = is_there ? *at(p.q, segment.first_row + first + row, head * p.q.dim + d) : 0.0f;
        }
    }

    // Scores of the lane's rows and four tokens.
    __device__ void scores(const KvHead<FORMAT>& keys, float (&score)[ROWS][4]) {
#pragma unroll
        for (u32 i = 0; i < 4 * ROWS; ++i) score[i / 4][i % 4] = 0.0f;
        Keys<FORMAT> next;
        next.load(keys, 0);
        const u32 chunks = (p.k.dim + KEY_DIMS - 1) / KEY_DIMS;
        for (u32 c = 0; c < chunks; ++c) {
            float* chunk = shared.chunks[c % 2];
            next.store(chunk);
            // Who reads the other chunk is two barriers behind its writer.
            __syncthreads();
            if (c + 1 < chunks) next.load(keys, c + 1);
#pragma unroll 4
            for (u32 d = 0; d < KEY_DIMS; ++d) {
                const float4 k = *reinterpret_cast<const float4*>(chunk + d * PAGE_ROWS + 4 * lane);
                const float* q = shared.queries[c * KEY_DIMS + d] + own;
#pragma unroll
                for (u32 i = 0; i < ROWS; i += 4) {
                    const float4 four = *reinterpret_cast<const float4*>(q + i);
#pragma unroll
                    for (u32 j = 0; j < 16; ++j) {
                        score[i + j / 4][j % 4] = fmaf(component(four, j / 4), component(k, j % 4), score[i + j / 4][j % 4]);
                    }
                }
            }
        }
    }

    // Largest score, weights and their sum of the page's part; the weights go to shared memory.
    __device__ void soften(u32 page, float (&score)[ROWS][4], float (&page_largest)[ROWS], float (&page_sum)[ROWS]) {
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) {
            const u32 visible = seen(page, i);
            float most = -infinity();
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                score[i][j] = lane + 16 * j < visible ? score[i][j] * p.scale : -infinity();
            }
            most = fmaxf(fmaxf(score[i][0], score[i][2]), fmaxf(score[i][1], score[i][3]));
#pragma unroll
            for (u32 offset = 8; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, offset));
            const float base = most == -infinity() ? 0.0f : most;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                score[i][j] = lane + 16 * j < visible ? fast_exp(score[i][j] - base) : 0.0f;
            }
            float total = (score[i][0] + score[i][2]) + (score[i][1] + score[i][3]);
#pragma unroll
            for (u32 offset = 8; offset > 0; offset /= 2) total += __shfl_xor_sync(ALL_LANES, total, offset);
            page_largest[i] = most;
            page_sum[i] = total;
        }
        // The weights of the page before have been read by their own warp.
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
#pragma unroll
            for (u32 i = 0; i < ROWS; i += 4) {
                *reinterpret_cast<float4*>(shared.weights[lane + 16 * j] + own + i) =
                    make_float4(score[i][j], score[i + 1][j], score[i + 2][j], score[i + 3][j]);
            }
        }
        __syncwarp();
    }

    // The weighted sum of the values of a page. Where not every row sees all of it, what a row does not see may be anything.
    template <bool WHOLE>
    __device__ void add_values(u32 page, const float* chunk, u32 base, float (&values)[ROWS][QUADS][4]) {
#pragma unroll 2
        for (u32 t = 0; t < Shared<DIM>::TOKENS; ++t) {
            float4 v[QUADS];
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) v[n] = *reinterpret_cast<const float4*>(chunk + t * DIM + 64 * n + 4 * lane);
#pragma unroll
            for (u32 i = 0; i < ROWS; i += 4) {
                const float4 four = *reinterpret_cast<const float4*>(shared.weights[base + t] + own + i);
#pragma unroll
                for (u32 r = 0; r < 4; ++r) {
                    if (!WHOLE && base + t >= seen(page, i + r)) continue;
#pragma unroll
                    for (u32 j = 0; j < 4 * QUADS; ++j) {
                        float& sum = values[i + r][j / 4][j % 4];
                        sum = fmaf(component(four, r), component(v[j / 4], j % 4), sum);
                    }
                }
            }
        }
    }

    __device__ void page(u32 index) {
        float page_largest[ROWS], page_sum[ROWS];
        {
            float score[ROWS][4];
            scores(kv_head<FORMAT>(p, segment, index, true, head / (p.q.heads / p.k.heads)), score);
            soften(index, score, page_largest, page_sum);
        }
        float values[ROWS][QUADS][4];
#pragma unroll
        for (u32 i = 0; i < 4 * ROWS * QUADS; ++i) values[i / 4 / QUADS][i / 4 % QUADS][i % 4] = 0.0f;
        const KvHead<FORMAT> kv = kv_head<FORMAT>(p, segment, index, false, head / (p.q.heads / p.k.heads));
        const bool all_seen = segment.past + first + 1 >= (index + 1) * PAGE_ROWS;
        constexpr u32 TOKENS = Shared<DIM>::TOKENS, CHUNKS = PAGE_ROWS / TOKENS;
        Values<FORMAT, DIM> next;
        next.load(kv, 0, p.v.dim);
        // Both chunks of keys have been read.
        __syncthreads();
#pragma unroll 1
        for (u32 c = 0; c < CHUNKS; ++c) {
            float* chunk = shared.chunks[c % 2];
            next.store(chunk);
            __syncthreads();
            if (c + 1 < CHUNKS) next.load(kv, c + 1, p.v.dim);
            if (all_seen) {
                add_values<true>(index, chunk, c * TOKENS, values);
            } else {
                add_values<false>(index, chunk, c * TOKENS, values);
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) {
            const attention::Join joined(largest[i], page_largest[i]);
            largest[i] = joined.largest;
            sum[i] = joined(sum[i], page_sum[i]);
#pragma unroll
            for (u32 j = 0; j < 4 * QUADS; ++j) {
                part[i][j / 4][j % 4] = joined(part[i][j / 4][j % 4], values[i][j / 4][j % 4]);
            }
        }
    }

    // Joins a split to the whole, which lies where the result will be; `last` finishes it.
    __device__ void join_part(bool is_first, bool last) {
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) {
            const attention::Join joined(is_first ? -infinity() : whole_largest[i], largest[i]);
            whole_largest[i] = joined.largest;
            whole_sum[i] = joined(is_first ? 0.0f : whole_sum[i], sum[i]);
            if (own + i >= count) continue;
#pragma unroll
            for (u32 n = 0; n < QUADS; ++n) {
                if (64 * n + 4 * lane >= p.v.dim) continue;
                float4* to = reinterpret_cast<float4*>(out(i, n));
                const float4 before = is_first ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : *to;
                float4 after = make_float4(joined(before.x, part[i][n][0]), joined(before.y, part[i][n][1]),
                                           joined(before.z, part[i][n][2]), joined(before.w, part[i][n][3]));
                if (last) {
                    after = make_float4(after.x / whole_sum[i], after.y / whole_sum[i], after.z / whole_sum[i],
                                        after.w / whole_sum[i]);
                }
                *to = after;
            }
        }
    }

    __device__ void run() {
        __syncthreads();
        load_queries();
        __syncthreads();
        const u32 pages = (segment.past + first + count + PAGE_ROWS - 1) / PAGE_ROWS;
#pragma unroll 1
        for (u32 page_index = 0; page_index < pages; ++page_index) {
            if (page_index % attention::SPLIT_PAGES == 0) begin_part();
            page(page_index);
            const bool last = page_index + 1 == pages;
            if (last || (page_index + 1) % attention::SPLIT_PAGES == 0) {
                join_part(page_index < attention::SPLIT_PAGES, last);
            }
        }
    }
};

template <u32 FORMAT, u32 DIM>
__device__ __forceinline__ void run(const AttentionParams& p) {
    DYNAMIC_SHARED(memory);
    let_next_start();
    wait_for_previous();
    constexpr u32 ROWS = Shared<DIM>::ROWS;
    // The last rows have most to do and come first.
    const u32 tiles = p.step.header->tiles;
    for (u32 i = blockIdx.y; i < tiles; i += gridDim.y) {
        const Tile tile = p.step.tiles[tiles - 1 - i];
        const Segment& segment = p.step.segments[tile.segment];
        if (segment.rows < attention::MANY_ROWS || tile.first % ROWS != 0) continue;
        const u32 lane = threadIdx.x % WARP;
        Work<FORMAT, DIM> work{p, *reinterpret_cast<Shared<DIM>*>(memory), segment, tile.first,
                               min(segment.rows - tile.first, ROWS), blockIdx.x,
                               threadIdx.x / WARP * QUERIES<DIM> + lane / 16 * (QUERIES<DIM> / 2), lane % 16};
        work.run();
    }
}

}  // namespace attention_tile

// Three blocks a multiprocessor where a head has 256 dimensions, though registers spill then (`lab/cuda/prefill.md`).
#define ATTENTION_TILE(NAME, FORMAT, DIM)                                           \
    extern "C" __global__ void __launch_bounds__(128, DIM > 128 ? 3 : 2)            \
        attention_tile_##NAME##_d##DIM(const __grid_constant__ AttentionParams p) { \
        attention_tile::run<FORMAT, DIM>(p);                                        \
    }

#define ATTENTION_TILES(NAME, FORMAT)  \
    ATTENTION_TILE(NAME, FORMAT, 64)   \
    ATTENTION_TILE(NAME, FORMAT, 128)  \
    ATTENTION_TILE(NAME, FORMAT, 256)
