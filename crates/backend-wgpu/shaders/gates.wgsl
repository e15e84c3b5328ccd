// Decay and beta of the delta rule.

struct Params {
    a: View,
    b: View,
    heads: u32,
    log_decay: u32,
    beta: u32,
    reserved: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> rate: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> arena: array<f32>;

@compute @workgroup_size(64)
fn gates(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = wg.y;
    let h = wg.x * 64u + t;
    if (h >= p.heads) {
        return;
    }
    let a = arena[place(p.a, r, h)] + bias[h];
    let b = arena[place(p.b, r, h)];
    arena[p.log_decay + r * p.heads + h] = log_decay(a, rate[h]);
    arena[p.beta + r * p.heads + h] = sigmoid(b);
}
