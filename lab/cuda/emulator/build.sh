#!/bin/sh
# Builds the emulated driver: build.sh FOLDER puts libcuda.so.1 and libnvrtc.so there. Then, for example,
#
#   LD_LIBRARY_PATH=FOLDER cargo test --release -p onebit-backend-cuda
set -e
here=$(cd "$(dirname "$0")" && pwd)
kernels=$here/../../../crates/backend-cuda/kernels
out=$1
mkdir -p "$out/source"
cp "$kernels"/*.cuh "$kernels"/*.cu "$out/source"
cp "$here/intrinsics.cuh" "$out/source"
flags="-std=c++20 -O2 -g1 -fPIC -march=native -ffp-contract=off -fno-strict-aliasing -fno-stack-protector -I$here"
# A warning that only kernels have cause for: what one format does not use, another does.
quiet="-Wno-unknown-pragmas -Wno-unused-variable"
objects=
for file in "$here"/*.cpp "$out"/source/*.cu; do
    object=$out/$(basename "$file").o
    objects="$objects $object"
    if [ -e "$object" ] && [ -z "$(find "$here" "$kernels" -newer "$object" \( -name '*.cuh' -o -name '*.hpp' -o -name "$(basename "$file")" \))" ]; then
        continue
    fi
    # shellcheck disable=SC2086
    case $file in
        *.cu) g++ $flags $quiet -x c++ -include "$here/device.hpp" -c "$file" -o "$object" ;;
        *) g++ $flags -Wall -c "$file" -o "$object" ;;
    esac
done
# shellcheck disable=SC2086
g++ -shared -o "$out/libcuda.so.1" $objects -ldl
ln -sf libcuda.so.1 "$out/libcuda.so"
ln -sf libcuda.so.1 "$out/libnvrtc.so"
