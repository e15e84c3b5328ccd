// Products with tens of rows of 8-bit integers on Hopper: four warps multiply 64 weight rows with COLUMNS activation rows that
// `prepare` has put into the order of the matrix units. The same results as in `linear.cuh`, bit for bit.
//
// A thread block has the GROUPS times four warps of a multiprocessor and one tile of 64 weight rows at a time; its groups take the slices
// of the tiles by turns. What a group reads comes by bulk copies, some records together, into a ring of its own: codes and
// scales, and the activations, unless the block keeps those of all records. So groups wait for each other at one place only: the total of
// a tile goes from group to group, in the order of the slices, and the group with the last one finishes it.
//
// A code becomes a byte by a shift and a mask: 64 (1 - 2 code) of one bit, 64 (code - 2) of two. Sums begin at bits that make them
// floats without a conversion, as in `linear_tiles.cuh`, and scales are short, so taking 64 off again costs nothing.
#pragma once

#include "linear_tiles.cuh"

namespace tens {

using tiles::MAGIC;
using tiles::MAGIC_BITS;

constexpr u32 TILE = 64;
constexpr u32 GROUP_THREADS = 128;

// Bytes of one record of a tile of activation rows, codes and what goes with them.
constexpr u32 ROW_BYTES = TENS_ROWS * GROUP;
constexpr u32 BESIDE_BYTES = sizeof(Beside), STARTS_AT = TENS_ROWS * sizeof(float);

// How a kernel divides its work. KEPT: the block holds the activations of all records.
template <u32 BITS_, u32 COLUMNS_, bool KEPT_, u32 GROUPS_, u32 RECORDS_, u32 STAGES_>
struct Plan {
    static constexpr u32 BITS = BITS_, COLUMNS = COLUMNS_, GROUPS = GROUPS_, RECORDS = RECORDS_, STAGES = STAGES_;
    static constexpr bool KEPT = KEPT_;
    static constexpr u32 THREADS = GROUPS * GROUP_THREADS;

    static constexpr u32 ROW_BYTES = COLUMNS * GROUP;
    // Of a block of 32 weight rows.
    static constexpr u32 UNIT_BYTES = BITS * BLOCK_ROWS * 16, SCALE_BYTES = BLOCK_ROWS * 2;

    // A stage of a ring.
    static constexpr u32 ROWS_AT = 0;
    static constexpr u32 CODES_AT = ROWS_AT + (KEPT ? 0 : RECORDS * ROW_BYTES);
    static constexpr u32 SCALES_AT = CODES_AT + 2 * RECORDS * UNIT_BYTES;
    static constexpr u32 BESIDE_AT = SCALES_AT + 2 * RECORDS * SCALE_BYTES;
    static constexpr u32 STAGE_END = BESIDE_AT + (KEPT ? 0 : RECORDS * BESIDE_BYTES);
    static constexpr u32 STAGE_ALIGN = KEPT ? 128 : 1024;
    static constexpr u32 STAGE_BYTES = (STAGE_END + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
    // Bytes of a record that a stage gets.
    static constexpr u32 COMING = 2 * UNIT_BYTES + 2 * SCALE_BYTES + (KEPT ? 0 : ROW_BYTES + BESIDE_BYTES);
    // Lanes with a copy of their own: codes and scales of two blocks, what goes with the rows, and these, record by record unless all rows
    // of a tile are wanted.
    static constexpr u32 WEIGHT_COPIES = 4, ROW_COPIES = COLUMNS == TENS_ROWS ? 1 : RECORDS;
    static_assert(WEIGHT_COPIES + 1 + ROW_COPIES <= WARP, "a lane a copy");

    static constexpr u32 RINGS = GROUPS * STAGES * STAGE_BYTES;

    // Dynamic shared memory of a block.
    static constexpr u32 shared(u32 records) { return RINGS + (KEPT ? records * (ROW_BYTES + BESIDE_BYTES) : 0); }
};

// One of the two blocks of 32 weight rows of a tile: of gate and up the same block of either.
struct Half {
    const Part* part;
    u32 block;
    bool is_there;

