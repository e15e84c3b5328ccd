// The columns of a view side by side, into the memory that the host reads.

struct Params {
    x: View,
    cols: u32,
    out: u32,
    reserved_a: u32,
    reserved_b: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> arena: array<f32>;
@group(0) @binding(2) var<storage, read_write> outputs: array<f32>;

@compute @workgroup_size(256)
fn output(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let c = wg.x * 256u + t;
    if (c < p.cols) {
        outputs[p.out + wg.y * p.cols + c] = arena[place(p.x, wg.y, c)];
    }
}
