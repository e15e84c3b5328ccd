// Attention of few rows to long contexts, on Hopper: all query heads of a key head at once, so that a page crosses to a
// multiprocessor once and its bytes become floats once.
//
// A block has a split of a row's context, a warp a page of it. The page comes to its warp in pieces, by bulk copies into a ring of the
// warp's own: first the keys, some dimensions of all tokens at a time, then the values, some tokens at a time. Registers hold nothing
// that is on its way, and no warp waits for another one before its page is done. The same sums in the same order as in
// `attention.cuh`, so the same bits.
#pragma once

#include "attention.cuh"

namespace attention_ring {

using attention::SPLIT_PAGES;
using attention::SPLIT_TOKENS;

// HEADS query heads of DIM dimensions; a piece of the ring holds DIMS dimensions of the keys.
template <u32 FORMAT, u32 DIM, u32 HEADS, u32 DIMS, u32 STAGES>
struct Ring {
    using Kv = KvHead<FORMAT>;
    static constexpr u32 THREADS = SPLIT_PAGES * WARP;
    // Dimensions of a lane.
    static constexpr u32 LANE = DIM / WARP;
    // Pieces of the keys of a page, and as many of the values.
    static constexpr u32 PIECES = DIM / DIMS;
    static constexpr u32 UNITS = DIMS / Kv::PER_UNIT;
    static constexpr u32 TOKENS = PAGE_ROWS / PIECES;
    static constexpr u32 CODES = UNITS * PAGE_ROWS * 16;
    static constexpr u32 SCALES = FORMAT == KV_Q8 ? DIMS / KV_BLOCK * PAGE_ROWS * 2 : 0;
    static constexpr u32 BYTES = CODES + SCALES;
    static_assert(FORMAT == KV_F16 || FORMAT == KV_Q8, "");
    static_assert(TOKENS % 4 == 0, "weights are read by fours");
    static_assert(HEADS * SPLIT_PAGES <= WARP, "a lane a page and head where pages are joined");
    static_assert(STAGES * BYTES >= HEADS * DIM * sizeof(float), "a page's result lies where its ring was");

    struct Shared {
        attention::Queries<LANE, HEADS> queries;
        attention::Weights<HEADS> weights[SPLIT_PAGES];
        u8 rings[SPLIT_PAGES][STAGES * BYTES];
        u64 barriers[SPLIT_PAGES][STAGES];
        float largest[SPLIT_PAGES][HEADS];
        float sums[SPLIT_PAGES][HEADS];
        // By every warp for itself: what the pages before and the page are multiplied by.
        float2 joins[SPLIT_PAGES][HEADS][SPLIT_PAGES];
    };

    Shared& shared;
    const u32 warp;
    const u32 lane;
    // Tokens of the warp's page that the row sees, pieces that hold them.
    u32 seen;
    u32 pieces;
    const u8* keys;
    const u8* values;
    u32 stage;
    u32 parity;

    __device__ explicit Ring(Shared& shared) : shared(shared), warp(threadIdx.x / WARP), lane(threadIdx.x % WARP), stage(0), parity(0) {}

    // Of one lane: piece `n` on its way.
    __device__ void bring(u32 n, u32 to_stage) const {
        const SharedPlace barrier = shared_place(&shared.barriers[warp][to_stage]);
        const SharedPlace to = shared_place(shared.rings[warp] + to_stage * BYTES);
        const u8* from = n < PIECES ? keys : values;
        const u32 piece = n % PIECES;
        expect_bytes(barrier, BYTES);
        copy_bulk(to, from + piece * CODES, CODES, barrier);
        if (SCALES > 0) copy_bulk(to + CODES, from + PIECES * CODES + piece * SCALES, SCALES, barrier);
    }