    __device__ Half(const LinearParams& p, u32 tile, u32 half) {
        if (p.epilogue == EPILOGUE_SWIGLU) {
            part = &p.parts[half];
            block = tile;
            is_there = true;
            return;
        }
        const Part& last = p.parts[p.part_count - 1];
        const u32 wanted = 2 * tile + half, found = min(wanted, last.first_block + (last.rows + BLOCK_ROWS - 1) / BLOCK_ROWS - 1);
        u32 i = 0;
        while (i + 1 < p.part_count && found >= p.parts[i + 1].first_block) ++i;
        part = &p.parts[i];
        block = found - part->first_block;
        is_there = wanted == found;
    }
};

__device__ __forceinline__ u32 tile_count(const LinearParams& p) {
    const Part& last = p.parts[p.epilogue == EPILOGUE_SWIGLU ? 0 : p.part_count - 1];
    const u32 blocks = last.first_block + (last.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    return p.epilogue == EPILOGUE_SWIGLU ? blocks : (blocks + 1) / 2;
}

// Records of a row and how they fall into slices.
struct Slices {
    u32 records;
    u32 size;
    // That have records at all.
    u32 count;

    __device__ explicit Slices(const LinearParams& p) {
        records = p.x.padded / GROUP;
        size = (records + p.slices - 1) / p.slices;
        count = (records + size - 1) / size;
    }
};

// The slices of tiles that a group takes, one after another.
template <u32 GROUPS>
struct Turn {
    u32 tile;
    u32 slice;

    __device__ Turn(u32 group, const Slices& slices) : tile(blockIdx.x), slice(group) { settle(slices); }

    __device__ void next(const Slices& slices) {
        slice += GROUPS;
        settle(slices);
    }

    __device__ void settle(const Slices& slices) {
        while (slice >= slices.count) {
            slice -= slices.count;
            tile += gridDim.x;
        }
    }
};

// What one warp of a group does beside its own work: it orders the group's copies, a lane each.
template <typename P>
struct Feed {
    Turn<P::GROUPS> turn;
    // The lane's copy: where that of record 0 begins, from one record to the next, bytes of a record, and its place in a stage.
    const u8* from;
    u32 step;
    u32 bytes;
    u32 to;
    // Of the slice.
    u32 record;
    u32 end;

    __device__ Feed(const LinearParams& p, u32 group, const Slices& slices) : turn(group, slices) {
        const u32 lane = threadIdx.x % WARP;
        if (lane < P::WEIGHT_COPIES) {
            step = bytes = lane < 2 ? P::UNIT_BYTES : P::SCALE_BYTES;
            to = lane < 2 ? P::CODES_AT + lane * P::RECORDS * P::UNIT_BYTES : P::SCALES_AT + lane % 2 * P::RECORDS * P::SCALE_BYTES;
            find(p);
        } else if (lane == P::WEIGHT_COPIES) {
            step = bytes = BESIDE_BYTES;
            to = P::BESIDE_AT;
            from = reinterpret_cast<const u8*>(p.x.beside + u64(blockIdx.y) * slices.records);
        } else {
            const u32 r = lane - P::WEIGHT_COPIES - 1;
            step = ROW_BYTES;
            bytes = P::ROW_BYTES;
            to = P::ROWS_AT + r * P::ROW_BYTES;
            from = p.x.tiles + (u64(blockIdx.y) * slices.records + r) * ROW_BYTES;
        }
        begin(slices);
    }

    __device__ void begin(const Slices& slices) {
        record = turn.slice * slices.size;
        end = min(record + slices.size, slices.records);
    }

    __device__ void find(const LinearParams& p) {
        const u32 lane = threadIdx.x % WARP;
        const Half half(p, min(turn.tile, tile_count(p) - 1), lane % 2);
        from = lane < 2 ? half.part->codes + u64(half.block) * half.part->units * (BLOCK_ROWS * 16)
                        : half.part->scales + u64(half.block) * half.part->groups * (BLOCK_ROWS * 2);
    }

    // Orders the weights, the activations or both of the next records; nothing behind the last tile.
    __device__ void bring(const LinearParams& p, const Slices& slices, SharedPlace stage, SharedPlace full, bool weights, bool activations) {
        if (turn.tile >= tile_count(p)) return;
        const u32 lane = threadIdx.x % WARP, count = min(end - record, P::RECORDS);
        if (weights && lane == 0) expect_bytes(full, count * P::COMING);
        __syncwarp();
        const u8* const at = from + u64(record) * step;
        bool mine = weights;
        u32 records = count;
        if (lane >= P::WEIGHT_COPIES) {
            mine = !P::KEPT && activations;
            if (P::ROW_COPIES > 1 && lane > P::WEIGHT_COPIES) {
                records = 1;
                mine = mine && lane - P::WEIGHT_COPIES - 1 < count;
            }
        }
        if (mine && lane < P::WEIGHT_COPIES + 1 + P::ROW_COPIES) copy_bulk(stage + to, at, records * bytes, full);
        record += count;
        if (record < end) return;
        const u32 before = turn.tile;
        turn.next(slices);
        begin(slices);
        if (turn.tile != before && lane < P::WEIGHT_COPIES) find(p);
    }
};

// Codes of one record of a lane's two weight rows: 32 neighbouring columns of each.
template <u32 BITS>
struct Codes {
    u32 words[2][BITS];

    __device__ void load(u32 row, SharedPlace from) {
        if (BITS == 1) {
            words[row][0] = shared_word(from);
        } else {
            const uint2 two = shared_words(from);
            words[row][0] = two.x;
            words[row][1 % BITS] = two.y;
        }
    }

    // Four columns as bytes, the `k`-th of eight; `flipped` is `FLIPPED<BITS>`, of which the compiler knows nothing.
    __device__ u32 four(u32 row, u32 k, u32 flipped) const {
        if (BITS == 1) return and_or(words[row][0] << (7 - k), 0x80808080u, flipped);
        return and_xor(words[row][k / 4 % BITS] << (6 - 2 * (k % 4)), 0xc0c0c0c0u, flipped);
    }
};

template <u32 BITS>
constexpr u32 FLIPPED = BITS == 1 ? 0x40404040u : 0x80808080u;

// What a sum of such bytes is multiplied with beside the scale.
template <u32 BITS>
constexpr float UNIT = BITS == 1 ? -1.0f / 64.0f : 1.0f / 32.0f;

// The activations of all records.
template <typename P>
struct Kept {
    SharedPlace rows;
    SharedPlace beside;

    __device__ Kept(SharedPlace memory, u32 records) : rows(memory), beside(memory + records * P::ROW_BYTES) {}

    // A warp's copies of slice `slice`.
    __device__ void bring(const Prepared& x, const Slices& slices, u32 slice, SharedPlace full) const {
        const u32 first = slice * slices.size, count = min(slices.size, slices.records - first), lane = threadIdx.x % WARP;
        const u64 place = u64(blockIdx.y) * slices.records + first;
        if (lane == 0) {
            expect_bytes(full, count * (P::ROW_BYTES + BESIDE_BYTES));
            copy_bulk(beside + first * BESIDE_BYTES, x.beside + place, count * BESIDE_BYTES, full);
            if (P::ROW_COPIES == 1) copy_bulk(rows + first * P::ROW_BYTES, x.tiles + place * ROW_BYTES, count * P::ROW_BYTES, full);
        }
        if (P::ROW_COPIES == 1) return;
        __syncwarp();
        for (u32 r = lane; r < count; r += WARP) {
            copy_bulk(rows + (first + r) * P::ROW_BYTES, x.tiles + (place + r) * ROW_BYTES, P::ROW_BYTES, full);
        }
    }
};

// Few weights have residuals; the code for them is there once.
template <u32 BITS>
__device__ __noinline__ float residuals(const LinearParams& p, u32 row, const Part* part, u32 block, u32 in_block) {
    const tiles::Tile place{part, block, in_block};
    return tiles::residuals<BITS, false>(linear::from_row(p.x, row), place, 0);
}

// Stores a finished tile, of which a lane has two weight rows; what is added to them comes eight rows together.
template <typename P>
__device__ __forceinline__ void finish(const LinearParams& p, u32 tile, u32 first, u32 count, const float (&total)[P::COLUMNS / 2]) {
    const u32 lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, warp = threadIdx.x % GROUP_THREADS / WARP;
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    const Half halves[2] = {Half(p, tile, gated ? 0 : warp / 2), Half(p, tile, gated ? 1 : warp / 2)};
    const bool bare = halves[0].part->residual_first == nullptr && halves[1].part->residual_first == nullptr;
#pragma unroll
    for (u32 m = 0; m < 2; ++m) {
        const Half& half = halves[m];
        const auto row = [&](u32 of) { return gated ? 8 * warp + g : warp % 2 * 16 + 8 * of + g; };
        const u32 in_part = half.block * BLOCK_ROWS + row(m), c = half.part->first_row + in_part;
        if ((gated && m > 0) || !half.is_there || in_part >= half.part->rows) break;
        float* const out = p.out + u64(first + 2 * t) * p.out_stride + c;
        const float* const added = p.epilogue == EPILOGUE_RESIDUAL ? at(p.residual, first + 2 * t, c) : nullptr;
        constexpr u32 OWN = P::COLUMNS / 4;
        float beside[OWN];
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            const u32 r = i / 2 * 8 + i % 2;
            beside[i] = added != nullptr && r + 2 * t < count ? added[u64(r) * p.residual.row_stride] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < OWN; ++i) {
            const u32 r = i / 2 * 8 + i % 2;
            if (r + 2 * t >= count) continue;
            const auto finished = [&](u32 of) {
                const float y = total[i / 2 * 4 + 2 * of + i % 2];
                if (bare) return y;
                return y + residuals<P::BITS>(p, first + r + 2 * t, halves[of].part, halves[of].block, row(of));
            };
            float y = finished(m);
            if (gated) y = silu(y) * finished(1);
            if (added != nullptr) y += beside[i];
            out[u64(r) * p.out_stride] = y;
        }
    }
}

template <typename P>
__device__ __forceinline__ void run(const LinearParams& p) {
    constexpr u32 BITS = P::BITS, OWN = P::COLUMNS / 2;
    __shared__ float4 totals[OWN / 4][GROUP_THREADS];
    __shared__ u64 barriers[P::GROUPS * (2 * P::STAGES + 1) + linear::MOST_SLICES];
    ALIGNED_SHARED(memory);
    let_next_start();
    const u32 first = blockIdx.y * TENS_ROWS;
    if (first >= *p.rows) {
        wait_for_previous();
        return;
    }
    const u32 count = min(*p.rows - first, P::COLUMNS);
    const u32 group = warp_index() / 4, warp = warp_index() % 4, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const Slices slices(p);
    const u32 tile_end = tile_count(p);
    if (threadIdx.x < P::GROUPS * (2 * P::STAGES + 1) + linear::MOST_SLICES) {
        // Of each group: stages that are filled, stages that four warps have read, totals that they have passed on; and slices that are kept.
        const u32 in_group = threadIdx.x % (2 * P::STAGES + 1);
        const bool warps = threadIdx.x < P::GROUPS * (2 * P::STAGES + 1) && in_group >= P::STAGES;
        make_barrier(shared_place(&barriers[threadIdx.x]), warps ? 4 : 1);
        show_barriers();
    }
    __syncthreads();
    // Places are hidden from the compiler, which would find them anew for every access.
    const SharedPlace own_barriers = hidden(shared_place(&barriers[group * (2 * P::STAGES + 1)]));
    const auto full = [&](u32 stage) { return own_barriers + 8 * stage; };
    const auto empty = [&](u32 stage) { return own_barriers + 8 * (P::STAGES + stage); };
    const SharedPlace passed = own_barriers + 8 * 2 * P::STAGES;
    const SharedPlace front = group == 0 ? passed + (P::GROUPS - 1) * 8 * (2 * P::STAGES + 1) : passed - 8 * (2 * P::STAGES + 1);
    const SharedPlace kept_slices = shared_place(&barriers[P::GROUPS * (2 * P::STAGES + 1)]);
    const SharedPlace all = hidden(shared_place(memory));
    const Kept<P> kept(all, slices.records);
    const SharedPlace ring = all + (P::KEPT ? slices.records * (P::ROW_BYTES + BESIDE_BYTES) : 0) + group * P::STAGES * P::STAGE_BYTES;
    // Groups give the ordering to warps of different schedulers.
    const bool feeds = warp == group % 4;
    Feed<P> feed(p, group, slices);
    if (feeds) {
        Feed<P> ahead = feed;
#pragma unroll 1
        for (u32 s = 0; s < P::STAGES; ++s) ahead.bring(p, slices, ring + s * P::STAGE_BYTES, full(s), true, false);
        wait_for_previous();
        if (P::KEPT) {
            for (u32 s = group; s < slices.count; s += P::GROUPS) kept.bring(p.x, slices, s, kept_slices + 8 * s);
            feed = ahead;
        } else {
#pragma unroll 1
            for (u32 s = 0; s < P::STAGES; ++s) feed.bring(p, slices, ring + s * P::STAGE_BYTES, full(s), false, true);
        }
    } else {
        wait_for_previous();
    }
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    // The lane's two weight rows in a stage.
    u32 codes_at[2], scales_at[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 half = gated ? i : warp / 2, row = gated ? 8 * warp + g : warp % 2 * 16 + 8 * i + g;
        codes_at[i] = P::CODES_AT + half * P::RECORDS * P::UNIT_BYTES + BITS * t / 4 * (BLOCK_ROWS * 16) + row * 16 + 4 * BITS * t % 16;
        scales_at[i] = P::SCALES_AT + half * P::RECORDS * P::SCALE_BYTES + row * 2;
    }
    const u32 flipped = unknown(FLIPPED<BITS>);
    Turn<P::GROUPS> turn(group, slices);
    u32 stage = 0, phase = 0, round = 0, known = NONE;
    bool filled = true;
    float factor[2] = {};
    bool is_half[2] = {};
    for (; turn.tile < tile_end; turn.next(slices), ++round) {
        if (known != turn.tile) {
            known = turn.tile;
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const Half half(p, known, gated ? i : warp / 2);
                factor[i] = half.part->factor * UNIT<BITS>;
                is_half[i] = half.part->scale_type == PARAM_F16;
            }
        }
        if (P::KEPT) wait_for_phase(kept_slices + 8 * turn.slice, 0);
        float sum[OWN] = {};
        const u32 start = turn.slice * slices.size, end = min(start + slices.size, slices.records);
#pragma unroll 1
        for (u32 base = start; base < end; base += P::RECORDS) {
            wait_for_phase(full(stage), phase);
            // The stage before has been read by now, or nearly so.
            if (feeds && !filled) {
                const u32 before = stage == 0 ? P::STAGES - 1 : stage - 1;
                wait_for_phase(empty(before), stage == 0 ? phase ^ 1 : phase);
                feed.bring(p, slices, ring + before * P::STAGE_BYTES, full(before), true, true);
            }
            filled = false;
            const SharedPlace now = ring + stage * P::STAGE_BYTES;
            const auto rows = matrix_place(P::KEPT ? kept.rows + base * P::ROW_BYTES : now + P::ROWS_AT);
            const SharedPlace beside = (P::KEPT ? kept.beside + base * BESIDE_BYTES : now + P::BESIDE_AT) + 8 * t;
            const SharedPlace codes_of[2] = {now + codes_at[0], now + codes_at[1]}, scales_of[2] = {now + scales_at[0], now + scales_at[1]};
            const u32 records = min(end - base, P::RECORDS);
            Codes<BITS> codes;
#pragma unroll
            for (u32 i = 0; i < 2; ++i) codes.load(i, codes_of[i]);
#pragma unroll
            for (u32 r = 0; r < P::RECORDS; ++r) {
                if (r >= records) break;
                u32 a[4][4];
#pragma unroll
                for (u32 k = 0; k < 8; ++k) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) a[k / 2][i + 2 * (k % 2)] = codes.four(i, k, flipped);
                }
                i32 d[OWN];
#pragma unroll
                for (u32 j = 0; j < OWN / 4; ++j) {
                    uint2 begin = make_uint2(MAGIC_BITS, MAGIC_BITS);
                    if (BITS == 2) begin = shared_words(beside + r * BESIDE_BYTES + STARTS_AT + 32 * j);
                    d[4 * j] = d[4 * j + 2] = i32(begin.x);
                    d[4 * j + 1] = d[4 * j + 3] = i32(begin.y);
                }
                begin_multiplying();
                multiply_tens(d, a, rows, r * P::ROW_BYTES / 16);
                close_multiplying();
                // What comes next is on its way while the matrix units work.
                float scale[2], less[2], step[OWN / 2];
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    const u16 stored = shared_half(scales_of[i] + r * P::SCALE_BYTES);
                    scale[i] = factor[i] * (is_half[i] ? half_value(stored) : bf16_value(stored));
                    less[i] = -MAGIC * scale[i];
                }
#pragma unroll
                for (u32 j = 0; j < OWN / 4; ++j) {
                    const uint2 two = shared_words(beside + r * BESIDE_BYTES + 32 * j);
                    step[2 * j] = __uint_as_float(two.x);
                    step[2 * j + 1] = __uint_as_float(two.y);
                }
                if (r + 1 < P::RECORDS) {
                    // Behind the last record these are codes that nobody uses.
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) codes.load(i, codes_of[i] + (r + 1) * P::UNIT_BYTES);
                }
                wait_for_products<0>(d);
#pragma unroll
                for (u32 i = 0; i < OWN; ++i) {
                    const float term = fmaf(__int_as_float(d[i]), scale[i / 2 % 2], less[i / 2 % 2]);
                    sum[i] = fmaf(step[i / 4 * 2 + i % 2], term, sum[i]);
                }
            }
            __syncwarp();
            if (lane == 0) arrive(empty(stage));
            if (++stage == P::STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        // The slices before this one: the total that the group in front passes on, which it also has read by then.
        const u32 own = threadIdx.x % GROUP_THREADS;
        if (group > 0 || round > 0) wait_for_phase(front, (group == 0 ? round + 1 : round) & 1);
        const bool is_first = turn.slice == 0, is_last = turn.slice + 1 == slices.count;
#pragma unroll
        for (u32 j = 0; j < OWN / 4; ++j) {
            const float4 before = is_first ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : totals[j][own];
            sum[4 * j] = before.x + sum[4 * j];
            sum[4 * j + 1] = before.y + sum[4 * j + 1];
            sum[4 * j + 2] = before.z + sum[4 * j + 2];
            sum[4 * j + 3] = before.w + sum[4 * j + 3];
            if (!is_last) totals[j][own] = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
        }
        __syncwarp();
        if (lane == 0) arrive(passed);
        if (is_last) finish<P>(p, turn.tile, first, count, sum);
    }
}

}  // namespace tens
