// Products with many rows of 8-bit integers on Hopper's matrix units: four warps multiply together, and read the activations from
// shared memory by themselves. The same results as in `linear.cuh`, bit for bit.
//
// A thread block has ROWS activation rows and WEIGHTS weight rows at a time, 64 of each group of four warps, and goes on with others
// until none is left. One more group copies, so that nobody waits for all: while sums of one group are scaled, the matrix units have
// those of another. A lane unpacks the codes of two weight rows of a warp's 16, eight rows apart, into whole numbers around zero; of gate and
// up these are the same row of either. Records of 128 columns come RECORDS at a time, in the places in which the matrix units expect rows of
// 128 bytes: 16-byte units of a row exchanged by its number modulo 8. Sums of a group of columns become floats by their bits, as in
// `linear_tiles.cuh`.
#pragma once

#include "linear_tiles.cuh"

namespace group {

using tiles::MAGIC;
using tiles::MAGIC_BITS;

constexpr u32 GROUPS = 3;
constexpr u32 COPIERS = 128;
// Registers of a thread that multiplies, and of one that copies, of 65,536.
constexpr u32 REGISTERS = 160;
constexpr u32 COPIER_REGISTERS = 32;
constexpr u32 THREADS = GROUPS * 128;
constexpr u32 WEIGHTS = GROUPS * 64;
constexpr u32 HALF = 48;
constexpr u32 ROWS = 2 * HALF;
// Records that come together.
constexpr u32 RECORDS = 2;
// Sums of a lane for half of the rows.
constexpr u32 SUMS = HALF / 2;

template <u32 BITS>
struct alignas(1024) Stage {
    uint4 rows[RECORDS][ROWS][8];
    uint4 codes[RECORDS][BITS][WEIGHTS];
    // What sums are multiplied by: of the columns of a lane of four one behind the other, and padded, so that four lanes read from
    // different banks.
    float steps[RECORDS][4][ROWS / 4 + 4];
    u16 scales[RECORDS][WEIGHTS];
};

// Sums of all slices so far, of a thread.
using Totals = float4[THREADS];

template <u32 BITS>
constexpr u32 STAGES = BITS == 1 ? 4 : 3;

template <u32 BITS>
constexpr u32 SHARED = STAGES<BITS> * sizeof(Stage<BITS>) + ROWS / 8 * sizeof(Totals);

// The pieces of a launch: tiles of weight rows, one behind the other, for each tile of activation rows.
struct Tiles {
    u32 across;
    u32 count;

    __device__ Tiles(const LinearParams& p, u32 rows) {
        const bool gated = p.epilogue == EPILOGUE_SWIGLU;
        const Part& last = p.parts[gated ? 0 : p.part_count - 1];
        const u32 blocks = last.first_block + (last.rows + BLOCK_ROWS - 1) / BLOCK_ROWS, own = gated ? GROUPS : 2 * GROUPS;
        across = (blocks + own - 1) / own;
        count = across * ((rows + ROWS - 1) / ROWS);
    }
};

// Where a weight row of a tile lies.
struct Place {
    const Part* part;
    u32 block;
    u32 row;
    // Whether the launch has this row at all.
    bool is_there;

    __device__ Place(const LinearParams& p, u32 tile, u32 weight) {
        if (p.epilogue == EPILOGUE_SWIGLU) {
            // Eight rows of gate, then the same of up.
            part = &p.parts[weight / 8 % 2];
            const u32 wanted = tile * GROUPS + weight / 64;
            block = min(wanted, (part->rows + BLOCK_ROWS - 1) / BLOCK_ROWS - 1);
            row = weight % 64 / 16 * 8 + weight % 8;
            is_there = block == wanted && block * BLOCK_ROWS + row < part->rows;
            return;
        }
        const Part& last = p.parts[p.part_count - 1];
        const u32 blocks = last.first_block + (last.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
        const u32 wanted = tile * 2 * GROUPS + weight / 32, found = min(wanted, blocks - 1);
        u32 i = 0;
        while (i + 1 < p.part_count && found >= p.parts[i + 1].first_block) ++i;
        part = &p.parts[i];
        block = found - part->first_block;
        row = weight % 32;
        is_there = found == wanted && block * BLOCK_ROWS + row < part->rows;
    }
};

// The copies of a group of warps for each stage.
template <u32 BITS>
struct Copies {
    static constexpr u32 OWN = (WEIGHTS + COPIERS - 1) / COPIERS;
    static constexpr u32 SHARES = WEIGHTS / 8;