    __device__ void begin() const {
        if (lane != 0) return;
#pragma unroll
        for (u32 i = 0; i < STAGES; ++i) make_barrier(shared_place(&shared.barriers[warp][i]), 1);
        show_barriers();
#pragma unroll
        for (u32 i = 0; i < STAGES; ++i) {
            if (i < pieces) bring(i, i);
        }
    }

    __device__ void load_queries(const View& q, u32 row, u32 first_head) const {
        const float* from = q.data + u64(row) * q.row_stride + first_head * q.head_stride;
        float* to = reinterpret_cast<float*>(shared.queries);
#pragma unroll
        for (u32 i = threadIdx.x; i < HEADS * DIM; i += THREADS) to[i] = from[i / DIM * q.head_stride + i % DIM];
    }

    // The next piece.
    __device__ const u8* piece() const {
        wait_for_phase(shared_place(&shared.barriers[warp][stage]), parity);
        return shared.rings[warp] + stage * BYTES;
    }

    // Piece `n` has been read.
    __device__ void pass(u32 n) {
        __syncwarp();
        if (lane == 0 && n + STAGES < pieces) bring(n + STAGES, stage);
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }

    // Scores of the lane's two tokens.
    __device__ void scores(float (&score)[HEADS][2]) {
        constexpr u32 N = Kv::PER_UNIT;
#pragma unroll
        for (u32 h = 0; h < HEADS; ++h) score[h][0] = score[h][1] = 0.0f;
#pragma unroll 1
        for (u32 n = 0; n < PIECES; ++n) {
            const u8* codes = piece();
#pragma unroll(FORMAT == KV_Q8 ? 1 : UNITS)
            for (u32 u = 0; u < UNITS; ++u) {
                float k[2][N];
#pragma unroll
                for (u32 j = 0; j < 2; ++j) {
                    const u32 token = lane + j * WARP;
                    typename Kv::Unit unit = {reinterpret_cast<const uint4*>(codes)[u * PAGE_ROWS + token], 0};
                    if (FORMAT == KV_Q8) unit.pair = reinterpret_cast<const u16*>(codes + CODES)[u / 2 * PAGE_ROWS + token];
                    Kv::decode(unit, k[j]);
                }
#pragma unroll
                for (u32 i = 0; i < N; i += 4) {
#pragma unroll
                    for (u32 h = 0; h < HEADS; ++h) {
                        const float4 q = shared.queries[h][(n * DIMS + u * N + i) / 4];
#pragma unroll
                        for (u32 j = 0; j < 2; ++j) {
                            score[h][j] = fmaf(q.x, k[j][i], score[h][j]);
                            score[h][j] = fmaf(q.y, k[j][i + 1], score[h][j]);
                            score[h][j] = fmaf(q.z, k[j][i + 2], score[h][j]);
                            score[h][j] = fmaf(q.w, k[j][i + 3], score[h][j]);
                        }
                    }
                }
            }
            pass(n);
        }
    }

    // Scores become weights; largest score and sum of the page.
    __device__ void soften(float scale, const float (&score)[HEADS][2]) const {
#pragma unroll
        for (u32 h = 0; h < HEADS; ++h) {
            const float a = lane < seen ? score[h][0] * scale : -infinity();
            const float b = lane + WARP < seen ? score[h][1] * scale : -infinity();
            const float largest = warp_max(fmaxf(a, b)), base = largest == -infinity() ? 0.0f : largest;
            const float weight_a = lane < seen ? fast_exp(a - base) : 0.0f;
            const float weight_b = lane + WARP < seen ? fast_exp(b - base) : 0.0f;
            const float sum = warp_sum(weight_a + weight_b);
            shared.weights[warp][h][lane] = weight_a;
            shared.weights[warp][h][lane + WARP] = weight_b;
            if (lane == 0) {
                shared.largest[warp][h] = largest;
                shared.sums[warp][h] = sum;
            }
        }
        __syncwarp();
    }

