// Ops that make one value of one or two, a value a thread; OP says which.

const OP_ADD: u32 = 0u;
const OP_SWIGLU: u32 = 1u;
const OP_SIGMOID_MUL: u32 = 2u;
const OP_SELECT_ROWS: u32 = 3u;

struct Params {
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
fn pointwise(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = row_of(wg);
    let c = wg.x * 256u + t;
    if (c >= p.cols || r >= row_count(p.count)) {
        return;
    }
    let out = p.out + r * p.out_stride + c;
    if (OP == OP_SELECT_ROWS) {
        arena[out] = arena[place(p.a, step[step[STEP_LOGIT_ROWS] + r], c)];
        return;
    }
    let a = arena[place(p.a, r, c)];
    let b = arena[place(p.b, r, c)];
    if (OP == OP_ADD) {
        arena[out] = a + b;
    } else if (OP == OP_SWIGLU) {
        arena[out] = silu(a) * b;
    } else {
        arena[out] = a * sigmoid(b);
    }
}
