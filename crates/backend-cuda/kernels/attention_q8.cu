// Attention over keys and values of 8 bits.
#include "attention.cuh"

ATTENTION(q8, KV_Q8)
