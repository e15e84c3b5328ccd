// Products with tens of rows of 8-bit integers on Hopper: four warps multiply 64 weight rows with COLUMNS activation rows that
// `prepare` has put into the order of the matrix units. The same results as in `linear.cuh`, bit for bit.
//
// A thread block has a tile of 64 weight rows for each of its GROUPS groups of four warps, which go through the records together:
// so what is read of the activations, they all use, and no sums go from group to group. Four warps more order copies, into a ring of
// stages of some records.
//
// Where there are fewer tiles than multiprocessors have groups, the blocks of a cluster share the slices of the same tiles. The sums
// of all slices stay in the blocks' shared memory, and in the end each block adds up a share of the results, in the order of the slices.
//
// A code becomes a byte by a shift and a mask: 64 (1 - 2 code) of one bit, 64 (code - 2) of two. Sums begin at bits that make them
// floats without a conversion, as in `linear_tiles.cuh`, and scales are short, so taking 64 off again costs nothing.
#pragma once

#include "linear_tiles.cuh"

namespace tens {

using tiles::MAGIC;
using tiles::MAGIC_BITS;

constexpr u32 GROUP_THREADS = 128;
// Warps that order copies, as many as registers are given to together: a warp orders one copy after another.
constexpr u32 FEEDERS = 4;

// Bytes of one record of a tile of activation rows, and what goes with them.
constexpr u32 ROW_BYTES = TENS_ROWS * GROUP;
constexpr u32 BESIDE_BYTES = sizeof(Beside), STARTS_AT = TENS_ROWS * sizeof(float);

// How a kernel divides its work. SPLIT: the blocks of a cluster share the slices.
template <u32 BITS_, u32 COLUMNS_, bool SPLIT_, u32 GROUPS_, u32 RECORDS_, u32 STAGES_>
struct Plan {
    static constexpr u32 BITS = BITS_, COLUMNS = COLUMNS_, GROUPS = GROUPS_, RECORDS = RECORDS_, STAGES = STAGES_;
    static constexpr bool SPLIT = SPLIT_;
    static constexpr u32 MULTIPLY = GROUPS * GROUP_THREADS, THREADS = MULTIPLY + FEEDERS * WARP;

    // Blocks that a multiprocessor should have registers for.
    static constexpr u32 BLOCKS = SPLIT && COLUMNS < TENS_ROWS && GROUPS <= 3 ? 2 : 1;

    static constexpr u32 ROW_BYTES = COLUMNS * GROUP;
    // Of a block of 32 weight rows.
    static constexpr u32 UNIT_BYTES = BITS * BLOCK_ROWS * 16, SCALE_BYTES = BLOCK_ROWS * 2;
    // Of a tile of a group and slice: sums, four a thread for each eight activation rows, and how many such fours.
    static constexpr u32 TILE_LOG = COLUMNS == 32 ? 9 : 8;
    static constexpr u32 EIGHT_BYTES = GROUP_THREADS * sizeof(float4), SUM_BYTES = COLUMNS / 8 * EIGHT_BYTES;

    // A stage of the ring: activations and what goes with them, then of each block codes and scales.
    static constexpr u32 BESIDE_AT = RECORDS * ROW_BYTES;
    static constexpr u32 CODES_AT = BESIDE_AT + RECORDS * BESIDE_BYTES;
    static constexpr u32 SCALES_AT = CODES_AT + 2 * GROUPS * RECORDS * UNIT_BYTES;
    static constexpr u32 STAGE_BYTES = (SCALES_AT + 2 * GROUPS * RECORDS * SCALE_BYTES + 1023) / 1024 * 1024;

    // Bytes of a record that a stage gets.
    static constexpr u32 COMING = ROW_BYTES + BESIDE_BYTES + 2 * GROUPS * (UNIT_BYTES + SCALE_BYTES);
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

// Records of a row, and the slices of them that a block takes.
struct Slices {
    u32 records;
    u32 size;
    // That have records at all.
    u32 count;
    u32 first;
    u32 end;
    // Records that are copied together, at most.
    u32 piece;

