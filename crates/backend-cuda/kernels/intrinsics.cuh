// What has no name in CUDA C++ without headers of its own.
#pragma once

#include "params.cuh"

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
