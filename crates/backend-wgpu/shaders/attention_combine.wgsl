// The splits of a row's context, joined in order: a workgroup a query head and row.

struct Params {
    heads: u32,
    dim: u32,
    splits: u32,
    partials: u32,
    out: u32,
    out_stride: u32,
    reserved_a: u32,
    reserved_b: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> partials: array<f32>;
@group(0) @binding(3) var<storage, read_write> arena: array<f32>;

@compute @workgroup_size(64)
fn attention_combine(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let head = wg.x;
    let row = wg.y;
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT] + row] * SEGMENT_WORDS;
    let tokens = step[segment + SEGMENT_PAST] + row - step[segment + SEGMENT_FIRST_ROW] + 1u;
    for (var pair = t; pair < p.dim / 2u; pair += 64u) {
        var whole = nothing();
        for (var s = 0u; s * 256u < tokens; s++) {
            let at = p.partials + ((row * p.heads + head) * p.splits + s) * (p.dim + 2u);
            let values = vec2<f32>(partials[at + 2u + 2u * pair], partials[at + 3u + 2u * pair]);
            whole = join(whole, Partial(partials[at], partials[at + 1u], values));
        }
        let out = p.out + row * p.out_stride + head * p.dim + 2u * pair;
        arena[out] = whole.values.x / whole.sum;
        arena[out + 1u] = whole.values.y / whole.sum;
    }
}
