// Attention over f16 keys and values.
#include "attention.cuh"

ATTENTION(f16, KV_F16)
