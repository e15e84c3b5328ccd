// Attention over f32 keys and values.
#include "attention.cuh"

ATTENTION(f32, KV_F32)
