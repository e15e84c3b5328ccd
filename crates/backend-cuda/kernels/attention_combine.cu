// The splits of a row's context, joined in order: a block a row and query head, a thread a dimension.
#include "attention.cuh"

extern "C" __global__ void __launch_bounds__(256) attention_combine(const __grid_constant__ AttentionParams p) {
    constexpr u32 CHUNK = 128, TOGETHER = 8;
    // Of a chunk of splits: maxima, sums, and what is before and what comes is multiplied by.
    __shared__ float maxima[CHUNK], sums[CHUNK], before[CHUNK], next[CHUNK];
    __shared__ float results[256];
    let_next_start();
    wait_for_previous();
    const u32 row = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
    if (row >= p.step.header->rows) return;
    const Segment& segment = p.step.segments[p.step.row_segment[row]];
    const u32 tokens = segment.past + (row - segment.first_row) + 1, size = p.v.dim + 2;
    const u32 splits = (tokens + attention::SPLIT_TOKENS - 1) / attention::SPLIT_TOKENS;
    const float* partials = p.partials + (u64(row) * p.q.heads + head) * p.splits * size;
    attention::Finish last;
    last.load(p.next, row, head, p.v.dim);
    float largest = -infinity(), sum = 0.0f, value = 0.0f;
    for (u32 base = 0; base < splits; base += CHUNK, partials += CHUNK * size) {
        const u32 count = min(splits - base, CHUNK);
        if (d < count) {
            maxima[d] = partials[d * size];
            sums[d] = partials[d * size + 1];
        }
        __syncthreads();
        if (d < count) {
            float top = largest;
            for (u32 s = 0; s < d; ++s) top = fmaxf(top, maxima[s]);
            const attention::Join joined(top, maxima[d]);
            before[d] = joined.a;
            next[d] = joined.b;
        }
        __syncthreads();
        for (u32 s = 0; s < count; s += TOGETHER) {
            float v[TOGETHER];
#pragma unroll
            for (u32 i = 0; i < TOGETHER; ++i) v[i] = s + i < count && d < p.v.dim ? partials[(s + i) * size + 2 + d] : 0.0f;
#pragma unroll
            for (u32 i = 0; i < TOGETHER; ++i) {
                if (s + i >= count) break;
                largest = fmaxf(largest, maxima[s + i]);
                sum = fmaf(sums[s + i], next[s + i], sum * before[s + i]);
                value = fmaf(v[i], next[s + i], value * before[s + i]);
            }
        }
        __syncthreads();
    }
    const float y = value / sum;
    if (p.next.wanted == 0) {
        if (d < p.v.dim) p.out[u64(row) * p.out_stride + head * p.v.dim + d] = y;
        return;
    }
    if (d < p.v.dim) results[d] = y;
    __syncthreads();
    last.run(p.next, row, head, p.v.dim, results);
}
