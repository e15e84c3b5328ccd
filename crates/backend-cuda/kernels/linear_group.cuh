// Products with many rows of 8-bit integers on Hopper's matrix units: four warps multiply together, and read the activations from
// shared memory by themselves. The same results as in `linear.cuh`, bit for bit.
//
// A thread block has ROWS activation rows and WEIGHTS weight rows, 64 of each group of four warps. A lane unpacks the codes of two weight
// rows of a warp's 16, eight rows apart; of gate and up these are the same row of either. Records of 128 columns come
// two at a time, in the places in which the matrix units expect rows of 128 bytes: 16-byte units of a row exchanged by its number modulo 8.
// The sum of a group becomes a float by its bits, as in `linear_tiles.cuh`; what it begins at is added here.
#pragma once

#include "linear_tiles.cuh"

namespace group {

using tiles::CENTER;
using tiles::MAGIC;
using tiles::MAGIC_BITS;

constexpr u32 GROUPS = 3;
constexpr u32 THREADS = GROUPS * 128;
constexpr u32 WEIGHTS = GROUPS * 64;
constexpr u32 ROWS = 64;
constexpr u32 RECORDS = 2;
constexpr u32 STAGES = 4;

template <u32 BITS>
struct alignas(1024) Stage {
    uint4 rows[RECORDS][ROWS][8];
    uint4 codes[RECORDS][BITS][WEIGHTS];
    // For two rows each: what their sums begin at, and what they are multiplied by.
    int4 beside[RECORDS][ROWS / 2];
    u16 scales[RECORDS][WEIGHTS];
};

// Where a block's weight row lies.
struct Place {
    const Part* part;
    u32 block;
    u32 row;

