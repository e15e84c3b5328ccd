// Products with tens of rows of 8-bit integers, for weights of 1 and 2 bits, on Hopper.
#include "linear_tens.cuh"

#ifdef WARP_GROUPS
#define LINEAR_TENS(BITS, COLUMNS, NAME, ...)                                                          \
    extern "C" __global__ void                                                                         \
        __launch_bounds__(tens::Plan<BITS, COLUMNS, __VA_ARGS__>::THREADS, tens::Plan<BITS, COLUMNS, __VA_ARGS__>::BLOCKS) \
        linear_bits##BITS##_tens##COLUMNS##_##NAME(const __grid_constant__ LinearParams p) {            \
        tens::run<tens::Plan<BITS, COLUMNS, __VA_ARGS__>>(p);                                          \
    }

#define LINEAR_TENS_1(COLUMNS)                       \
    LINEAR_TENS(1, COLUMNS, 2, false, 2, 5, 4)       \
    LINEAR_TENS(1, COLUMNS, 3, false, 3, 5, 4)       \
    LINEAR_TENS(1, COLUMNS, 5, false, 5, 5, 3)       \
    LINEAR_TENS(1, COLUMNS, split3, true, 3, 5, 3)   \
    LINEAR_TENS(1, COLUMNS, split4, true, 4, 4, 3)
LINEAR_TENS_1(32)
LINEAR_TENS_1(16)

#define LINEAR_TENS_2(COLUMNS)                       \
    LINEAR_TENS(2, COLUMNS, 2, false, 2, 5, 4)       \
    LINEAR_TENS(2, COLUMNS, 3, false, 3, 5, 3)       \
    LINEAR_TENS(2, COLUMNS, split3, true, 3, 3, 3)   \
    LINEAR_TENS(2, COLUMNS, split4, true, 4, 3, 2)
LINEAR_TENS_2(32)
LINEAR_TENS_2(16)
#endif
