// The choice of a token. The rule stands at `Draw` in the ops crate. Many blocks look at a share of the logits each and one joins
// what they found; where a token is drawn rather than the best one taken, that block goes on by itself.
//
// Nothing is sorted. Tokens become keys that order like their logits; a cut at a rank or at a share of the weights is
// found by histograms, first over the distance to the best logit, then over the bytes of the keys inside the bin where the cut
// lies. Weights are summed as integers, so that the order of the sums cannot matter.
#include "common.cuh"

namespace {

constexpr u32 THREADS = 1024;
constexpr u32 WARPS = THREADS / WARP;
constexpr u32 BINS = 2048;
// Bins of one unit of the exponent; a weight further down is less than half of WEIGHT_ONE's unit.
constexpr float BINS_A_UNIT = 64.0f;
// The best token's weight: sums of 2^22 tokens fit 64 bits.
constexpr float WEIGHT_ONE = float(1ull << 42);
constexpr float LARGEST = 3.40282347e38f;
// No logit has this key.
constexpr u32 MASKED = 0;

// Tokens that are left: those above `key`, and those that have it up to `last`.
struct Cut {
    u32 key;
    u32 last;
    u64 weight;
};

struct Shared {
    u32 counts[BINS];
    u64 weights[BINS];
    u64 sums[WARPS];
    float floats[WARPS];
    // What one thread found for all.
    u32 bin;
    u32 count_above;
    u64 weight_above;
    u32 token;
};

// Larger logits have larger keys, the two zeros the same.
__device__ __forceinline__ u32 key_of(float logit) {
    const u32 bits = __float_as_uint(logit + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float logit_of(u32 key) {
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

template <typename T, typename F>
__device__ __forceinline__ T warp_reduce(T x, F f) {
#pragma unroll
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) x = f(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

// All threads get the result; `partial` has one place a warp.
template <typename T, typename F>
__device__ __forceinline__ T block_reduce(T x, T* partial, F f) {
    x = warp_reduce(x, f);
    __syncthreads();
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = x;
    __syncthreads();
    T all = partial[0];
    for (u32 w = 1; w < blockDim.x / WARP; ++w) all = f(all, partial[w]);
    return all;
}

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ u64 more(u64 a, u64 b) { return a > b ? a : b; }
__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ u64 plus_whole(u64 a, u64 b) { return a + b; }

// Weights of tokens, relative to that of the best.
struct Weights {
    float best;
    float temperature;

    __device__ float below(u32 key) const { return (best - logit_of(key)) / temperature; }
    __device__ float relative(u32 key) const { return expf(-below(key)); }
    __device__ u64 whole(u32 key) const { return __float2ull_rn(relative(key) * WEIGHT_ONE); }
    __device__ u32 bin(u32 key) const { return u32(fminf(below(key) * BINS_A_UNIT, float(BINS - 1))); }
};

__device__ __forceinline__ void clear(Shared& s, u32 bins) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < bins; i += THREADS) {
        s.counts[i] = 0;
        s.weights[i] = 0;
    }
    __syncthreads();
}

// Where counts or weights, summed up from bin 0 on, first reach what is wanted; the sums before that bin stay in `s`.
// BINS where they do not.
__device__ u32 find_bin(Shared& s, u32 bins, u32 count, u64 weight) {
    __syncthreads();
    if (threadIdx.x < WARP) {
        const u32 lane = threadIdx.x, share = bins / WARP;
        u32 counts = 0;
        u64 weights = 0;
        for (u32 i = lane * share; i < (lane + 1) * share; ++i) {
            counts += s.counts[i];
            weights += s.weights[i];
        }
        const u32 own_count = counts;
        const u64 own_weight = weights;
        for (u32 offset = 1; offset < WARP; offset *= 2) {
            const u32 c = __shfl_up_sync(ALL_LANES, counts, offset);
            const u64 w = __shfl_up_sync(ALL_LANES, weights, offset);
            if (lane >= offset) {
                counts += c;
                weights += w;
            }
        }
        counts += s.count_above;
        weights += s.weight_above;
        // One lane writes below what all have read here.
        __syncwarp();
        const u32 reached = __ballot_sync(ALL_LANES, counts >= count && weights >= weight);
        if (reached == 0 && lane == 0) s.bin = BINS;
        if (reached != 0 && lane == u32(__ffs(i32(reached)) - 1)) {
            counts -= own_count;
            weights -= own_weight;
            u32 i = lane * share;
            while (counts + s.counts[i] < count || weights + s.weights[i] < weight) {
                counts += s.counts[i];
                weights += s.weights[i];
                ++i;
            }
            s.bin = i;
            s.count_above = counts;
            s.weight_above = weights;
        }
    }
    __syncthreads();
    return s.bin;
}

// The first token at which values, summed up in ascending order of tokens, exceed `goal(sum of all)`. Thirty-two ranges of
// tokens, a warp each, then thirty-two pieces of one range, then one piece.
template <typename Value, typename Goal>
__device__ u32 walk(Shared& s, u32 vocab, Value value, Goal goal) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u32 first = 0, end = vocab;
    u64 rest = 0;
    for (u32 level = 0; level < 2; ++level) {
        const u32 size = ((end - first + WARPS - 1) / WARPS + WARP - 1) / WARP * WARP;
        const u32 from = min(first + warp * size, end), to = min(from + size, end);
        u64 sum = 0;
        for (u32 i = from + lane; i < to; i += WARP) sum += value(i);
        sum = warp_reduce(sum, plus_whole);
        __syncthreads();
        if (lane == 0) s.sums[warp] = sum;
        __syncthreads();
        if (level == 0) {
            u64 all = 0;
            for (u32 w = 0; w < WARPS; ++w) all += s.sums[w];
            rest = goal(all);
        }
        u32 w = 0;
        for (; w + 1 < WARPS && rest >= s.sums[w]; ++w) rest -= s.sums[w];
        first = min(first + w * size, end);
        end = min(first + size, end);
    }
    __syncthreads();
    if (warp == 0) {
        for (u32 i = first; i < end; i += WARP) {
            const u64 own = i + lane < end ? value(i + lane) : 0;
            u64 sum = own;
            for (u32 offset = 1; offset < WARP; offset *= 2) {
                const u64 before = __shfl_up_sync(ALL_LANES, sum, offset);
                if (lane >= offset) sum += before;
            }
            const u32 past = __ballot_sync(ALL_LANES, sum > rest);
            if (past != 0) {
                if (lane == 0) s.token = i + u32(__ffs(i32(past)) - 1);
                break;
            }
            rest -= __shfl_sync(ALL_LANES, sum, WARP - 1);
        }
    }
    __syncthreads();
    return s.token;
}

// The shortest row of most probable tokens that has `count` tokens and the weight `weight` together.
__device__ Cut cut(Shared& s, const u32* keys, u32 vocab, const Weights& weights, u32 count, u64 weight) {
    const Cut everything = {MASKED, NONE, ~0ull};
    if (threadIdx.x == 0) {
        s.count_above = 0;
        s.weight_above = 0;
    }
    clear(s, BINS);
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        if (keys[i] == MASKED) continue;
        const u32 bin = weights.bin(keys[i]);
        atomicAdd(&s.counts[bin], 1u);
        atomicAdd(&s.weights[bin], weights.whole(keys[i]));
    }
    const u32 bin = find_bin(s, BINS, count, weight);
    if (bin == BINS) return everything;
    // The bytes of the key, the highest first; larger ones have lower bins.
    u32 key = 0;
    for (i32 shift = 24; shift >= 0; shift -= 8) {
        clear(s, 256);
        for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
            const u32 k = keys[i];
            if (k == MASKED || weights.bin(k) != bin || (shift < 24 && k >> (shift + 8) != key >> (shift + 8))) continue;
            atomicAdd(&s.counts[255 - (k >> shift & 255)], 1u);
            atomicAdd(&s.weights[255 - (k >> shift & 255)], weights.whole(k));
        }
        key |= (255 - find_bin(s, 256, count, weight)) << shift;
    }
    // Tokens that share this key: the lowest ids as far as they are needed.
    const u64 each = weights.whole(key);
    u64 ties = 0;
    if (count > s.count_above) ties = count - s.count_above;
    if (weight > s.weight_above && each > 0) ties = more(ties, (weight - s.weight_above + each - 1) / each);
    const u64 reached = s.weight_above + ties * each;
    const u32 last = walk(s, vocab, [&](u32 i) { return u64(keys[i] == key); }, [&](u64) { return ties - 1; });
    return {key, last, reached};
}