    __device__ Slices(const LinearParams& p, u32 most, u32 rank, u32 ranks_log) {
        records = p.x.padded / GROUP;
        size = (records + p.slices - 1) / p.slices;
        count = (records + size - 1) / size;
        const u32 pieces = (size + most - 1) / most;
        piece = (size + pieces - 1) / pieces;
        first = rank * count >> ranks_log;
        end = (rank + 1) * count >> ranks_log;
    }

    __device__ u32 from(u32 slice) const { return slice * size; }
    __device__ u32 to(u32 slice) const { return min(slice * size + size, records); }
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

// Stages that are filled, stages that all warps have read, and where sums of the cluster's blocks are counted.
template <typename P>
struct Common {
    u64 full[P::STAGES];
    u64 empty[P::STAGES];
    u64 box;
};

// A block's tiles, slices and memory.
template <typename P>
struct Block {
    const LinearParams& p;
    const u32 rank;
    // A power of two.
    const u32 ranks_log;
    const Slices slices;
    // Sets of tiles, one for each group.
    const u32 first_set;
    const u32 sets;
    const u32 tiles;
    // Of activations.
    const u32 first;
    const SharedPlace full;
    const SharedPlace memory;

    __device__ SharedPlace empty() const { return full + 8 * P::STAGES; }
    __device__ SharedPlace box() const { return full + 8 * 2 * P::STAGES; }
    __device__ SharedPlace sums() const { return memory + P::STAGES * P::STAGE_BYTES; }
    // Fours of sums of a tile and slice that a block of the cluster adds up.
    __device__ u32 share_log() const { return P::TILE_LOG - ranks_log; }
    __device__ u32 end() const { return min(*p.rows, first + P::COLUMNS); }
    __device__ u32 set_step() const { return gridDim.x >> ranks_log; }
};

// The stages of the ring, one after another.
template <typename P>
struct Ring {
    u32 stage = 0;
    u32 phase = 0;

    __device__ void next() {
        if (++stage < P::STAGES) return;
        stage = 0;
        phase ^= 1;
    }
};

// A block's way through its tiles: the records that a stage gets, one piece after another.
template <typename P>
struct Way {
    const Block<P>& b;
    u32 set;
    u32 slice;
    u32 base;

    __device__ explicit Way(const Block<P>& b) : b(b), set(b.first_set), slice(b.slices.first), base(b.slices.from(slice)) {}

    __device__ bool is_over() const { return set >= b.sets; }
    __device__ u32 count() const { return min(b.slices.to(slice) - base, b.slices.piece); }

