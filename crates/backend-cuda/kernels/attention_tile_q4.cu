// Attention of segments with many rows, keys and values in q4.
#include "attention_tile.cuh"

ATTENTION_TILES(q4, KV_Q4)
