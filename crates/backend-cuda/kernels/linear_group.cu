// Products with many rows of 8-bit integers where four warps multiply together, for weights of 1 and 2 bits.
#include "intrinsics.cuh"

#ifdef WARP_GROUPS
#include "linear_group.cuh"

#define LINEAR_GROUP(BITS)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(512, 1) linear_bits##BITS##_i8_group(const __grid_constant__ LinearParams p) { \
        group::run<BITS>(p);                                                                                                      \
    }

LINEAR_GROUP(1)
LINEAR_GROUP(2)
#endif
