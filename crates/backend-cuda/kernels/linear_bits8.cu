// Products over weights of 8 bits, for tiles of 1, 2, 4 and 8 rows.
#include "linear.cuh"

LINEAR_PACKED(bits8, 8, 1)
LINEAR_PACKED(bits8, 8, 2)
LINEAR_PACKED(bits8, 8, 4)
LINEAR_PACKED(bits8, 8, 8)
