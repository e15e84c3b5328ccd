// The gated delta rule of steps with few rows; where each is a sequence's only one, results become the input of the product behind at
// once.
#include "delta.cuh"
#include "rounding.cuh"

namespace {

// Lanes of a column where the key dimension is at most 128.
constexpr u32 LANES = 4;

// The rows of a segment by a block with a whole head of GROUP columns: a warp finishes a row as a group of the product's input, behind
// a gated norm.
struct Rounded {
    static constexpr u32 BATCHES = 1, WIDTH = GROUP;
    static constexpr bool WHOLE = true;
    using Rows = delta::Batch<LANES, WIDTH>;

    __device__ void operator()(const delta::Head& h, Rows* batches, delta::State& s, u32 part, u32 column) const {
        __shared__ float results[delta::BATCH][GROUP];
        Rows& batch = batches[0];
        const PrepareParams& p = h.p.next;
        const u32 lane = threadIdx.x % WARP, own = threadIdx.x / WARP;
#pragma unroll 1
        for (u32 first = 0; first < h.segment.rows; first += delta::BATCH) {
            const u32 count = min(h.segment.rows - first, delta::BATCH), row = h.segment.first_row + first + own;
            delta::load(h, batch, first, count, false);
#pragma unroll 1
            for (u32 i = 0; i < count; ++i) {
                const float y = delta::result(batch, i, s, part, column);
                if (part == 0) results[i][column] = y;
            }
            __syncthreads();
            if (own >= count) continue;
            Values v;
            v.load_gain(p, h.head, lane);
            v.load_gate(p, row, h.head, lane);
            for (u32 j = 0; j < 4; ++j) v.x[j] = results[own][4 * lane + j];
            v.finish(p, row, h.head, lane, warp_inverse(results[own], GROUP, p.eps));
        }
    }
};

// The same for a segment with one row and no guesses, as most steps have: every warp brings something else, and nothing takes more
// registers than leave the block room beside those of the product in front.
__device__ __forceinline__ void only_row(const delta::Head& h) {
    using namespace delta;
    __shared__ float4 key[GROUP / 4], query[GROUP / 4];
    __shared__ float values[GROUP], gates[GROUP], gains[GROUP], results[GROUP];
    __shared__ float decay, beta;
    const DeltaParams& p = h.p;
    const u32 lane = threadIdx.x % WARP, warp = warp_index(), part = threadIdx.x % LANES, column = threadIdx.x / LANES;
    float* const own = h.state() + key_index<LANES>(0, part) * GROUP + column;
    State s;
#pragma unroll
    for (u32 r = 0; r < KEPT; ++r) s[r] = own[key_index<LANES>(r, 0) * GROUP];
    const u32 row = h.segment.first_row, last = LANES * GROUP / WARP - 1;
    if (warp == last) {
        for (u32 i = lane; i < GROUP; i += WARP) gains[i] = p.next.gain[i];
    }
    wait_for_previous();
    if (warp == 0) normalise<LANES>(h.of(p.k, row, h.key_head), GROUP, p.eps, 1.0f, key);
    if (warp == 1) normalise<LANES>(h.of(p.q, row, h.key_head), GROUP, p.eps, 1.0f / sqrtf(float(GROUP)), query);
    if (warp >= 4 && warp < 8) values[threadIdx.x - 4 * WARP] = h.of(p.v, row, h.head)[threadIdx.x - 4 * WARP];
    if (warp == 8 && lane == 0) decay = expf(h.row_decay(row));
    if (warp == 9 && lane == 0) beta = h.row_beta(row);
    if (warp == last) {
        const float* gate = at(p.next.gate, row, h.head * GROUP);
        for (u32 i = lane; i < GROUP; i += WARP) gates[i] = gate[i];
    }
    __syncthreads();
    const float kept = decay;
#pragma unroll
    for (u32 r = 0; r < KEPT; ++r) s[r] *= kept;
    float4 vector[KEPT / 4];
    take<LANES>(key, part, vector);
    const float learnt = beta * (values[column] - product<LANES>(s, vector));
    // There are no registers to keep the key in.
    __syncwarp();
    take<LANES>(key, part, vector);
#pragma unroll
    for (u32 r = 0; r < KEPT; ++r) s[r] = fmaf(component(vector[r / 4], r % 4), learnt, s[r]);
    take<LANES>(query, part, vector);
    const float y = product<LANES>(s, vector);
    if (part == 0) results[column] = y;
    __syncthreads();
    if (warp == last) {
        Values v;
        for (u32 j = 0; j < 4; ++j) {
            v.x[j] = results[4 * lane + j];
            v.gain[j] = gains[4 * lane + j];
            v.gate[j] = gates[4 * lane + j];
        }
        v.finish(p.next, row, h.head, lane, warp_inverse(results, GROUP, p.next.eps));
    }
#pragma unroll
    for (u32 r = 0; r < KEPT; ++r) own[key_index<LANES>(r, 0) * GROUP] = s[r];
}

// All other segments, with registers of its own.
__device__ __noinline__ void any_rows(const DeltaParams& p) { delta::gated_delta<LANES, Rounded>(p); }

__device__ __forceinline__ bool is_lone_row(const Segment& segment) {
    return segment.rows == 1 && segment.accepted == 0 && segment.speculative == 0;
}

// Many sequences: a block a multiprocessor takes one head of one of them after another. States of the lone rows come and go by bulk
// copies, the two next ones on their way while one is worked on.
struct Ring {
    static constexpr u32 STAGES = 3, FLOATS = GROUP * GROUP, MOST_SEGMENTS = 128;

