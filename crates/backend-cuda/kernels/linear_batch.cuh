// Products with some tens of rows of integers, on the matrix units (`linear_tiles.cuh`): a thread block has 32 weight rows and COLUMNS
// activation rows, a warp a slice of them, which it brings into shared memory for itself. So the weight is read once, by as many
// warps as slices make of it.
#pragma once

#include "linear_tiles.cuh"

namespace batch {

using tiles::Codes;
using tiles::Tile;

constexpr u32 THREADS = 256;
constexpr u32 WARPS = THREADS / WARP;
constexpr u32 COLUMNS = 32;
constexpr u32 TILES = COLUMNS / 8;
constexpr u32 STAGES = 2;

template <u32 BITS, bool NINE>
struct Stage {
    tiles::Record<COLUMNS, NINE> record;
    tiles::Weights<BITS> weights;
};

static_assert(WARPS * STAGES * sizeof(Stage<2, true>) <= 98304, "launch.rs");

using Sums = tiles::Finished<COLUMNS>;

// A warp's copies of the codes of every record. Rows behind the last are copies of it.
struct Copies {
    const i8* from;
    u32 last;
    u32 padded;

    __device__ Copies(const Prepared& x, u32 count, u32 record)
        : from(x.codes + u64(record) * GROUP + 16 * (threadIdx.x % 8)), last(count - 1), padded(x.padded) {}

    template <bool NINE>
    __device__ void bring(tiles::Record<COLUMNS, NINE>& to) {
        // Places are found anew each time: kept, they would fill the registers.
        const u32 row = unknown(threadIdx.x % WARP / 8), unit = threadIdx.x % 8;
#pragma unroll
        for (u32 i = 0; i < COLUMNS / 4; ++i) {
            copy_16(&to.codes[row + 4 * i][to.place(row + 4 * i, unit)], from + min(row + 4 * i, last) * padded);
        }
        from += GROUP;
    }
};

// One slice, the records from `first` to `end`.
template <u32 BITS, bool NINE>
__device__ __forceinline__ void slice(
    const Prepared& x, const Tile (&tiles)[2], u32 count, u32 first, u32 end, Stage<BITS, NINE> (&stages)[STAGES], bool& waited,
    tiles::Product<BITS, NINE, TILES>& work
) {
    const u32 lane = threadIdx.x % WARP;
    const tiles::Scaling scaling[1] = {tiles::Scaling(tiles)};
    tiles::WeightCopies<BITS> weights(tiles, first);
    work.clear();
    // Weights are there before the kernel in front has ended.
    if (first < end) weights.bring(stages[0].weights);
    if (!waited) wait_for_previous();
    waited = true;
    if (first >= end) return;
    Copies copies(x, count, first);
    tiles::Share<BITS, NINE> share(linear::from_record(x, first), min(lane, count - 1));
    copies.bring(stages[0].record);
    close_copies();
    share.load();
    share.store(stages[0].record, lane);
    if (first + 1 < end) share.load();
    u32 now = 0;
    for (u32 r = first; r < end; ++r) {
        // All lanes are done with the record before, whose place the next one takes.
        __syncwarp();
        if (r + 1 < end) {
            Stage<BITS, NINE>& next = stages[1 - now];
            copies.bring(next.record);
            weights.bring(next.weights);
            share.store(next.record, lane);
            if (r + 2 < end) share.load();
        }
        close_copies();
        wait_for_copies<1>();
        __syncwarp();
        Codes<BITS> codes[1];
        stages[now].weights.take(codes[0]);
        work.add(stages[now].record, 0, codes, scaling);
        now = 1 - now;
    }
    __syncwarp();
}

template <u32 BITS, bool NINE>
__device__ __forceinline__ void run(const LinearParams& p) {
    DYNAMIC_SHARED(memory);
    let_next_start();
    const u32 first = blockIdx.y * COLUMNS, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (first >= *p.rows) {
        wait_for_previous();
        return;
    }
    const u32 count = min(*p.rows - first, COLUMNS);
    const Prepared x = linear::from_row(p.x, first);
    const u32 end = x.padded / GROUP, share = (end + p.slices - 1) / p.slices;
    Tile tiles[2];
    tiles::find(p, blockIdx.x, tiles);
    // So many rows of the result are this warp's to finish.
    constexpr u32 OWN = COLUMNS / WARPS;
    float total[OWN] = {};
    bool waited = false;
    for (u32 base = 0; base < p.slices; base += WARPS) {
        const u32 start = min((base + warp) * share, end), stop = min(start + share, end);
        tiles::Product<BITS, NINE, TILES> work;
        slice<BITS, NINE>(
            x, tiles, count, start, stop, reinterpret_cast<Stage<BITS, NINE>(*)[STAGES]>(memory)[warp], waited, work
        );
        // The sums of the slices take the place of the records.
        __syncthreads();
        Sums* const sums = reinterpret_cast<Sums*>(memory);
        tiles::spread<TILES>(work.sum, sums[warp]);
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < OWN; ++j) {
            for (u32 w = 0; w < WARPS; ++w) total[j] += sums[w][warp * OWN + j][lane];
        }
        __syncthreads();
    }
    if (warp * OWN >= count) return;
    tiles::Finished<OWN>& own = reinterpret_cast<tiles::Finished<OWN>*>(memory)[warp];
#pragma unroll
    for (u32 j = 0; j < OWN; ++j) own[j][lane] = total[j];
    __syncwarp();
    tiles::finish<BITS, NINE, OWN>(p, x, first, warp * OWN, min(count - warp * OWN, OWN), tiles, own);
}

}  // namespace batch
