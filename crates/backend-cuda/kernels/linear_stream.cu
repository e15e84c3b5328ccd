// Products of up to eight rows of integers of 8 bits with 1-bit codes.
#include "linear_lean.cuh"

#ifdef BIT_PIECES
LINEAR_STREAM(1)
LINEAR_STREAM(2)
LINEAR_STREAM(4)
LINEAR_STREAM(8)
// Records of a slice: rows of up to 40.
LINEAR_LEAN(4)
LINEAR_LEAN(5)
#endif
