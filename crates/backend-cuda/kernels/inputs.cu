// A step's inputs as parameters of a launch: they are there sooner than by a copy.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256) inputs(const __grid_constant__ InputsParams p) {
    let_next_start();
    wait_for_previous();
    if (threadIdx.x < p.units) p.to[threadIdx.x] = p.data[threadIdx.x];
}
