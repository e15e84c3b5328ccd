// Attention of segments with many rows, keys and values in f32.
#include "attention_tile.cuh"

ATTENTION_TILES(f32, KV_F32)
