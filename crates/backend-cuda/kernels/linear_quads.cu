// Products of few rows near the speed of memory: tiles of 1, 2 and 4 rows of integers of 8 and 9 bits. The more bits a code
// has, the fewer records on their way fill the registers.
#include "linear_quads.cuh"

#define QUADS(M)                               \
    LINEAR_QUADS_BYTES(bits1, 1, M, 3)         \
    LINEAR_QUADS_BYTES(bits2, 2, M, 1)         \
    LINEAR_QUADS_BYTES(bits4, 4, M, 1)

QUADS(1)
QUADS(2)
QUADS(4)
