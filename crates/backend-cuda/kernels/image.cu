// Row by row operations of image models, and the statistics of a group norm.
#include "common.cuh"

namespace {

__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// A sum over the block in a fixed order; all threads get it.
__device__ __forceinline__ double block_sum(double x, double* partial) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    double sum = 0.0;
    for (u32 w = 0; w < blockDim.x / WARP; ++w) sum += partial[w];
    return sum;
}

}  // namespace

// (1 + a) (x - mean) rsqrt(var + eps) + b, a block a row. The first values of each thread stay in registers between the passes.
extern "C" __global__ void __launch_bounds__(256) modulate(const __grid_constant__ MixParams p) {
    constexpr u32 KEPT = 16;
    __shared__ float partial[WARP];
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.x, cols = p.x.heads * p.x.dim, later = threadIdx.x + KEPT * blockDim.x;
    if (r >= *p.rows) return;
    float kept[KEPT], sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        const u32 c = threadIdx.x + i * blockDim.x;
        kept[i] = c < cols ? *at(p.x, r, c) : 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) sum += kept[i];
    for (u32 c = later; c < cols; c += blockDim.x) sum += *at(p.x, r, c);
    const float mean = block_sum(sum, partial) / float(cols);
    float square = 0.0f;
    const auto add = [&](float x) {
        const float d = x - mean;
        square = fmaf(d, d, square);
    };
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        if (threadIdx.x + i * blockDim.x < cols) add(kept[i]);
    }
    for (u32 c = later; c < cols; c += blockDim.x) add(*at(p.x, r, c));
    const float inverse = 1.0f / sqrtf(block_sum(square, partial) / float(cols) + p.eps);
    const auto put = [&](u32 c, float x) {
        const float product = (1.0f + *at(p.a, 0, c)) * ((x - mean) * inverse);
        p.out[u64(r) * p.out_stride + c] = product + *at(p.b, 0, c);
    };
#pragma unroll
    for (u32 i = 0; i < KEPT; ++i) {
        if (threadIdx.x + i * blockDim.x < cols) put(threadIdx.x + i * blockDim.x, kept[i]);
    }
    for (u32 c = later; c < cols; c += blockDim.x) put(c, *at(p.x, r, c));
}

// x + a b, a of one row: a block a row, several values of a thread on their way together.
extern "C" __global__ void __launch_bounds__(256) gated_add(const __grid_constant__ MixParams p) {
    constexpr u32 TOGETHER = 4;
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.x, cols = p.x.heads * p.x.dim;
    if (r >= *p.rows) return;
    for (u32 base = threadIdx.x; base < cols; base += TOGETHER * blockDim.x) {
        float x[TOGETHER], y[TOGETHER], gate[TOGETHER];
#pragma unroll
        for (u32 i = 0; i < TOGETHER; ++i) {
            const u32 c = min(base + i * blockDim.x, cols - 1);
            x[i] = *at(p.x, r, c);
            y[i] = *at(p.b, r, c);
            gate[i] = *at(p.a, 0, c);
        }
#pragma unroll
        for (u32 i = 0; i < TOGETHER; ++i) {
            const u32 c = base + i * blockDim.x;
            if (c < cols) p.out[u64(r) * p.out_stride + c] = fmaf(gate[i], y[i], x[i]);
        }
    }
}

// Neighbours of every head of `a` turned by the angles of `b`: cosines, then sines. A block a row.
extern "C" __global__ void __launch_bounds__(256) rotate_pairs(const __grid_constant__ PointwiseParams p) {
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.x, half = p.a.dim / 2;
    if (r >= *p.rows) return;
    for (u32 j = threadIdx.x; j < p.a.heads * half; j += blockDim.x) {
        const u32 head = j / half, i = j % half;
        const float* x = p.a.data + u64(r) * p.a.row_stride + head * p.a.head_stride + 2 * i;
        const float cosine = *at(p.b, r, i), sine = *at(p.b, r, half + i);
        float* out = p.out + u64(r) * p.out_stride + head * p.a.dim + 2 * i;
        out[0] = x[0] * cosine - x[1] * sine;
        out[1] = x[1] * cosine + x[0] * sine;
    }
}

// Sums and sums of squares of every group over the rows of a chunk: a block a chunk, a thread a column.
extern "C" __global__ void __launch_bounds__(256) group_sums(const __grid_constant__ GroupNormParams p) {
    __shared__ double sums[MOST_CHANNELS][2];
    let_next_start();
    wait_for_previous();
    const u32 cols = p.x.heads * p.x.dim, size = cols / p.groups, rows = *p.rows;
    const u32 first = blockIdx.x * p.chunk, end = min(first + p.chunk, rows);
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) {
        double sum = 0.0, square = 0.0;
        for (u32 r = first; r < end; ++r) {
            const double v = double(*at(p.x, r, c));
            sum += v;
            square += v * v;
        }
        sums[c][0] = sum;
        sums[c][1] = square;
    }
    __syncthreads();
    for (u32 g = threadIdx.x; g < p.groups; g += blockDim.x) {
        double sum = 0.0, square = 0.0;
        for (u32 c = g * size; c < (g + 1) * size; ++c) {
            sum += sums[c][0];
            square += sums[c][1];
        }
        double* to = p.partials + (u64(blockIdx.x) * p.groups + g) * 2;
        to[0] = sum;
        to[1] = square;
    }
}

// Factors and offsets of every column: a block a group.
extern "C" __global__ void __launch_bounds__(256) group_norm(const __grid_constant__ GroupNormParams p) {
    __shared__ double partial[WARP];
    let_next_start();
    wait_for_previous();
    const u32 cols = p.x.heads * p.x.dim, size = cols / p.groups, g = blockIdx.x;
    double sum = 0.0, square = 0.0;
    for (u32 i = threadIdx.x; i < p.chunks; i += blockDim.x) {
        sum += p.partials[(u64(i) * p.groups + g) * 2];
        square += p.partials[(u64(i) * p.groups + g) * 2 + 1];
    }
    sum = block_sum(sum, partial);
    square = block_sum(square, partial);
    // Doubles: the difference of the squares keeps its digits.
    const double count = double(*p.rows) * double(size), mean = sum / count;
    const double difference = square / count - mean * mean, variance = difference > 0.0 || difference != difference ? difference : 0.0;
    for (u32 c = g * size + threadIdx.x; c < (g + 1) * size; c += blockDim.x) {
        const double factor = double(p.gain[c]) / sqrt(variance + double(p.eps));
        p.out[c] = float(factor);
        p.out[cols + c] = float(double(p.bias[c]) - mean * factor);
    }
}
