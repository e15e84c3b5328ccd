#!/bin/sh
# Builds the timing programs: build.sh FOLDER [ARCH] puts `steps`, `tens` and the kernels' machine code there. Needs nvcc and its
# headers (CUDA_HOME names their folder) and g++; no GPU.
set -e
here=$(cd "$(dirname "$0")" && pwd)
kernels=$here/../../../crates/backend-cuda/kernels
out=$1
arch=${2:-90a}
mkdir -p "$out"
machine_code() {
    "$CUDA_HOME/bin/nvcc" -std=c++17 --fmad=false "-gencode=arch=compute_$arch,code=sm_$arch" -I "$kernels" -cubin \
        -o "$out/$1.cubin" "$2/$1.cu"
}
for name in steps tens; do
    g++ -std=c++17 -O2 -I "$CUDA_HOME/include" -I "$kernels" -o "$out/$name" "$here/$name.cpp" -ldl
done
machine_code tens "$here"
for name in linear_quads linear_stream prepare conv delta attention_f16 attention_q8 attention_ring attention_combine sample embed pointwise \
    inputs linear_bits1 linear_bits2 linear_batch linear_wide linear_group; do
    machine_code "$name" "$kernels"
done
