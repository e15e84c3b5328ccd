// Pairs (i, i + n) of every block turned by the row's angles, whose cosines and sines come with the step: the host knows the
// positions, and has the digits that large angles need.

struct Params {
    x: View,
    // Word of the step: for each row n pairs of cosine and sine.
    angles: u32,
    pairs: u32,
    out: u32,
    out_stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read_write> arena: array<f32>;

@compute @workgroup_size(256)
fn rope(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let r = wg.y;
    let c = wg.x * 256u + t;
    if (c >= p.x.heads * p.x.dim) {
        return;
    }
    let d = c % p.x.dim;
    var y = arena[place(p.x, r, c)];
    if (d < 2u * p.pairs) {
        let first = d < p.pairs;
        let pair = select(d - p.pairs, d, first);
        let at = p.angles + 2u * (r * p.pairs + pair);
        let cosine = bitcast<f32>(step[at]);
        let sine = bitcast<f32>(step[at + 1u]);
        let other = arena[place(p.x, r, select(c - p.pairs, c + p.pairs, first))];
        y = fma(y, cosine, select(other, -other, first) * sine);
    }
    arena[p.out + r * p.out_stride + c] = y;
}
