// Keys and values of the step into the pages, a workgroup a head: x counts heads, y rows, z keys and values.

struct Params {
    k: View,
    v: View,
    pages: Pages,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> arena: array<f32>;
@group(0) @binding(3) var<storage, read_write> cache: array<u32>;

@compute @workgroup_size(THREADS)
fn append(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let is_value = wg.z == 1u;
    for (var d = t; d < DIM; d += THREADS) {
        let c = wg.x * DIM + d;
        stored[d] = arena[select(place(p.k, wg.y, c), place(p.v, wg.y, c), is_value)];
    }
    workgroupBarrier();
    store_head(p.pages, wg.y, is_value, wg.x, t);
}
