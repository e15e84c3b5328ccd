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