// What top-k and top-p leave.
__device__ Cut cuts(Shared& s, const u32* keys, u32 vocab, const Weights& weights, const Draw& draw) {
    Cut left = {MASKED, NONE, ~0ull};
    if (draw.top_k > 0 && draw.top_k < vocab) left = cut(s, keys, vocab, weights, draw.top_k, 0);
    if (draw.top_p >= 1.0f) return left;
    if (left.weight == ~0ull) {
        u64 sum = 0;
        for (u32 i = threadIdx.x; i < vocab; i += THREADS) sum += keys[i] == MASKED ? 0 : weights.whole(keys[i]);
        left.weight = block_reduce(sum, s.sums, plus_whole);
    }
    const u64 share = u64(ceil(double(draw.top_p) * double(left.weight)));
    return cut(s, keys, vocab, weights, 1, min(share, left.weight));
}

__device__ u32 choose(Shared& s, const u32* keys, u32 vocab, u32 best, const Draw& draw) {
    const Weights weights{logit_of(keys[best]), draw.temperature};
    const Cut left = cuts(s, keys, vocab, weights, draw);
    auto weight = [&](u32 i) -> u64 {
        const u32 key = keys[i];
        const bool in = key > left.key || (key == left.key && key != MASKED && i <= left.last);
        return in && weights.relative(key) >= draw.min_p ? weights.whole(key) : 0;
    };
    return walk(s, vocab, weight, [&](u64 all) {
        // The best token has a weight, so there is one to find.
        return min(u64(floor(draw.uniform * double(all))), all - 1);
    });
}

