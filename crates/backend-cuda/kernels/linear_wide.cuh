// Products with many rows of integers, on the matrix units (`linear_tiles.cuh`): a thread block has COLUMNS activation rows, which
// its eight warps share through shared memory, and 32 weight rows a warp.
#pragma once

#include "linear_tiles.cuh"

namespace wide {

using tiles::Codes;
using tiles::Tile;

constexpr u32 THREADS = 256;
constexpr u32 COLUMNS = 32;
constexpr u32 TILES = COLUMNS / 8;
// Records in shared memory, as many as 48 KB hold: one that is read, others on their way.
template <u32 BITS>
constexpr u32 STAGES = BITS == 4 ? 2 : BITS == 2 ? 3 : 4;

template <u32 BITS, bool NINE>
struct Stage {
    tiles::Record<COLUMNS, NINE> record;
    tiles::Weights<BITS> weights[THREADS / WARP];
};

// The thread's share of the codes of every record: a unit. Rows behind the last are copies of it.
struct Copies {
    static_assert(COLUMNS * 8 == THREADS, "a unit a thread");

    const i8* from;
    u32 row;
    u32 place;

    __device__ Copies(const Prepared& x, u32 count)
        : row(threadIdx.x / 8), place(tiles::Record<COLUMNS, false>::place(row, threadIdx.x % 8)) {
        from = x.codes + u64(min(row, count - 1)) * x.padded + 16 * (threadIdx.x % 8);
    }

    template <bool NINE>
    __device__ void bring(tiles::Record<COLUMNS, NINE>& to) {
        copy_16(&to.codes[row][place], from);
        from += GROUP;
    }
};

// Sums of all slices so far, in registers.
struct Kept {
    float total[TILES][2][4];

    __device__ explicit Kept(u8*) {
#pragma unroll
        for (u32 i = 0; i < 8 * TILES; ++i) total[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }

    __device__ void add(const float (&sum)[TILES][2][4]) {
#pragma unroll
        for (u32 i = 0; i < 8 * TILES; ++i) total[i / 8][i / 4 % 2][i % 4] += sum[i / 8][i / 4 % 2][i % 4];
    }

    __device__ void spread(tiles::Finished<COLUMNS>& to) const { tiles::spread<TILES>(total, to); }
};

// The same in shared memory behind the stages.
struct Put {
    float4* total;

    __device__ explicit Put(u8* memory) : total(reinterpret_cast<float4*>(memory) + threadIdx.x) {
#pragma unroll
        for (u32 i = 0; i < 2 * TILES; ++i) total[i * THREADS] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    __device__ void add(const float (&sum)[TILES][2][4]) {
#pragma unroll
        for (u32 i = 0; i < 2 * TILES; ++i) {
            float4 t = total[i * THREADS];
            const float(&s)[4] = sum[i / 2][i % 2];
            t.x += s[0];
            t.y += s[1];
            t.z += s[2];
            t.w += s[3];
            total[i * THREADS] = t;
        }
    }

    __device__ void spread(tiles::Finished<COLUMNS>& to) const {
        float all[TILES][2][4];
#pragma unroll
        for (u32 i = 0; i < 2 * TILES; ++i) {
            const float4 t = total[i * THREADS];
            float(&o)[4] = all[i / 2][i % 2];
            o[0] = t.x;
            o[1] = t.y;
            o[2] = t.z;
            o[3] = t.w;
        }
        tiles::spread<TILES>(all, to);
    }
};

template <u32 BITS, bool NINE, typename Total = Kept>
__device__ __forceinline__ void run(const LinearParams& p) {
    DYNAMIC_SHARED(memory);
    constexpr u32 COUNT = STAGES<BITS>;
    Stage<BITS, NINE>* const stages = reinterpret_cast<Stage<BITS, NINE>*>(memory);
    static_assert(COUNT * sizeof(stages[0]) <= 46080, "launch.rs");
    let_next_start();
    const u32 first = blockIdx.y * COLUMNS, warp = threadIdx.x / WARP;
    Tile tiles[2];
    const bool is_own = tiles::find(p, blockIdx.x * (THREADS / WARP) + warp, tiles);
    const tiles::Scaling scaling[1] = {tiles::Scaling(tiles)};
    tiles::WeightCopies<BITS> weights(tiles, 0);
    wait_for_previous();
    if (first >= *p.rows) return;
    const u32 count = min(*p.rows - first, COLUMNS), own = min(threadIdx.x, count - 1);
    const Prepared x = linear::from_row(p.x, first);
    const u32 end = x.padded / GROUP, slice = (end + p.slices - 1) / p.slices;
    tiles::Product<BITS, NINE, TILES> work;
    Total total(memory + COUNT * sizeof(stages[0]));
    work.clear();
    // Codes of a record are on their way for COUNT - 1 records, what goes with them for one.
    tiles::Share<BITS, NINE> share(x, own);
    Copies copies(x, count);
    for (u32 r = 0; r + 1 < COUNT; ++r) {
        if (r < end) {
            copies.bring(stages[r].record);
            weights.bring(stages[r].weights[warp]);
        }
        close_copies();
    }
    if (threadIdx.x < COLUMNS) {
        share.load();
        share.store(stages[0].record, threadIdx.x);
        if (end > 1) share.load();
    }
    u32 left = slice, now = 0;
    for (u32 r = 0; r < end; ++r) {
        wait_for_copies<COUNT - 2>();
        __syncthreads();
        const u32 before = now == 0 ? COUNT - 1 : now - 1, next = now + 1 == COUNT ? 0 : now + 1;
        if (r + COUNT - 1 < end) {
            copies.bring(stages[before].record);
            weights.bring(stages[before].weights[warp]);
        }
        close_copies();
        if (threadIdx.x < COLUMNS && r + 1 < end) {
            share.store(stages[next].record, threadIdx.x);
            if (r + 2 < end) share.load();
        }
        Codes<BITS> codes[1];
        stages[now].weights[warp].take(codes[0]);
        work.add(stages[now].record, 0, codes, scaling);
        now = next;
        if (--left > 0 && r + 1 < end) continue;
        left = slice;
        total.add(work.sum);
        work.clear();
    }
    // Out through shared memory: a lane then has a weight row.
    using Sums = tiles::Finished<COLUMNS>;
    static_assert(COUNT * sizeof(stages[0]) >= THREADS / WARP * sizeof(Sums), "room for finished sums");
    Sums& sums = reinterpret_cast<Sums*>(memory)[warp];
    __syncthreads();
    if (!is_own) return;
    total.spread(sums);
    __syncwarp();
    tiles::finish<BITS, NINE>(p, x, first, 0, count, tiles, sums);
}

}  // namespace wide