    __device__ void add(const u8* codes, u32 token, const float (&weight)[HEADS], float (&result)[HEADS][LANE]) const {
        constexpr u32 ROW = CODES / TOKENS;
        float v[LANE];
        Kv::template value_at<LANE>(
            codes + token * ROW + lane * (ROW / WARP),
            reinterpret_cast<const u16*>(codes + CODES) + token * (DIM / KV_BLOCK) + lane * LANE / KV_BLOCK, v);
#pragma unroll
        for (u32 h = 0; h < HEADS; ++h) {
#pragma unroll
            for (u32 i = 0; i < LANE; ++i) result[h][i] = fmaf(weight[h], v[i], result[h][i]);
        }
    }

    // The weighted sum of the values.
    __device__ void weigh(float (&result)[HEADS][LANE]) {
        const attention::Weights<HEADS>& weights = shared.weights[warp];
#pragma unroll
        for (u32 i = 0; i < HEADS * LANE; ++i) result[i / LANE][i % LANE] = 0.0f;
#pragma unroll 1
        for (u32 n = PIECES; n < pieces; ++n) {
            const u8* codes = piece();
            const u32 first = (n - PIECES) * TOKENS;
            if (first + TOKENS <= seen) {
#pragma unroll(FORMAT == KV_Q8 ? 1 : TOKENS / 4)
                for (u32 t = 0; t < TOKENS; t += 4) {
                    float4 four[HEADS];
#pragma unroll
                    for (u32 h = 0; h < HEADS; ++h) four[h] = *reinterpret_cast<const float4*>(&weights[h][first + t]);
#pragma unroll
                    for (u32 k = 0; k < 4; ++k) {
                        float weight[HEADS];
#pragma unroll
                        for (u32 h = 0; h < HEADS; ++h) {
                            weight[h] = k == 0 ? four[h].x : k == 1 ? four[h].y : k == 2 ? four[h].z : four[h].w;
                        }
                        add(codes, t + k, weight, result);
                    }
                }
            } else {
                // Tokens that the row does not see may be anything.
#pragma unroll 1
                for (u32 t = 0; t < seen - first; ++t) {
                    float weight[HEADS];
#pragma unroll
                    for (u32 h = 0; h < HEADS; ++h) weight[h] = weights[h][first + t];
                    add(codes, t, weight, result);
                }
            }
            pass(n);
        }
    }

    // The page, its result where the ring was.
    __device__ void run(float scale) {
        {
            float score[HEADS][2];
            scores(score);
            soften(scale, score);
        }
        float result[HEADS][LANE];
        weigh(result);
        float4* to = reinterpret_cast<float4*>(shared.rings[warp]);
#pragma unroll
        for (u32 h = 0; h < HEADS; ++h) {
#pragma unroll
            for (u32 i = 0; i < LANE; i += 4) {
                to[(h * DIM + lane * LANE + i) / 4] = make_float4(result[h][i], result[h][i + 1], result[h][i + 2], result[h][i + 3]);
            }
        }
    }

