// What has no name in CUDA C++ without headers of its own.
#pragma once

#include "params.cuh"

// What a kernel may use, as __CUDA_ARCH__ counts: a newer device runs an older path's code with what that path has.
#ifndef CODE_PATH
#define CODE_PATH __CUDA_ARCH__
#endif

// Half precision bits of the nearest value, ties to even; beyond the range infinity.
__device__ __forceinline__ u16 half_bits(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

__device__ __forceinline__ float half_value(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

// 2^x within two units of the last place.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2^15 + byte `i` of a word, a number without sign.
constexpr float BYTES_ABOVE = 32768.0f;
__device__ __forceinline__ float byte_above(u32 word, u32 i) {
    u32 bits;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bits) : "r"(word), "r"(0x47000000u), "r"(0x7404u + 16 * i));
    return __uint_as_float(bits);
}

// Brings memory into the second-level cache, where a later reading finds it. Whole units of 16 bytes; by one thread.
__device__ __forceinline__ void bring_near(const void* at, u32 bytes) {
#if CODE_PATH >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes) : "memory");
#endif
}

// Lets the kernel behind this one begin, as far as it does not need this one's results.
__device__ __forceinline__ void let_next_start() {
#if CODE_PATH >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernels before this one have ended and their results can be seen. Every kernel calls it in every block before
// it returns, so that the end of a kernel is also the end of all before it.
__device__ __forceinline__ void wait_for_previous() {
#if CODE_PATH >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// What `at` points to, which no kernel writes: weights. The reading may be answered from a cache that is emptied when a
// kernel begins and not again in `wait_for_previous`: of what the kernel in front has written it gives what was there before.
template <typename T>
__device__ __forceinline__ T unchanging(const T* at) {
    return __ldg(at);
}

// x, of which the compiler knows nothing: it would keep a pointer for every place that an unrolled loop reads.
__device__ __forceinline__ u32 unknown(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

// sum + the product of four signed bytes of a with four of b.
__device__ __forceinline__ i32 add_products(u32 a, u32 b, i32 sum) {
    i32 d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(sum));
    return d;
}

// c += a b for a 16 x 32 piece a, a 32 x 8 piece b and a 16 x 8 piece c of a product, spread over the lanes of a warp. With
// g = lane / 4 and t = lane % 4, a lane has of a the columns 4 t.. and 16 + 4 t.. of row g (a[0], a[2]) and of row g + 8
// (a[1], a[3]), of b the same rows of column g, and of c the columns 2 t and 2 t + 1 of row g (c[0], c[1]) and of row g + 8.
// Bytes are signed.
__device__ __forceinline__ void multiply_pieces(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if CODE_PATH >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    // Turing's pieces are a quarter as large.
    const u32 b[2] = {b0, b1};
    for (u32 half = 0; half < 2; ++half) {
        for (u32 k = 0; k < 2; ++k) {
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+r"(c[2 * half]), "+r"(c[2 * half + 1])
                : "r"(a[half + 2 * k]), "r"(b[k]));
        }
    }
#endif
}

// d = c + a b, pieces as above.
__device__ __forceinline__ void multiply_pieces(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const i32 (&c)[4]) {
#if CODE_PATH >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
    for (u32 i = 0; i < 4; ++i) d[i] = c[i];
    multiply_pieces(d, a, b0, b1);
#endif
}

// Where the matrix units take single bits.
#if CODE_PATH >= 800
#define BIT_PIECES

// c = the number of common bits of a 16 x 128 piece a and a 128 x 8 piece b, spread over the lanes of a warp. With g = lane / 4
// and t = lane % 4, a lane has of a the columns 32 t.. of rows g and g + 8, of b the rows 32 t.. of column g, and of c the
// columns 2 t and 2 t + 1 of row g (c[0], c[1]) and of row g + 8.
__device__ __forceinline__ void common_bits(i32 (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(0));
}
#endif

// ---- copies that nobody waits for ----

// 16 bytes from global to shared memory, both aligned.
__device__ __forceinline__ void copy_16(void* shared, const void* global) {
#if CODE_PATH >= 800
    asm volatile(
        "{\n.reg .u64 wide;\n.reg .u32 place;\ncvta.to.shared.u64 wide, %0;\ncvt.u32.u64 place, wide;\n"
        "cp.async.cg.shared.global [place], [%1], 16;\n}" ::"l"(shared), "l"(global)
        : "memory");
#else
    *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}

// The thread's copies so far form a group.
__device__ __forceinline__ void close_copies() {
#if CODE_PATH >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for the thread's groups but the last `LEFT`.
template <u32 LEFT>
__device__ __forceinline__ void wait_for_copies() {
#if CODE_PATH >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// Where two thread blocks with 80 KB of shared memory each, or one with 96, have room.
#if CODE_PATH >= 800
#define LARGE_SHARED
#endif

// The shared memory that a launch asks for.
#define DYNAMIC_SHARED(NAME) extern __shared__ __align__(128) u8 NAME[]
// The same where matrix units look for patterns of 1024 bytes.
#define ALIGNED_SHARED(NAME) extern __shared__ __align__(1024) u8 NAME[]

// As `copy_16`, by an address that the compiler converts.
__device__ __forceinline__ void start_copy(void* to, const void* from) {
#if CODE_PATH >= 800
    const u32 shared = u32(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
#else
    *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}

// The same of four bytes.
__device__ __forceinline__ void start_copy_4(void* to, const void* from) {
#if CODE_PATH >= 800
    const u32 shared = u32(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from) : "memory");
#else
    *static_cast<u32*>(to) = *static_cast<const u32*>(from);
#endif
}

// Of four pieces of 8 rows of 16 bytes: a lane with g = lane / 4 and t = lane % 4 gets word t of row g of each. `row` is the
// place of the lane's own row, the lanes 8 i.. those of piece i. Volatile, so that it stays behind the barrier behind which
// the rows are there.
__device__ __forceinline__ uint4 spread_rows(const uint4* row) {
    uint4 v;
    const u32 shared = u32(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "r"(shared));
    return v;
}

// The same with rows and columns of each piece exchanged: words of two rows, 2 t and 2 t + 1, of column g.
__device__ __forceinline__ uint4 spread_columns(const uint4* row) {
    uint4 v;
    const u32 shared = u32(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "r"(shared));
    return v;
}

// ---- numbers of 16 bits ---------------------------------------------------------------------------------------------

// Two half precision numbers in a word, the first one lower, each the nearest with ties to even.
__device__ __forceinline__ u32 half_pair(float first, float second) {
#if CODE_PATH >= 800
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#else
    return u32(half_bits(first)) | u32(half_bits(second)) << 16;
#endif
}

__device__ __forceinline__ float2 pair_values(u32 pair) {
    return make_float2(half_value(u16(pair)), half_value(u16(pair >> 16)));
}

// Where the matrix units take numbers of 16 bits, bf16 among them, in pieces of 16 columns.
#if CODE_PATH >= 800
#define PIECES_OF_16_BITS

// The same of bf16.
__device__ __forceinline__ u32 bf16_pair(float first, float second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// c += a b for a 16 x 16 piece a, a 16 x 8 piece b and a 16 x 8 piece c of floats. With g = lane / 4 and t = lane % 4, a lane has
// of a the columns 2 t.. and 8 + 2 t.. of row g (a[0], a[2]) and of row g + 8 (a[1], a[3]), of b the same rows of column g, and
// of c the columns 2 t and 2 t + 1 of row g (c[0], c[1]) and of row g + 8.
__device__ __forceinline__ void multiply_halves(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// ---- products of single bits are put together ---------------------------------------------------------------------

// d = a b for a 16 x 32 piece a of bytes without sign, a 32 x 8 piece b of signed ones and a 16 x 8 piece d, spread as in
// `multiply_pieces`.
__device__ __forceinline__ void weigh_pieces(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if CODE_PATH >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
#endif
}

// The lowest bytes of four words, the first one lowest.
__device__ __forceinline__ u32 low_bytes(u32 a, u32 b, u32 c, u32 d) {
    u32 low, high, all;
    asm("prmt.b32 %0, %1, %2, 0x0040;" : "=r"(low) : "r"(a), "r"(b));
    asm("prmt.b32 %0, %1, %2, 0x0040;" : "=r"(high) : "r"(c), "r"(d));
    asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(all) : "r"(low), "r"(high));
    return all;
}

// ---- shared memory by its own addresses -----------------------------------------------------------------------------------

using SharedPlace = u32;

__device__ __forceinline__ SharedPlace shared_place(const void* at) { return u32(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ SharedPlace hidden(SharedPlace at) { return unknown(at); }

// Volatile, so that they stay behind the barrier behind which the values are there.
__device__ __forceinline__ u32 shared_word(SharedPlace at) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ uint2 shared_words(SharedPlace at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

__device__ __forceinline__ u16 shared_half(SharedPlace at) {
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ float4 shared_floats(SharedPlace at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

__device__ __forceinline__ void store_shared(SharedPlace at, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

// (x & mask) | other, and with exclusive or, as one instruction.
__device__ __forceinline__ u32 and_or(u32 x, u32 mask, u32 other) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(other));
    return y;
}

__device__ __forceinline__ u32 and_xor(u32 x, u32 mask, u32 other) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "r"(mask), "r"(other));
    return y;
}

// ---- clusters: thread blocks that run together and see each other's shared memory, from Hopper on -------------------------

// A barrier that `count` arrivals and the bytes that are to come are counted by, phase after phase. Others see it behind
// `show_barriers` and a barrier of all threads.
__device__ __forceinline__ void make_barrier(SharedPlace barrier, u32 count) {
#if CODE_PATH >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
#endif
}

__device__ __forceinline__ void show_barriers() {
#if CODE_PATH >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// One that letters are counted by. One thread makes it and says how many bytes are to come, once.
__device__ __forceinline__ void make_barrier(u64* barrier) {
    make_barrier(shared_place(barrier), 1);
    show_barriers();
}

__device__ __forceinline__ void arrive(SharedPlace barrier) {
#if CODE_PATH >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// An arrival, and bytes that the phase waits for beside.

__device__ __forceinline__ void expect_bytes(SharedPlace barrier, u32 bytes) {
#if CODE_PATH >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void expect_bytes(u64* barrier, u32 bytes) { expect_bytes(shared_place(barrier), bytes); }

// Waits for the end of the phase of this parity: the current one or the one before.
__device__ __forceinline__ void wait_for_phase(SharedPlace barrier, u32 parity) {
#if CODE_PATH >= 900
    u32 come = 0;
    while (come == 0) {
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(come)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    }
#endif
}

// Whether that phase has ended.
__device__ __forceinline__ bool is_phase_over(SharedPlace barrier, u32 parity) {
    u32 over = 1;
#if CODE_PATH >= 900
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
    return over != 0;
}

// Leaves the scheduler to others before something is looked at again.
__device__ __forceinline__ void rest_a_little() {
#if CODE_PATH >= 900
    asm volatile("nanosleep.u32 64;" ::: "memory");
#endif
}

// Waits until all that a barrier expects first has come.
__device__ __forceinline__ void wait_for_arrivals(u64* barrier) { wait_for_phase(shared_place(barrier), 0); }

// An arrival when all copies have come that the thread has begun by `start_copy` and the like.
__device__ __forceinline__ void arrive_with_copies(SharedPlace barrier) {
#if CODE_PATH >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

#if CODE_PATH >= 900
#define BULK_COPIES
#endif

// Bytes from global to shared memory, counted by a barrier: whole units of 16, by one thread, which waits for nothing.
__device__ __forceinline__ void copy_bulk(SharedPlace to, const void* from, u32 bytes, SharedPlace barrier) {
#if CODE_PATH >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
#endif
}

// What the thread has written to shared memory is there for bulk copies behind a barrier.
__device__ __forceinline__ void show_to_copies() {
#if CODE_PATH >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Bytes from shared to global memory: whole units of 16, by one thread, which waits for nothing.
__device__ __forceinline__ void copy_bulk_out(void* to, SharedPlace from, u32 bytes) {
#if CODE_PATH >= 900
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
#endif
}

// Those that the thread has begun are one group.
__device__ __forceinline__ void close_bulk_copies() {
#if CODE_PATH >= 900
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Until at most LEFT of the thread's groups still read shared memory.
template <u32 LEFT>
__device__ __forceinline__ void wait_for_bulk_reads() {
#if CODE_PATH >= 900
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
#endif
}

// Until all of the thread's groups have been written.
__device__ __forceinline__ void wait_for_bulk_writes() {
#if CODE_PATH >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

// The blocks of a cluster begin; what a block has made before is there for the others behind `cluster_started`. All threads call
// both, once.
__device__ __forceinline__ void cluster_start() {
#if CODE_PATH >= 900
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_started() {
#if CODE_PATH >= 900
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// This block's place in its cluster.
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank = 0;
#if CODE_PATH >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

// The blocks of its cluster.
__device__ __forceinline__ u32 cluster_size() {
    u32 size = 1;
#if CODE_PATH >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
#endif
    return size;
}

// Sends a float to block `rank`, counted by the barrier `box`: `at` and `box` are this block's own, and there it comes to the same
// places.
__device__ __forceinline__ void send(float* at, u64* box, u32 rank, float x) {
#if CODE_PATH >= 900
    const u32 to = u32(__cvta_generic_to_shared(at)), counted = u32(__cvta_generic_to_shared(box));
    asm volatile("{\n\t.reg .u32 to, counted;\n\tmapa.shared::cluster.u32 to, %0, %2;\n\t"
                 "mapa.shared::cluster.u32 counted, %1, %2;\n\t"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %3, [counted];\n\t}" ::"r"(to),
                 "r"(counted), "r"(rank), "r"(__float_as_uint(x))
                 : "memory");
#endif
}

__device__ __forceinline__ void send(SharedPlace at, SharedPlace box, u32 rank, const float4& x) {
#if CODE_PATH >= 900
    asm volatile("{\n\t.reg .u32 to, counted;\n\tmapa.shared::cluster.u32 to, %0, %2;\n\t"
                 "mapa.shared::cluster.u32 counted, %1, %2;\n\t"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%3, %4, %5, %6}, [counted];\n\t}" ::"r"(at),
                 "r"(box), "r"(rank), "r"(__float_as_uint(x.x)), "r"(__float_as_uint(x.y)), "r"(__float_as_uint(x.z)),
                 "r"(__float_as_uint(x.w))
                 : "memory");
#endif
}

// ---- four warps multiply together, on Hopper ----------------------------------------------------------------------------

#if CODE_PATH >= 900 && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARP_GROUPS

// What the thread has written to shared memory can be seen by the matrix units behind the next barrier.
__device__ __forceinline__ void show_to_matrix_units() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers have been written that the next products read.
__device__ __forceinline__ void begin_multiplying() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// The products so far form a group.
__device__ __forceinline__ void close_multiplying() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// d = a b for 128 columns of 64 weight rows a, 16 of each of four warps, spread piece by piece of 32 columns as in `multiply_pieces`,
// and of 48 rows b in shared memory of 128 bytes each, whose units of 16 bytes are exchanged by the row's number modulo 8.
// Columns 8 j.. of d are d[4 j..], as there. It is only begun: `wait_for_products` waits.
__device__ __forceinline__ void multiply_rows(i32 (&d)[24], const u32 (&a)[4][4], const uint4* rows) {
    // Address, 1024 bytes from eight rows to the next, exchanged within 128 bytes: all in units of 16 bytes.
    const u64 place = (u32(__cvta_generic_to_shared(rows)) / 16 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
#define MULTIPLY_ROWS(A, B, MORE)                                                       \
    "wgmma.mma_async.sync.aligned.m64n48k32.s32.s8.s8 "                                \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "                              \
    "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, " A ", " B ", " MORE ";\n"
    asm volatile(
        "{\n.reg .pred never, more;\nsetp.ne.u32 never, 0, 0;\nsetp.eq.u32 more, 0, 0;\n"
        MULTIPLY_ROWS("{%24, %25, %26, %27}", "%40", "never")
        MULTIPLY_ROWS("{%28, %29, %30, %31}", "%41", "more")
        MULTIPLY_ROWS("{%32, %33, %34, %35}", "%42", "more")
        MULTIPLY_ROWS("{%36, %37, %38, %39}", "%43", "more")
        "}"
        :
          "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7]),
          "=r"(d[8]), "=r"(d[9]), "=r"(d[10]), "=r"(d[11]), "=r"(d[12]), "=r"(d[13]), "=r"(d[14]), "=r"(d[15]),
          "=r"(d[16]), "=r"(d[17]), "=r"(d[18]), "=r"(d[19]), "=r"(d[20]), "=r"(d[21]), "=r"(d[22]), "=r"(d[23])
        :
          "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
          "r"(a[2][0]), "r"(a[2][1]), "r"(a[2][2]), "r"(a[2][3]), "r"(a[3][0]), "r"(a[3][1]), "r"(a[3][2]), "r"(a[3][3]),
          "l"(place), "l"(place + 2), "l"(place + 4), "l"(place + 6));
#undef MULTIPLY_ROWS
}

// Waits for the groups of products but the last `LEFT`; d is of one that has ended.
template <u32 LEFT>
__device__ __forceinline__ void wait_for_products(i32 (&d)[24]) {
    asm volatile("wgmma.wait_group.sync.aligned %24;"
                 :
          "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
          "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
          "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23])
                 : "n"(LEFT)
                 : "memory");
}

// A group of four warps leaves registers to others, or takes what they have left.
template <u32 COUNT>
__device__ __forceinline__ void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <u32 COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Rows of 128 bytes in shared memory, units exchanged as above, as the matrix units look for them: the lower half of a word of
// 64 bits, whose upper half says that it is 1024 bytes from eight rows to the next and that units are exchanged within 128 bytes.
__device__ __forceinline__ u32 matrix_place(SharedPlace rows) { return (rows / 16 & 0x3fff) | 1u << 16; }

// d += a b for 32 or 16 such rows b, `units` of 16 bytes behind `rows`.
__device__ __forceinline__ void multiply_tens(i32 (&d)[16], const u32 (&a)[4][4], u32 rows, u32 units) {
#define MULTIPLY_TENS(A, UNITS) \
    "add.u32 place, %32, " UNITS ";\nmov.b64 whole, {place, 0x40000040};\n" \
    "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 " \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, " A ", whole, always;\n"
    asm volatile(
        "{\n.reg .pred always;\n.reg .u32 place;\n.reg .b64 whole;\nsetp.eq.u32 always, 0, 0;\n"
        MULTIPLY_TENS("{%16, %17, %18, %19}", "%33")
        MULTIPLY_TENS("{%20, %21, %22, %23}", "%34")
        MULTIPLY_TENS("{%24, %25, %26, %27}", "%35")
        MULTIPLY_TENS("{%28, %29, %30, %31}", "%36")
        "}"
        :
          "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
          "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
        :
          "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]),
          "r"(a[1][3]), "r"(a[2][0]), "r"(a[2][1]), "r"(a[2][2]), "r"(a[2][3]), "r"(a[3][0]), "r"(a[3][1]),
          "r"(a[3][2]), "r"(a[3][3]), "r"(rows + units), "n"(2 * 0), "n"(2 * 1), "n"(2 * 2), "n"(2 * 3));
#undef MULTIPLY_TENS
}

template <u32 LEFT>
__device__ __forceinline__ void wait_for_products(i32 (&d)[16]) {
    asm volatile("wgmma.wait_group.sync.aligned %16;"
                 :
          "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
          "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
                 : "n"(LEFT)
                 : "memory");
}

__device__ __forceinline__ void multiply_tens(i32 (&d)[8], const u32 (&a)[4][4], u32 rows, u32 units) {
#define MULTIPLY_TENS(A, UNITS) \
    "add.u32 place, %24, " UNITS ";\nmov.b64 whole, {place, 0x40000040};\n" \
    "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 " \
    "{%0, %1, %2, %3, %4, %5, %6, %7}, " A ", whole, always;\n"
    asm volatile(
        "{\n.reg .pred always;\n.reg .u32 place;\n.reg .b64 whole;\nsetp.eq.u32 always, 0, 0;\n"
        MULTIPLY_TENS("{%8, %9, %10, %11}", "%25")
        MULTIPLY_TENS("{%12, %13, %14, %15}", "%26")
        MULTIPLY_TENS("{%16, %17, %18, %19}", "%27")
        MULTIPLY_TENS("{%20, %21, %22, %23}", "%28")
        "}"
        :
          "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
        :
          "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]),
          "r"(a[1][3]), "r"(a[2][0]), "r"(a[2][1]), "r"(a[2][2]), "r"(a[2][3]), "r"(a[3][0]), "r"(a[3][1]),
          "r"(a[3][2]), "r"(a[3][3]), "r"(rows + units), "n"(2 * 0), "n"(2 * 1), "n"(2 * 2), "n"(2 * 3));
#undef MULTIPLY_TENS
}

template <u32 LEFT>
__device__ __forceinline__ void wait_for_products(i32 (&d)[8]) {
    asm volatile("wgmma.wait_group.sync.aligned %8;"
                 :
          "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
                 : "n"(LEFT)
                 : "memory");
}
#endif
