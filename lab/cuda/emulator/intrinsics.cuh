// Stands in for the kernels' file of the same name, which has PTX.
#pragma once

#include "params.cuh"

inline u16 half_bits(float x) {
    const _Float16 h = _Float16(x);
    u16 bits;
    std::memcpy(&bits, &h, 2);
    return bits;
}

inline float half_value(u16 bits) {
    _Float16 h;
    std::memcpy(&h, &bits, 2);
    return float(h);
}

inline float power_of_two(float x) { return std::exp2f(x); }

constexpr float BYTES_ABOVE = 32768.0f;
inline float byte_above(u32 word, u32 i) { return BYTES_ABOVE + float(word >> 8 * i & 255); }

inline void bring_near(const void*, u32) {}

inline void let_next_start() {}
inline void wait_for_previous() {}

// A kernel that writes to such a piece of memory ends the program.
template <typename T>
T unchanging(const T* at) {
    emulator::freeze(at);
    return *at;
}

inline u32 unknown(u32 x) { return x; }

inline i32 add_products(u32 a, u32 b, i32 sum) {
    for (u32 i = 0; i < 4; ++i) sum += i32(i8(a >> 8 * i)) * i32(i8(b >> 8 * i));
    return sum;
}

inline void multiply_pieces(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const auto pair = [](u32 low, u32 high) { return u64(low) | u64(high) << 32; };
    // What the other lanes brought is there until the exchange after the next.
    uint64_t all[3][32];
    const u64 own[3] = {pair(a[0], a[1]), pair(a[2], a[3]), pair(b0, b1)};
    for (u32 i = 0; i < 3; ++i) std::memcpy(all[i], emulator::exchange(~0u, own[i]), sizeof(all[i]));
    const u32 g = emulator::lane() / 4, t = emulator::lane() % 4;
    const auto byte = [](u32 word, u32 i) { return i32(i8(word >> 8 * i)); };
    for (u32 place = 0; place < 4; ++place) {
        // Row of a: the lower or the upper word of a pair. Column of b: the lane that has it.
        const u32 upper = place / 2, column = 2 * t + place % 2;
        for (u32 k = 0; k < 32; ++k) {
            const u32 lane = k % 16 / 4;
            const u32 x = u32(all[k / 16][4 * g + lane] >> 32 * upper), y = u32(all[2][4 * column + lane] >> 32 * (k / 16));
            c[place] += byte(x, k % 4) * byte(y, k % 4);
        }
    }
}

inline void multiply_pieces(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const i32 (&c)[4]) {
    i32 sum[4] = {c[0], c[1], c[2], c[3]};
    multiply_pieces(sum, a, b0, b1);
    for (u32 i = 0; i < 4; ++i) d[i] = sum[i];
}

inline void copy_16(void* shared, const void* global) { std::memcpy(shared, global, 16); }
inline void close_copies() {}
template <u32 LEFT>
void wait_for_copies() {}

#define LARGE_SHARED
#define DYNAMIC_SHARED(NAME) alignas(128) static u8 NAME[emulator::SHARED_BYTES]
#define ALIGNED_SHARED(NAME) alignas(1024) static u8 NAME[emulator::SHARED_BYTES]

#define BIT_PIECES

inline void common_bits(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    uint64_t all[2][32];
    const u64 own[2] = {u64(a0) | u64(a1) << 32, b};
    for (u32 i = 0; i < 2; ++i) std::memcpy(all[i], emulator::exchange(~0u, own[i]), sizeof(all[i]));
    const u32 g = emulator::lane() / 4, t = emulator::lane() % 4;
    for (u32 place = 0; place < 4; ++place) {
        const u32 upper = place / 2, column = 2 * t + place % 2;
        c[place] = 0;
        for (u32 lane = 0; lane < 4; ++lane) {
            c[place] += __popc(u32(all[0][4 * g + lane] >> 32 * upper) & u32(all[1][4 * column + lane]));
        }
    }
}

inline void start_copy(void* to, const void* from) { std::memcpy(to, from, 16); }
inline void start_copy_4(void* to, const void* from) { std::memcpy(to, from, 4); }

inline uint4 spread_rows(const uint4* row) {
    const uint64_t* all = emulator::exchange(~0u, uint64_t(row));
    const u32 g = emulator::lane() / 4, t = emulator::lane() % 4;
    u32 words[4];
    for (u32 i = 0; i < 4; ++i) words[i] = reinterpret_cast<const u32*>(all[8 * i + g])[t];
    return {words[0], words[1], words[2], words[3]};
}

inline uint4 spread_columns(const uint4* row) {
    const uint64_t* all = emulator::exchange(~0u, uint64_t(row));
    const u32 g = emulator::lane() / 4, t = emulator::lane() % 4;
    u32 words[4];
    for (u32 i = 0; i < 4; ++i) {
        const auto half = [&](u32 r) { return u32(reinterpret_cast<const u16*>(all[8 * i + r])[g]); };
        words[i] = half(2 * t) | half(2 * t + 1) << 16;
    }
    return {words[0], words[1], words[2], words[3]};
}

