// (1 + a) (x - mean) / sqrt(variance + eps) + b for every row, a and b of one row. A workgroup a row.

struct Params {
    x: View,
    a: View,
    b: View,
    cols: u32,
    out: u32,
    out_stride: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> arena: array<f32>;

@compute @workgroup_size(256)
fn modulate(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = wg.y;
    var sum = 0.0;
    for (var c = t; c < p.cols; c += 256u) {
        sum += arena[place(p.x, r, c)];
    }
    let mean = quotient(sum_of_all(sum, t), f32(p.cols));
    var squares = 0.0;
    for (var c = t; c < p.cols; c += 256u) {
        let d = arena[place(p.x, r, c)] - mean;
        squares = fma(d, d, squares);
    }
    let inverse = inverse_root(quotient(sum_of_all(squares, t), f32(p.cols)) + p.eps);
    for (var c = t; c < p.cols; c += 256u) {
        let normed = (arena[place(p.x, r, c)] - mean) * inverse;
        arena[p.out + r * p.out_stride + c] = fma(1.0 + arena[place(p.a, 0u, c)], normed, arena[place(p.b, 0u, c)]);
    }
}