__device__ float adjusted(float logit, const Adjust& a) {
    const float biased = logit + a.bias;
    const float scaled = biased > 0.0f ? biased / a.divide : biased * a.divide;
    return fminf(fmaxf(scaled - a.subtract, -LARGEST), LARGEST);
}

}  // namespace

// A share of SAMPLE_SHARE logits of a row. Their keys are kept where a token is to be drawn.
extern "C" __global__ void __launch_bounds__(256) sample_scan(const __grid_constant__ SampleParams p) {
    constexpr u32 EACH = SAMPLE_SHARE / 256;
    __shared__ float floats[8];
    __shared__ u64 bests[8];
    __shared__ u32 values[SAMPLE_SHARE];
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.y, vocab = p.logits.heads * p.logits.dim, first = blockIdx.x * SAMPLE_SHARE;
    if (r >= p.step.header->logits) return;
    const float* raw = p.logits.data + u64(r) * p.logits.row_stride;
    const Draw draw = p.step.draws[r];
    float v[EACH];
    float top = -LARGEST;
    bool broken = false;
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        const u32 i = first + k * 256 + threadIdx.x;
        const float l = i < vocab ? raw[i] : -infinity();
        broken = broken || !(l < infinity());
        v[k] = fmaxf(l, -LARGEST);
        top = fmaxf(top, v[k]);
        values[k * 256 + threadIdx.x] = __float_as_uint(v[k]);
    }
    top = block_reduce(top, floats, larger);
    float sum = 0.0f;
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        if (first + k * 256 + threadIdx.x < vocab) sum += expf(v[k] - top);
    }
    sum = block_reduce(sum, floats, plus);
    for (u32 i = threadIdx.x; i < draw.adjust_count; i += 256) {
        const Adjust a = p.step.adjust[draw.adjust_first + i];
        if (a.token - first < SAMPLE_SHARE) {
            u32& value = values[a.token - first];
            value = __float_as_uint(adjusted(__uint_as_float(value), a));
        }
    }
    __syncthreads();
    // The largest key, and of equal ones the lowest token.
    u64 best = 0;
#pragma unroll
    for (u32 k = 0; k < EACH; ++k) {
        const u32 i = first + k * 256 + threadIdx.x;
        if (i >= vocab) break;
        const bool allowed =
            draw.mask_first == NONE || (p.step.masks[draw.mask_first + i / 32] >> (i % 32) & 1) != 0;
        const u32 key = allowed ? key_of(__uint_as_float(values[k * 256 + threadIdx.x])) : MASKED;
        if (draw.temperature > 0.0f) p.scratch[u64(r) * vocab + i] = key;
        best = more(best, u64(key) << 32 | (NONE - i));
    }
    best = block_reduce(best, bests, more);
    broken = __syncthreads_or(broken);
    if (threadIdx.x == 0) p.shares[u64(r) * gridDim.x + blockIdx.x] = {best, top, sum, u32(broken), 0};
}

extern "C" __global__ void __launch_bounds__(1024, 1) sample(const __grid_constant__ SampleParams p) {
    __shared__ Shared s;
    let_next_start();
    wait_for_previous();
    const u32 r = blockIdx.x, vocab = p.logits.heads * p.logits.dim, count = (vocab + SAMPLE_SHARE - 1) / SAMPLE_SHARE;
    if (r >= p.step.header->logits) return;
    const float* raw = p.logits.data + u64(r) * p.logits.row_stride;
    const u32* keys = p.scratch + u64(r) * vocab;
    const SampleShare* shares = p.shares + u64(r) * count;
    const Draw draw = p.step.draws[r];
    float top = -LARGEST;
    bool broken = false;
    u64 best = 0;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        const SampleShare share = shares[i];
        top = fmaxf(top, share.top);
        broken = broken || share.broken != 0;
        best = more(best, share.best);
    }
    // For the next step, and for the host, which need not order a copy then.
    const auto give = [&](const Sampled& chosen) {
        p.sampled[r] = chosen;
        if (p.step.header->host != nullptr) p.step.header->host[r] = chosen;
    };
    if (__syncthreads_or(broken)) {
        if (threadIdx.x == 0) give({NONE, not_a_number()});
        return;
    }
    top = block_reduce(top, s.floats, larger);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < count; i += THREADS) sum += shares[i].sum * expf(shares[i].top - top);
    sum = block_reduce(sum, s.floats, plus);
    best = block_reduce(best, s.sums, more);
    u32 token = NONE - u32(best);
    if (draw.temperature > 0.0f && best >> 32 != MASKED) token = choose(s, keys, vocab, token, draw);
    if (threadIdx.x != 0) return;
    // A mask that allows nothing is refused before it comes here.
    if (best >> 32 == MASKED) give({NONE, not_a_number()});
    else give({token, fmaxf(raw[token], -LARGEST) - top - logf(sum)});
}
