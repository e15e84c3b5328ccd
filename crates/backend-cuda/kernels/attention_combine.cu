// The splits of a row's context, joined in order: a block a row and query head.
#include "attention.cuh"

extern "C" __global__ void __launch_bounds__(64) attention_combine(const __grid_constant__ AttentionParams p) {
    let_next_start();
    wait_for_previous();
    const u32 row = blockIdx.x, head = blockIdx.y;
    if (row >= p.step.header->rows) return;
    const Segment& segment = p.step.segments[p.step.row_segment[row]];
    const u32 tokens = segment.past + (row - segment.first_row) + 1;
    const u32 splits = (tokens + attention::SPLIT_TOKENS - 1) / attention::SPLIT_TOKENS;
    const float* partials = p.partials + (u64(row) * p.q.heads + head) * p.splits * (p.v.dim + 2);
    for (u32 d = threadIdx.x; d < p.v.dim; d += blockDim.x) {
        float largest = -infinity(), sum = 0.0f, value = 0.0f;
        for (u32 s = 0; s < splits; ++s) {
            const float* partial = partials + s * (p.v.dim + 2);
            const attention::Join joined(largest, partial[0]);
            largest = joined.largest;
            sum = joined(sum, partial[1]);
            value = joined(value, partial[2 + d]);
        }
        p.out[u64(row) * p.out_stride + head * p.v.dim + d] = value / sum;
    }
}
