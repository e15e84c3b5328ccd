// The gated delta rule of steps with few rows; where there is but one, its results become the input of the product behind at once.
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