    __device__ void next() {
        base += b.slices.piece;
        if (base < b.slices.to(slice)) return;
        if (++slice == b.slices.end) {
            slice = b.slices.first;
            set += b.set_step();
        }
        base = b.slices.from(slice);
    }
};

// Orders copies, by one of FEEDERS warps: a lane has codes or scales of one of the two blocks of a group, others have the
// activations. Weights are ordered before the kernel in front has ended.
template <typename P>
__device__ __forceinline__ void feed(const Block<P>& b, u32 feeder) {
    constexpr u32 OF_WEIGHTS = 4 * P::GROUPS;
    const u32 copy = threadIdx.x % WARP * FEEDERS + feeder, half = copy / 2;
    const bool codes = copy % 2 == 0;
    const u32 each = codes ? P::UNIT_BYTES : P::SCALE_BYTES;
    const u32 at = codes ? P::CODES_AT + half * P::RECORDS * P::UNIT_BYTES : P::SCALES_AT + half * P::RECORDS * P::SCALE_BYTES;
    const u8* from = nullptr;
    u32 known = NONE;
    const auto stage = [&](const Ring<P>& ring) { return b.memory + ring.stage * P::STAGE_BYTES; };
    const auto weights = [&](const Way<P>& way, const Ring<P>& ring) {
        const u32 count = way.count();
        const SharedPlace full = b.full + 8 * ring.stage;
        if (known != way.set && copy < OF_WEIGHTS) {
            known = way.set;
            const Half of(b.p, min(known * P::GROUPS + half / 2, b.tiles - 1), half % 2);
            from = codes ? of.part->codes + u64(of.block) * of.part->units * (BLOCK_ROWS * 16)
                         : of.part->scales + u64(of.block) * of.part->groups * (BLOCK_ROWS * 2);
        }
        // Bytes of other warps may have come before: the phase ends behind this arrival.
        if (copy == 0) expect_bytes(full, count * P::COMING);
        if (copy < OF_WEIGHTS) copy_bulk(stage(ring) + at, from + way.base * each, count * each, full);
    };
    const auto rows = [&](const Way<P>& way, const Ring<P>& ring) {
        const u32 count = way.count();
        const SharedPlace full = b.full + 8 * ring.stage;
        const u64 place = u64(blockIdx.y) * b.slices.records + way.base;
        if (copy == OF_WEIGHTS) copy_bulk(stage(ring) + P::BESIDE_AT, b.p.x.beside + place, count * BESIDE_BYTES, full);
        // They lie together where all rows of a tile are wanted.
        const u32 copies = P::COLUMNS == TENS_ROWS ? 1 : count, r = copy - OF_WEIGHTS - 1;
        if (r < copies) copy_bulk(stage(ring) + r * P::ROW_BYTES, b.p.x.tiles + (place + r) * ROW_BYTES, count / copies * P::ROW_BYTES, full);
    };
    Way<P> ahead(b), first = ahead;
    Ring<P> ring, begin;
    for (; begin.phase == 0 && !ahead.is_over(); ahead.next(), begin.next()) weights(ahead, begin);
    wait_for_previous();
    for (; ring.phase == 0 && !first.is_over(); first.next(), ring.next()) rows(first, ring);
    for (; !ahead.is_over(); ahead.next(), ring.next()) {
        wait_for_phase(b.empty() + 8 * ring.stage, ring.phase ^ 1);
        weights(ahead, ring);
        rows(ahead, ring);
    }
}

// The two blocks of 32 weight rows that a thread of a group has rows of, in a tile or, behind the last, in that.
struct Rows {
    Half halves[2];
    // In their blocks.
    u32 rows[2];

    __device__ Rows(const LinearParams& p, u32 tile, u32 tiles, u32 thread)
        : halves{half(p, min(tile, tiles - 1), thread, 0), half(p, min(tile, tiles - 1), thread, 1)} {
        const u32 g = thread % WARP / 4, warp = thread / WARP;
#pragma unroll
        for (u32 m = 0; m < 2; ++m) rows[m] = p.epilogue == EPILOGUE_SWIGLU ? 8 * warp + g : warp % 2 * 16 + 8 * m + g;
    }

    static __device__ Half half(const LinearParams& p, u32 tile, u32 thread, u32 m) {
        return Half(p, tile, p.epilogue == EPILOGUE_SWIGLU ? m : thread / (2 * WARP));
    }
};

// Few weights have residuals; the code for them is there once.
template <u32 BITS>
__device__ __noinline__ float4 with_residuals(
    const LinearParams& p, u32 tile, u32 tiles, u32 thread, u32 first, u32 end, float4 total
) {
    const Rows own(p, tile, tiles, thread);
    const auto added = [&](u32 row, u32 m, float sum) {
        const tiles::Tile place{own.halves[m].part, own.halves[m].block, own.rows[m]};
        return sum + tiles::residuals<BITS, false>(linear::from_row(p.x, row), place, 0);
    };
    if (first < end) {
        total.x = added(first, 0, total.x);
        total.z = added(first, 1, total.z);
    }
    if (first + 1 < end) {
        total.y = added(first + 1, 0, total.y);
        total.w = added(first + 1, 1, total.w);
    }
    return total;
}

// What four sums of a thread become, those of activation rows 8 j + 2 t and the next for two weight rows, or for one of gate and of up.
template <typename P>
struct Results {
    const LinearParams& p;
    const u32 tile;
    const u32 tiles;
    const u32 thread;
    // Of activations, of those of the launch: the first row, and the end.
    const u32 first;
    const u32 end;
    u32 columns[2];
    bool is_there[2];
    bool bare;

