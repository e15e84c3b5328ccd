// Reads a buffer once, as fast as the memory allows.
#include "params.cuh"

// Mirrored in `src/bandwidth.rs`.
struct ReadParams {
    const uint4* data;
    // 16-byte units.
    u64 units;
    u32* sink;
};

extern "C" __global__ void read_memory(const ReadParams p) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    u32 sum = 0;
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    // Four loads in flight for each thread.
    for (; i + 3 * stride < p.units; i += 4 * stride) {
        const uint4 a = p.data[i];
        const uint4 b = p.data[i + stride];
        const uint4 c = p.data[i + 2 * stride];
        const uint4 d = p.data[i + 3 * stride];
        sum += a.x ^ a.y ^ a.z ^ a.w;
        sum += b.x ^ b.y ^ b.z ^ b.w;
        sum += c.x ^ c.y ^ c.z ^ c.w;
        sum += d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < p.units; i += stride) {
        const uint4 a = p.data[i];
        sum += a.x ^ a.y ^ a.z ^ a.w;
    }
    if (sum == 0x9e3779b9u) {
        *p.sink = sum;
    }
}
