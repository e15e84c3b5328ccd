// Attention of segments with many rows, keys and values in q8.
#include "attention_tile.cuh"

ATTENTION_TILES(q8, KV_Q8)
