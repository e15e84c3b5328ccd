// Prepared values of a workgroup of 256 threads, where they go: rounded, or as they are, with the sums that products want.

const KIND_FLOATS: u32 = 0u;
const KIND_PACKED: u32 = 1u;
const KIND_WHOLE: u32 = 2u;

var<workgroup> words: array<u32, 256>;
var<workgroup> quads: array<vec4<f32>, select(1u, 256u, KIND == KIND_FLOATS)>;

fn sum_of_quad(t: u32) -> f32 {
    return (quads[t].x + quads[t].y) + (quads[t].z + quads[t].w);
}

// Four values from column `first` on of row `r`, where they go: a thread has four neighbours, 32 threads a group. Threads that are
// not `inside` write nothing, but all of a workgroup come here.
fn finish(x: vec4<f32>, r: u32, first: u32, inside: bool, t: u32) {
    let lane = t % 32u;
    let group = first / GROUP_COLUMNS;
    if (KIND == KIND_FLOATS) {
        quads[t] = x;
        workgroupBarrier();
        if (inside) {
            let at = p.values + r * p.padded + first;
            for (var j = 0u; j < 4u; j++) {
                put(at + j, bitcast<u32>(x[j]));
            }
            if (lane % 8u == 0u) {
                var sum = sum_of_quad(t);
                for (var i = 1u; i < 8u; i++) {
                    sum += sum_of_quad(t + i);
                }
                put(p.sums + (r * p.padded + first) / 32u, bitcast<u32>(sum));
            }
            if (lane == 0u) {
                put(p.scales + r * (p.padded / GROUP_COLUMNS) + group, bitcast<u32>(1.0));
            }
        }
        return;
    }

    words[t] = size_of(x);
    workgroupBarrier();
    var rule: Rounding;
    var codes = vec4<i32>();
    if (inside) {
        var most = 0u;
        for (var i = 0u; i < 32u; i++) {
            most = max(most, words[t - lane + i]);
        }
        rule = rounding_of(most, p.limit);
        codes = codes_by(x, rule, p.limit);
    }
    workgroupBarrier();
    words[t] = bitcast<u32>(codes.x + codes.y + codes.z + codes.w);
    workgroupBarrier();
    if (!inside) {
        return;
    }
    if (KIND == KIND_PACKED) {
        put(p.values + (r * p.padded + first) / 4u, packed_bytes(codes));
    } else {
        let at = p.values + r * p.padded + first;
        for (var j = 0u; j < 4u; j++) {
            put(at + j, bitcast<u32>(f32(codes[j])));
        }
    }
    if (lane % 8u == 0u) {
        var sum = 0;
        for (var i = 0u; i < 8u; i++) {
            sum += bitcast<i32>(words[t + i]);
        }
        let at = p.sums + (r * p.padded + first) / 32u;
        if (KIND == KIND_PACKED) {
            put(at, bitcast<u32>(sum));
        } else {
            put(at, bitcast<u32>(f32(sum)));
        }
    }
    if (lane == 0u) {
        put(p.scales + r * (p.padded / GROUP_COLUMNS) + group, bitcast<u32>(rule.scale));
    }
}
