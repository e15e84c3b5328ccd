// Products with some tens of rows, for weights of 1 and 2 bits with scales of whole records, and integers of 8 and 9.
#include "linear_batch.cuh"

#define LINEAR_BATCH(BITS, INPUTS, NINE)                                               \
    extern "C" __global__ void __launch_bounds__(256, 2)                               \
        linear_bits##BITS##_##INPUTS##_batch(const __grid_constant__ LinearParams p) { \
        batch::run<BITS, NINE>(p);                                                     \
    }

LINEAR_BATCH(1, i8, false)
LINEAR_BATCH(1, i9, true)
LINEAR_BATCH(2, i8, false)
LINEAR_BATCH(2, i9, true)
