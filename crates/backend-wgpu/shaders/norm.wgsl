// RMS norm of blocks of values, plain or GATED: x * rsqrt(mean(x^2) + eps) * gain [* silu(z)]. A workgroup of THREADS a block.

struct Params {
    x: View,
    z: View,
    out: u32,
    out_stride: u32,
    eps: f32,
    reserved: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> gain: array<f32>;
@group(0) @binding(2) var<storage, read_write> arena: array<f32>;

// Gated blocks of 128 values are summed up as `prepare` does it in front of a product: so both have the same bits.
const QUADS: bool = GATED && THREADS == 32u;

var<workgroup> pairs: array<vec2<f32>, THREADS>;

@compute @workgroup_size(THREADS)
fn norm(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let head = wg.x;
    let r = wg.y;
    let from_ = p.x.offset + r * p.x.row_stride + head * p.x.head_stride;
    var sums = vec2<f32>();
    if (QUADS) {
        for (var j = 0u; j < 4u; j++) {
            sums = squared(sums, arena[from_ + 4u * t + j]);
        }
    } else if (THREADS == 256u) {
        // 512 chains of quads, a thread two: as `prepare` does it for a row.
        var odd = vec2<f32>();
        for (var i = 4u * t; i < p.x.dim; i += 2048u) {
            for (var j = i; j < min(i + 4u, p.x.dim); j++) {
                sums = squared(sums, arena[from_ + j]);
            }
            for (var j = i + 1024u; j < min(i + 1028u, p.x.dim); j++) {
                odd = squared(odd, arena[from_ + j]);
            }
        }
        sums += odd;
    } else {
        for (var i = t; i < p.x.dim; i += THREADS) {
            sums = squared(sums, arena[from_ + i]);
        }
    }
    pairs[t] = sums;
    workgroupBarrier();
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        if (t < step) {
            pairs[t] += pairs[t + step];
        }
        workgroupBarrier();
    }
    let inverse = inverse_of(pairs[0], f32(p.x.dim), p.eps);
    let out = p.out + r * p.out_stride + head * p.x.dim;
    for (var i = t; i < p.x.dim; i += THREADS) {
        var y = arena[from_ + i] * inverse * gain[i];
        if (GATED) {
            y *= silu(arena[place(p.z, r, head * p.x.dim + i)]);
        }
        arena[out + i] = y;
    }
}
