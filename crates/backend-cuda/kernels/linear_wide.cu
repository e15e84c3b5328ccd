// Products with many rows, for weights of 1, 2 and 4 bits with scales of whole records, and integers of 8 and 9.
#include "linear_wide.cuh"

#ifdef LARGE_SHARED
#define BLOCKS 2
using Total = wide::Put;
#else
#define BLOCKS 1
using Total = wide::Kept;
#endif

#define LINEAR_WIDE(BITS, INPUTS, NINE)                                               \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                         \
        linear_bits##BITS##_##INPUTS##_wide(const __grid_constant__ LinearParams p) { \
        wide::run<BITS, NINE, Total>(p);                                              \
    }

LINEAR_WIDE(1, i8, false)
LINEAR_WIDE(1, i9, true)
LINEAR_WIDE(2, i8, false)
LINEAR_WIDE(2, i9, true)
LINEAR_WIDE(4, i8, false)
LINEAR_WIDE(4, i9, true)
