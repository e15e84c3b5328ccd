// Ops that make one value of one or two: a thread each.
#include "common.cuh"

namespace {

template <typename F>
__device__ __forceinline__ void pointwise(const PointwiseParams& p, F value) {
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < *p.rows && c < p.a.heads * p.a.dim) p.out[u64(r) * p.out_stride + c] = value(r, c);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) add(const __grid_constant__ PointwiseParams p) {
    pointwise(p, [&](u32 r, u32 c) { return *at(p.a, r, c) + *at(p.b, r, c); });
}

// a: gate, b: up.
extern "C" __global__ void __launch_bounds__(256) swiglu(const __grid_constant__ PointwiseParams p) {
    pointwise(p, [&](u32 r, u32 c) { return silu(*at(p.a, r, c)) * *at(p.b, r, c); });
}

// a: x, b: gate.
extern "C" __global__ void __launch_bounds__(256) sigmoid_mul(const __grid_constant__ PointwiseParams p) {
    pointwise(p, [&](u32 r, u32 c) { return *at(p.a, r, c) * sigmoid(*at(p.b, r, c)); });
}

// The columns of a view side by side, four a thread.
extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ PointwiseParams p) {
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.y, c = (blockIdx.x * blockDim.x + threadIdx.x) * 4, cols = p.a.heads * p.a.dim;
    if (r >= *p.rows || c >= cols) return;
    float* const to = p.out + u64(r) * p.out_stride + c;
    const float* const from = at(p.a, r, c);
    if (p.a.heads == 1 && c + 4 <= cols && (reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from)) % 16 == 0) {
        *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
        return;
    }
    for (u32 i = 0; i < min(cols - c, 4); ++i) to[i] = *at(p.a, r, c + i);
}

// The rows whose logits are wanted.
extern "C" __global__ void __launch_bounds__(256) select_rows(const __grid_constant__ SelectRowsParams p) {
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= p.step.header->logits || c >= p.x.heads * p.x.dim) return;
    p.out[u64(r) * p.out_stride + c] = *at(p.x, p.step.logit_rows[r], c);
}

// Decay and beta of the delta rule.
extern "C" __global__ void __launch_bounds__(64) delta_gates(const __grid_constant__ DeltaGatesParams p) {
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.y, h = blockIdx.x * blockDim.x + threadIdx.x;
    const u32 heads = p.a.heads * p.a.dim;
    if (r >= *p.rows || h >= heads) return;
    const float x = *at(p.a, r, h) + p.dt_bias[h];
    p.log_decay[u64(r) * heads + h] = log_decay(x, p.decay_rate[h]);
    p.beta[u64(r) * heads + h] = sigmoid(*at(p.b, r, h));
}