inline u32 half_pair(float first, float second) { return u32(half_bits(first)) | u32(half_bits(second)) << 16; }

inline float2 pair_values(u32 pair) { return {half_value(u16(pair)), half_value(u16(pair >> 16))}; }

#define PIECES_OF_16_BITS

inline u32 bf16_pair(float first, float second) {
    const auto bits = [](float x) {
        u32 all;
        std::memcpy(&all, &x, 4);
        if ((all & 0x7fffffff) > 0x7f800000) return 0x7fffu;
        return (all + 0x7fff + (all >> 16 & 1)) >> 16;
    };
    return bits(first) | bits(second) << 16;
}

// c += a b, numbers of 16 bits that `value` makes floats of.
template <typename F>
void multiply_sixteens(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, F value) {
    const auto pair = [](u32 low, u32 high) { return u64(low) | u64(high) << 32; };
    uint64_t all[3][32];
    const u64 own[3] = {pair(a[0], a[1]), pair(a[2], a[3]), pair(b0, b1)};
    for (u32 i = 0; i < 3; ++i) std::memcpy(all[i], emulator::exchange(~0u, own[i]), sizeof(all[i]));
    const u32 g = emulator::lane() / 4, t = emulator::lane() % 4;
    for (u32 place = 0; place < 4; ++place) {
        const u32 upper = place / 2, column = 2 * t + place % 2;
        // Products are exact, and so is their sum but for the last bits.
        double sum = c[place];
        for (u32 k = 0; k < 16; ++k) {
            const u32 lane = k % 8 / 2;
            const u32 x = u32(all[k / 8][4 * g + lane] >> 32 * upper), y = u32(all[2][4 * column + lane] >> 32 * (k / 8));
            sum += double(value(u16(x >> 16 * (k % 2)))) * double(value(u16(y >> 16 * (k % 2))));
        }
        c[place] = float(sum);
    }
}

inline void multiply_halves(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    multiply_sixteens(c, a, b0, b1, [](u16 bits) { return half_value(bits); });
}

inline void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    multiply_sixteens(c, a, b0, b1, [](u16 bits) {
        const u32 all = u32(bits) << 16;
        float x;
        std::memcpy(&x, &all, 4);
        return x;
    });
}

#define WARP_GROUPS
inline void show_to_matrix_units() {}
inline void begin_multiplying() {}
inline void close_multiplying() {}
template <u32 LEFT>
void wait_for_products(i32 (&)[24]) {}

template <u32 COUNT>
void leave_registers() {}
template <u32 COUNT>
void take_registers() {}

inline void multiply_rows(i32 (&d)[24], const u32 (&a)[4][4], const uint4* rows) {
    const u32 g = emulator::lane() / 4, t = emulator::lane() % 4;
    for (i32& sum : d) sum = 0;
    for (u32 k = 0; k < 4; ++k) {
        uint64_t all[2][32];
        const u64 own[2] = {u64(a[k][0]) | u64(a[k][1]) << 32, u64(a[k][2]) | u64(a[k][3]) << 32};
        for (u32 i = 0; i < 2; ++i) std::memcpy(all[i], emulator::exchange(~0u, own[i]), sizeof(all[i]));
        for (u32 i = 0; i < 24; ++i) {
            const u32 upper = i % 4 / 2, row = i / 4 * 8 + 2 * t + i % 2;
            for (u32 c = 0; c < 32; ++c) {
                const u32 unit = (2 * k + c / 16) ^ row % 8;
                const i32 x = i8(all[c / 16][4 * g + c % 16 / 4] >> (32 * upper + 8 * (c % 4)));
                d[i] += x * i32(reinterpret_cast<const i8*>(rows + row * 8 + unit)[c % 16]);
            }
        }
    }
}

// d += a b for 8 * COUNT / 4 rows b, whose place is that of their bytes.
inline const u8* matrix_place(const u8* rows) { return rows; }
template <u32 COUNT>
void multiply_tens(i32 (&d)[COUNT], const u32 (&a)[4][4], const u8* rows, u32 units) {
    const u32 g = emulator::lane() / 4, t = emulator::lane() % 4;
    rows += 16 * units;
    for (u32 k = 0; k < 4; ++k) {
        uint64_t all[2][32];
        const u64 own[2] = {u64(a[k][0]) | u64(a[k][1]) << 32, u64(a[k][2]) | u64(a[k][3]) << 32};
        for (u32 i = 0; i < 2; ++i) std::memcpy(all[i], emulator::exchange(~0u, own[i]), sizeof(all[i]));
        for (u32 i = 0; i < COUNT; ++i) {
            const u32 upper = i % 4 / 2, row = i / 4 * 8 + 2 * t + i % 2;
            for (u32 c = 0; c < 32; ++c) {
                const u32 unit = (2 * k + c / 16) ^ row % 8;
                const i32 x = i8(all[c / 16][4 * g + c % 16 / 4] >> (32 * upper + 8 * (c % 4)));
                d[i] += x * i32(reinterpret_cast<const i8*>(rows)[(row * 8 + unit) * 16 + c % 16]);
            }
        }
    }
}
template <u32 LEFT>
void wait_for_products(i32 (&)[16]) {}
template <u32 LEFT>
void wait_for_products(i32 (&)[8]) {}

