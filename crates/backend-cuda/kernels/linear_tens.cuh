// Products with tens of rows of 8-bit integers on Hopper: four warps multiply 64 weight rows with COLUMNS activation rows that
// `prepare` has put into the order of the matrix units. The same results as in `linear.cuh`, bit for bit.
//
// A thread block has GROUPS times four warps that multiply, four that finish tiles, and one that orders copies, and one tile of 64
// weight rows at a time; the groups take the slices of the tiles by turns. What a group reads comes by bulk copies, some records
// together, into a ring of its own: codes and scales, and the activations, unless the block keeps those of all records. So groups
// wait for each other at one place only: the total of a tile goes from group to group, in the order of the slices.
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
    static constexpr u32 THREADS = (GROUPS + 1) * GROUP_THREADS + WARP;

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
    // Copies of the rows of a stage: they lie together where all rows of a tile are wanted.
    static constexpr u32 ROW_COPIES = COLUMNS == TENS_ROWS ? 1 : RECORDS;

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

// A group's copies, ordered by one thread.
template <typename P>
struct Feed {
    Turn<P::GROUPS> turn;
    // Of the slice: the next record and its end.
    u32 record;
    u32 end;
    // Codes and scales of the tile's two blocks.
    const u8* codes[2];
    const u8* scales[2];

    __device__ Feed(const LinearParams& p, u32 group, const Slices& slices) : turn(group, slices) {
        begin(slices);
        find(p);
    }

    __device__ void begin(const Slices& slices) {
        record = turn.slice * slices.size;
        end = min(record + slices.size, slices.records);
    }

    __device__ void find(const LinearParams& p) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const Half half(p, min(turn.tile, tile_count(p) - 1), i);
            codes[i] = half.part->codes + u64(half.block) * half.part->units * (BLOCK_ROWS * 16);
            scales[i] = half.part->scales + u64(half.block) * half.part->groups * (BLOCK_ROWS * 2);
        }
    }

    // Orders the weights, the activations or both of the next records.
    __device__ void bring(
        const LinearParams& p, const Slices& slices, SharedPlace stage, SharedPlace full, bool weights, bool activations
    ) {
        const u32 count = min(end - record, P::RECORDS);
        if (weights) {
            expect_bytes(full, count * P::COMING);
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                copy_bulk(stage + (P::CODES_AT + i * P::RECORDS * P::UNIT_BYTES), codes[i] + record * P::UNIT_BYTES,
                          count * P::UNIT_BYTES, full);
                copy_bulk(stage + (P::SCALES_AT + i * P::RECORDS * P::SCALE_BYTES), scales[i] + record * P::SCALE_BYTES,
                          count * P::SCALE_BYTES, full);
            }
        }
        if (!P::KEPT && activations) {
            const u64 place = u64(blockIdx.y) * slices.records + record;
            copy_bulk(stage + P::BESIDE_AT, p.x.beside + place, count * BESIDE_BYTES, full);
            const u32 copies = P::ROW_COPIES == 1 ? 1 : count, bytes = P::ROW_COPIES == 1 ? count * P::ROW_BYTES : P::ROW_BYTES;
            for (u32 r = 0; r < copies; ++r) {
                copy_bulk(stage + (P::ROWS_AT + r * P::ROW_BYTES), p.x.tiles + (place + r) * ROW_BYTES, bytes, full);
            }
        }
        record += count;
        if (record < end) return;
        const u32 before = turn.tile;
        turn.next(slices);
        begin(slices);
        if (turn.tile != before) find(p);
    }

    __device__ bool is_over(u32 tile_end) const { return turn.tile >= tile_end; }
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

    __device__ void bring(const Prepared& x, const Slices& slices, u32 slice, SharedPlace full) const {
        const u32 first = slice * slices.size, count = min(slices.size, slices.records - first);
        const u64 place = u64(blockIdx.y) * slices.records + first;
        expect_bytes(full, count * (P::ROW_BYTES + BESIDE_BYTES));
        copy_bulk(beside + first * BESIDE_BYTES, x.beside + place, count * BESIDE_BYTES, full);
        const u32 copies = P::ROW_COPIES == 1 ? 1 : count, bytes = P::ROW_COPIES == 1 ? count * P::ROW_BYTES : P::ROW_BYTES;
        for (u32 r = 0; r < copies; ++r) {
            copy_bulk(rows + (first + r) * P::ROW_BYTES, x.tiles + (place + r) * ROW_BYTES, bytes, full);
        }
    }
};

