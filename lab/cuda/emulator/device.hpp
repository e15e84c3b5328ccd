// CUDA C++ on a CPU: what the kernels use of the language, with one fiber for each thread of a block.
//
// A block's threads run one after another, each until it waits for others: at a barrier, a shuffle or a vote. Waiting lanes
// are let go when all that must come are there; a lane that has ended when others wait for it, or a block in which nobody can go on, is
// a fault of the kernel and ends the program with its name. The order of threads changes from launch to launch, which
// shows most missing barriers. `__shared__` variables are static, and keep what the block before left in them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__ __attribute__((noinline))
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

struct uint3 { unsigned x, y, z; };
struct alignas(8) int2 { int x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {

struct Thread {
    uint3 index;
};
extern Thread* current;
extern uint3 block_index, block_size, grid_size;

// Waits for the whole block; true where any thread said so.
bool wait_block(bool any);
// Waits for the lanes of a warp; `values` then has what each of them brought.
const uint64_t* exchange(unsigned mask, uint64_t value);
// Lets others go on before a place in memory is looked at again.
void wait_a_turn();
// From now on kernels cannot write to the piece of memory that `at` lies in.
void freeze(const void* at);

template <typename T>
uint64_t bits(T x) {
    uint64_t b = 0;
    static_assert(sizeof(T) <= 8);
    std::memcpy(&b, &x, sizeof(T));
    return b;
}

template <typename T>
T from(uint64_t b) {
    T x;
    std::memcpy(&x, &b, sizeof(T));
    return x;
}

// Dynamic shared memory that a block may ask for.
constexpr unsigned SHARED_BYTES = 227 << 10;

inline unsigned lane() { return current->index.x % 32; }

}  // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::block_index)
#define blockDim (emulator::block_size)
#define gridDim (emulator::grid_size)

inline void __syncthreads() { emulator::wait_block(false); }
inline int __syncthreads_or(int any) { return emulator::wait_block(any != 0); }
inline void __syncwarp(unsigned mask = ~0u) { emulator::exchange(mask, 0); }

template <typename T>
T __shfl_xor_sync(unsigned mask, T x, unsigned offset) {
    return emulator::from<T>(emulator::exchange(mask, emulator::bits(x))[emulator::lane() ^ offset]);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T x, unsigned offset) {
    const uint64_t* all = emulator::exchange(mask, emulator::bits(x));
    return emulator::lane() < offset ? x : emulator::from<T>(all[emulator::lane() - offset]);
}
template <typename T>
T __shfl_sync(unsigned mask, T x, unsigned from) {
    return emulator::from<T>(emulator::exchange(mask, emulator::bits(x))[from]);
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
    const uint64_t* all = emulator::exchange(mask, vote != 0);
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; ++i) votes |= unsigned(mask >> i & 1 && all[i]) << i;
    return votes;
}
inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) == mask; }
inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }

template <typename T>
T atomicAdd(T* at, T x) {
    const T before = *at;
    *at += x;
    return before;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

inline float __int_as_float(int x) { return emulator::from<float>(emulator::bits(x)); }
inline float __uint_as_float(unsigned x) { return emulator::from<float>(x); }
inline unsigned __float_as_uint(float x) { return unsigned(emulator::bits(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned long long __float2ull_rn(float x) { return (unsigned long long)(std::nearbyint(double(x))); }
inline void sincospif(float x, float* sine, float* cosine) {
    *sine = float(std::sin(double(x) * M_PI));
    *cosine = float(std::cos(double(x) * M_PI));
}

using std::max;
using std::min;
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
