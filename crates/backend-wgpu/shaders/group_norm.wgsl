// Factors and offsets of every column of a group norm, from the chunks that `group_sums` leaves: a workgroup a group.

struct Params {
    groups: u32,
    cols: u32,
    chunk: u32,
    partials: u32,
    out: u32,
    count: u32,
    eps: f32,
    reserved: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> gain: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> partials: array<f32>;
@group(0) @binding(5) var<storage, read_write> arena: array<f32>;

@compute @workgroup_size(256)
fn group_norm(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let rows = row_count(p.count);
    let size = p.cols / p.groups;
    let chunks = (rows + p.chunk - 1u) / p.chunk;
    var sum = 0.0;
    for (var i = t; i < chunks; i += 256u) {
        let here = f32(min(p.chunk, rows - i * p.chunk));
        sum = fma(here, partials[p.partials + 2u * (i * p.groups + wg.x)], sum);
    }
    let mean = quotient(sum_of_all(sum, t), f32(rows));
    var squares = 0.0;
    for (var i = t; i < chunks; i += 256u) {
        let here = f32(min(p.chunk, rows - i * p.chunk) * size);
        let at = p.partials + 2u * (i * p.groups + wg.x);
        let d = partials[at] - mean;
        squares += fma(here * d, d, partials[at + 1u]);
    }
    let variance = quotient(sum_of_all(squares, t), f32(rows) * f32(size));
    let inverse = inverse_root(variance + p.eps);
    for (var i = t; i < size; i += 256u) {
        let c = wg.x * size + i;
        let factor = gain[c] * inverse;
        arena[p.out + c] = factor;
        arena[p.out + p.cols + c] = fma(-mean, factor, bias[c]);
    }
}
