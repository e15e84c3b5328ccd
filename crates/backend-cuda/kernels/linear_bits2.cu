// Products over weights of 2 bits, for tiles of 1, 2, 4 and 8 rows.
#include "linear.cuh"

LINEAR_PACKED(bits2, 2, 1)
LINEAR_PACKED(bits2, 2, 2)
LINEAR_PACKED(bits2, 2, 4)
LINEAR_PACKED(bits2, 2, 8)