    // The split's pages in order, by all threads.
    __device__ void join(u32 count, u32 at, const attention::Work<FORMAT, LANE, HEADS>& work) const {
        // A lane a page and head.
        const u32 own = lane / SPLIT_PAGES, own_page = lane % SPLIT_PAGES;
        if (own < HEADS && own_page < count) {
            float largest = -infinity();
#pragma unroll
            for (u32 w = 0; w < SPLIT_PAGES; ++w) {
                if (w < own_page) largest = fmaxf(largest, shared.largest[w][own]);
            }
            const attention::Join joined(largest, shared.largest[own_page][own]);
            shared.joins[warp][own][own_page] = make_float2(joined.a, joined.b);
        }
        __syncwarp();
        if (threadIdx.x < HEADS) {
            const u32 h = threadIdx.x;
            float largest = -infinity(), sum = 0.0f;
#pragma unroll
            for (u32 w = 0; w < SPLIT_PAGES; ++w) {
                if (w >= count) break;
                const float2 by = shared.joins[warp][h][w];
                largest = fmaxf(largest, shared.largest[w][h]);
                sum = fmaf(shared.sums[w][h], by.y, sum * by.x);
            }
            float* to = work.partial(h, at);
            to[0] = largest;
            to[1] = sum;
        }
        // Two dimensions of a head.
#pragma unroll
        for (u32 i = threadIdx.x; i < HEADS * DIM / 2; i += THREADS) {
            const u32 h = i / (DIM / 2), d = i % (DIM / 2);
            float2 y = make_float2(0.0f, 0.0f);
#pragma unroll
            for (u32 w = 0; w < SPLIT_PAGES; ++w) {
                if (w >= count) break;
                const float2 by = shared.joins[warp][h][w], v = reinterpret_cast<const float2*>(shared.rings[w])[i];
                y.x = fmaf(v.x, by.y, y.x * by.x);
                y.y = fmaf(v.y, by.y, y.y * by.x);
            }
            reinterpret_cast<float2*>(work.partial(h, at) + 2)[d] = y;
        }
    }
};

// A block a row, split and key head. A short context is for `attention::split_of`, half of the heads a block: with few blocks a warp's
// own time is what counts.
template <u32 FORMAT, u32 DIM, u32 HEADS, u32 DIMS, u32 STAGES>
__device__ __forceinline__ void split(const AttentionParams& p) {
    using Own = Ring<FORMAT, DIM, HEADS, DIMS, STAGES>;
    DYNAMIC_SHARED(memory);
    let_next_start();
    const u32 row = blockIdx.x, index = blockIdx.y;
    // The step's inputs do not depend on the kernel in front.
    if (row >= p.step.header->rows) {
        wait_for_previous();
        return;
    }
    const attention::Work<FORMAT, Own::LANE, HEADS> work(p, row, index % p.k.heads);
    if (work.tokens <= p.short_splits * SPLIT_TOKENS) {
        const u32 passes = 2 * p.k.heads, at = index / passes;
        wait_for_previous();
        if (at * SPLIT_TOKENS >= work.tokens) return;
        using Shared = attention::SplitShared<Own::LANE, HEADS / 2>;
        static_assert(sizeof(Shared) <= sizeof(typename Own::Shared), "");
        const attention::Work<FORMAT, Own::LANE, HEADS / 2> half(p, row, index % passes);
        attention::split_of(p, half, *reinterpret_cast<Shared*>(memory), at);
        return;
    }
    const u32 at = index / p.k.heads;
    // The row's first block waits for the kernel in front.
    if (at * SPLIT_TOKENS >= work.tokens) return;
    Own own(*reinterpret_cast<typename Own::Shared*>(memory));
    const u32 left = work.tokens - at * SPLIT_TOKENS, count = min((left + PAGE_ROWS - 1) / PAGE_ROWS, SPLIT_PAGES);
    const u32 page = at * SPLIT_PAGES + own.warp;
    const bool is_there = own.warp < count;
    bool begun = false;
    if (is_there) {
        own.seen = min(left - own.warp * PAGE_ROWS, PAGE_ROWS);
        own.pieces = Own::PIECES + (own.seen + Own::TOKENS - 1) / Own::TOKENS;
        own.keys = kv_head<FORMAT>(p, work.segment, page, true, work.kv).base;
        own.values = kv_head<FORMAT>(p, work.segment, page, false, work.kv).base;
        // A page that is full of tokens of steps before is not written by the kernel in front.
        begun = (page + 1) * PAGE_ROWS <= work.segment.past;
        if (begun) own.begin();
    }
    wait_for_previous();
    if (is_there && !begun) own.begin();
    own.load_queries(p.q, row, work.first_head);
    __syncthreads();
    if (is_there) own.run(p.scale);
    __syncthreads();
    own.join(count, at, work);
}

}  // namespace attention_ring