    u32 thread;
    u32 stride;
    // Of a 16-byte unit of every record, of some weight rows, of the scales of eight, and of what an activation row's sums are multiplied by.
    const i8* rows;
    const u8* codes[OWN];
    const u8* scales;
    const float* steps;

    __device__ Copies(const LinearParams& p, u32 x, u32 first) : thread(threadIdx.x - THREADS), stride(p.x.padded) {
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            const Place place(p, x, min(thread + i * COPIERS, WEIGHTS - 1));
            codes[i] = place.part->codes + (u64(place.block) * place.part->units * BLOCK_ROWS + place.row) * 16;
        }
        const Place place(p, x, thread % SHARES * 8);
        scales = place.part->scales + ((u64(place.block) * place.part->groups + thread / SHARES) * BLOCK_ROWS + place.row) * 2;
        rows = p.x.codes + u64(first + thread / 8) * stride + thread % 8 * 16;
        steps = p.x.scales + u64(first + min(thread, ROWS - 1)) * (stride / GROUP);
    }

    // The next stage, of `count` rows and `left` records; WHOLE: of all. Records behind the last count nothing.
    template <bool WHOLE>
    __device__ __forceinline__ void bring(Stage<BITS>& to, u32 count, u32 left) {
#pragma unroll
        for (u32 i = 0; i < ROWS * 8 / COPIERS; ++i) {
            const u32 row = thread / 8 + i * (COPIERS / 8);
            const i8* const from = rows + i * (COPIERS / 8) * stride;
#pragma unroll
            for (u32 r = 0; r < RECORDS; ++r) {
                if (WHOLE || (row < count && r < left)) start_copy(&to.rows[r][row][(thread ^ row) % 8], from + r * GROUP);
            }
        }
        rows += RECORDS * GROUP;
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            const u32 weight = thread + i * COPIERS;
            if (weight >= WEIGHTS) break;
#pragma unroll
            for (u32 k = 0; k < RECORDS * BITS; ++k) {
                if (WHOLE || k / BITS < left) start_copy(&to.codes[k / BITS][k % BITS][weight], codes[i] + k * 16 * BLOCK_ROWS);
            }
            codes[i] += 16 * BLOCK_ROWS * BITS * RECORDS;
        }
        const u32 record = thread / SHARES;
        if (record < RECORDS) {
            u16* const own = to.scales[record] + thread % SHARES * 8;
            if (WHOLE || record < left) {
                start_copy(own, scales);
            } else {
                *reinterpret_cast<uint4*>(own) = make_uint4(0, 0, 0, 0);
            }
        }
        scales += 2 * BLOCK_ROWS * RECORDS;
        if (thread < (WHOLE ? ROWS : count)) {
#pragma unroll
            for (u32 r = 0; r < RECORDS; ++r) {
                float* const own = &to.steps[r][thread % 8 / 2][thread / 8 * 2 + thread % 2];
                if (WHOLE || r < left) {
                    start_copy_4(own, steps + r);
                } else {
                    *own = 0.0f;
                }
            }
        }
        steps += RECORDS;
        // What is stored here is there before the copies have come.
        if (!WHOLE) __threadfence_block();
    }
};

template <u32 BITS>
__device__ __forceinline__ void copy(const LinearParams& p, Stage<BITS>* stages, SharedPlace full, SharedPlace empty, u32 rows) {
    const u32 end = p.x.padded / GROUP;
    const Tiles tiles(p, rows);
    u32 now = 0, turn = 1;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
        const u32 first = tile / tiles.across * ROWS, count = min(rows - first, ROWS);
        Copies<BITS> copies(p, tile % tiles.across, first);
#pragma unroll 1
        for (u32 record = 0; record < end; record += RECORDS) {
            wait_for_phase(empty + 8 * now, turn);
            const u32 left = end - record;
            if (count == ROWS && left >= RECORDS) {
                copies.template bring<true>(stages[now], count, left);
            } else {
                copies.template bring<false>(stages[now], count, left);
            }
            arrive_with_copies(full + 8 * now);
            if (++now == STAGES<BITS>) now = 0, turn ^= 1;
        }
    }
}

// Few weights have residuals; the code for them is there once.
template <u32 BITS>
__device__ __noinline__ float residuals(const LinearParams& p, u32 row, u32 x, u32 weight) {
    const Place place(p, x, weight);
    if (place.part->residual_first == nullptr) return 0.0f;
    const tiles::Tile tile{place.part, place.block, place.row};
    return tiles::residuals<BITS, false>(linear::from_row(p.x, row), tile, 0);
}

