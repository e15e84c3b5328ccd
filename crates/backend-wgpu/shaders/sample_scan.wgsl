// First part of the choice of a token: a workgroup has 4096 logits of a row. It leaves keys that order like the logits,
// changed and masked, and of its own tokens the best one, the largest raw logit and the sum of their weights.

struct Params {
    logits: View,
    vocab: u32,
    // Words of the scratch memory.
    keys: u32,
    partials: u32,
    chunks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> arena: array<f32>;
@group(0) @binding(3) var<storage, read_write> scratch: array<u32>;

var<workgroup> tops: array<f32, 256>;
var<workgroup> sums: array<f32, 256>;
var<workgroup> bests: array<vec2<u32>, 256>;
var<workgroup> broken: atomic<u32>;

fn adjusted(logit: f32, adjust: u32) -> f32 {
    let biased = logit + bitcast<f32>(step[adjust + 1u]);
    let divide = bitcast<f32>(step[adjust + 2u]);
    // Bounded, so that the product is rounded before something is taken away.
    var scaled = clamp(biased * divide, -LARGEST, LARGEST);
    if (biased > 0.0) {
        scaled = quotient(biased, divide);
    }
    return clamp(scaled - bitcast<f32>(step[adjust + 3u]), -LARGEST, LARGEST);
}

@compute @workgroup_size(256)
fn sample_scan(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = wg.y;
    let first = wg.x * CHUNK;
    let end = min(first + CHUNK, p.vocab);
    let draw = step[STEP_DRAWS] + r * DRAW_WORDS;
    let keys = p.keys + r * p.vocab;
    var top = -LARGEST;
    var bad = 0u;
    for (var i = first + t; i < end; i += 256u) {
        let l = arena[p.logits.offset + r * p.logits.row_stride + i];
        let bits = bitcast<u32>(l);
        // Anything but a number or minus infinity.
        if (!is_finite(l) && bits != 0xff800000u) {
            bad = 1u;
        }
        let bounded = select(-LARGEST, l, is_finite(l));
        top = max(top, bounded);
        scratch[keys + i] = bitcast<u32>(bounded);
    }
    if (t == 0u) {
        atomicStore(&broken, 0u);
    }
    tops[t] = top;
    workgroupBarrier();
    atomicOr(&broken, bad);
    for (var i = 128u; i > 0u; i /= 2u) {
        if (t < i) {
            tops[t] = max(tops[t], tops[t + i]);
        }
        workgroupBarrier();
    }
    top = tops[0];
    var sum = 0.0;
    for (var i = first + t; i < end; i += 256u) {
        sum += exponential(bitcast<f32>(scratch[keys + i]) - top);
    }
    sums[t] = sum;
    storageBarrier();
    workgroupBarrier();
    for (var i = t; i < step[draw + DRAW_ADJUST_COUNT]; i += 256u) {
        let adjust = step[STEP_ADJUST] + 4u * (step[draw + DRAW_ADJUST_FIRST] + i);
        let token = step[adjust];
        if (token >= first && token < end) {
            scratch[keys + token] = bitcast<u32>(adjusted(bitcast<f32>(scratch[keys + token]), adjust));
        }
    }
    storageBarrier();
    workgroupBarrier();
    // The largest key, and of equal ones the lowest token.
    let mask = step[draw + DRAW_MASK];
    var best = vec2<u32>(MASKED, NONE);
    for (var i = first + t; i < end; i += 256u) {
        var key = key_of(bitcast<f32>(scratch[keys + i]));
        if (mask != NONE && ((step[step[STEP_MASKS] + mask + i / 32u] >> (i % 32u)) & 1u) == 0u) {
            key = MASKED;
        }
        scratch[keys + i] = key;
        best = better(best, vec2<u32>(key, i));
    }
    bests[t] = best;
    workgroupBarrier();
    for (var i = 128u; i > 0u; i /= 2u) {
        if (t < i) {
            sums[t] += sums[t + i];
            bests[t] = better(bests[t], bests[t + i]);
        }
        workgroupBarrier();
    }
    if (t == 0u) {
        let at = p.partials + (r * p.chunks + wg.x) * PARTIAL_WORDS;
        scratch[at] = bitcast<u32>(top);
        scratch[at + 1u] = bitcast<u32>(sums[0]);
        scratch[at + 2u] = atomicLoad(&broken);
        scratch[at + 3u] = bests[0].x;
        scratch[at + 4u] = bests[0].y;
    }
}