using SharedPlace = u8*;
inline SharedPlace shared_place(const void* at) { return static_cast<u8*>(const_cast<void*>(at)); }
inline SharedPlace hidden(SharedPlace at) { return at; }
template <typename T>
T shared_value(SharedPlace at) {
    T x;
    std::memcpy(&x, at, sizeof(T));
    return x;
}
inline u32 shared_word(SharedPlace at) { return shared_value<u32>(at); }
inline uint2 shared_words(SharedPlace at) { return shared_value<uint2>(at); }
inline u16 shared_half(SharedPlace at) { return shared_value<u16>(at); }
inline float4 shared_floats(SharedPlace at) { return shared_value<float4>(at); }
inline void store_shared(SharedPlace at, float4 v) { std::memcpy(at, &v, sizeof(v)); }
inline u32 and_or(u32 x, u32 mask, u32 other) { return (x & mask) | other; }
inline u32 and_xor(u32 x, u32 mask, u32 other) { return (x & mask) ^ other; }

// What a barrier in shared memory holds: arrivals of a phase, those of them and the bytes that are still to come, and the
// phase's parity.
struct Barrier {
    u16 count, pending;
    u32 bytes : 31, parity : 1;
};
static_assert(sizeof(Barrier) == 8);
inline Barrier& barrier_at(SharedPlace at) { return *reinterpret_cast<Barrier*>(at); }
inline void settle(Barrier& b) {
    if (b.pending > 0 || b.bytes > 0) return;
    b.pending = b.count;
    b.parity = !b.parity;
}
inline void make_barrier(SharedPlace at, u32 count) { barrier_at(at) = {u16(count), u16(count), 0, 0}; }
inline void show_barriers() {}
inline void arrive(SharedPlace at) {
    --barrier_at(at).pending;
    settle(barrier_at(at));
}
inline void expect_bytes(SharedPlace at, u32 bytes) {
    barrier_at(at).bytes += bytes;
    arrive(at);
}
inline void wait_for_phase(SharedPlace at, u32 parity) {
    while (barrier_at(at).parity == parity) emulator::wait_a_turn();
}
inline void arrive_with_copies(SharedPlace at) { arrive(at); }
inline bool is_phase_over(SharedPlace at, u32 parity) { return barrier_at(at).parity != parity; }
inline void rest_a_little() { emulator::wait_a_turn(); }
#define BULK_COPIES
inline void copy_bulk(SharedPlace to, const void* from, u32 bytes, SharedPlace barrier) {
    std::memcpy(to, from, bytes);
    barrier_at(barrier).bytes -= bytes;
    settle(barrier_at(barrier));
}

inline void show_to_copies() {}
inline void copy_bulk_out(void* to, SharedPlace from, u32 bytes) { std::memcpy(to, from, bytes); }
inline void close_bulk_copies() {}
template <u32 LEFT>
inline void wait_for_bulk_reads() {}
inline void wait_for_bulk_writes() {}

inline u32 low_bytes(u32 a, u32 b, u32 c, u32 d) { return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24; }

inline void weigh_pieces(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const auto pair = [](u32 low, u32 high) { return u64(low) | u64(high) << 32; };
    uint64_t all[3][32];
    const u64 own[3] = {pair(a[0], a[1]), pair(a[2], a[3]), pair(b0, b1)};
    for (u32 i = 0; i < 3; ++i) std::memcpy(all[i], emulator::exchange(~0u, own[i]), sizeof(all[i]));
    const u32 g = emulator::lane() / 4, t = emulator::lane() % 4;
    for (u32 place = 0; place < 4; ++place) {
        const u32 upper = place / 2, column = 2 * t + place % 2;
        d[place] = 0;
        for (u32 k = 0; k < 32; ++k) {
            const u32 lane = k % 16 / 4;
            const u32 x = u32(all[k / 16][4 * g + lane] >> 32 * upper), y = u32(all[2][4 * column + lane] >> 32 * (k / 16));
            d[place] += i32(u8(x >> 8 * (k % 4))) * i32(i8(y >> 8 * (k % 4)));
        }
    }
}

// There are no clusters: the driver says so, and nobody asks for them. A block is one of its own.
inline void make_barrier(u64*) {}
inline void expect_bytes(u64*, u32) {}
inline void wait_for_arrivals(u64*) {}
inline void cluster_start() {}
inline void cluster_started() {}
inline u32 cluster_rank() { return 0; }
inline u32 cluster_size() { return 1; }
inline void send(float*, u64*, u32, float) {}
inline void send(SharedPlace at, SharedPlace box, u32, const float4& x) { copy_bulk(at, &x, sizeof(x), box); }
