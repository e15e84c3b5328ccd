#!/bin/sh
# Builds the timing program: build.sh FOLDER [ARCH] puts `images` and the kernels' machine code there. Needs nvcc and its headers
# (CUDA_HOME names their folder) and g++; no GPU.
set -e
here=$(cd "$(dirname "$0")" && pwd)
kernels=$here/../../../crates/backend-cuda/kernels
out=$1
arch=${2:-90a}
mkdir -p "$out"
g++ -std=c++17 -O2 -I "$CUDA_HOME/include" -I "$kernels" -o "$out/images" "$here/images.cpp" -ldl
for name in full_attention full_attention_halves conv2d conv2d_pieces linear_grouped linear_affine linear_wide linear_group; do
    "$CUDA_HOME/bin/nvcc" -std=c++17 --fmad=false "-gencode=arch=compute_$arch,code=sm_$arch" -cubin -o "$out/$name.cubin" "$kernels/$name.cu"
done
