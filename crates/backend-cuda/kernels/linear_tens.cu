// Products with tens of rows of 8-bit integers, for weights of 1 and 2 bits, on Hopper.
#include "linear_tens.cuh"

#ifdef WARP_GROUPS
#define LINEAR_TENS(NAME, ...)                                                                       \
    extern "C" __global__ void __launch_bounds__(tens::Plan<__VA_ARGS__>::THREADS, 1)                \
        linear_##NAME(const __grid_constant__ LinearParams p) {                                     \
        tens::run<tens::Plan<__VA_ARGS__>>(p);                                                       \
    }

LINEAR_TENS(bits1_tens32_4, 1, 32, false, 4, 5, 4)
LINEAR_TENS(bits1_tens32_split5, 1, 32, true, 5, 3, 4)
LINEAR_TENS(bits2_tens32_4, 2, 32, false, 4, 5, 2)
#endif
