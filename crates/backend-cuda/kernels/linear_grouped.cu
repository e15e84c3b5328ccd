// Products with many rows, for weights of 1, 2 and 4 bits whatever their scales, and integers of 8 and 9.
#include "linear_grouped.cuh"

#define LINEAR_GROUPED(BITS, INPUTS, NINE)                                               \
    extern "C" __global__ void __launch_bounds__(256, 1)                                 \
        linear_bits##BITS##_##INPUTS##_grouped(const __grid_constant__ LinearParams p) { \
        grouped::run<BITS, NINE>(p);                                                     \
    }

LINEAR_GROUPED(1, i8, false)
LINEAR_GROUPED(1, i9, true)
LINEAR_GROUPED(2, i8, false)
LINEAR_GROUPED(2, i9, true)
LINEAR_GROUPED(4, i8, false)
LINEAR_GROUPED(4, i9, true)