    float* states;
    u64 come[STAGES];
    u32 rows[MOST_SEGMENTS], slots[MOST_SEGMENTS];
    bool lone[MOST_SEGMENTS];
    float4 raw[2][GROUP / 4], key[GROUP / 4], query[GROUP / 4];
    // Shares of the products with key and query.
    float learnt[LANES][GROUP], read[LANES][GROUP];
    float values[GROUP], gains[GROUP], results[GROUP];
    // One is read while the next one is filled.
    float gates[2][GROUP];
    float decay, beta;
};

// What a warp brings for a head ahead of time: its key, query, values or gates, four a lane; or decay and beta.
__device__ __forceinline__ void look_ahead(const delta::Head& h, u32 row, u32 warp, u32 lane, float (&ahead)[4]) {
    const DeltaParams& p = h.p;
    if (warp == 4 && lane == 0) {
        ahead[0] = expf(h.row_decay(row));
        ahead[1] = h.row_beta(row);
    }
    if (warp >= 4) return;
    const float* from = warp == 0   ? h.of(p.k, row, h.key_head)
                        : warp == 1 ? h.of(p.q, row, h.key_head)
                        : warp == 2 ? h.of(p.v, row, h.head)
                                    : at(p.next.gate, row, h.head * GROUP);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) ahead[j] = from[lane + j * WARP];
}

// ... and puts in place when its turn has come.
__device__ __forceinline__ void put(const DeltaParams& p, Ring& ring, u32 turn, u32 warp, u32 lane, const float (&ahead)[4]) {
    if (warp == 4 && lane == 0) {
        ring.decay = ahead[0];
        ring.beta = ahead[1];
    }
    if (warp >= 4) return;
    float* to = warp < 2 ? reinterpret_cast<float*>(ring.raw[warp]) : warp == 2 ? ring.values : ring.gates[turn % 2];
#pragma unroll
    for (u32 j = 0; j < 4; ++j) to[lane + j * WARP] = ahead[j];
    if (warp >= 2) return;
    __syncwarp();
    if (warp == 0) delta::normalise<LANES>(to, GROUP, p.eps, 1.0f, ring.key);
    else delta::normalise<LANES>(to, GROUP, p.eps, 1.0f / sqrtf(float(GROUP)), ring.query);
}

