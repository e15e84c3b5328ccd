// Products with many rows, for weights of 1, 2 and 4 bits with scales of whole records, and integers of 8 and 9.
#include "linear_wide.cuh"

#define LINEAR_WIDE(BITS, INPUTS, NINE)                                               \
    extern "C" __global__ void __launch_bounds__(256, 1)                              \
        linear_bits##BITS##_##INPUTS##_wide(const __grid_constant__ LinearParams p) { \
        wide::run<BITS, NINE>(p);                                                     \
    }

LINEAR_WIDE(1, i8, false)
LINEAR_WIDE(1, i9, true)
LINEAR_WIDE(2, i8, false)
LINEAR_WIDE(2, i9, true)
LINEAR_WIDE(4, i8, false)
LINEAR_WIDE(4, i9, true)