    __device__ Results(const Block<P>& b, u32 tile, u32 thread)
        : p(b.p), tile(tile), tiles(b.tiles), thread(thread), first(b.first + thread % 4 * 2), end(b.end()) {
        const Rows own(p, tile, tiles, thread);
        bare = own.halves[0].part->residual_first == nullptr && own.halves[1].part->residual_first == nullptr;
#pragma unroll
        for (u32 m = 0; m < 2; ++m) {
            const u32 in_part = own.halves[m].block * BLOCK_ROWS + own.rows[m];
            columns[m] = own.halves[m].part->first_row + in_part;
            is_there[m] = tile < tiles && own.halves[m].is_there && in_part < own.halves[m].part->rows;
        }
    }

    // What is added to them.
    __device__ float4 added(u32 j) const {
        float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (p.epilogue != EPILOGUE_RESIDUAL) return all;
        const u32 r = first + 8 * j;
        const float* const from[2] = {at(p.residual, r, columns[0]), at(p.residual, r, columns[1])};
        const u32 stride = p.residual.row_stride;
        if (r < end && is_there[0]) all.x = from[0][0];
        if (r + 1 < end && is_there[0]) all.y = from[0][stride];
        if (r < end && is_there[1]) all.z = from[1][0];
        if (r + 1 < end && is_there[1]) all.w = from[1][stride];
        return all;
    }