// Weights of four neighbouring columns of piece `k` of 32, from the lane's part of the lower or upper half of it: twice the code less
// the center, as bytes.
template <u32 BITS>
__device__ __forceinline__ u32 four_of(const u32 (&words)[4 * BITS], u32 k, u32 upper, u32 t) {
    if (BITS == 1) return 0xffffffffu - 0xfeu * (words[k] >> (t + 4 * upper) & 0x01010101u);
    return 2 * (words[(2 * k + upper) % (4 * BITS)] >> 2 * t & 0x03030303u) + 0x7e7e7e7eu ^ 0x80808080u;
}

// One record of two weight rows of a lane.
struct Weights {
    u32 a[4][4];
    float scale[2];

    template <u32 BITS>
    __device__ void take(const Stage<BITS>& stage, u32 r, u32 own, const float (&factor)[2], const bool (&is_half)[2]) {
        const u32 lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
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
        }
    }
};

// The sums of half of the rows and one record are begun.
__device__ __forceinline__ void begin_half(i32 (&d)[SUMS], const Weights& weights, const uint4* rows) {
    begin_multiplying();
    multiply_rows(d, weights.a, rows);
    close_multiplying();
}

// They have ended: onto the sums of the slice.
__device__ __forceinline__ void scale_half(float (&sum)[SUMS], const i32 (&d)[SUMS], const float (&scale)[2], const float* steps) {
    const float less[2] = {-MAGIC * scale[0], -MAGIC * scale[1]};
#pragma unroll
    for (u32 j = 0; j < HALF / 8; j += 2) {
        const float4 with = *reinterpret_cast<const float4*>(steps + 2 * j);
#pragma unroll
        for (u32 e = 0; e < 8; ++e) {
            const float step = e / 4 == 0 ? (e % 2 == 0 ? with.x : with.y) : (e % 2 == 0 ? with.z : with.w);
            const float term = fmaf(__int_as_float(MAGIC_BITS + d[4 * j + e]), scale[e % 4 / 2], less[e % 4 / 2]);
            sum[4 * j + e] = fmaf(step, term, sum[4 * j + e]);
        }
    }
}

// Finished sums of a thread go out: two activation rows, eight apart from the next two, of two weight rows.
template <u32 BITS>
__device__ __forceinline__ void finish(const LinearParams& p, const Totals* totals, u32 x, u32 first, u32 count) {
    const u32 lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, own = threadIdx.x / WARP * 16;
    const Place places[2] = {Place(p, x, own + g), Place(p, x, own + 8 + g)};
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    const auto column = [&](u32 m) { return places[m].part->first_row + places[m].block * BLOCK_ROWS + places[m].row; };
    const bool bare = places[0].part->residual_first == nullptr && places[1].part->residual_first == nullptr;
    const bool whole = count == ROWS && bare && places[0].is_there && places[1].is_there;
    const u64 stride = p.out_stride;
    if (__all_sync(ALL_LANES, whole)) {
        float* const out[2] = {p.out + (first + 2 * t) * stride + column(0), p.out + (first + 2 * t) * stride + column(1)};
        const float* added[2] = {nullptr, nullptr};
        if (p.epilogue == EPILOGUE_RESIDUAL) {
#pragma unroll
            for (u32 m = 0; m < 2; ++m) added[m] = at(p.residual, first + 2 * t, column(m));
        }
#pragma unroll 2
        for (u32 i = 0; i < ROWS / 8; ++i) {
            float4 y = totals[i][threadIdx.x];
            if (gated) {
                out[0][8 * i * stride] = silu(y.x) * y.z;
                out[0][(8 * i + 1) * stride] = silu(y.y) * y.w;
                continue;
            }
            if (added[0] != nullptr) {
                const u64 row = u64(8 * i) * p.residual.row_stride, next = row + p.residual.row_stride;
                y = make_float4(y.x + added[0][row], y.y + added[0][next], y.z + added[1][row], y.w + added[1][next]);
            }
            out[0][8 * i * stride] = y.x;
            out[0][(8 * i + 1) * stride] = y.y;
            out[1][8 * i * stride] = y.z;
            out[1][(8 * i + 1) * stride] = y.w;
        }
        return;
    }
#pragma unroll 1
    for (u32 i = 0; i < ROWS / 2; ++i) {
        // Activation row and weight row of each of four sums.
        const u32 row = i / 4 * 8 + 2 * t + i % 2, m = i / 2 % 2;
        const Place& place = places[m];
        if (row >= count || !place.is_there || (gated && m > 0)) continue;
        const float* const sums = reinterpret_cast<const float*>(&totals[i / 4][threadIdx.x]) + i % 2;
        const auto finished = [&](u32 of) {
            return sums[2 * of] + (bare ? 0.0f : residuals<BITS>(p, first + row, x, own + 8 * of + g));
        };
        float y = finished(m);
        if (gated) y = silu(y) * finished(1);
        if (p.epilogue == EPILOGUE_RESIDUAL) y += *at(p.residual, first + row, column(m));
        p.out[(first + row) * stride + column(m)] = y;
    }
}

