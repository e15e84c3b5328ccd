// Attention over keys and values of 4 bits.
#include "attention.cuh"

ATTENTION(q4, KV_Q4)
