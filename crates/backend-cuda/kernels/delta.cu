// The gated delta rule of steps with few rows; its results may become the input of the product behind at once.
#include "delta.cuh"
#include "rounding.cuh"

namespace {

// Lanes of a column where the key dimension is at most 128. The blocks of a head of GROUP columns are then a cluster.
constexpr u32 LANES = 4;
constexpr u32 WIDTH = delta::COLUMNS<LANES, 1>;
constexpr u32 BLOCKS = GROUP / WIDTH;

// The rows of a segment, a batch at most; the blocks of the head take turns in finishing a row as a group of the product's input,
// which the others send their columns of it.
struct Rounded {
    static constexpr u32 BATCHES = 1;

    __device__ void operator()(
        const delta::Head& h, delta::Batch<LANES, 1>* batches, delta::State<1>& s, u32 part, u32 column
    ) const {
        __shared__ float results[delta::BATCH][GROUP];
        __shared__ u64 box;
        delta::Batch<LANES, 1>& batch = batches[0];
        const PrepareParams& p = h.p.next;
        const u32 lane = threadIdx.x % WARP, rank = cluster_rank(), count = min(h.segment.rows, delta::BATCH);
        // The row that this warp finishes.
        const u32 own = rank + threadIdx.x / WARP * BLOCKS, rows = (count + BLOCKS - 1 - rank) / BLOCKS;
        if (threadIdx.x == 0) {
            make_barrier(&box);
            expect_bytes(&box, rows * sizeof(results[0]));
        }
        cluster_start();
        Values v;
        v.load_gain(p, h.head, lane);
        if (own < count) v.load_gate(p, h.segment.first_row + own, h.head, lane);
        delta::load<LANES, 1>(h, batch, 0, count, false);
        cluster_started();
#pragma unroll 1
        for (u32 i = 0; i < count; ++i) {
            const float y = delta::result<LANES>(batch, i, s, part, column);
            if (part == 0) send(&results[i][blockIdx.x * WIDTH + column], &box, i % BLOCKS, y);
        }
        if (own >= count) return;
        wait_for_arrivals(&box);
        for (u32 j = 0; j < 4; ++j) v.x[j] = results[own][4 * lane + j];
        const float inverse = p.input == INPUT_GATED_NORM ? warp_inverse(results[own], GROUP, p.eps) : 1.0f;
        v.finish(p, h.segment.first_row + own, h.head, lane, inverse);
    }
};

}  // namespace

#define GATED_DELTA(KEY_DIM)                                                                             \
    extern "C" __global__ void __launch_bounds__(128, 2)                                                 \
        gated_delta_k##KEY_DIM(const __grid_constant__ DeltaParams p) {                                  \
        delta::gated_delta<KEY_DIM / delta::KEPT, 1>(p);                                                 \
    }

// Key dimensions up to this one.
GATED_DELTA(32)
GATED_DELTA(64)
GATED_DELTA(128)
GATED_DELTA(256)

extern "C" __global__ void __launch_bounds__(128, 2) gated_delta_k128_rounds(const __grid_constant__ DeltaParams p) {
    delta::gated_delta<LANES, 1, Rounded>(p);
}
