// Products with many rows of 8-bit integers on Hopper's matrix units: four warps multiply together, and read the activations from
// shared memory by themselves. The same results as in `linear.cuh`, bit for bit.
//
// A thread block has ROWS activation rows and WEIGHTS weight rows, 64 of each group of four warps. A lane unpacks the codes of two weight
// rows of a warp's 16, eight rows apart; of gate and up these are the same row of either. Records of 128 columns come
// RECORDS at a time, in the places in which the matrix units expect rows of 128 bytes: 16-byte units of a row exchanged by its number modulo 8.
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
// Records that come together, and how many times that: one is read, others on their way.
constexpr u32 RECORDS = 4;
constexpr u32 STAGES = 3;

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

// A thread's copies for each stage: units of activations, of weight rows the codes of a record each, or the scales of eight rows.
template <u32 BITS>
struct Copies {
    static constexpr u32 ROWS_TOGETHER = THREADS / 8;
    static constexpr u32 OWN_ROWS = (RECORDS * ROWS + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    static constexpr u32 OWN_CODES = RECORDS * WEIGHTS / THREADS;
    static constexpr u32 SHARES = WEIGHTS / 8;

    const i8* rows;
    const u8* codes;
    const u8* scales;

    __device__ Copies(const LinearParams& p) {
        const Place place(p, threadIdx.x % WEIGHTS);
        const u64 unit = u64(place.block) * place.part->units + threadIdx.x / WEIGHTS * BITS;
        codes = place.part->codes + (unit * BLOCK_ROWS + place.row) * 16;
        const Place first(p, threadIdx.x % SHARES * 8);
        const u64 group = u64(first.block) * first.part->groups + threadIdx.x / SHARES % RECORDS;
        scales = first.part->scales + (group * BLOCK_ROWS + first.row) * 2;
    }

    __device__ void begin(const Prepared& x, u32 first) { rows = x.codes + u64(first) * x.padded + threadIdx.x % 8 * 16; }

    // The next stage, of which there are `left` records and `count` rows.
    __device__ void bring(Stage<BITS>& to, u32 stride, u32 left, u32 count) {
        const u32 unit = threadIdx.x % 8;
#pragma unroll
        for (u32 i = 0; i < OWN_ROWS; ++i) {
            // Records lie one behind the other in the stage, rows in each.
            const u32 item = threadIdx.x / 8 + i * ROWS_TOGETHER, r = item / ROWS, row = item % ROWS;
            if (item < RECORDS * ROWS && r < left && row < count) copy_16(&to.rows[r][row][unit ^ row % 8], rows + row * stride + r * GROUP);
        }
        rows += RECORDS * GROUP;
#pragma unroll
        for (u32 i = 0; i < OWN_CODES; ++i) {
            const u32 r = threadIdx.x / WEIGHTS + i * (THREADS / WEIGHTS);
            if (r >= left) break;
#pragma unroll
            for (u32 b = 0; b < BITS; ++b) {
                copy_16(&to.codes[r][b][threadIdx.x % WEIGHTS], codes + (i * (THREADS / WEIGHTS) * BITS + b) * 16 * BLOCK_ROWS);
            }
        }
        codes += 16 * BLOCK_ROWS * BITS * RECORDS;
        if (threadIdx.x / SHARES < min(left, RECORDS)) copy_16(to.scales[threadIdx.x / SHARES] + threadIdx.x % SHARES * 8, scales);
        scales += 2 * BLOCK_ROWS * RECORDS;
    }
};

// What goes with a row of one record, on its way from memory: some threads have a row of every RECORDS-th record.
template <u32 BITS>
struct Beside {
    const int4* sums_at;
    const float* step_at;
    int4 sums;
    float step;

    __device__ Beside(const Prepared& x, u32 row) {
        const u64 at = u64(row) * (x.padded / GROUP) + threadIdx.x / ROWS;
        sums_at = reinterpret_cast<const int4*>(x.sums) + at;
        step_at = x.scales + at;
    }

