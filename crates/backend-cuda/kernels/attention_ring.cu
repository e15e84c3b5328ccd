// Attention of few rows to long contexts on Hopper: six query heads of 256 dimensions for a key head, as 27B has, and four of 128, as
// 8B has.
#include "attention_ring.cuh"

#ifdef BULK_COPIES
#define ATTENTION_RING(NAME, FORMAT, DIM, HEADS, DIMS, STAGES)                                    \
    extern "C" __global__ void __launch_bounds__(128, 4)                                          \
        attention_ring_##NAME##_d##DIM##_h##HEADS(const __grid_constant__ AttentionParams p) {    \
        attention_ring::split<FORMAT, DIM, HEADS, DIMS, STAGES>(p);                               \
    }

ATTENTION_RING(f16, KV_F16, 256, 6, 32, 2)
ATTENTION_RING(q8, KV_Q8, 256, 6, 64, 2)
ATTENTION_RING(f16, KV_F16, 128, 4, 32, 2)
ATTENTION_RING(q8, KV_Q8, 128, 4, 64, 2)
#endif
