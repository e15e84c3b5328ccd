// Products with some tens of rows of integers, on the matrix units (`linear_tiles.cuh`): a warp has a slice of PAIRS times 32 weight
// rows and COLUMNS activation rows, which it brings into shared memory for itself. So the weight is read once, by as many
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
#ifdef BATCH_STAGES
constexpr u32 STAGES = BATCH_STAGES;
#else
constexpr u32 STAGES = 2;
#endif

template <bool NINE>
using Record = tiles::Record<COLUMNS, NINE>;
using Sums = tiles::Finished<COLUMNS>;

// A warp's copies of the codes of every record. Rows behind the last are copies of it.
struct Copies {
    const i8* from;
    u32 last;
    u32 padded;

    __device__ Copies(const Prepared& x, u32 count, u32 record)
        : from(x.codes + u64(record) * GROUP), last(count - 1), padded(x.padded) {}

    template <bool NINE>
    __device__ void bring(Record<NINE>& to) {
        const u32 lane = threadIdx.x % WARP;
#pragma unroll
        for (u32 i = 0; i < COLUMNS / 4; ++i) {
            const u32 row = 4 * i + lane / 8, unit = lane % 8;
            copy_16(&to.codes[row][to.place(row, unit)], from + u64(min(row, last)) * padded + 16 * unit);
        }
        from += GROUP;
    }
};

// One slice, the records from `first` to `end`.
template <u32 BITS, bool NINE, u32 PAIRS>
__device__ __forceinline__ void slice(
    const Prepared& x, const Tile (&tiles)[PAIRS][2], u32 count, u32 first, u32 end, Record<NINE> (&records)[STAGES], bool& waited,
    tiles::Product<BITS, NINE, TILES> (&work)[PAIRS]
) {
    const u32 lane = threadIdx.x % WARP;
    Codes<BITS> codes[PAIRS];
    tiles::Source<BITS> source[PAIRS];
    tiles::Scaling scaling[PAIRS];
#pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        source[i] = tiles::Source<BITS>(tiles[i], first);
        scaling[i] = tiles::Scaling(tiles[i]);
        if (first < end) source[i].load(codes[i]);
        work[i].clear();
    }
    if (!waited) wait_for_previous();
    waited = true;
    if (first >= end) return;
    Copies copies(x, count, first);
    tiles::Share<BITS, NINE> share(linear::from_record(x, first), min(lane, count - 1));
#pragma unroll
    for (u32 i = 0; i + 1 < STAGES; ++i) {
        if (first + i < end) copies.bring(records[i]);
        close_copies();
    }
    share.load();
    share.store(records[0], lane);
    if (first + 1 < end) share.load();
    u32 now = 0;
    for (u32 r = first; r < end; ++r) {
        wait_for_copies<STAGES - 2>();
        // All lanes are done with the record before, whose place another one takes.
        __syncwarp();
        const u32 before = now == 0 ? STAGES - 1 : now - 1, next = now + 1 == STAGES ? 0 : now + 1;
        if (r + STAGES - 1 < end) copies.bring(records[before]);
        close_copies();
        if (r + 1 < end) {
            share.store(records[next], lane);
            if (r + 2 < end) share.load();
        }
#pragma unroll
        for (u32 i = 0; i < PAIRS; ++i) {
            const Codes<BITS> own = codes[i];
            if (r + 1 < end) source[i].load(codes[i]);
            work[i].add(records[now], own, scaling[i]);
        }
        now = next;
    }
    __syncwarp();
}

template <u32 BITS, bool NINE, u32 PAIRS>
__device__ __forceinline__ void run(const LinearParams& p) {
    DYNAMIC_SHARED(memory);
    let_next_start();
    const u32 first = blockIdx.y * COLUMNS, warp = threadIdx.x / WARP;
    if (first >= *p.rows) {
        wait_for_previous();
        return;
    }
    const u32 count = min(*p.rows - first, COLUMNS);
    const Prepared x = linear::from_row(p.x, first);
    const u32 end = x.padded / GROUP, share = (end + p.slices - 1) / p.slices;
    Tile tiles[PAIRS][2];
    bool is_own[PAIRS];
#pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) is_own[i] = tiles::find(p, blockIdx.x * PAIRS + i, tiles[i]);
    // Of each pair, COLUMNS / WARPS rows are this warp's to finish.
    constexpr u32 OWN = COLUMNS / WARPS;
    float total[PAIRS][OWN] = {};
    bool waited = false;
    for (u32 base = 0; base < p.slices; base += WARPS) {
        const u32 start = min((base + warp) * share, end), stop = min(start + share, end);
        tiles::Product<BITS, NINE, TILES> work[PAIRS];
        slice<BITS, NINE, PAIRS>(
            x, tiles, count, start, stop, reinterpret_cast<Record<NINE>(*)[STAGES]>(memory)[warp], waited, work
        );
        // The sums of the slices take the place of the records.
        __syncthreads();
        Sums(*sums)[WARPS] = reinterpret_cast<Sums(*)[WARPS]>(memory);
#pragma unroll
        for (u32 i = 0; i < PAIRS; ++i) tiles::spread<TILES>(work[i].sum, sums[i][warp]);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < PAIRS; ++i) {
#pragma unroll
            for (u32 j = 0; j < OWN; ++j) {
                for (u32 w = 0; w < WARPS; ++w) total[i][j] += sums[i][w][warp * OWN + j][threadIdx.x % WARP];
            }
        }
        __syncthreads();
    }
    tiles::Finished<OWN>& own = reinterpret_cast<tiles::Finished<OWN>*>(memory)[warp];
#pragma unroll
    for (u32 i = 0; i < PAIRS; ++i) {
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < OWN; ++j) own[j][threadIdx.x % WARP] = total[i][j];
        __syncwarp();
        if (!is_own[i] || warp * OWN >= count) continue;
        tiles::finish<BITS, NINE, OWN>(p, x, first, warp * OWN, min(count - warp * OWN, OWN), tiles[i], own);
    }
}

// What the host asks for.
constexpr u32 SHARED = WARPS * STAGES * sizeof(Record<true>);
static_assert(SHARED >= 2 * WARPS * sizeof(Sums), "room for the sums of two pairs");

}  // namespace batch
