// Divisions of the work of `linear_tens` to choose from: `tens.cpp` times them.
#include "linear_tens.cuh"

#define TENS(BITS, COLUMNS, SPLIT, GROUPS, RECORDS, STAGES)                                                           \
    extern "C" __global__ void                                                                                        \
        __launch_bounds__(tens::Plan<BITS, COLUMNS, SPLIT, GROUPS, RECORDS, STAGES>::THREADS,                         \
                          tens::Plan<BITS, COLUMNS, SPLIT, GROUPS, RECORDS, STAGES>::BLOCKS)                          \
        tens_##BITS##_##COLUMNS##_##SPLIT##_##GROUPS##_##RECORDS##_##STAGES(const __grid_constant__ LinearParams p) { \
        tens::run<tens::Plan<BITS, COLUMNS, SPLIT, GROUPS, RECORDS, STAGES>>(p);                                      \
    }
#include "tens_variants.hpp"