    __device__ void finish(u32 j, float4 total, const float4& added) const {
        const u32 r = first + 8 * j;
        if (!bare) total = with_residuals<P::BITS>(p, tile, tiles, thread, r, end, total);
        float* const out = p.out + u64(r) * p.out_stride;
        const u32 stride = p.out_stride;
        if (p.epilogue == EPILOGUE_SWIGLU) {
            if (!is_there[0]) return;
            if (r < end) out[columns[0]] = silu(total.x) * total.z;
            if (r + 1 < end) out[columns[0] + stride] = silu(total.y) * total.w;
            return;
        }
        if (p.epilogue == EPILOGUE_RESIDUAL) {
            total.x += added.x;
            total.y += added.y;
            total.z += added.z;
            total.w += added.w;
        }
        if (r < end && is_there[0]) out[columns[0]] = total.x;
        if (r + 1 < end && is_there[0]) out[columns[0] + stride] = total.y;
        if (r < end && is_there[1]) out[columns[1]] = total.z;
        if (r + 1 < end && is_there[1]) out[columns[1] + stride] = total.w;
    }
};

// Multiplies the tiles of group `group`.
template <typename P>
__device__ __forceinline__ void multiply(const Block<P>& b, u32 group) {
    constexpr u32 BITS = P::BITS, OWN = P::COLUMNS / 2;
    const LinearParams& p = b.p;
    const Slices& slices = b.slices;
    const u32 warp = warp_index() % 4, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool gated = p.epilogue == EPILOGUE_SWIGLU;
    // Places are hidden from the compiler, which would find them anew for every access.
    const SharedPlace memory = hidden(b.memory), full = hidden(b.full);
    const SharedPlace sums = b.sums() + (group * P::SUM_BYTES + threadIdx.x % GROUP_THREADS * sizeof(float4));
    // The lane's two weight rows in a stage.
    u32 codes_at[2], scales_at[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 half = 2 * group + (gated ? i : warp / 2), row = gated ? 8 * warp + g : warp % 2 * 16 + 8 * i + g;
        const u32 unit = BITS * t / 4, word = BITS * t % 4;
        codes_at[i] = P::CODES_AT + half * P::RECORDS * P::UNIT_BYTES + (unit * BLOCK_ROWS + row) * 16 + 4 * word;
        scales_at[i] = P::SCALES_AT + half * P::RECORDS * P::SCALE_BYTES + row * 2;
    }
    const u32 flipped = unknown(FLIPPED<BITS>);
    Ring<P> ring;
    for (u32 set = b.first_set; set < b.sets; set += b.set_step()) {
        const u32 tile = set * P::GROUPS + group;
        float factor[2] = {};
        bool is_half[2] = {};
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const Half half(p, min(tile, b.tiles - 1), gated ? i : warp / 2);
            factor[i] = half.part->factor * UNIT<BITS>;
            is_half[i] = half.part->scale_type == PARAM_F16;
        }
        if (!P::SPLIT) {
            for (u32 j = 0; j < OWN / 4; ++j) store_shared(sums + j * P::EIGHT_BYTES, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
        }
#pragma unroll 1
        for (u32 slice = slices.first; slice < slices.end; ++slice) {
            float sum[OWN] = {};
            const u32 end = slices.to(slice);
#pragma unroll 1
            for (u32 base = slices.from(slice); base < end; base += slices.piece, ring.next()) {
                wait_for_phase(full + 8 * ring.stage, ring.phase);
                const SharedPlace now = memory + ring.stage * P::STAGE_BYTES;
                const auto rows = matrix_place(now);
                const SharedPlace beside = now + P::BESIDE_AT + 8 * t;
                const SharedPlace codes_of[2] = {now + codes_at[0], now + codes_at[1]};
                const SharedPlace scales_of[2] = {now + scales_at[0], now + scales_at[1]};
                const u32 records = min(end - base, slices.piece);
                Codes<BITS> codes;
                const auto load = [&](u32 r) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) codes.load(i, codes_of[i] + r * P::UNIT_BYTES);
                };
                // Begins the products of a record.
                i32 d[OWN];
                const auto begin = [&](u32 r) {
                    u32 a[4][4];
#pragma unroll
                    for (u32 k = 0; k < 8; ++k) {
#pragma unroll
                        for (u32 i = 0; i < 2; ++i) a[k / 2][i + 2 * (k % 2)] = codes.four(i, k, flipped);
                    }
#pragma unroll
                    for (u32 j = 0; j < OWN / 4; ++j) {
                        if (BITS == 2) {
                            const uint2 two = shared_words(beside + (r * BESIDE_BYTES + STARTS_AT + 32 * j));
                            d[4 * j] = d[4 * j + 2] = i32(two.x);
                            d[4 * j + 1] = d[4 * j + 3] = i32(two.y);
                        } else {
                            d[4 * j] = d[4 * j + 1] = d[4 * j + 2] = d[4 * j + 3] = MAGIC_BITS;
                        }
                    }
                    begin_multiplying();
                    multiply_tens(d, a, rows, r * P::ROW_BYTES / 16);
                    close_multiplying();
                };
                float scale[2], less[2], step[OWN / 2];
                const auto scales = [&](u32 r) {
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
                };
                const auto fold = [&] {
#pragma unroll
                    for (u32 i = 0; i < OWN; ++i) {
                        const float term = fmaf(__int_as_float(d[i]), scale[i / 2 % 2], less[i / 2 % 2]);
                        sum[i] = fmaf(step[i / 4 * 2 + i % 2], term, sum[i]);
                    }
                };
                load(0);
#pragma unroll
                for (u32 r = 0; r < P::RECORDS; ++r) {
                    if (r >= records) break;
                    begin(r);
                    // What comes next is on its way while the matrix units work. Behind the last record these are codes that nobody uses.
                    scales(r);
                    if (r + 1 < P::RECORDS) load(r + 1);
                    wait_for_products<0>(d);
                    fold();
                }
                // Every lane for itself: a tool that looks for races knows no other order, and it takes no longer.
                arrive(full + 8 * (P::STAGES + ring.stage));
            }
            if (P::SPLIT) {
                if (slice == slices.first) cluster_started();
                const SharedPlace to = b.sums() + ((slice * P::GROUPS + group) << b.share_log()) * sizeof(float4);
#pragma unroll
                for (u32 j = 0; j < OWN / 4; ++j) {
                    const u32 four = j * GROUP_THREADS + threadIdx.x % GROUP_THREADS;
                    const float4 own = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
                    const u32 rank = four >> b.share_log();
                    send(to + (four - (rank << b.share_log())) * sizeof(float4), b.box(), rank, own);
                }
            } else {
#pragma unroll
                for (u32 j = 0; j < OWN / 4; ++j) {
                    float4 total = shared_floats(sums + j * P::EIGHT_BYTES);
                    total.x += sum[4 * j];
                    total.y += sum[4 * j + 1];
                    total.z += sum[4 * j + 2];
                    total.w += sum[4 * j + 3];
                    store_shared(sums + j * P::EIGHT_BYTES, total);
                }
            }
        }
        if (P::SPLIT) break;
        wait_for_previous();
        const Results<P> results(b, tile, threadIdx.x % GROUP_THREADS);
#pragma unroll 1
        for (u32 j = 0; j < OWN / 4; ++j) results.finish(j, shared_floats(sums + j * P::EIGHT_BYTES), results.added(j));
    }
}

// Adds up the sums of all slices, a share of the results of the cluster's tiles: four of them a thread.
template <typename P>
__device__ __forceinline__ void join(const Block<P>& b) {
    const u32 log = b.share_log(), all = P::GROUPS << log;
    wait_for_previous();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < all; i += P::MULTIPLY) {
        const u32 group = i >> log, four = (b.rank << log) + i - (group << log);
        const u32 thread = four % GROUP_THREADS, j = four / GROUP_THREADS;
        const Results<P> results(b, b.first_set * P::GROUPS + group, thread);
        const float4 added = results.added(j);
        const SharedPlace sums = b.sums() + i * sizeof(float4);
        wait_for_phase(b.box(), 0);
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
        for (u32 slice = 0; slice < b.slices.count; ++slice) {
            const float4 sum = shared_floats(sums + slice * all * sizeof(float4));
            total.x += sum.x;
            total.y += sum.y;
            total.z += sum.z;
            total.w += sum.w;
        }
        results.finish(j, total, added);
    }
}

