// Attention of segments with many rows, keys and values in f16.
#include "attention_tile.cuh"

ATTENTION_TILES(f16, KV_F16)