    __device__ void load(u32 left) {
        if (threadIdx.x / ROWS < min(left, RECORDS)) {
            sums = *sums_at;
            step = *step_at;
        }
        sums_at += RECORDS;
        step_at += RECORDS;
    }

    __device__ void store(Stage<BITS>& to) const {
        const u32 row = threadIdx.x % ROWS, record = threadIdx.x / ROWS;
        if (record >= RECORDS) return;
        i32* const at = reinterpret_cast<i32*>(&to.beside[record][row / 2]) + row % 2;
        at[0] = MAGIC_BITS - CENTER<BITS> * (sums.x + sums.y + sums.z + sums.w);
        at[2] = i32(__float_as_uint(step));
    }
};

// Few weights have residuals; the code for them is there once.
template <u32 BITS>
__device__ __noinline__ float residuals(const LinearParams& p, u32 row, u32 weight) {
    const Place place(p, weight);
    if (place.part->residual_first == nullptr) return 0.0f;
    const tiles::Tile tile{place.part, place.block, place.row};
    return tiles::residuals<BITS, false>(linear::from_row(p.x, row), tile, 0);
}

// Codes of four neighbouring columns of piece `k` of 32, from the lane's part of the lower or upper half of it.
template <u32 BITS>
__device__ __forceinline__ u32 four_of(const u32 (&words)[4 * BITS], u32 k, u32 upper, u32 t) {
    if (BITS == 1) return words[k] >> (t + 4 * upper) & 0x01010101u;
    return words[(2 * k + upper) % (4 * BITS)] >> 2 * t & 0x03030303u;
}

template <u32 BITS>
__device__ __forceinline__ void run(const LinearParams& p) {
    static_assert(BITS == 1 || BITS == 2, "codes");
    static_assert(STAGES * sizeof(Stage<BITS>) <= 187392, "launch.rs");
    ALIGNED_SHARED(memory);
    Stage<BITS>* const stages = reinterpret_cast<Stage<BITS>*>(memory);
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
    const u32 end = x.padded / GROUP, slice = (end + p.slices - 1) / p.slices;
    copies.begin(x, first);
    Beside<BITS> beside(x, first + min(threadIdx.x % ROWS, count - 1));
    const auto left = [&](u32 stage) { return end > stage * RECORDS ? end - stage * RECORDS : 0; };
    for (u32 s = 0; s + 1 < STAGES; ++s) {
        copies.bring(stages[s], x.padded, left(s), count);
        close_copies();
    }
    beside.load(left(0));
    beside.store(stages[0]);
    beside.load(left(1));
    float sum[ROWS / 2] = {}, total[ROWS / 2] = {};
    u32 until = slice;
#pragma unroll 1
    for (u32 s = 0, now = 0; s * RECORDS < end; ++s) {
        wait_for_copies<STAGES - 2>();
        show_to_matrix_units();
        __syncthreads();
        const u32 next = now + 1 == STAGES ? 0 : now + 1;
        copies.bring(stages[now == 0 ? STAGES - 1 : now - 1], x.padded, left(s + STAGES - 1), count);
        close_copies();
        // Behind the last record these are numbers that nobody reads.
        beside.store(stages[next]);
        beside.load(left(s + 2));
        const Stage<BITS>& stage = stages[now];
        now = next;
        const u32 records = min(left(s), RECORDS);
#pragma unroll 1
        for (u32 r = 0; r < records; ++r) {
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
            if (--until > 0 && (r + 1 < records || left(s + 1) > 0)) continue;
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
                return y + (bare ? 0.0f : residuals<BITS>(p, first + row + 2 * t, own + 8 * of + g));
            };
            float y = finished(m);
            if (gated) y = silu(y) * finished(1);
            if (added != nullptr) y += added[u64(row) * p.residual.row_stride];
            out[u64(row) * p.out_stride] = y;
        }
    }
}

}  // namespace group
