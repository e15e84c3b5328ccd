// Ops of image models that make a value of few others, a value a thread; OP says which.

const OP_COPY: u32 = 0u;
// x + a b, a of one row.
const OP_GATED_ADD: u32 = 1u;
// Neighbours of every block of x turned by the angles of a: cosines, then sines.
const OP_ROTATE_PAIRS: u32 = 2u;

struct Params {
    x: View,
    a: View,
    b: View,
    cols: u32,
    out: u32,
    out_stride: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> arena: array<f32>;

@compute @workgroup_size(256)
fn mix_values(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = row_of(wg);
    let c = wg.x * 256u + t;
    if (c >= p.cols || r >= row_count(p.count)) {
        return;
    }
    var y = arena[place(p.x, r, c)];
    if (OP == OP_GATED_ADD) {
        y = fma(arena[place(p.a, 0u, c)], arena[place(p.b, r, c)], y);
    } else if (OP == OP_ROTATE_PAIRS) {
        let half_dim = p.x.dim / 2u;
        let i = (c % p.x.dim) / 2u;
        let cosine = arena[place(p.a, r, i)];
        let sine = arena[place(p.a, r, half_dim + i)];
        let is_second = c % 2u == 1u;
        let other = arena[place(p.x, r, select(c + 1u, c - 1u, is_second))];
        y = fma(y, cosine, select(-other, other, is_second) * sine);
    }
    arena[p.out + r * p.out_stride + c] = y;
}
