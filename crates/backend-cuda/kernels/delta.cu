// The gated delta rule of steps with few rows; its results may become the input of the product behind at once.
#include "delta.cuh"
#include "rounding.cuh"

namespace {

// Columns of a lane so that a block of a key dimension up to 128 has a whole head of GROUP columns.
constexpr u32 LANES = 4;
constexpr u32 COLS = GROUP * LANES / delta::THREADS;

// The rows of a segment, batch by batch; a warp finishes a row as a group of the product's input.
struct Rounded {
    using Rows = delta::Batch<LANES, COLS>;

    __device__ void operator()(const delta::Head& h, Rows& batch, delta::State<COLS>& s, u32 part, u32 column) const {
        __shared__ float results[delta::BATCH][GROUP];
        const PrepareParams& p = h.p.next;
        const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll 1
        for (u32 first = 0; first < h.segment.rows; first += delta::BATCH) {
            const u32 count = min(h.segment.rows - first, delta::BATCH), row = h.segment.first_row + first;
            Values v;
            v.load_gain(p, h.head, lane);
            if (warp < count) v.load_gate(p, row + warp, h.head, lane);
            delta::load<LANES, COLS>(h, batch, first, count, false);
#pragma unroll 1
            for (u32 i = 0; i < count; ++i) {
                delta::update<LANES, COLS>(s, batch, i, part, column);
                float4 query[delta::KEPT / 4];
                delta::take<LANES>(batch.queries[i], part, query);
                float y[COLS];
                delta::products<LANES, COLS>(s, query, y);
#pragma unroll
                for (u32 j = 0; j < COLS; ++j) {
                    if (part == 0) results[i][column + j * (delta::THREADS / LANES)] = y[j];
                }
            }
            __syncthreads();
#pragma unroll 1
            for (u32 i = warp; i < count; i += delta::THREADS / WARP) {
                if (i != warp) v.load_gate(p, row + i, h.head, lane);
                for (u32 j = 0; j < 4; ++j) v.x[j] = results[i][4 * lane + j];
                const float inverse = p.input == INPUT_GATED_NORM ? warp_inverse(results[i], GROUP, p.eps) : 1.0f;
                v.finish(p, row + i, h.head, lane, inverse);
            }
        }
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

extern "C" __global__ void __launch_bounds__(128, 1) gated_delta_k128_rounds(const __grid_constant__ DeltaParams p) {
    delta::gated_delta<LANES, COLS, Rounded>(p);
}