// The lines of the parameters are on their way together: each for itself they would take as long as all.
template <typename P>
__device__ __forceinline__ void bring_params_near(const LinearParams& p) {
    const u32* const words = reinterpret_cast<const u32*>(&p);
#pragma unroll 1
    for (u32 line = warp_index(); line < sizeof(LinearParams) / 64; line += P::THREADS / WARP) asm volatile("" ::"r"(words[16 * line]));
}

template <typename P>
__device__ __forceinline__ void run(const LinearParams& p) {
    __shared__ Common<P> common;
    ALIGNED_SHARED(memory);
    bring_params_near<P>(p);
    let_next_start();
    const u32 first = blockIdx.y * TENS_ROWS;
    if (blockIdx.y > 0 && first >= *p.rows) {
        wait_for_previous();
        return;
    }
    const u32 tiles = tile_count(p), rank = P::SPLIT ? cluster_rank() : 0, ranks_log = P::SPLIT ? 31 - __clz(cluster_size()) : 0;
    const Block<P> block{
        p, rank, ranks_log, Slices(p, P::RECORDS, rank, ranks_log), blockIdx.x >> ranks_log, (tiles + P::GROUPS - 1) / P::GROUPS, tiles, first,
        shared_place(&common), shared_place(memory)
    };
    const u32 role = warp_index(), lane = threadIdx.x % WARP;
    if (role == 4 * P::GROUPS && lane < 2 * P::STAGES + 1) {
        make_barrier(block.full + 8 * lane, lane / P::STAGES == 1 ? 4 * P::GROUPS * WARP : 1);
        show_barriers();
        if (P::SPLIT && lane == 2 * P::STAGES) {
            expect_bytes(block.box(), (block.slices.count * P::GROUPS << block.share_log()) * u32(sizeof(float4)));
        }
    }
    if (P::SPLIT) cluster_start();
    __syncthreads();
    if (role < 4 * P::GROUPS) {
        multiply(block, role / 4);
        if (P::SPLIT) join(block);
    } else {
        feed(block, role - 4 * P::GROUPS);
        if (P::SPLIT) cluster_started();
    }
}

}  // namespace tens
