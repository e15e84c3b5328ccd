// Attention whose keys and values are all in the pages: a workgroup a query head and row, or one of its splits.

struct Params {
    q: View,
    pages: Pages,
    out: u32,
    out_stride: u32,
    scale: f32,
    // Splits that there is room for.
    splits: u32,
    // Word of the scratch memory.
    partials: u32,
    reserved_a: u32,
    reserved_b: u32,
    reserved_c: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> cache: array<u32>;
@group(0) @binding(4) var<storage, read_write> partials: array<f32>;
@group(0) @binding(5) var<storage, read_write> arena: array<f32>;

fn cached(word: u32) -> u32 {
    return cache[word];
}

@compute @workgroup_size(256)
fn attention(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let row = wg.y;
    let segment = step[STEP_SEGMENT] + step[step[STEP_ROW_SEGMENT] + row] * SEGMENT_WORDS;
    let tokens = step[segment + SEGMENT_PAST] + row - step[segment + SEGMENT_FIRST_ROW] + 1u;
    for (var d = t; d < DIM / 4u; d += 256u) {
        let at = place(p.q, row, wg.x * DIM + 4u * d);
        query[d] = vec4<f32>(arena[at], arena[at + 1u], arena[at + 2u], arena[at + 3u]);
    }
    let pages = step[STEP_PAGES] + step[segment + SEGMENT_FIRST_PAGE];
    leave(wg, t, tokens, attend(wg, t, tokens, pages));
}
