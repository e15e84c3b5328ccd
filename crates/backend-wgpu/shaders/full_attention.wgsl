// Softmax attention between the rows of a temporary, without a cache: a workgroup has 32 queries of one head and goes over all keys
// once, 64 at a time. A thread has two queries: four keys of each for scores, and every sixteenth vector of four values.
//
// Heads have up to DIM dimensions, of which VALUES at a time (the third direction of the grid) are added up.

struct Params {
    q: View,
    k: View,
    v: View,
    out: u32,
    out_stride: u32,
    scale: f32,
    // Keys that are seen at most.
    keys: u32,
    // Whether a row sees no later ones.
    causal: u32,
    count: u32,
    reserved_a: u32,
    reserved_b: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> arena: array<f32>;

const QUERIES: u32 = 32u;
const KEYS: u32 = 64u;
const VALUES: u32 = min(DIM, 128u);
// Vectors of four dimensions of queries and keys that are multiplied at a time; one more lies between rows, so that neighbours
// are in different banks.
const QUADS: u32 = 8u;
const STRIDE: u32 = QUADS + 1u;
// Vectors of values of a thread.
const OWN: u32 = VALUES / 64u;

var<workgroup> queries: array<vec4<f32>, QUERIES * STRIDE>;
// Keys; then weights, four neighbouring keys of a query a vector.
var<workgroup> keys: array<vec4<f32>, KEYS * STRIDE>;
const WEIGHT_STRIDE: u32 = KEYS / 4u + 1u;
// A number of each thread for each of its queries.
var<workgroup> of_threads: array<f32, QUERIES * 16u>;

fn four(v: View, row: u32, head: u32, d: u32) -> vec4<f32> {
    let at = v.offset + row * v.row_stride + head * v.head_stride + d;
    if (d + 4u <= v.dim) {
        return vec4<f32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
    }
    var x = vec4<f32>();
    for (var i = 0u; d + i < v.dim; i++) {
        x[i] = arena[at + i];
    }
    return x;
}

fn seen_by(row: u32, rows: u32) -> u32 {
    return min(p.keys, select(rows, row + 1u, p.causal != 0u));
}

// Scores of four neighbouring keys, the first of which is `key`.
// Products of a query with four keys.
fn products_of(sums: array<vec4<f32>, 4>) -> vec4<f32> {
    var products = vec4<f32>();
    for (var j = 0u; j < 4u; j++) {
        products[j] = (sums[j].x + sums[j].y) + (sums[j].z + sums[j].w);
    }
    return products;
}

// The largest of their scores.
fn top_of(products: vec4<f32>, key: u32, seen: u32) -> f32 {
    var top = -LARGEST;
    for (var j = 0u; j < 4u; j++) {
        if (key + j < seen) {
            top = max(top, products[j] * p.scale);
        }
    }
    return top;
}

fn weights_of(products: vec4<f32>, top: f32, key: u32, seen: u32) -> vec4<f32> {
    var weight = vec4<f32>();
    for (var j = 0u; j < 4u; j++) {
        if (key + j < seen) {
            weight[j] = exponential(fma(products[j], p.scale, -top));
        }
    }
    return weight;
}

// Of a query, over its sixteen threads. A score that is none goes past the comparison, and into every weight.
fn largest_of(query: u32) -> f32 {
    var most = of_threads[query * 16u];
    for (var i = 1u; i < 16u; i++) {
        most = max(most, of_threads[query * 16u + i]);
    }
    return most;
}

fn total_of(query: u32) -> f32 {
    var total = of_threads[query * 16u];
    for (var i = 1u; i < 16u; i++) {
        total += of_threads[query * 16u + i];
    }
    return total;
}

fn write_row(values: array<vec4<f32>, OWN>, sum: f32, row: u32, rows: u32, head: u32, slice: u32, lane: u32) {
    if (row >= rows) {
        return;
    }
    for (var n = 0u; n < OWN; n++) {
        for (var i = 0u; i < 4u; i++) {
            let d = slice + 64u * n + 4u * lane + i;
            if (d < p.v.dim) {
                arena[p.out + row * p.out_stride + head * p.v.dim + d] = values[n][i] / sum;
            }
        }
    }
}

@compute @workgroup_size(256)
fn full_attention(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let rows = row_count(p.count);
    let begin = wg.y * QUERIES;
    let head = wg.x;
    let kv_head = head / (p.q.heads / p.k.heads);
    let slice = wg.z * VALUES;
    let lane = t % 16u;
    let own = t / 16u;
    let seen_a = seen_by(begin + own, rows);
    let seen_b = seen_by(begin + own + 16u, rows);
    let end = min(seen_by(begin + QUERIES - 1u, rows), rows);
    let chunks = (p.q.dim + 4u * QUADS - 1u) / (4u * QUADS);
    var largest = vec2<f32>(-LARGEST);
    var sum = vec2<f32>();
    var values_a = array<vec4<f32>, OWN>();
    var values_b = array<vec4<f32>, OWN>();
    for (var base = 0u; base < end; base += KEYS) {
        var sums_a = array<vec4<f32>, 4>();
        var sums_b = array<vec4<f32>, 4>();
        for (var c = 0u; c < chunks; c++) {
            workgroupBarrier();
            let row = t / QUADS;
            let d = (c * QUADS + t % QUADS) * 4u;
            queries[row * STRIDE + t % QUADS] = four(p.q, min(begin + row, rows - 1u), head, d);
            for (var key = row; key < KEYS; key += 32u) {
                // Key 4 lane + j of the tile stands at 16 j + lane.
                let at = (key % 4u) * 16u + key / 4u;
                keys[at * STRIDE + t % QUADS] = four(p.k, min(base + key, rows - 1u), kv_head, d);
            }
            workgroupBarrier();
            for (var i = 0u; i < QUADS; i++) {
                let a = queries[own * STRIDE + i];
                let b = queries[(own + 16u) * STRIDE + i];
                for (var j = 0u; j < 4u; j++) {
                    let k = keys[(16u * j + lane) * STRIDE + i];
                    sums_a[j] = fma(a, k, sums_a[j]);
                    sums_b[j] = fma(b, k, sums_b[j]);
                }
            }
        }
        let key = base + 4u * lane;
        let products_a = products_of(sums_a);
        let products_b = products_of(sums_b);
        workgroupBarrier();
        of_threads[own * 16u + lane] = top_of(products_a, key, seen_a);
        of_threads[(own + 16u) * 16u + lane] = top_of(products_b, key, seen_b);
        workgroupBarrier();
        let top = max(largest, vec2<f32>(largest_of(own), largest_of(own + 16u)));
        let keep = vec2<f32>(exponential(largest.x - top.x), exponential(largest.y - top.y));
        largest = top;
        let weights_a = weights_of(products_a, top.x, key, seen_a);
        let weights_b = weights_of(products_b, top.y, key, seen_b);
        workgroupBarrier();
        of_threads[own * 16u + lane] = (weights_a.x + weights_a.y) + (weights_a.z + weights_a.w);
        of_threads[(own + 16u) * 16u + lane] = (weights_b.x + weights_b.y) + (weights_b.z + weights_b.w);
        keys[own * WEIGHT_STRIDE + lane] = weights_a;
        keys[(own + 16u) * WEIGHT_STRIDE + lane] = weights_b;
        workgroupBarrier();
        sum = fma(sum, keep, vec2<f32>(total_of(own), total_of(own + 16u)));
        for (var n = 0u; n < OWN; n++) {
            values_a[n] *= keep.x;
            values_b[n] *= keep.y;
        }
        for (var i = 0u; i < KEYS / 4u; i++) {
            let a = keys[own * WEIGHT_STRIDE + i];
            let b = keys[(own + 16u) * WEIGHT_STRIDE + i];
            for (var j = 0u; j < 4u; j++) {
                let at = base + 4u * i + j;
                if (at >= end) {
                    continue;
                }
                // What a row does not see may be anything.
                for (var n = 0u; n < OWN; n++) {
                    let v = four(p.v, at, kv_head, slice + 64u * n + 4u * lane);
                    if (at < seen_a) {
                        values_a[n] = fma(vec4<f32>(a[j]), v, values_a[n]);
                    }
                    if (at < seen_b) {
                        values_b[n] = fma(vec4<f32>(b[j]), v, values_b[n]);
                    }
                }
            }
        }
    }
    write_row(values_a, sum.x, begin + own, rows, head, slice, lane);
    write_row(values_b, sum.y, begin + own + 16u, rows, head, slice, lane);
}
