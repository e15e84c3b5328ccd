// Causal softmax attention over pages.
//
// The order of every sum is fixed, whatever kernel computes it. A page of 64 tokens gives a partial result: the largest
// score, the sum of the weights `exp(score - largest)` by a tree over the tokens, and the weighted sum of the values,
// tokens in ascending order. Partial results join in ascending order: pages to splits of SPLIT_PAGES, splits to the whole. So
// a row's bits are a function of its own query, keys and values alone. Where few rows look at a long context, splits
// are computed side by side and joined by a kernel of their own.
//
// For scores a lane has two tokens, whose keys lie side by side with those of the other lanes; the queries of some heads
// that share a key head are read from shared memory. For values a lane has LANE neighbouring dimensions.
#pragma once

#include "kv.cuh"
#include "rounding.cuh"

namespace attention {

constexpr u32 SPLIT_PAGES = 4;
constexpr u32 SPLIT_TOKENS = SPLIT_PAGES * PAGE_ROWS;
// Rows of a segment that `attention_tile` takes.
constexpr u32 MANY_ROWS = 16;

// A softmax that is not finished: of HEADS query heads, LANE dimensions a lane.
template <u32 LANE, u32 HEADS>
struct Partial {
    float largest[HEADS];
    float sum[HEADS];
    float values[HEADS][LANE];

    __device__ static Partial nothing() {
        Partial p;
#pragma unroll
        for (u32 h = 0; h < HEADS; ++h) {
            p.largest[h] = -infinity();
            p.sum[h] = 0.0f;
#pragma unroll
            for (u32 i = 0; i < LANE; ++i) p.values[h][i] = 0.0f;
        }
        return p;
    }
};

// What two partial results are multiplied by before they are added.
struct Join {
    float largest;
    float a;
    float b;

    __device__ Join(float largest_a, float largest_b) {
        largest = fmaxf(largest_a, largest_b);
        // Two equal infinities have no difference.
        a = largest_a == largest ? 1.0f : fast_exp(largest_a - largest);
        b = largest_b == largest ? 1.0f : fast_exp(largest_b - largest);
    }

    __device__ float operator()(float x, float y) const { return fmaf(y, b, x * a); }
};

template <u32 LANE, u32 HEADS>
__device__ __forceinline__ void join(Partial<LANE, HEADS>& whole, const Partial<LANE, HEADS>& next) {
#pragma unroll
    for (u32 h = 0; h < HEADS; ++h) {
        const Join joined(whole.largest[h], next.largest[h]);
        whole.largest[h] = joined.largest;
        whole.sum[h] = joined(whole.sum[h], next.sum[h]);
#pragma unroll
        for (u32 i = 0; i < LANE; ++i) whole.values[h][i] = joined(whole.values[h][i], next.values[h][i]);
    }
}

// Queries of a row: zeros behind the head's own dimensions.
template <u32 LANE, u32 HEADS>
using Queries = float4[HEADS][LANE * WARP / 4];

// Weights of a page's tokens, of one warp.
template <u32 HEADS>
using Weights = float[HEADS][PAGE_ROWS];

// One row and some of the query heads of one key head.
template <u32 FORMAT, u32 LANE, u32 HEADS>
struct Work {
    using Result = Partial<LANE, HEADS>;

    const AttentionParams& p;
    // A copy: behind every store what it says would be read anew.
    const Segment segment;
    u32 row;
    u32 kv;
    u32 first_head;
    u32 heads;
    // Tokens that the row sees.
    u32 tokens;

    // `pass` counts key heads, and inside one the groups of HEADS query heads.
    __device__ Work(const AttentionParams& p, u32 row, u32 pass)
        : p(p), segment(p.step.segments[p.step.row_segment[row]]), row(row) {
        const u32 group = p.q.heads / p.k.heads, passes = (group + HEADS - 1) / HEADS;
        kv = pass / passes;
        first_head = kv * group + pass % passes * HEADS;
        heads = min((kv + 1) * group - first_head, HEADS);
        tokens = segment.past + (row - segment.first_row) + 1;
    }

    __device__ void load_queries(Queries<LANE, HEADS>& queries, u32 thread, u32 threads) const {
        float* to = reinterpret_cast<float*>(queries);
        for (u32 i = thread; i < HEADS * LANE * WARP; i += threads) {
            const u32 h = i / (LANE * WARP), d = i % (LANE * WARP);
            to[i] = h < heads && d < p.q.dim ? *at(p.q, row, (first_head + h) * p.q.dim + d) : 0.0f;
        }
    }

