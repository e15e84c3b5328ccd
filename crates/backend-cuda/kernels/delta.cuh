// The gated delta rule, token by token: every split of a sequence into steps gives the same bits.
//
// A column of a head's matrix has a recurrence of its own. LANES neighbouring lanes share one, each with 32 of its
// values in registers; a block of 128 threads has 128 / LANES columns of one head. Rows come in batches through shared
// memory, where keys and queries are normalised. Accepted guesses of the step before are rows like others, but for the
// output.
#pragma once

#include "common.cuh"

namespace delta {

// Threads of a block, but where it has a whole head.
constexpr u32 THREADS = 128;
constexpr u32 KEPT = 32;
constexpr u32 BATCH = 8;

// Value `r` of lane `part` among a column's keys: quads of neighbours, so that reads of four are free of conflicts.
template <u32 LANES>
__device__ __forceinline__ u32 key_index(u32 r, u32 part) {
    return r / 4 * 4 * LANES + part * 4 + r % 4;
}

template <u32 LANES>
__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
    for (u32 offset = 1; offset < LANES; offset *= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// Columns of one head in a block of THREADS.
template <u32 LANES>
constexpr u32 COLUMNS = THREADS / LANES;

// Of WIDTH columns.
template <u32 LANES, u32 WIDTH = COLUMNS<LANES>>
struct Batch {
    // Zeros behind the key dimension.
    float4 keys[BATCH][LANES * KEPT / 4];
    float4 queries[BATCH][LANES * KEPT / 4];
    float values[BATCH][WIDTH];
    float decay[BATCH];
    float beta[BATCH];
};

// One head of one sequence. The segment is copied: behind every store what it says would be read anew.
struct Head {
    const DeltaParams& p;
    const Segment segment;
    u32 head;
    u32 key_head;

    __device__ Head(const DeltaParams& p, const Segment& segment, u32 head) : p(p), segment(segment), head(head) {
        key_head = p.map == MAP_GROUPED ? head / (p.v.heads / p.k.heads) : head % p.k.heads;
    }

    // Whether this head's block writes the keys that it shares with others to the pending area.
    __device__ bool owns_key() const {
        return p.map == MAP_GROUPED ? head % (p.v.heads / p.k.heads) == 0 : head < p.k.heads;
    }

    // Values of one head in a row of the step.
    __device__ const float* of(const View& view, u32 row, u32 head) const {
        return view.data + u64(row) * view.row_stride + head * view.head_stride;
    }

    // Of a row of the step.
    __device__ float row_decay(u32 row) const {
        const float a = *at(p.log_decay, row, head);
        return p.decay_rate == nullptr ? a : log_decay(a + p.dt_bias[head], p.decay_rate[head]);
    }
    __device__ float row_beta(u32 row) const {
        const float b = *at(p.beta, row, head);
        return p.decay_rate == nullptr ? b : sigmoid(b);
    }

    __device__ float* state() const {
        return p.states + segment.slot * p.slot_stride + u64(head) * p.k.dim * p.v.dim;
    }

    // A row of a pending area: keys of all key heads, values of all heads, log decays, betas.
    __device__ float* pending(u32 area, u32 i) const { return p.pending + area * p.pending_stride + u64(i) * p.pending_row; }
    __device__ u32 value_start() const { return p.k.heads * p.k.dim; }
    __device__ u32 decay_start() const { return value_start() + p.v.heads * p.v.dim; }
};

// A key or query of a row, normalised by one warp: x * rsqrt(sum(x^2) + eps) * factor.
template <u32 LANES>
__device__ __forceinline__ void normalise(const float* x, u32 dim, float eps, float factor, float4* out) {
    const u32 lane = threadIdx.x % WARP;
    float scale;
    const float sum = sum_in_range(scale, [&](float by) { return warp_sum(squares(x, dim, lane, WARP, by)); });
    const float inverse = inverse_root(sum, 1.0f, eps, scale) * factor;
    float* to = reinterpret_cast<float*>(out);
    for (u32 i = lane; i < LANES * KEPT; i += WARP) to[i] = i < dim ? x[i] * inverse : 0.0f;
}

// Brings `count` rows from `first` on into shared memory: accepted guesses, or rows of the step.
template <u32 LANES, u32 WIDTH>
__device__ __forceinline__ void load(const Head& h, Batch<LANES, WIDTH>& batch, u32 first, u32 count, bool accepted) {
    constexpr u32 THREADS = LANES * WIDTH;
    const DeltaParams& p = h.p;
    const u32 warp = threadIdx.x / WARP, column = blockIdx.x * WIDTH;
    __syncthreads();
    for (u32 j = threadIdx.x; j < count * WIDTH; j += THREADS) {
        const u32 i = j / WIDTH, c = column + j % WIDTH;
        if (c >= p.v.dim) continue;
        const float* guess = h.pending(h.segment.pending_read, first + i) + h.value_start() + h.head * p.v.dim;
        batch.values[i][c - column] = accepted ? guess[c] : h.of(p.v, h.segment.first_row + first + i, h.head)[c];
    }
    // From the last thread down, which has no key or query of a short batch.
    if (THREADS - 1 - threadIdx.x < count) {
        const u32 i = THREADS - 1 - threadIdx.x, row = h.segment.first_row + first + i;
        const float* gates = h.pending(h.segment.pending_read, first + i) + h.decay_start();
        batch.decay[i] = expf(accepted ? gates[h.head] : h.row_decay(row));
        batch.beta[i] = accepted ? gates[p.v.heads + h.head] : h.row_beta(row);
    }
    // Keys, and behind them the queries: a warp each.
    for (u32 j = warp; j < (accepted ? count : 2 * count); j += THREADS / WARP) {
        const u32 i = j % count, row = h.segment.first_row + first + i;
        if (j >= count) {
            const float* query = h.of(p.q, row, h.key_head);
            normalise<LANES>(query, p.q.dim, p.eps, 1.0f / sqrtf(float(p.q.dim)), batch.queries[i]);
        } else {
            const float* guess = h.pending(h.segment.pending_read, first + i);
            const float* key = accepted ? guess + h.key_head * p.k.dim : h.of(p.k, row, h.key_head);
            normalise<LANES>(key, p.k.dim, p.eps, 1.0f, batch.keys[i]);
        }
    }
    __syncthreads();
}

// Rows of the step, as they came, into the pending area.
template <u32 LANES, u32 WIDTH>
__device__ __forceinline__ void keep_guesses(const Head& h) {
    constexpr u32 THREADS = LANES * WIDTH;
    const DeltaParams& p = h.p;
    const u32 column = blockIdx.x * WIDTH;
    for (u32 i = 0; i < h.segment.rows; ++i) {
        const u32 row = h.segment.first_row + i;
        float* to = h.pending(h.segment.pending_write, i);
        for (u32 c = column + threadIdx.x; c < min(column + WIDTH, p.v.dim); c += THREADS) {
            const u32 at_value = h.head * p.v.dim + c;
            to[h.value_start() + at_value] = *at(p.v, row, at_value);
        }
        if (blockIdx.x != 0) continue;
        for (u32 d = threadIdx.x; h.owns_key() && d < p.k.dim; d += THREADS) {
            to[h.key_head * p.k.dim + d] = *at(p.k, row, h.key_head * p.k.dim + d);
        }
        if (threadIdx.x == 0) {
            to[h.decay_start() + h.head] = h.row_decay(row);
            to[h.decay_start() + p.v.heads + h.head] = h.row_beta(row);
        }
    }
}

__device__ __forceinline__ float component(const float4& v, u32 i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// What a lane has of the state: a part of a column.
using State = float[KEPT];

// A lane's share of the inner product of its column with a vector: four running sums, joined in pairs.
__device__ __forceinline__ float share(const State& s, const float4 (&vector)[KEPT / 4]) {
    float sums[4] = {};
#pragma unroll
    for (u32 r = 0; r < KEPT; r += 4) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sums[i] = fmaf(s[r + i], component(vector[r / 4], i), sums[i]);
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <u32 LANES>
__device__ __forceinline__ float product(const State& s, const float4 (&vector)[KEPT / 4]) {
    return column_sum<LANES>(share(s, vector));
}

// The lane's part of a vector of shared memory.
template <u32 LANES>
__device__ __forceinline__ void take(const float4* from, u32 part, float4 (&to)[KEPT / 4]) {
#pragma unroll
    for (u32 r = 0; r < KEPT; r += 4) to[r / 4] = from[key_index<LANES>(r, part) / 4];
}

// One token: S *= decay; d = beta (v - S^T k); S += k d^T.
template <u32 LANES, u32 WIDTH>
__device__ __forceinline__ void update(State& s, const Batch<LANES, WIDTH>& batch, u32 i, u32 part, u32 column) {
    float4 key[KEPT / 4];
    take<LANES>(batch.keys[i], part, key);
#pragma unroll
    for (u32 r = 0; r < KEPT; ++r) s[r] *= batch.decay[i];
    const float delta = batch.beta[i] * (batch.values[i][column] - product<LANES>(s, key));
    if (WIDTH > COLUMNS<LANES>) {
        // So many threads have no registers to keep the key in.
        __syncwarp();
        take<LANES>(batch.keys[i], part, key);
    }
#pragma unroll
    for (u32 r = 0; r < KEPT; ++r) s[r] = fmaf(component(key[r / 4], r % 4), delta, s[r]);
}

// Row `i` of a batch: the state after it, and the result of the lane's column.
template <u32 LANES, u32 WIDTH>
__device__ __forceinline__ float result(const Batch<LANES, WIDTH>& batch, u32 i, State& s, u32 part, u32 column) {
    update(s, batch, i, part, column);
    float4 query[KEPT / 4];
    take<LANES>(batch.queries[i], part, query);
    return product<LANES>(s, query);
}

// The same, kept as a result: the batch begins at row `first` of the segment.
template <u32 LANES>
__device__ __forceinline__ void step(
    const Head& h, const Batch<LANES>& batch, u32 first, u32 i, State& s, u32 part, u32 column
) {
    const float y = result(batch, i, s, part, column);
    const u32 c = blockIdx.x * COLUMNS<LANES> + column;
    if (part == 0 && c < h.p.v.dim) h.p.out[u64(h.segment.first_row + first + i) * h.p.out_stride + h.head * h.p.v.dim + c] = y;
}

// The rows of a segment, batch by batch.
template <u32 LANES>
struct EachBatch {
    static constexpr u32 BATCHES = 1, WIDTH = COLUMNS<LANES>;
    // Whether heads have exactly LANES * KEPT by WIDTH values.
    static constexpr bool WHOLE = false;

    __device__ void operator()(const Head& h, Batch<LANES>* batches, State& s, u32 part, u32 column) const {
        Batch<LANES>& batch = batches[0];
        for (u32 first = 0; first < h.segment.rows; first += BATCH) {
            const u32 count = min(h.segment.rows - first, BATCH);
            load(h, batch, first, count, false);
            for (u32 i = 0; i < count; ++i) step<LANES>(h, batch, first, i, s, part, column);
        }
    }
};

// One head of a sequence, all of its rows: `rows` brings them and steps through them. Waits for the kernel in front where that has not
// been done.
template <u32 LANES, typename Rows>
__device__ __forceinline__ void sequence(const Head& h, Batch<LANES, Rows::WIDTH>* batches, bool& waited) {
    constexpr u32 WIDTH = Rows::WIDTH;
    const DeltaParams& p = h.p;
    const Rows rows;
    const u32 part = threadIdx.x % LANES, column = threadIdx.x / LANES;
    // Likewise.
    float* const own = h.state() + blockIdx.x * WIDTH + column;
    const auto each = [&](auto&& f) {
#pragma unroll
        for (u32 r = 0; r < KEPT; ++r) {
            const u32 key = key_index<LANES>(r, part), c = blockIdx.x * WIDTH + column;
            if (Rows::WHOLE) f(r, true, own + key_index<LANES>(0, part) * WIDTH + key_index<LANES>(r, 0) * WIDTH);
            else f(r, key < p.k.dim && c < p.v.dim, own + key * p.v.dim);
        }
    };
    State s;
    // Nothing of this step but this kernel touches this state: it can be on its way early.
    each([&](u32 r, bool is_there, const float* at) { s[r] = is_there ? *at : 0.0f; });
    if (!waited) wait_for_previous();
    waited = true;
    const auto store = [&]() {
        each([&](u32 r, bool is_there, float* at) {
            if (is_there) *at = s[r];
        });
    };
    for (u32 first = 0; first < h.segment.accepted; first += BATCH) {
        const u32 count = min(h.segment.accepted - first, BATCH);
        load(h, batches[0], first, count, true);
        for (u32 i = 0; i < count; ++i) update(s, batches[0], i, part, column);
    }
    if (h.segment.speculative) {
        if (h.segment.accepted > 0) store();
        keep_guesses<LANES, WIDTH>(h);
    }
    rows(h, batches, s, part, column);
    if (!h.segment.speculative) store();
}

// Sequences are shared among the blocks of the third dimension.
template <u32 LANES, typename Rows = EachBatch<LANES>>
__device__ __forceinline__ void gated_delta(const DeltaParams& p) {
    __shared__ Batch<LANES, Rows::WIDTH> batches[Rows::BATCHES];
    let_next_start();
    bool waited = false;
    for (u32 z = blockIdx.z; z < p.step.header->segments; z += gridDim.z) {
        sequence<LANES, Rows>(Head(p, p.step.segments[z], blockIdx.y), batches, waited);
    }
    if (!waited) wait_for_previous();
}

}  // namespace delta
