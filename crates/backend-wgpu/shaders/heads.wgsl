// Between a projection and attention, a workgroup a row and head: queries, then keys, then values. Queries and keys are normed
// and turned; queries go to a temporary, keys and values into the pages. The same bits as from norm, rope and append one
// after another.

struct Params {
    q: View,
    k: View,
    v: View,
    pages: Pages,
    // Word of the step: for each row pairs of cosine and sine.
    angles: u32,
    pairs: u32,
    out: u32,
    out_stride: u32,
    q_eps: f32,
    k_eps: f32,
    reserved_a: u32,
    reserved_b: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> q_gain: array<f32>;
@group(0) @binding(3) var<storage, read> k_gain: array<f32>;
@group(0) @binding(4) var<storage, read_write> cache: array<u32>;
@group(0) @binding(5) var<storage, read_write> arena: array<f32>;

var<workgroup> pairs: array<vec2<f32>, THREADS>;
var<workgroup> normed: array<f32, DIM>;

@compute @workgroup_size(THREADS)
fn heads(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = wg.y;
    let is_query = wg.x < p.q.heads;
    let is_key = !is_query && wg.x < p.q.heads + p.k.heads;
    let is_value = !is_query && !is_key;
    var head = wg.x;
    var from_ = p.q.offset + row * p.q.row_stride + head * p.q.head_stride;
    var eps = p.q_eps;
    if (is_key) {
        head = wg.x - p.q.heads;
        from_ = p.k.offset + row * p.k.row_stride + head * p.k.head_stride;
        eps = p.k_eps;
    } else if (is_value) {
        head = wg.x - p.q.heads - p.k.heads;
        from_ = p.v.offset + row * p.v.row_stride + head * p.v.head_stride;
    }
    var sums = vec2<f32>();
    for (var i = t; i < DIM; i += THREADS) {
        let x = arena[from_ + i];
        normed[i] = x;
        sums = squared(sums, x);
    }
    pairs[t] = sums;
    workgroupBarrier();
    for (var step_ = THREADS / 2u; step_ > 0u; step_ /= 2u) {
        if (t < step_) {
            pairs[t] += pairs[t + step_];
        }
        workgroupBarrier();
    }
    let inverse = inverse_of(pairs[0], f32(DIM), eps);
    for (var i = t; i < DIM; i += THREADS) {
        if (is_query) {
            normed[i] = normed[i] * inverse * q_gain[i];
        } else if (is_key) {
            normed[i] = normed[i] * inverse * k_gain[i];
        }
    }
    workgroupBarrier();
    for (var d = t; d < DIM; d += THREADS) {
        var y = normed[d];
        if (!is_value && d < 2u * p.pairs) {
            let first = d < p.pairs;
            let pair = select(d - p.pairs, d, first);
            let at = p.angles + 2u * (row * p.pairs + pair);
            let cosine = bitcast<f32>(step[at]);
            let sine = bitcast<f32>(step[at + 1u]);
            let other = normed[select(d - p.pairs, d + p.pairs, first)];
            y = fma(y, cosine, select(other, -other, first) * sine);
        }
        stored[d] = y;
    }
    workgroupBarrier();
    if (is_query) {
        for (var d = t; d < DIM; d += THREADS) {
            arena[p.out + row * p.out_stride + head * DIM + d] = stored[d];
        }
        return;
    }
    store_head(p.pages, row, is_value, head, t);
}
