// The columns of a view side by side, into the memory that the host reads.

struct Params {
    x: View,
    cols: u32,
    out: u32,
    count: u32,
    reserved: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> arena: array<f32>;
@group(0) @binding(3) var<storage, read_write> outputs: array<f32>;

@compute @workgroup_size(256)
fn output(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let c = wg.x * 256u + t;
    let r = row_of(wg);
    if (c < p.cols && r < row_count(p.count)) {
        outputs[p.out + r * p.cols + c] = arena[place(p.x, r, c)];
    }
}
