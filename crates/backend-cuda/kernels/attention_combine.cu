// The splits of a row's context, joined in order.
#include "attention.cuh"

// A block a row and query head, a thread a dimension.
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

namespace {

constexpr u32 PARTS = 4, EACH = 32, CHUNK = PARTS * EACH;
// Threads of a part.
constexpr u32 PAIRS = GROUP / 2;
static_assert(CHUNK <= PARTS * PAIRS, "a thread a split");

}  // namespace

// The same for few rows: a block a row, query head and group of its dimensions. Four parts of the block bring a quarter of a chunk of
// splits each, all at once; then they add them up one part after another. A thread has two dimensions.
extern "C" __global__ void __launch_bounds__(256) attention_combine_few(const __grid_constant__ AttentionParams p) {
    // Of a chunk of splits: what is before and what comes is multiplied by, the sum that comes.
    __shared__ float4 joins[CHUNK];
    __shared__ float tops[CHUNK / WARP];
    __shared__ float2 joined[PAIRS];
    __shared__ float total;
    let_next_start();
    // Inputs of the step, which no kernel writes behind this one's start.
    const u32 row = blockIdx.x, head = blockIdx.y, thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const u32 part = thread / PAIRS, pair = thread % PAIRS, d = blockIdx.z * GROUP + 2 * pair, size = p.v.dim + 2;
    if (row >= p.step.header->rows) {
        wait_for_previous();
        return;
    }
    const Segment& segment = p.step.segments[p.step.row_segment[row]];
    const u32 tokens = segment.past + (row - segment.first_row) + 1;
    const u32 splits = (tokens + attention::SPLIT_TOKENS - 1) / attention::SPLIT_TOKENS;
    const bool rounds = p.next.wanted != 0;
    const u32 group = head * (p.v.dim / GROUP) + blockIdx.z;
    const float* partials = p.partials + (u64(row) * p.q.heads + head) * p.splits * size;
    wait_for_previous();
    Values last;
    if (rounds && warp == 0) last.load_gate(p.next, row, group, lane);
    float largest = -infinity(), sum = 0.0f;
    float2 y = make_float2(0.0f, 0.0f);
    for (u32 base = 0; base < splits; base += CHUNK, partials += CHUNK * size) {
        const u32 count = min(splits - base, CHUNK);
        const float own = thread < count ? partials[thread * size] : -infinity();
        const float own_sum = thread < count ? partials[thread * size + 1] : 0.0f;
        float2 v[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u32 s = part * EACH + i;
            const bool is_there = s < count && d < p.v.dim;
            v[i] = is_there ? *reinterpret_cast<const float2*>(partials + s * size + 2 + d) : make_float2(0.0f, 0.0f);
        }
        // The largest score up to each split.
        float top = own;
#pragma unroll
        for (u32 offset = 1; offset < WARP; offset *= 2) {
            const float other = __shfl_up_sync(ALL_LANES, top, offset);
            if (lane >= offset) top = fmaxf(other, top);
        }
        if (lane == WARP - 1 && warp < CHUNK / WARP) tops[warp] = top;
        const float left = __shfl_up_sync(ALL_LANES, top, 1);
        __syncthreads();
        if (thread < CHUNK) {
            float before = largest;
            for (u32 w = 0; w < warp; ++w) before = fmaxf(before, tops[w]);
            if (lane > 0) before = fmaxf(before, left);
            const attention::Join by(before, own);
            // Of a split that is not there nothing is added, whose sign leaves a zero its own.
            joins[thread] = thread < count ? make_float4(by.a, by.b, own_sum, 0.0f) : make_float4(1.0f, -0.0f, 0.0f, 0.0f);
        }
        for (u32 w = 0; w < CHUNK / WARP; ++w) largest = fmaxf(largest, tops[w]);
        for (u32 turn = 0; turn * EACH < count; ++turn) {
            __syncthreads();
            if (part != turn) continue;
            if (base + turn > 0) {
                y = joined[pair];
                sum = total;
            }
#pragma unroll
            for (u32 i = 0; i < EACH; ++i) {
                const float4 by = joins[turn * EACH + i];
                sum = fmaf(by.z, by.y, sum * by.x);
                y.x = fmaf(v[i].x, by.y, y.x * by.x);
                y.y = fmaf(v[i].y, by.y, y.y * by.x);
            }
            joined[pair] = y;
            if (pair == 0) total = sum;
        }
        __syncthreads();
    }
    if (!rounds) {
        if (part != 0 || d >= p.v.dim) return;
        y = joined[pair];
        *reinterpret_cast<float2*>(p.out + u64(row) * p.out_stride + head * p.v.dim + d) = make_float2(y.x / total, y.y / total);
        return;
    }
    if (warp != 0) return;
    const float2 first = joined[2 * lane], second = joined[2 * lane + 1];
    const float four[4] = {first.x / total, first.y / total, second.x / total, second.y / total};
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
        last.x[j] = four[j];
        last.gain[j] = 1.0f;
    }
    last.finish(p.next, row, group, lane, 1.0f);
}