template <u32 BITS>
__device__ __forceinline__ void multiply(
    const LinearParams& p, const Stage<BITS>* stages, Totals* totals, SharedPlace full, SharedPlace empty, u32 rows
) {
    const u32 lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, own = threadIdx.x / WARP * 16;
    const u32 end = p.x.padded / GROUP, slice = (end + p.slices - 1) / p.slices;
    const Tiles tiles(p, rows);
    float sum[2][SUMS] = {};
    u32 now = 0, turn = 0;
#pragma unroll 1
    for (u32 tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
        const u32 x = tile % tiles.across;
        float factor[2];
        bool is_half[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const Place place(p, x, own + 8 * i + g);
            factor[i] = place.part->factor;
            is_half[i] = place.part->scale_type == PARAM_F16;
        }
        bool is_first = true;
        u32 until = slice;
        const auto add_slice = [&] {
            until = slice;
#pragma unroll
            for (u32 i = 0; i < ROWS / 8; ++i) {
                float* const from = sum[i / (HALF / 8)] + i % (HALF / 8) * 4;
                float4 to = is_first ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : totals[i][threadIdx.x];
                totals[i][threadIdx.x] = make_float4(to.x + from[0], to.y + from[1], to.z + from[2], to.w + from[3]);
#pragma unroll
                for (u32 e = 0; e < 4; ++e) from[e] = 0.0f;
            }
            is_first = false;
        };
#pragma unroll 1
        for (u32 s = 0; s < end; s += RECORDS) {
            const Stage<BITS>& stage = stages[now];
            wait_for_phase(full + 8 * now, turn);
            show_to_matrix_units();
            i32 d[2][SUMS];
            Weights weights[2];
            weights[0].take(stage, 0, own, factor, is_half);
            begin_half(d[0], weights[0], stage.rows[0][0]);
#pragma unroll
            for (u32 r = 0; r < RECORDS; ++r) {
                const Weights& w = weights[r % 2];
                begin_half(d[1], w, stage.rows[r][HALF]);
                if (r + 1 < RECORDS) weights[(r + 1) % 2].take(stage, r + 1, own, factor, is_half);
                wait_for_products<1>(d[0]);
                scale_half(sum[0], d[0], w.scale, stage.steps[r][t]);
                if (r + 1 < RECORDS) {
                    begin_half(d[0], weights[(r + 1) % 2], stage.rows[r + 1][0]);
                    wait_for_products<1>(d[1]);
                } else {
                    wait_for_products<0>(d[1]);
                }
                scale_half(sum[1], d[1], w.scale, stage.steps[r][t] + HALF / 4);
                if (r + 1 == RECORDS) {
                    __syncwarp();
                    if (lane == 0) arrive(empty + 8 * now);
                }
                if (--until == 0) add_slice();
            }
            if (++now == STAGES<BITS>) now = 0, turn ^= 1;
        }
        if (until < slice) add_slice();
        const u32 first = tile / tiles.across * ROWS;
        finish<BITS>(p, totals, x, first, min(rows - first, ROWS));
    }
}

template <u32 BITS>
__device__ __forceinline__ void run(const LinearParams& p) {
    static_assert(BITS == 1 || BITS == 2, "codes");
    static_assert(SHARED<BITS> <= 204800, "launch.rs");
    ALIGNED_SHARED(memory);
    __shared__ u64 barriers[2 * STAGES<BITS>];
    const SharedPlace full = shared_place(barriers), empty = full + 8 * STAGES<BITS>;
    Stage<BITS>* const stages = reinterpret_cast<Stage<BITS>*>(memory);
    let_next_start();
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES<BITS>; ++s) {
            make_barrier(full + 8 * s, COPIERS);
            make_barrier(empty + 8 * s, THREADS / WARP);
        }
    }
    wait_for_previous();
    __syncthreads();
    const u32 rows = *p.rows;
    if (threadIdx.x >= THREADS) {
        leave_registers<COPIER_REGISTERS>();
        copy<BITS>(p, stages, full, empty, rows);
    } else {
        take_registers<REGISTERS>();
        Totals* const totals = reinterpret_cast<Totals*>(memory + STAGES<BITS> * sizeof(Stage<BITS>));
        multiply<BITS>(p, stages, totals, full, empty, rows);
    }
}

}  // namespace group