    __device__ Place(const LinearParams& p, u32 weight) {
        if (p.epilogue == EPILOGUE_SWIGLU) {
            // Eight rows of gate, then the same of up.
            part = &p.parts[weight / 8 % 2];
            block = min(blockIdx.x * GROUPS + weight / 64, (part->rows + BLOCK_ROWS - 1) / BLOCK_ROWS - 1);
            row = weight % 64 / 16 * 8 + weight % 8;
            return;
        }
        const Part& last = p.parts[p.part_count - 1];
        const u32 blocks = last.first_block + (last.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
        const u32 found = min(blockIdx.x * 2 * GROUPS + weight / 32, blocks - 1);
        u32 i = 0;
        while (i + 1 < p.part_count && found >= p.parts[i + 1].first_block) ++i;
        part = &p.parts[i];
        block = found - part->first_block;
        row = weight % 32;
    }
};

// Whether the launch has a block for this weight row at all.
__device__ __forceinline__ bool is_there(const LinearParams& p, u32 weight) {
    if (p.epilogue == EPILOGUE_SWIGLU) return (blockIdx.x * GROUPS + weight / 64) * BLOCK_ROWS < p.parts[0].rows;
    const Part& last = p.parts[p.part_count - 1];
    return blockIdx.x * 2 * GROUPS + weight / 32 < last.first_block + (last.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

// A thread's copies: eight units of activations, and of one weight row the codes of one record, or the scales of eight rows.
template <u32 BITS>
struct Copies {
    const u8* codes;
    const u8* scales;

    __device__ Copies(const LinearParams& p) {
        const Place place(p, threadIdx.x % WEIGHTS);
        const u64 unit = u64(place.block) * place.part->units + threadIdx.x / WEIGHTS * BITS;
        codes = place.part->codes + (unit * BLOCK_ROWS + place.row) * 16;
        const Place first(p, threadIdx.x % (WEIGHTS / 8) * 8);
        const u64 group = u64(first.block) * first.part->groups + threadIdx.x / (WEIGHTS / 8) % RECORDS;
        scales = first.part->scales + (group * BLOCK_ROWS + first.row) * 2;
    }

    // The records of stage `s`, of rows from `first` on, `count` of which there are.
    __device__ void bring(const Prepared& x, Stage<BITS>& to, u32 s, u32 first, u32 count) {
        const u32 end = x.padded / GROUP;
#pragma unroll
        for (u32 i = 0; i < (RECORDS * ROWS * 8 + THREADS - 1) / THREADS; ++i) {
            const u32 item = threadIdx.x + i * THREADS, r = item / (ROWS * 8), row = item / 8 % ROWS, unit = item % 8;
            if (r >= RECORDS || s * RECORDS + r >= end || row >= count) continue;
            copy_16(&to.rows[r][row][unit ^ row % 8], x.codes + u64(first + row) * x.padded + (s * RECORDS + r) * GROUP + unit * 16);
        }
        const u32 record = threadIdx.x / WEIGHTS;
        if (s * RECORDS + record < end) {
#pragma unroll
            for (u32 b = 0; b < BITS; ++b) copy_16(&to.codes[record][b][threadIdx.x % WEIGHTS], codes + b * 16 * BLOCK_ROWS);
        }
        codes += 16 * BLOCK_ROWS * BITS * RECORDS;
        constexpr u32 SHARES = WEIGHTS / 8;
        if (threadIdx.x < SHARES * RECORDS && s * RECORDS + threadIdx.x / SHARES < end) {
            copy_16(to.scales[threadIdx.x / SHARES] + threadIdx.x % SHARES * 8, scales);
        }
        scales += 2 * BLOCK_ROWS * RECORDS;
    }
};

// What goes with a row of one record, on its way from memory: some threads have a row of every other record.
template <u32 BITS>
struct Beside {
    int4 sums;
    float step;

    __device__ void load(const Prepared& x, u32 s, u32 row) {
        const u32 record = s * RECORDS + threadIdx.x / ROWS, end = x.padded / GROUP;
        if (threadIdx.x >= RECORDS * ROWS || record >= end) return;
        const u64 at = u64(row) * end + record;
        sums = __ldg(reinterpret_cast<const int4*>(x.sums) + at);
        step = __ldg(x.scales + at);
    }

    __device__ void store(Stage<BITS>& to) const {
        const u32 row = threadIdx.x % ROWS, record = threadIdx.x / ROWS;
        if (record >= RECORDS) return;
        i32* const at = reinterpret_cast<i32*>(&to.beside[record][row / 2]) + row % 2;
        at[0] = MAGIC_BITS - CENTER<BITS> * (sums.x + sums.y + sums.z + sums.w);
        at[2] = i32(__float_as_uint(step));
    }
};

// Codes of four neighbouring columns of piece `k` of 32, from the lane's part of the lower or upper half of it.
template <u32 BITS>
__device__ __forceinline__ u32 four_of(const u32 (&words)[4 * BITS], u32 k, u32 upper, u32 t) {
    if (BITS == 1) return words[k] >> (t + 4 * upper) & 0x01010101u;
    return words[(2 * k + upper) % (4 * BITS)] >> 2 * t & 0x03030303u;
}

template <u32 BITS>
__device__ __forceinline__ void run(const LinearParams& p) {
    static_assert(BITS == 1 || BITS == 2, "codes");
    static_assert(STAGES * sizeof(Stage<BITS>) + 1024 <= 132096, "launch.rs");
    DYNAMIC_SHARED(memory);
    Stage<BITS>* const stages = reinterpret_cast<Stage<BITS>*>((reinterpret_cast<u64>(memory) + 1023) / 1024 * 1024);
    let_next_start();
    const u32 first = blockIdx.y * ROWS, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const u32 own = threadIdx.x / WARP * 16;
    Copies<BITS> copies(p);
    float factor[2];
    bool is_half[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const Place place(p, own + 8 * i + g);
        factor[i] = place.part->factor;
        is_half[i] = place.part->scale_type == PARAM_F16;
    }
    wait_for_previous();
    if (first >= *p.rows) return;
    const u32 count = min(*p.rows - first, ROWS);
    const Prepared& x = p.x;
    const u32 end = x.padded / GROUP, slice = (end + p.slices - 1) / p.slices, row_beside = first + min(threadIdx.x % ROWS, count - 1);
    Beside<BITS> beside = {};
    for (u32 s = 0; s + 1 < STAGES; ++s) {
        copies.bring(x, stages[s], s, first, count);
        close_copies();
    }
    beside.load(x, 0, row_beside);
    beside.store(stages[0]);
    beside.load(x, 1, row_beside);
    float sum[ROWS / 2] = {}, total[ROWS / 2] = {};
    u32 until = slice;
#pragma unroll 1
    for (u32 s = 0; s * RECORDS < end; ++s) {
        wait_for_copies<STAGES - 2>();
        show_to_matrix_units();
        __syncthreads();
        copies.bring(x, stages[(s + STAGES - 1) % STAGES], s + STAGES - 1, first, count);
        close_copies();
        // Behind the last record these are numbers that nobody reads.
        beside.store(stages[(s + 1) % STAGES]);
        beside.load(x, s + 2, row_beside);
        const Stage<BITS>& stage = stages[s % STAGES];
#pragma unroll 1
        for (u32 r = 0; r < RECORDS && s * RECORDS + r < end; ++r) {
            u32 a[4][4];
            float scale[2], less[2];
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                u32 words[4 * BITS];
#pragma unroll
                for (u32 b = 0; b < BITS; ++b) {
                    const uint4 v = stage.codes[r][b][own + 8 * i + g];
                    words[4 * b] = v.x;
                    words[4 * b + 1] = v.y;
                    words[4 * b + 2] = v.z;
                    words[4 * b + 3] = v.w;
                }
#pragma unroll
                for (u32 k = 0; k < 8; ++k) a[k / 2][i + 2 * (k % 2)] = four_of<BITS>(words, k / 2, k % 2, t);
                const u16 stored = stage.scales[r][own + 8 * i + g];
                scale[i] = factor[i] * (is_half[i] ? half_value(stored) : bf16_value(stored));
                less[i] = -MAGIC * scale[i];
            }
            i32 d[ROWS / 2];
            begin_multiplying();
            multiply_rows(d, a, stage.rows[r][0]);
            close_multiplying();
            wait_for_products<0>(d);
#pragma unroll
            for (u32 j = 0; j < ROWS / 8; ++j) {
                const int4 with = stage.beside[r][4 * j + t];
#pragma unroll
                for (u32 e = 0; e < 4; ++e) {
                    const i32 dot = 2 * d[4 * j + e] + (e % 2 == 0 ? with.x : with.y);
                    const float term = fmaf(__int_as_float(dot), scale[e / 2], less[e / 2]);
                    sum[4 * j + e] = fmaf(__int_as_float(e % 2 == 0 ? with.z : with.w), term, sum[4 * j + e]);
                }
            }
            if (--until > 0 && s * RECORDS + r + 1 < end) continue;
            until = slice;
#pragma unroll
            for (u32 i = 0; i < ROWS / 2; ++i) {
                total[i] += sum[i];
                sum[i] = 0.0f;
            }
        }
    }
    if (!is_there(p, own)) return;
    // Found again: between, registers are scarce.
    const Place places[2] = {Place(p, unknown(own) + g), Place(p, unknown(own) + 8 + g)};
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    const bool bare = places[0].part->residual_first == nullptr && places[1].part->residual_first == nullptr;
#pragma unroll
    for (u32 m = 0; m < 2; ++m) {
        const u32 in_part = places[m].block * BLOCK_ROWS + places[m].row, c = places[m].part->first_row + in_part;
        if ((gated && m > 0) || in_part >= places[m].part->rows) break;
        float* const out = p.out + u64(first + 2 * t) * p.out_stride + c;
        const float* const added = p.epilogue == EPILOGUE_RESIDUAL ? at(p.residual, first + 2 * t, c) : nullptr;
#pragma unroll
        for (u32 i = 0; i < ROWS / 4; ++i) {
            const u32 row = i / 2 * 8 + i % 2;
            if (row + 2 * t >= count) continue;
            const auto finished = [&](u32 of) {
                const float y = total[i / 2 * 4 + 2 * of + i % 2];
                if (bare) return y + 0.0f;
                const tiles::Tile tile{places[of].part, places[of].block, places[of].row};
                return y + tiles::residuals<BITS, false>(linear::from_row(x, first + row + 2 * t), tile, 0);
            };
            float y = finished(m);
            if (gated) y = silu(y) * finished(1);
            if (added != nullptr) y += added[u64(row) * p.residual.row_stride];
            out[u64(row) * p.out_stride] = y;
        }
    }
}

}  // namespace group