    // Scores of the lane's two tokens.
    __device__ void scores(
        const KvHead<FORMAT>& keys, const Queries<LANE, HEADS>& queries, u32 lane, float (&score)[HEADS][2]
    ) const {
        constexpr u32 N = KvHead<FORMAT>::PER_UNIT;
#pragma unroll
        for (u32 h = 0; h < HEADS; ++h) score[h][0] = score[h][1] = 0.0f;
        // Loads of several units, and below of several tokens, are on their way together.
#pragma unroll(FORMAT == KV_F16 ? (HEADS == 1 ? 8 : 4) : FORMAT == KV_Q8 ? 2 : 1)
        for (u32 unit = 0; unit < keys.units(); ++unit) {
            float a[N], b[N];
            keys.key(unit, lane, a);
            keys.key(unit, lane + WARP, b);
#pragma unroll
            for (u32 h = 0; h < HEADS; ++h) {
#pragma unroll
                for (u32 i = 0; i < N; i += 4) {
                    const float4 q = queries[h][(unit * N + i) / 4];
                    score[h][0] = fmaf(q.x, a[i], score[h][0]);
                    score[h][1] = fmaf(q.x, b[i], score[h][1]);
                    score[h][0] = fmaf(q.y, a[i + 1], score[h][0]);
                    score[h][1] = fmaf(q.y, b[i + 1], score[h][1]);
                    score[h][0] = fmaf(q.z, a[i + 2], score[h][0]);
                    score[h][1] = fmaf(q.z, b[i + 2], score[h][1]);
                    score[h][0] = fmaf(q.w, a[i + 3], score[h][0]);
                    score[h][1] = fmaf(q.w, b[i + 3], score[h][1]);
                }
            }
        }
    }

    // The partial result of one page, by one warp.
    __device__ Result page(u32 index, const Queries<LANE, HEADS>& queries, Weights<HEADS>& weights) const {
        const KvHead<FORMAT> keys = kv_head<FORMAT>(p, segment, index, true, kv), values = kv_head<FORMAT>(p, segment, index, false, kv);
        const u32 lane = threadIdx.x % WARP, seen = min(tokens - index * PAGE_ROWS, PAGE_ROWS);
        Result result = Result::nothing();
        float score[HEADS][2];
        scores(keys, queries, lane, score);
        // The weights of the page before have been read.
        __syncwarp();
#pragma unroll
        for (u32 h = 0; h < HEADS; ++h) {
            const float a = lane < seen ? score[h][0] * p.scale : -infinity();
            const float b = lane + WARP < seen ? score[h][1] * p.scale : -infinity();
            result.largest[h] = warp_max(fmaxf(a, b));
            const float base = result.largest[h] == -infinity() ? 0.0f : result.largest[h];
            const float weight_a = lane < seen ? fast_exp(a - base) : 0.0f;
            const float weight_b = lane + WARP < seen ? fast_exp(b - base) : 0.0f;
            result.sum[h] = warp_sum(weight_a + weight_b);
            weights[h][lane] = weight_a;
            weights[h][lane + WARP] = weight_b;
        }
        __syncwarp();
        if (lane * LANE >= p.v.dim) return result;
        // Tokens that the row does not see may be anything.
#pragma unroll(FORMAT == KV_F16 ? (HEADS == 1 ? 16 : 8) : 4)
        for (u32 t = 0; t < seen; ++t) {
            float v[LANE];
            values.template value<LANE>(t, lane * LANE, v);
#pragma unroll
            for (u32 h = 0; h < HEADS; ++h) {
                const float weight = weights[h][t];
#pragma unroll
                for (u32 i = 0; i < LANE; ++i) result.values[h][i] = fmaf(weight, v[i], result.values[h][i]);
            }
        }
        return result;
    }

