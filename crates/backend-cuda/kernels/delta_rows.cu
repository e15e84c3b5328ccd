// The gated delta rule of steps with many rows: what `delta.cuh` computes, in the same order.
//
// What a row's heads share is made beforehand, once: normalised keys and queries of the key heads, decay and beta of the value
// heads. The rows then come in batches, the next one on its way while one is computed.
#include "delta.cuh"

namespace {

using namespace delta;

// A row of what is made beforehand, of key dimensions padded to `width`: keys, queries, decays, betas.
struct Made {
    const DeltaParams& p;
    u32 width;

    __device__ u32 gates() const { return 2 * p.k.heads * width; }
    // Rows begin at multiples of 16 bytes.
    __device__ u32 stride() const { return gates() + (2 * p.v.heads + 3) / 4 * 4; }
    __device__ float* row(u32 r) const { return p.made + u64(r) * stride(); }
};

// A warp a key, a query or the gates of a row.
template <u32 LANES>
__device__ __forceinline__ void make(const DeltaParams& p) {
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.x, lane = threadIdx.x % WARP, heads = p.k.heads;
    if (r >= p.step.header->rows) return;
    const Made made{p, LANES * KEPT};
    float* to = made.row(r);
    for (u32 j = threadIdx.x / WARP; j <= 2 * heads; j += blockDim.x / WARP) {
        float4* out = reinterpret_cast<float4*>(to + j * made.width);
        if (j < heads) {
            normalise<LANES>(at(p.k, r, j * p.k.dim), p.k.dim, p.eps, 1.0f, out);
        } else if (j < 2 * heads) {
            normalise<LANES>(at(p.q, r, (j - heads) * p.q.dim), p.q.dim, p.eps, 1.0f / sqrtf(float(p.q.dim)), out);
        } else {
            for (u32 h = lane; h < p.v.heads; h += WARP) {
                // A head of any segment: rows of the step alone are looked at.
                const Head head(p, p.step.segments[0], h);
                to[made.gates() + h] = expf(head.row_decay(r));
                to[made.gates() + p.v.heads + h] = head.row_beta(r);
            }
        }
    }
}

template <u32 LANES>
struct MadeBatches {
    using Rows = Batch<LANES>;
    static constexpr u32 WIDTH = COLUMNS<LANES>;
    static constexpr u32 UNITS = LANES * KEPT / 4;
    static constexpr u32 VALUES = (BATCH * WIDTH + THREADS - 1) / THREADS;

    // Values and gates of a batch, on their way.
    struct Share {
        float values[VALUES];
        float decay, beta;
    };

    // Rows behind the last are copies of it.
    static __device__ void bring(const Head& h, Rows& to, Share& share, u32 first) {
        const DeltaParams& p = h.p;
        const Made made{p, LANES * KEPT};
        const auto row = [&](u32 i) { return h.segment.first_row + min(first + i, h.segment.rows - 1); };
#pragma unroll
        for (u32 j = threadIdx.x; j < BATCH * UNITS; j += THREADS) {
            const u32 i = j / UNITS, unit = j % UNITS;
            const float* key = made.row(row(i)) + h.key_head * made.width + 4 * unit;
            copy_16(&to.keys[i][unit], key);
            copy_16(&to.queries[i][unit], key + p.k.heads * made.width);
        }
        close_copies();
#pragma unroll
        for (u32 n = 0; n < VALUES; ++n) {
            const u32 j = threadIdx.x + n * THREADS, c = blockIdx.x * WIDTH + j % WIDTH;
            share.values[n] = 0.0f;
            if (j < BATCH * WIDTH && c < p.v.dim) share.values[n] = *at(p.v, row(j / WIDTH), h.head * p.v.dim + c);
        }
        if (threadIdx.x < BATCH) {
            const float* gates = made.row(row(threadIdx.x)) + made.gates();
            share.decay = gates[h.head];
            share.beta = gates[p.v.heads + h.head];
        }
    }

    static __device__ void store(Rows& to, const Share& share) {
#pragma unroll
        for (u32 n = 0; n < VALUES; ++n) {
            const u32 j = threadIdx.x + n * THREADS;
            if (j < BATCH * WIDTH) to.values[j / WIDTH][j % WIDTH] = share.values[n];
        }
        if (threadIdx.x < BATCH) {
            to.decay[threadIdx.x] = share.decay;
            to.beta[threadIdx.x] = share.beta;
        }
    }

    // One is read while the other one is filled. They are told apart by an index: of two names the compiler would read both and
    // take one, which is right, but looks like a race.
    static constexpr u32 BATCHES = 2;
    static constexpr bool WHOLE = false;

    __device__ void operator()(const Head& h, Rows* batches, State& s, u32 part, u32 column) const {
        const u32 c = blockIdx.x * WIDTH + column;
        Share share;
        // What an earlier segment left has been read.
        __syncthreads();
        bring(h, batches[0], share, 0);
        for (u32 first = 0; first < h.segment.rows; first += BATCH) {
            const u32 odd = first / BATCH % 2;
            Rows& now = batches[odd];
            store(now, share);
            wait_for_copies<0>();
            __syncthreads();
            if (first + BATCH < h.segment.rows) bring(h, batches[1 - odd], share, first + BATCH);
            const u32 count = min(h.segment.rows - first, BATCH);
            if (count == BATCH) {
                // Results are stored behind the batch: a store between would keep the next row's reads behind it.
                float y[BATCH];
#pragma unroll
                for (u32 i = 0; i < BATCH; ++i) y[i] = result(now, i, s, part, column);
                if (part == 0 && c < h.p.v.dim) {
                    float* to = h.p.out + u64(h.segment.first_row + first) * h.p.out_stride + h.head * h.p.v.dim + c;
#pragma unroll
                    for (u32 i = 0; i < BATCH; ++i) to[u64(i) * h.p.out_stride] = y[i];
                }
            } else {
                for (u32 i = 0; i < count; ++i) step<LANES>(h, now, first, i, s, part, column);
            }
        }
    }
};

}  // namespace

#define DELTA_ROWS(KEY_DIM)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) delta_make_k##KEY_DIM(const __grid_constant__ DeltaParams p) {    \
        make<KEY_DIM / KEPT>(p);                                                                                        \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(128, 2) delta_rows_k##KEY_DIM(const __grid_constant__ DeltaParams p) { \
        gated_delta<KEY_DIM / KEPT, MadeBatches<KEY_DIM / KEPT>>(p);                                                          \
    }

// Key dimensions up to this one.
DELTA_ROWS(32)
DELTA_ROWS(64)
DELTA_ROWS(128)
DELTA_ROWS(256)
