// The gated delta rule of steps with few rows.
#include "delta.cuh"

#define GATED_DELTA(KEY_DIM)                                                                             \
    extern "C" __global__ void __launch_bounds__(128, 2)                                                 \
        gated_delta_k##KEY_DIM(const __grid_constant__ DeltaParams p) {                                  \
        delta::gated_delta<KEY_DIM / delta::KEPT>(p);                                                    \
    }

// Key dimensions up to this one.
GATED_DELTA(32)
GATED_DELTA(64)
GATED_DELTA(128)
GATED_DELTA(256)