// Few weights have residuals; the code for them is there once.
template <u32 BITS>
__device__ __noinline__ float residuals(const LinearParams& p, u32 row, const Part* part, u32 block, u32 in_block) {
    const tiles::Tile place{part, block, in_block};
    return tiles::residuals<BITS, false>(linear::from_row(p.x, row), place, 0);
}

// What the threads of a block share beside the rings.
template <typename P>
struct Common {
    // A tile's total, slice by slice: a float of each column and half for a thread of a group.
    float4 totals[P::COLUMNS / 8][GROUP_THREADS];
    // Of each group: stages that are filled, stages that its warps have read, totals that it has passed on.
    u64 groups[P::GROUPS][2 * P::STAGES + 1];
    u64 kept[linear::MOST_SLICES];
    // The total has all slices, and it has been taken.
    u64 ready, taken;
};

// A block's tiles, their sums and the places of both.
template <typename P>
struct Block {
    const LinearParams& p;
    const Slices slices;
    const u32 tile_end;
    // Of activations: the first row, and how many there are.
    const u32 first;
    const u32 count;
    const SharedPlace common;
    const SharedPlace memory;

    __device__ SharedPlace totals() const { return common + threadIdx.x % GROUP_THREADS * sizeof(float4); }
    __device__ SharedPlace barrier(u32 index) const { return common + (sizeof(Common<P>::totals) + 8 * index); }
    __device__ SharedPlace full(u32 group, u32 stage) const { return barrier(group * (2 * P::STAGES + 1) + stage); }
    __device__ SharedPlace empty(u32 group, u32 stage) const { return full(group, P::STAGES + stage); }
    __device__ SharedPlace passed(u32 group) const { return full(group, 2 * P::STAGES); }
    __device__ SharedPlace kept(u32 slice) const { return full(P::GROUPS, slice); }
    __device__ SharedPlace ready() const { return full(P::GROUPS, linear::MOST_SLICES); }
    __device__ SharedPlace taken() const { return full(P::GROUPS, linear::MOST_SLICES + 1); }
    __device__ SharedPlace ring(u32 group) const {
        return memory + ((P::KEPT ? slices.records * (P::ROW_BYTES + BESIDE_BYTES) : 0) + group * P::STAGES * P::STAGE_BYTES);
    }
};