    // Some tokens of one page by one of PARTS warps, which have its tokens and then its dimensions between them: their scores into
    // `together`, where all warps find them behind a barrier.
    template <u32 PARTS>
    __device__ void part_scores(
        u32 index, u32 part, const Queries<LANE, 1>& queries, const KvHead<FORMAT>& keys, float* together
    ) const {
        constexpr u32 N = KvHead<FORMAT>::PER_UNIT, TOKENS = 2 / PARTS;
        const u32 first = part * TOKENS * WARP + threadIdx.x % WARP, seen = min(tokens - index * PAGE_ROWS, PAGE_ROWS);
        float score[TOKENS] = {};
#pragma unroll(FORMAT == KV_F16 ? 8 : FORMAT == KV_Q8 ? 2 : 1)
        for (u32 unit = 0; unit < keys.units(); ++unit) {
            float a[TOKENS][N];
#pragma unroll
            for (u32 k = 0; k < TOKENS; ++k) keys.key(unit, first + k * WARP, a[k]);
#pragma unroll
            for (u32 i = 0; i < N; i += 4) {
                const float4 q = queries[0][(unit * N + i) / 4];
#pragma unroll
                for (u32 k = 0; k < TOKENS; ++k) {
                    score[k] = fmaf(q.x, a[k][i], score[k]);
                    score[k] = fmaf(q.y, a[k][i + 1], score[k]);
                    score[k] = fmaf(q.z, a[k][i + 2], score[k]);
                    score[k] = fmaf(q.w, a[k][i + 3], score[k]);
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < TOKENS; ++k) together[first + k * WARP] = first + k * WARP < seen ? score[k] * p.scale : -infinity();
    }

    // Then the partial result of the page, of LANE / PARTS dimensions a lane. `weights` are the warp's own.
    template <u32 PARTS>
    __device__ Partial<LANE / PARTS, 1> part_page(
        u32 index, u32 part, const float* together, float* weights, const KvHead<FORMAT>& values
    ) const {
        constexpr u32 OWN = LANE / PARTS;
        const u32 lane = threadIdx.x % WARP, seen = min(tokens - index * PAGE_ROWS, PAGE_ROWS), d = (part * WARP + lane) * OWN;
        auto result = Partial<OWN, 1>::nothing();
        const float a = together[lane], b = together[lane + WARP];
        result.largest[0] = warp_max(fmaxf(a, b));
        const float base = result.largest[0] == -infinity() ? 0.0f : result.largest[0];
        const float weight_a = lane < seen ? fast_exp(a - base) : 0.0f;
        const float weight_b = lane + WARP < seen ? fast_exp(b - base) : 0.0f;
        result.sum[0] = warp_sum(weight_a + weight_b);
        // Those of the page before have been read.
        __syncwarp();
        weights[lane] = weight_a;
        weights[lane + WARP] = weight_b;
        __syncwarp();
        if (d >= p.v.dim) return result;
        // Tokens that the row does not see may be anything.
#pragma unroll(FORMAT == KV_F16 ? 16 : 4)
        for (u32 t = 0; t < seen; ++t) {
            float v[OWN];
            values.template value<OWN>(t, d, v);
#pragma unroll
            for (u32 i = 0; i < OWN; ++i) result.values[0][i] = fmaf(weights[t], v[i], result.values[0][i]);
        }
        return result;
    }

    __device__ float* partial(u32 head, u32 split) const {
        return p.partials + ((u64(row) * p.q.heads + first_head + head) * p.splits + split) * (p.v.dim + 2);
    }

    __device__ float* out(u32 head) const {
        return p.out + u64(row) * p.out_stride + (first_head + head) * p.v.dim;
    }
};

// ---- kernels -------------------------------------------------------------------------------------------------------

// Keys and values of the step into the pages: a warp a row and head; the third dimension has keys and values.
template <u32 FORMAT>
__device__ __forceinline__ void append(const AttentionParams& p) {
    let_next_start();
    wait_for_previous();
    const u32 row = blockIdx.x, head = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const bool is_key = blockIdx.z == 0;
    const View& view = is_key ? p.k : p.v;
    if (row >= p.step.header->rows || head >= view.heads) return;
    const Segment& segment = p.step.segments[p.step.row_segment[row]];
    const u32 position = segment.past + (row - segment.first_row);
    const KvHead<FORMAT> kv = kv_head<FORMAT>(p, segment, position / PAGE_ROWS, is_key, head);
    for (u32 block = 0; block < kv.blocks(); ++block) {
        const u32 d = block * KV_BLOCK + lane;
        const float v = d < view.dim ? *at(view, row, head * view.dim + d) : 0.0f;
        kv.store(is_key, position % PAGE_ROWS, block, lane, v);
    }
}

// A head of a row between a projection and attention, by one warp: queries and keys are normed and turned, keys and values go to
// their page. The same bits as from norm, rope and append one after another.
template <u32 FORMAT>
struct Turn {
    // A lane's share of 256 dimensions, and of as many pairs.
    static constexpr u32 EACH = 8, TURNS = EACH / 2;

    const HeadsParams& p;
    u32 row;
    u32 head;
    bool is_query;
    bool is_key;
    const float* gain;
    float gains[EACH];
    float2 turns[TURNS];

    // `head`: queries are counted first, then keys, then values. What does not depend on the kernel in front is read.
    __device__ Turn(const HeadsParams& p, u32 row, u32 index) : p(p), row(row), head(index) {
        const AttentionParams& a = p.attention;
        const u32 lane = threadIdx.x % WARP;
        is_query = head < a.q.heads;
        is_key = !is_query && head < a.q.heads + a.k.heads;
        if (!is_query) head -= is_key ? a.q.heads : a.q.heads + a.k.heads;
        gain = is_query ? p.q_gain : is_key ? p.k_gain : nullptr;
#pragma unroll
        for (u32 k = 0; k < EACH; ++k) gains[k] = gain != nullptr && lane + k * WARP < view().dim ? gain[lane + k * WARP] : 1.0f;
#pragma unroll
        for (u32 k = 0; k < TURNS; ++k) {
            const u32 i = lane + k * WARP;
            if ((is_query || is_key) && i < p.pairs) turns[k] = rotation(p.table[i], a.step.positions + 3 * u64(row), p.attention_factor);
        }
    }

    __device__ const View& view() const { return is_query ? p.attention.q : is_key ? p.attention.k : p.attention.v; }

    // Into shared memory of the warp.
    __device__ void run(float* y) const {
        const u32 lane = threadIdx.x % WARP, dim = view().dim;
        const float* x = view().data + u64(row) * view().row_stride + head * view().head_stride;
        float v[EACH];
#pragma unroll
        for (u32 k = 0; k < EACH; ++k) v[k] = lane + k * WARP < dim ? x[lane + k * WARP] : 0.0f;
        if (gain != nullptr) {
            // As `warp_inverse`, of values at hand.
            float scale;
            const float sum = sum_in_range(scale, [&](float by) {
                float sum = 0.0f;
#pragma unroll
                for (u32 k = 0; k < EACH; ++k) sum = fmaf(v[k] * by, v[k] * by, sum);
                return warp_sum(sum);
            });
            const float inverse = inverse_root(sum, float(dim), is_query ? p.q_eps : p.k_eps, scale);
#pragma unroll
            for (u32 k = 0; k < EACH; ++k) v[k] = v[k] * inverse * gains[k];
        }
#pragma unroll
        for (u32 k = 0; k < EACH; ++k) {
            if (lane + k * WARP < dim) y[lane + k * WARP] = v[k];
        }
        __syncwarp();
        if (!is_query && !is_key) return;
        // A lane's pairs are its own.
#pragma unroll
        for (u32 k = 0; k < TURNS; ++k) {
            const u32 i = lane + k * WARP;
            if (i >= p.pairs) break;
            const float2 t = turns[k];
            const float first = y[i], second = y[i + p.pairs];
            y[i] = first * t.x - second * t.y;
            y[i + p.pairs] = second * t.x + first * t.y;
        }
        __syncwarp();
    }

    // A key or value to its place.
    __device__ void append(const float* y) const {
        const AttentionParams& a = p.attention;
        const Segment& segment = a.step.segments[a.step.row_segment[row]];
        const u32 position = segment.past + (row - segment.first_row);
        append(y, kv_head<FORMAT>(a, segment, position / PAGE_ROWS, is_key, head), position % PAGE_ROWS);
    }
    __device__ void append(const float* y, const KvHead<FORMAT>& to, u32 token) const {
        const u32 lane = threadIdx.x % WARP, dim = view().dim;
        for (u32 block = 0; block < to.blocks(); ++block) {
            const u32 d = block * KV_BLOCK + lane;
            to.store(is_key, token, block, lane, d < dim ? y[d] : 0.0f);
        }
    }
};

// Between a projection and attention, a warp a row and head.
template <u32 FORMAT>
__device__ __forceinline__ void heads(const HeadsParams& p) {
    __shared__ float turned[4][Turn<FORMAT>::EACH * WARP];
    let_next_start();
    const AttentionParams& a = p.attention;
    const u32 row = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 head = blockIdx.y * (blockDim.x / WARP) + warp;
    if (row >= a.step.header->rows || head >= a.q.heads + a.k.heads + a.v.heads) {
        wait_for_previous();
        return;
    }
    const Turn<FORMAT> turn(p, row, head);
    wait_for_previous();
    turn.run(turned[warp]);
    if (!turn.is_query) return turn.append(turned[warp]);
    for (u32 d = lane; d < a.q.dim; d += WARP) p.q_out[u64(row) * p.q_stride + head * a.q.dim + d] = turned[warp][d];
}

template <u32 LANE, u32 HEADS>
struct SplitShared {
    Queries<LANE, HEADS> queries;
    Weights<HEADS> weights[SPLIT_PAGES];
    Partial<LANE, HEADS> pages[SPLIT_PAGES][WARP];
};

// Split `index` of one row's context: a warp a page.
template <u32 FORMAT, u32 LANE, u32 HEADS>
__device__ __forceinline__ void split_of(
    const AttentionParams& p, const Work<FORMAT, LANE, HEADS>& work, SplitShared<LANE, HEADS>& shared, u32 index
) {
    using Result = Partial<LANE, HEADS>;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 page = index * SPLIT_PAGES + warp;
    const bool seen = page * PAGE_ROWS < work.tokens;
    work.load_queries(shared.queries, threadIdx.x, blockDim.x);
    __syncthreads();
    if (seen) shared.pages[warp][lane] = work.page(page, shared.queries, shared.weights[warp]);
    __syncthreads();
    if (warp != 0) return;
    Result whole = Result::nothing();
    for (u32 w = 0; w < SPLIT_PAGES && (index * SPLIT_PAGES + w) * PAGE_ROWS < work.tokens; ++w) {
        join(whole, shared.pages[w][lane]);
    }
    if (p.splits > 1) {
        for (u32 h = 0; h < work.heads; ++h) {
            float* to = work.partial(h, index);
            if (lane == 0) {
                to[0] = whole.largest[h];
                to[1] = whole.sum[h];
            }
            for (u32 i = 0; i < LANE && lane * LANE < p.v.dim; ++i) to[2 + lane * LANE + i] = whole.values[h][i];
        }
        return;
    }
    Result all = Result::nothing();
    join(all, whole);
    for (u32 h = 0; h < work.heads; ++h) {
        for (u32 i = 0; i < LANE && lane * LANE < p.v.dim; ++i) work.out(h)[lane * LANE + i] = all.values[h][i] / all.sum[h];
    }
}

template <u32 FORMAT, u32 LANE, u32 HEADS>
__device__ __forceinline__ void split(const AttentionParams& p) {
    __shared__ SplitShared<LANE, HEADS> shared;
    let_next_start();
    wait_for_previous();
    if (blockIdx.x >= p.step.header->rows) return;
    const Work<FORMAT, LANE, HEADS> work(p, blockIdx.x, blockIdx.y);
    if (blockIdx.z * SPLIT_TOKENS < work.tokens) split_of(p, work, shared, blockIdx.z);
}

// A head's results of a row as groups of a product's input, a warp each: the whole block calls both, the first one early.
struct Finish {
    Values v;

    __device__ void load(const PrepareParams& p, u32 row, u32 head, u32 dim) {
        const u32 warp = threadIdx.x / WARP, groups = dim / GROUP;
        if (p.wanted != 0 && warp < groups) v.load_gate(p, row, head * groups + warp, threadIdx.x % WARP);
    }

    // `y`: the head's values.
    __device__ void run(const PrepareParams& p, u32 row, u32 head, u32 dim, const float* y) {
        const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, groups = dim / GROUP;
        if (warp >= groups) return;
        for (u32 j = 0; j < 4; ++j) {
            v.x[j] = y[warp * GROUP + 4 * lane + j];
            v.gain[j] = 1.0f;
        }
        v.finish(p, row, head * groups + warp, lane, 1.0f);
    }
};

// The splits of a row's context, joined in order, by blocks of at least 128 threads: a thread has EACH dimensions `blockDim.x`
// apart, and TOGETHER splits on their way.
template <u32 TOGETHER, u32 EACH>
__device__ __forceinline__ void join_splits(const float* partials, u32 splits, u32 dim, float (&y)[EACH]) {
    constexpr u32 CHUNK = 128;
    // Of a chunk of splits: maxima, sums, and what is before and what comes is multiplied by.
    __shared__ float maxima[CHUNK], sums[CHUNK], before[CHUNK], next[CHUNK];
    const u32 d = threadIdx.x, size = dim + 2;
    float largest = -infinity(), sum = 0.0f;
#pragma unroll
    for (u32 e = 0; e < EACH; ++e) y[e] = 0.0f;
    for (u32 base = 0; base < splits; base += CHUNK, partials += CHUNK * size) {
        const u32 count = min(splits - base, CHUNK);
        if (d < count) {
            maxima[d] = partials[d * size];
            sums[d] = partials[d * size + 1];
        }
        __syncthreads();
        if (d < count) {
            float top = largest;
            for (u32 s = 0; s < d; ++s) top = fmaxf(top, maxima[s]);
            const Join joined(top, maxima[d]);
            before[d] = joined.a;
            next[d] = joined.b;
        }
        __syncthreads();
        for (u32 s = 0; s < count; s += TOGETHER) {
            float v[TOGETHER][EACH];
#pragma unroll
            for (u32 i = 0; i < TOGETHER; ++i) {
#pragma unroll
                for (u32 e = 0; e < EACH; ++e) {
                    const u32 at = d + e * blockDim.x;
                    v[i][e] = s + i < count && at < dim ? partials[(s + i) * size + 2 + at] : 0.0f;
                }
            }
#pragma unroll
            for (u32 i = 0; i < TOGETHER; ++i) {
                if (s + i >= count) break;
                largest = fmaxf(largest, maxima[s + i]);
                sum = fmaf(sums[s + i], next[s + i], sum * before[s + i]);
#pragma unroll
                for (u32 e = 0; e < EACH; ++e) y[e] = fmaf(v[i][e], next[s + i], y[e] * before[s + i]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 e = 0; e < EACH; ++e) y[e] /= sum;
}

// A head's finished values, `y` as `join_splits` leaves them: as they are, or as the product's input.
template <u32 EACH>
__device__ __forceinline__ void finish_head(const AttentionParams& p, Finish& last, u32 row, u32 head, const float (&y)[EACH]) {
    __shared__ float results[256];
#pragma unroll
    for (u32 e = 0; e < EACH; ++e) {
        const u32 d = threadIdx.x + e * blockDim.x;
        if (d >= p.v.dim) continue;
        if (p.next.wanted == 0) p.out[u64(row) * p.out_stride + head * p.v.dim + d] = y[e];
        else results[d] = y[e];
    }
    if (p.next.wanted == 0) return;
    __syncthreads();
    last.run(p.next, row, head, p.v.dim, results);
}

// A copy of a page's keys or values of one head into shared memory, on its way, by one of `parts` warps. The kernel writes to the
// page, so it is not read as weights are, which never change.
template <u32 FORMAT>
__device__ __forceinline__ KvHead<FORMAT> staged(const KvHead<FORMAT>& from, u8* to, u32 part, u32 parts) {
    const u32 bytes = head_bytes(from);
    for (u32 at = 16 * (part * WARP + threadIdx.x % WARP); at < bytes; at += 16 * WARP * parts) copy_16(to + at, from.base + at);
    return {to, from.dim};
}

// Warps of a page in `one`: where a lane has a pair of dimensions for each.
template <u32 LANE>
constexpr u32 PAGE_WARPS = LANE >= 4 ? 2 : 1;

// All of a step with one row between two products, a query head and some splits a block: what `heads`, `split` and
// `attention_combine` do. Every block that reads the newest page makes its newest key and value itself, and writes the bytes that all others do. The
// block of a head that ends last joins the splits.
//
// Pages are on their way into shared memory before the kernel in front has ended, as far as it has room: `p.staged` says of
// keys (1) or of keys and values (2).
template <u32 FORMAT, u32 LANE>
__device__ __forceinline__ void one(const HeadsParams& h) {
    constexpr u32 PARTS = PAGE_WARPS<LANE>, OWN = LANE / PARTS, THREADS = SPLIT_PAGES * PARTS * WARP;
    constexpr u32 EACH = (LANE * WARP + THREADS - 1) / THREADS;
    using Result = Partial<OWN, 1>;
    __shared__ float turned[3][Turn<FORMAT>::EACH * WARP];
    __shared__ Queries<LANE, 1> queries;
    __shared__ float scores[SPLIT_PAGES][PAGE_ROWS], weights[SPLIT_PAGES * PARTS][PAGE_ROWS];
    __shared__ Result pages[SPLIT_PAGES][PARTS * WARP];
    __shared__ u32 before;
    DYNAMIC_SHARED(stage);
    let_next_start();
    const AttentionParams& p = h.attention;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, head = blockIdx.y, first = blockIdx.z;
    // The warp's page of a split, and its part of that.
    const u32 own_page = warp / PARTS, part = warp % PARTS;
    if (p.step.header->rows == 0) {
        wait_for_previous();
        return;
    }
    const Work<FORMAT, LANE, 1> work(p, 0, head);
    const u32 splits = (work.tokens + SPLIT_TOKENS - 1) / SPLIT_TOKENS, newest = work.tokens - 1;
    // Others of the head wait for the kernel in front, which this kernel so does not end before.
    if (first >= splits) return;
    const u32 bytes = head_bytes(KvHead<FORMAT>{nullptr, p.k.dim});
    u8* own = stage + own_page * p.staged * bytes;
    KvHead<FORMAT> keys, values;
    const auto bring = [&](u32 split) {
        const u32 page = split * SPLIT_PAGES + own_page;
        if (page * PAGE_ROWS < work.tokens) {
            keys = kv_head<FORMAT>(p, work.segment, page, true, work.kv);
            values = kv_head<FORMAT>(p, work.segment, page, false, work.kv);
            if (p.staged > 1) values = staged(values, own + bytes, part, PARTS);
            else if (lane == 0 && part == 0) bring_near(values.base, bytes);
            if (p.staged > 0) keys = staged(keys, own, part, PARTS);
            else if (lane == 0 && part == 0) bring_near(keys.base, bytes);
        }
        close_copies();
    };
    bring(first);
    // The first warp has the query, the second one the key, the third one the value.
    const Turn<FORMAT> turn(h, 0, warp == 0 ? head : p.q.heads + (warp == 1 ? 0 : p.k.heads) + work.kv);
    wait_for_previous();
    Finish last;
    last.load(p.next, 0, head, p.v.dim);
    // Whether the block has the newest token, at once or in a later turn.
    const bool appends = (splits - 1 - first) % gridDim.z == 0;
    const bool turns = warp == 0 || (appends && warp < 3);
    if (turns) turn.run(turned[warp]);
    wait_for_copies<0>();
    if (p.staged > 0) __syncthreads();
    if (turns && warp == 0) {
        float* query = reinterpret_cast<float*>(queries);
        for (u32 d = lane; d < LANE * WARP; d += WARP) query[d] = d < p.q.dim ? turned[0][d] : 0.0f;
    } else if (turns) {
        turn.append(turned[warp]);
        // And to the copy of its page, where there is one already.
        u8* to = stage + newest / PAGE_ROWS % SPLIT_PAGES * p.staged * bytes;
        const bool copied = first == splits - 1 && p.staged >= warp;
        if (copied) turn.append(turned[warp], {warp == 1 ? to : to + bytes, p.k.dim}, newest % PAGE_ROWS);
    }
    // A lone split need not leave the block. The query that was here lies in `queries`.
    float* only = turned[0];
    u32 done = 0;
#pragma unroll 1
    for (u32 split = first; split < splits; split += gridDim.z, ++done) {
        if (split != first) {
            bring(split);
            wait_for_copies<0>();
        }
        // What was made and copied is there for all.
        __syncthreads();
        const u32 page = split * SPLIT_PAGES + own_page;
        const bool is_there = page * PAGE_ROWS < work.tokens;
        if (is_there) work.template part_scores<PARTS>(page, part, queries, keys, scores[own_page]);
        __syncthreads();
        if (is_there) {
            Result& result = pages[own_page][part * WARP + lane];
            result = work.template part_page<PARTS>(page, part, scores[own_page], weights[warp], values);
        }
        __syncthreads();
        if (warp >= PARTS) continue;
        Result whole = Result::nothing();
        for (u32 w = 0; w < SPLIT_PAGES && (split * SPLIT_PAGES + w) * PAGE_ROWS < work.tokens; ++w) {
            join(whole, pages[w][threadIdx.x]);
        }
        float* to = splits == 1 ? only : work.partial(0, split);
        if (threadIdx.x == 0) {
            to[0] = whole.largest[0];
            to[1] = whole.sum[0];
        }
        const u32 d = threadIdx.x * OWN;
        for (u32 i = 0; i < OWN && d < p.v.dim; ++i) to[2 + d + i] = whole.values[0][i];
    }
    if (splits > 1) {
        if (warp < PARTS) __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            before = atomicAdd(p.counters + head, done);
            // For the next layer.
            if (before + done == splits) p.counters[head] = 0;
        }
    }
    __syncthreads();
    if (splits > 1) {
        if (before + done != splits) return;
        __threadfence();
    }
    float y[EACH];
    join_splits<8>(splits == 1 ? only : work.partial(0, 0), splits, p.v.dim, y);
    finish_head(p, last, 0, head, y);
}

// Whole rows: a warp each. Without splits, of segments with few rows alone: the others are `attention_tile`'s.
template <u32 FORMAT, u32 LANE, u32 HEADS>
__device__ __forceinline__ void rows(const AttentionParams& p) {
    using Result = Partial<LANE, HEADS>;
    constexpr u32 WARPS = 4;
    __shared__ Queries<LANE, HEADS> queries[WARPS];
    __shared__ Weights<HEADS> weights[WARPS];
    // Joined once a split, so it need not take registers.
    __shared__ Result wholes[WARPS][WARP];
    let_next_start();
    wait_for_previous();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x * WARPS + warp;
    if (row >= p.step.header->rows) return;
    const Work<FORMAT, LANE, HEADS> work(p, row, blockIdx.y);
    if (p.splits == 0 && work.segment.rows >= MANY_ROWS) return;
    work.load_queries(queries[warp], lane, WARP);
    __syncwarp();
    Result& whole = wholes[warp][lane];
    whole = Result::nothing();
    for (u32 first = 0; first * PAGE_ROWS < work.tokens; first += SPLIT_PAGES) {
        Result part = Result::nothing();
        for (u32 page = first; page < first + SPLIT_PAGES && page * PAGE_ROWS < work.tokens; ++page) {
            join(part, work.page(page, queries[warp], weights[warp]));
        }
        join(whole, part);
    }
    for (u32 h = 0; h < work.heads; ++h) {
        for (u32 i = 0; i < LANE && lane * LANE < p.v.dim; ++i) {
            work.out(h)[lane * LANE + i] = whole.values[h][i] / whole.sum[h];
        }
    }
}

}  // namespace attention

#define ATTENTION_KERNEL(KERNEL, NAME, FORMAT, LANE, DIM, HEADS)                                     \
    extern "C" __global__ void __launch_bounds__(128, 2)                                             \
        attention_##KERNEL##_##NAME##_d##DIM##_h##HEADS(const __grid_constant__ AttentionParams p) { \
        attention::KERNEL<FORMAT, LANE, HEADS>(p);                                                   \
    }

#define ATTENTION_ONE(NAME, FORMAT, LANE, DIM)                                         \
    extern "C" __global__ void __launch_bounds__(128 * attention::PAGE_WARPS<LANE>, 2) \
        attention_one_##NAME##_d##DIM(const __grid_constant__ HeadsParams p) {         \
        attention::one<FORMAT, LANE>(p);                                               \
    }

#define ATTENTION_HEADS(NAME, FORMAT, LANE, DIM, HEADS)     \
    ATTENTION_KERNEL(split, NAME, FORMAT, LANE, DIM, HEADS) \
    ATTENTION_KERNEL(rows, NAME, FORMAT, LANE, DIM, HEADS)

#define ATTENTION_DIM(NAME, FORMAT, LANE, DIM)                                                \
    ATTENTION_HEADS(NAME, FORMAT, LANE, DIM, 1)                                               \
    ATTENTION_HEADS(NAME, FORMAT, LANE, DIM, 2)                                               \
    ATTENTION_HEADS(NAME, FORMAT, LANE, DIM, 3)                                               \
    ATTENTION_HEADS(NAME, FORMAT, LANE, DIM, 4)

// Everything for one format: head dimensions up to 64, 128 and 256; 1 to 4 query heads at a time.
#define ATTENTION(NAME, FORMAT)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) kv_append_##NAME(const __grid_constant__ AttentionParams p) { \
        attention::append<FORMAT>(p);                                                                               \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(128) heads_append_##NAME(const __grid_constant__ HeadsParams p) {  \
        attention::heads<FORMAT>(p);                                                                                \
    }                                                                                                               \
    ATTENTION_ONE(NAME, FORMAT, 2, 64)                                                                              \
    ATTENTION_ONE(NAME, FORMAT, 4, 128)                                                                             \
    ATTENTION_ONE(NAME, FORMAT, 8, 256)                                                                             \
    ATTENTION_DIM(NAME, FORMAT, 2, 64)                                                                              \
    ATTENTION_DIM(NAME, FORMAT, 4, 128)                                                                             \
    ATTENTION_DIM(NAME, FORMAT, 8, 256)