__device__ __forceinline__ void lone_rows(const DeltaParams& p, Ring& ring, u32 segments) {
    using namespace delta;
    const u32 heads = p.v.heads, items = segments * heads, lane = threadIdx.x % WARP, warp = warp_index();
    // Lanes of a warp have neighbouring columns of one part.
    const u32 column = threadIdx.x % GROUP, part = threadIdx.x / GROUP;
    constexpr u32 ORDERS = 5, FINISHES = 6, BYTES = 4 * Ring::FLOATS;
    const auto behind = [&](u32 item) {
        do item += gridDim.y;
        while (item < items && !ring.lone[item / heads]);
        return item;
    };
    const auto state = [&](u32 item) {
        return p.states + ring.slots[item / heads] * p.slot_stride + u64(item % heads) * Ring::FLOATS;
    };
    const auto fetch = [&](u32 item, u32 turn) {
        if (warp != ORDERS || lane != 0 || item >= items) return;
        const u32 stage = turn % Ring::STAGES;
        const SharedPlace barrier = shared_place(&ring.come[stage]);
        expect_bytes(barrier, BYTES);
        copy_bulk(shared_place(ring.states + stage * Ring::FLOATS), state(item), BYTES, barrier);
    };
    u32 item = behind(blockIdx.y - gridDim.y), next = behind(item), after = behind(next);
    // Nothing of this step but this kernel touches states: they can be on their way early.
    fetch(item, 0);
    fetch(next, 1);
    wait_for_previous();
    float ahead[4];
    const auto look = [&](u32 item) {
        if (item >= items) return;
        look_ahead(Head(p, p.step.segments[0], item % heads), ring.rows[item / heads], warp, lane, ahead);
    };
    look(item);
    for (u32 turn = 0; item < items; ++turn) {
        put(p, ring, turn, warp, lane, ahead);
        wait_for_phase(shared_place(&ring.come[turn % Ring::STAGES]), turn / Ring::STAGES % 2);
        __syncthreads();
        look(next);
        float* const own = ring.states + turn % Ring::STAGES * Ring::FLOATS + key_index<LANES>(0, part) * GROUP + column;
        State s;
        const float kept = ring.decay;
#pragma unroll
        for (u32 r = 0; r < KEPT; ++r) s[r] = own[key_index<LANES>(r, 0) * GROUP] * kept;
        float4 vector[KEPT / 4];
        take<LANES>(ring.key, part, vector);
        ring.learnt[part][column] = share(s, vector);
        __syncthreads();
        const auto joined = [&](const float (&shares)[LANES][GROUP], u32 c) {
            return (shares[0][c] + shares[1][c]) + (shares[2][c] + shares[3][c]);
        };
        const float learnt = ring.beta * (ring.values[column] - joined(ring.learnt, column));
#pragma unroll
        for (u32 r = 0; r < KEPT; ++r) {
            s[r] = fmaf(component(vector[r / 4], r % 4), learnt, s[r]);
            own[key_index<LANES>(r, 0) * GROUP] = s[r];
        }
        take<LANES>(ring.query, part, vector);
        ring.read[part][column] = share(s, vector);
        show_to_copies();
        __syncthreads();
        if (warp == ORDERS && lane == 0) {
            copy_bulk_out(state(item), shared_place(ring.states + turn % Ring::STAGES * Ring::FLOATS), BYTES);
            close_bulk_copies();
            // The one of the turn before, whose place the next but one takes.
            wait_for_bulk_reads<1>();
        }
        fetch(after, turn + 2);
        if (warp == FINISHES) {
            Values v;
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                v.x[j] = joined(ring.read, 4 * lane + j);
                v.gain[j] = ring.gains[4 * lane + j];
                v.gate[j] = ring.gates[turn % 2][4 * lane + j];
                ring.results[4 * lane + j] = v.x[j];
            }
            __syncwarp();
            v.finish(p.next, ring.rows[item / heads], item % heads, lane, warp_inverse(ring.results, GROUP, p.next.eps));
        }
        item = next;
        next = after;
        after = behind(after);
    }
    if (warp == ORDERS && lane == 0) wait_for_bulk_writes();
}

// Of all segments but the lone rows.
__device__ __noinline__ void other_rows(const DeltaParams& p, const Ring& ring, u32 segments) {
    __shared__ delta::Batch<LANES, GROUP> batch;
    bool waited = true;
    for (u32 item = blockIdx.y; item < segments * p.v.heads; item += gridDim.y) {
        const u32 segment = item / p.v.heads;
        if (ring.lone[segment]) continue;
        delta::sequence<LANES, Rounded>(delta::Head(p, p.step.segments[segment], item % p.v.heads), &batch, waited);
    }
}

}  // namespace

#define GATED_DELTA(KEY_DIM)                                                                             \
    extern "C" __global__ void __launch_bounds__(128, 2)                                                 \
        gated_delta_k##KEY_DIM(const __grid_constant__ DeltaParams p) {                                  \
        delta::gated_delta<KEY_DIM / delta::KEPT>(p);                                                    \
    }

// Key dimensions up to this one.
GATED_DELTA(32)
GATED_DELTA(64)
GATED_DELTA(128)
GATED_DELTA(256)

// Of a step with one row: a block a head of GROUP by GROUP values.
extern "C" __global__ void __launch_bounds__(512, 2) gated_delta_rounds(const __grid_constant__ DeltaParams p) {
    let_next_start();
    if (p.step.header->segments == 1) {
        const delta::Head h(p, p.step.segments[0], blockIdx.y);
        if (h.segment.accepted == 0 && h.segment.speculative == 0) return only_row(h);
    }
    any_rows(p);
}

// Of a step with some rows, mostly of as many sequences: blocks of the second dimension take heads of all of them in turn.
extern "C" __global__ void __launch_bounds__(512, 1) gated_delta_sequences(const __grid_constant__ DeltaParams p) {
    DYNAMIC_SHARED(states);
    __shared__ Ring ring;
    let_next_start();
    const u32 segments = p.step.header->segments;
    for (u32 i = threadIdx.x; i < segments; i += blockDim.x) {
        const Segment segment = p.step.segments[i];
        ring.rows[i] = segment.first_row;
        ring.slots[i] = segment.slot;
        ring.lone[i] = is_lone_row(segment);
    }
    for (u32 i = threadIdx.x; i < GROUP; i += blockDim.x) ring.gains[i] = p.next.gain[i];
    if (threadIdx.x == 0) {
        ring.states = reinterpret_cast<float*>(states);
        for (u64& barrier : ring.come) make_barrier(shared_place(&barrier), 1);
        show_barriers();
    }
    __syncthreads();
    lone_rows(p, ring, segments);
    other_rows(p, ring, segments);
}