// Orders the copies of all groups, a lane those of one group.
template <typename P>
__device__ __forceinline__ void feed(const Block<P>& b) {
    const u32 group = threadIdx.x % WARP;
    if (group >= P::GROUPS) {
        wait_for_previous();
        return;
    }
    const SharedPlace ring = b.ring(group);
    Feed<P> ahead(b.p, group, b.slices), rows = ahead;
#pragma unroll 1
    for (u32 s = 0; s < P::STAGES && !ahead.is_over(b.tile_end); ++s) {
        ahead.bring(b.p, b.slices, ring + s * P::STAGE_BYTES, b.full(group, s), true, false);
    }
    wait_for_previous();
    if (P::KEPT) {
        const Kept<P> kept(b.memory, b.slices.records);
        for (u32 s = group; s < b.slices.count; s += P::GROUPS) kept.bring(b.p.x, b.slices, s, b.kept(s));
    } else {
#pragma unroll 1
        for (u32 s = 0; s < P::STAGES && !rows.is_over(b.tile_end); ++s) {
            rows.bring(b.p, b.slices, ring + s * P::STAGE_BYTES, b.full(group, s), false, true);
        }
    }
    u32 stage = 0, phase = 0;
    while (!ahead.is_over(b.tile_end)) {
        // Other lanes' stages may be free before.
        if (!is_phase_over(b.empty(group, stage), phase)) {
            rest_a_little();
            continue;
        }
        ahead.bring(b.p, b.slices, ring + stage * P::STAGE_BYTES, b.full(group, stage), true, true);
        if (++stage == P::STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

// Multiplies: the slices of group `group`.
template <typename P>
__device__ __forceinline__ void multiply(const Block<P>& b, u32 group) {
    constexpr u32 BITS = P::BITS, OWN = P::COLUMNS / 2;
    const LinearParams& p = b.p;
    const Slices& slices = b.slices;
    wait_for_previous();
    const u32 warp = warp_index() % 4, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    const Kept<P> kept(b.memory, slices.records);
    // Places are hidden from the compiler, which would find them anew for every access.
    const SharedPlace ring = hidden(b.ring(group)), full = hidden(b.full(group, 0)), totals = hidden(b.totals());
    const SharedPlace passed = full + 8 * 2 * P::STAGES, front = b.passed(group == 0 ? P::GROUPS - 1 : group - 1);
    // The lane's two weight rows in a stage.
    u32 codes_at[2], scales_at[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 half = gated ? i : warp / 2, row = gated ? 8 * warp + g : warp % 2 * 16 + 8 * i + g;
        const u32 unit = BITS * t / 4, word = BITS * t % 4;
        codes_at[i] = P::CODES_AT + half * P::RECORDS * P::UNIT_BYTES + (unit * BLOCK_ROWS + row) * 16 + 4 * word;
        scales_at[i] = P::SCALES_AT + half * P::RECORDS * P::SCALE_BYTES + row * 2;
    }
    const u32 flipped = unknown(FLIPPED<BITS>);
    u32 stage = 0, phase = 0, round = 0, tiles = 0, known = NONE;
    float factor[2] = {};
    bool is_half[2] = {};
    for (Turn<P::GROUPS> turn(group, slices); turn.tile < b.tile_end; turn.next(slices), ++round) {
        if (known != turn.tile) {
            known = turn.tile;
            tiles = (known - blockIdx.x) / gridDim.x;
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const Half half(p, known, gated ? i : warp / 2);
                factor[i] = half.part->factor * UNIT<BITS>;
                is_half[i] = half.part->scale_type == PARAM_F16;
            }
        }
        if (P::KEPT) wait_for_phase(b.kept(turn.slice), 0);
        float sum[OWN] = {};
        const u32 start = turn.slice * slices.size, end = min(start + slices.size, slices.records);
#pragma unroll 1
        for (u32 base = start; base < end; base += P::RECORDS) {
            wait_for_phase(full + 8 * stage, phase);
            const SharedPlace now = ring + stage * P::STAGE_BYTES;
            const auto rows = matrix_place(P::KEPT ? kept.rows + base * P::ROW_BYTES : now + P::ROWS_AT);
            const SharedPlace beside = (P::KEPT ? kept.beside + base * BESIDE_BYTES : now + P::BESIDE_AT) + 8 * t;
            const SharedPlace codes_of[2] = {now + codes_at[0], now + codes_at[1]};
            const SharedPlace scales_of[2] = {now + scales_at[0], now + scales_at[1]};
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
                    if (BITS == 2) begin = shared_words(beside + (r * BESIDE_BYTES + STARTS_AT + 32 * j));
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
                    const uint2 two = shared_words(beside + (r * BESIDE_BYTES + 32 * j));
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
            if (lane == 0) arrive(full + 8 * (P::STAGES + stage));
            if (++stage == P::STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
        // Onto the total of the slices before, which the group in front passes on; it also has read what was there by then.
        if (group > 0 || round > 0) wait_for_phase(front, (group == 0 ? round + 1 : round) & 1);
        const bool is_first = turn.slice == 0, is_last = turn.slice + 1 == slices.count;
        if (is_first && tiles > 0) wait_for_phase(b.taken(), (tiles - 1) & 1);
#pragma unroll
        for (u32 j = 0; j < OWN / 4; ++j) {
            float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (!is_first) total = shared_floats(totals + j * GROUP_THREADS * sizeof(float4));
            total.x += sum[4 * j];
            total.y += sum[4 * j + 1];
            total.z += sum[4 * j + 2];
            total.w += sum[4 * j + 3];
            store_shared(totals + j * GROUP_THREADS * sizeof(float4), total);
        }
        __syncwarp();
        if (lane == 0) {
            arrive(passed);
            if (is_last) arrive(b.ready());
        }
    }
}

// Stores finished tiles, of which a lane has two weight rows; what is added to them is on its way before.
template <typename P>
__device__ __forceinline__ void finish(const Block<P>& b) {
    const LinearParams& p = b.p;
    const u32 lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, warp = warp_index() % 4;
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    constexpr u32 OWN = P::COLUMNS / 4;
    const auto row = [&](u32 of) { return gated ? 8 * warp + g : warp % 2 * 16 + 8 * of + g; };
    wait_for_previous();
    u32 phase = 0;
    for (u32 tile = blockIdx.x; tile < b.tile_end; tile += gridDim.x, phase ^= 1) {
        const Half halves[2] = {Half(p, tile, gated ? 0 : warp / 2), Half(p, tile, gated ? 1 : warp / 2)};
        const bool bare = halves[0].part->residual_first == nullptr && halves[1].part->residual_first == nullptr;
        u32 column[2];
        bool is_there[2];
        float beside[2][OWN];
#pragma unroll
        for (u32 m = 0; m < 2; ++m) {
            const u32 in_part = halves[m].block * BLOCK_ROWS + row(m);
            column[m] = halves[m].part->first_row + in_part;
            is_there[m] = !(gated && m > 0) && halves[m].is_there && in_part < halves[m].part->rows;
            const bool adds = p.epilogue == EPILOGUE_RESIDUAL && is_there[m];
            const float* const added = adds ? at(p.residual, b.first + 2 * t, column[m]) : nullptr;
#pragma unroll
            for (u32 i = 0; i < OWN; ++i) {
                const u32 r = i / 2 * 8 + i % 2;
                beside[m][i] = adds && r + 2 * t < b.count ? added[u64(r) * p.residual.row_stride] : 0.0f;
            }
        }
        wait_for_phase(b.ready(), phase);
        float total[P::COLUMNS / 2];
#pragma unroll
        for (u32 j = 0; j < P::COLUMNS / 8; ++j) {
            const float4 four = shared_floats(b.totals() + j * GROUP_THREADS * sizeof(float4));
            total[4 * j] = four.x;
            total[4 * j + 1] = four.y;
            total[4 * j + 2] = four.z;
            total[4 * j + 3] = four.w;
        }
        __syncwarp();
        if (lane == 0) arrive(b.taken());
#pragma unroll
        for (u32 m = 0; m < 2; ++m) {
            if (!is_there[m]) continue;
            float* const out = p.out + u64(b.first + 2 * t) * p.out_stride + column[m];
#pragma unroll
            for (u32 i = 0; i < OWN; ++i) {
                const u32 r = i / 2 * 8 + i % 2;
                if (r + 2 * t >= b.count) continue;
                const auto finished = [&](u32 of) {
                    const float y = total[i / 2 * 4 + 2 * of + i % 2];
                    return bare ? y : y + residuals<P::BITS>(p, b.first + r + 2 * t, halves[of].part, halves[of].block, row(of));
                };
                float y = finished(m);
                if (gated) y = silu(y) * finished(1);
                if (p.epilogue == EPILOGUE_RESIDUAL) y += beside[m][i];
                out[u64(r) * p.out_stride] = y;
            }
        }
    }
}

template <typename P>
__device__ __forceinline__ void run(const LinearParams& p) {
    __shared__ Common<P> common;
    ALIGNED_SHARED(memory);
    let_next_start();
    const u32 first = blockIdx.y * TENS_ROWS;
    if (first >= *p.rows) {
        wait_for_previous();
        return;
    }
    const u32 count = min(*p.rows - first, P::COLUMNS);
    const Block<P> block{p, Slices(p), tile_count(p), first, count, shared_place(&common), shared_place(memory)};
    constexpr u32 EACH = 2 * P::STAGES + 1, OF_GROUPS = P::GROUPS * EACH, BARRIERS = OF_GROUPS + linear::MOST_SLICES + 2;
    if (threadIdx.x < BARRIERS) {
        const bool one = threadIdx.x < OF_GROUPS ? threadIdx.x % EACH < P::STAGES : threadIdx.x < BARRIERS - 2;
        make_barrier(block.barrier(threadIdx.x), one ? 1 : 4);
        show_barriers();
    }
    __syncthreads();
    const u32 role = warp_index() / 4;
    if (role < P::GROUPS) multiply(block, role);
    else if (role == P::GROUPS) finish(block);
    else feed(block);
}

}  // namespace tens
