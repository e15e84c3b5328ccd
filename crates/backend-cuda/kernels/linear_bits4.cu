// Products over weights of 4 bits, for tiles of 1, 2, 4 and 8 rows.
#include "linear.cuh"

LINEAR_PACKED(bits4, 4, 1)
LINEAR_PACKED(bits4, 4, 2)
LINEAR_PACKED(bits4, 4, 4)
LINEAR_PACKED(bits4, 4, 8)
