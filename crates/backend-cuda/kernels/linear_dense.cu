// Products over dense weights, for tiles of 1, 2, 4 and 8 rows.
#include "linear.cuh"

#define LINEAR_DENSE(M)                                      \
    LINEAR(f16, M, linear::Dense<DENSE_F16, M>)   \
    LINEAR(bf16, M, linear::Dense<DENSE_BF16, M>) \
    LINEAR(f32, M, linear::Dense<DENSE_F32, M>)

LINEAR_DENSE(1)
LINEAR_DENSE(2)
LINEAR_DENSE(4)
LINEAR_DENSE(8)
