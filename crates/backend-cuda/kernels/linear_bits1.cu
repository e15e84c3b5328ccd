// Products over weights of 1 bit, for tiles of 1, 2, 4 and 8 rows.
#include "linear.cuh"

LINEAR_PACKED(bits1, 1, 1)
LINEAR_PACKED(bits1, 1, 2)
LINEAR_PACKED(bits1, 1, 4)
LINEAR_PACKED(bits1, 1, 8)
