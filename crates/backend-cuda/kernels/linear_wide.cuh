// Products with many rows of integers, on the matrix units (`linear_tiles.cuh`): a thread block has COLUMNS activation rows, which
// its eight warps share through shared memory, and 32 weight rows a warp.
#pragma once

#include "linear_tiles.cuh"

namespace wide {

using tiles::Codes;
using tiles::Tile;

constexpr u32 THREADS = 256;
constexpr u32 COLUMNS = 64;
constexpr u32 TILES = COLUMNS / 8;
// Records in shared memory: one that is read, others on their way.
constexpr u32 STAGES = 4;

using Record = tiles::Record<COLUMNS>;

// The thread's share of the codes of every record: two units, of rows ROWS apart. Rows behind the last are copies of it.
struct Copies {
    static constexpr u32 ROWS = THREADS / 8;
    static_assert(COLUMNS == 2 * ROWS && ROWS % 8 == 0, "two units a thread, in equal places of their rows");

    const i8* from[2];
    u32 row;
    u32 place;

    __device__ Copies(const Prepared& x, u32 count) : row(threadIdx.x / 8), place(Record::place(row, threadIdx.x % 8)) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            from[i] = x.codes + u64(min(row + i * ROWS, count - 1)) * x.padded + 16 * (threadIdx.x % 8);
        }
    }

    __device__ void bring(Record& to) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            copy_16(&to.codes[row + i * ROWS][place], from[i]);
            from[i] += GROUP;
        }
    }
};

template <u32 BITS, bool NINE>
__device__ __forceinline__ void run(const LinearParams& p) {
    __shared__ Record records[STAGES];
    let_next_start();
    const u32 first = blockIdx.y * COLUMNS;
    Tile tiles[2];
    const bool is_own = tiles::find(p, blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, tiles);
    tiles::Source<BITS> source(tiles, 0);
    Codes<BITS> codes;
    source.load(codes);
    wait_for_previous();
    if (first >= *p.rows) return;
    const u32 count = min(*p.rows - first, COLUMNS), own = min(threadIdx.x, count - 1);
    const Prepared x = linear::from_row(p.x, first);
    const u32 end = x.padded / GROUP, slice = (end + p.slices - 1) / p.slices;
    tiles::Product<BITS, NINE, TILES> work;
    float total[TILES][2][4];
    work.clear();
#pragma unroll
    for (u32 i = 0; i < 8 * TILES; ++i) total[i / 8][i / 4 % 2][i % 4] = 0.0f;
    // Codes of a record are on their way for STAGES - 1 records, what goes with them for one.
    tiles::Share<BITS, NINE> share(x, own);
    Copies copies(x, count);
    for (u32 r = 0; r + 1 < STAGES; ++r) {
        if (r < end) copies.bring(records[r]);
        close_copies();
    }
    if (threadIdx.x < COLUMNS) {
        share.load();
        share.store(records[0], threadIdx.x);
        if (end > 1) share.load();
    }
    u32 left = slice;
    for (u32 r = 0; r < end; ++r) {
        const Record& record = records[r % STAGES];
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        const u32 ahead = r + STAGES - 1;
        if (ahead < end) copies.bring(records[ahead % STAGES]);
        close_copies();
        if (threadIdx.x < COLUMNS && r + 1 < end) {
            share.store(records[(r + 1) % STAGES], threadIdx.x);
            if (r + 2 < end) share.load();
        }
        const Codes<BITS> now = codes;
        if (r + 1 < end) source.load(codes);
        work.add(record, now);
        if (--left > 0 && r + 1 < end) continue;
        left = slice;
#pragma unroll
        for (u32 i = 0; i < 8 * TILES; ++i) total[i / 8][i / 4 % 2][i % 4] += work.sum[i / 8][i / 4 % 2][i % 4];
        work.clear();
    }
    // Out through shared memory, some columns at a time: a lane then has a weight row.
    static_assert(sizeof(records) >= THREADS / WARP * sizeof(tiles::Finished<COLUMNS / 2>), "room for finished sums");
    using Sums = tiles::Finished<COLUMNS / 2>;
    Sums& sums = reinterpret_cast<Sums*>(records)[threadIdx.x / WARP];
    __syncthreads();
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 column = half * COLUMNS / 2;
        if (!is_own || column >= count) return;
        __syncwarp();
        float part[TILES / 2][2][4];
#pragma unroll
        for (u32 i = 0; i < 4 * TILES; ++i) part[i / 8][i / 4 % 2][i % 4] = total[half * TILES / 2 + i / 8][i / 4 % 2][i % 4];
        tiles::spread<TILES / 2>(part, sums);
        __syncwarp();
        tiles::finish<BITS, NINE>(p, x, first, column, min(count - column, COLUMNS / 2), tiles, sums);
    }
}

}  // namespace wide
