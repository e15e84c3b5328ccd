// The splits of a row's context, joined in order: a block a row and query head, a thread a dimension.
#include "attention.cuh"

extern "C" __global__ void __launch_bounds__(256) attention_combine(const __grid_constant__ AttentionParams p) {
    let_next_start();
    wait_for_previous();
    const u32 row = blockIdx.x, head = blockIdx.y;
    if (row >= p.step.header->rows) return;
    const Segment& segment = p.step.segments[p.step.row_segment[row]];
    const u32 tokens = segment.past + (row - segment.first_row) + 1;
    const u32 splits = (tokens + attention::SPLIT_TOKENS - 1) / attention::SPLIT_TOKENS;
    attention::Finish last;
    last.load(p.next, row, head, p.v.dim);
    float y[1];
    const float* partials = p.partials + (u64(row) * p.q.heads + head) * p.splits * (p.v.dim + 2);
    attention::join_splits<16>(partials, splits, p.v.dim, y);
    attention::finish_head(p, last, row, head, y);
}
