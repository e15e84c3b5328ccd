// What the preparation of a product does to values, by whoever does it: gates, rounding to integers, and where all that goes.

const INPUT_PLAIN: u32 = 0u;
const INPUT_NORM: u32 = 1u;
const INPUT_GATED_NORM: u32 = 2u;
const INPUT_SIGMOID: u32 = 3u;
const INPUT_SWIGLU: u32 = 4u;

fn gated(x: vec4<f32>, gate: vec4<f32>) -> vec4<f32> {
    var y = x;
    for (var j = 0u; j < 4u; j++) {
        if (INPUT == INPUT_SIGMOID) {
            y[j] = x[j] * sigmoid(gate[j]);
        } else {
            y[j] = x[j] * silu(gate[j]);
        }
    }
    return y;
}

// The largest magnitude as bits, of which what is not finite has larger ones than all numbers.
fn size_of(x: vec4<f32>) -> u32 {
    let size = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return max(max(size.x, size.y), max(size.z, size.w));
}

struct Rounding {
    scale: f32,
    inverse: f32,
}

// Of a group with this largest magnitude; none where a value is not finite.
fn rounding_of(most: u32, limit: f32) -> Rounding {
    if (most >= INFINITE) {
        return Rounding(not_a_number(), 0.0);
    }
    let scale = quotient(bitcast<f32>(most), limit);
    var inverse = 0.0;
    if (scale > 0.0) {
        inverse = quotient(1.0, scale);
    }
    return Rounding(scale, inverse);
}

// A number that is none becomes 0; its group's scale says it.
fn codes_by(x: vec4<f32>, rule: Rounding, limit: f32) -> vec4<i32> {
    var codes = vec4<i32>();
    for (var j = 0u; j < 4u; j++) {
        let code = round(select(0.0, x[j] * rule.inverse, is_finite(x[j])));
        codes[j] = i32(clamp(code, -limit, limit));
    }
    return codes;
}

fn packed_bytes(codes: vec4<i32>) -> u32 {
    let bytes = bitcast<vec4<u32>>(codes) & vec4<u32>(0xffu);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}

const KIND_FLOATS: u32 = 0u;
const KIND_PACKED: u32 = 1u;
const KIND_WHOLE: u32 = 2u;

var<workgroup> words: array<u32, 256>;
var<workgroup> floats: array<f32, 256>;

// Four values from column `first` on of row `r`, where they go: a thread has four neighbours, 32 threads a group. Threads that are
// not `inside` write nothing, but all of a workgroup come here.
fn finish(x: vec4<f32>, r: u32, first: u32, inside: bool, t: u32) {
    let lane = t % 32u;
    let group = first / GROUP_COLUMNS;
    if (KIND == KIND_FLOATS) {
        floats[t] = (x[0] + x[1]) + (x[2] + x[3]);
        workgroupBarrier();
        if (inside) {
            let at = p.values + r * p.padded + first;
            for (var j = 0u; j < 4u; j++) {
                put(at + j, bitcast<u32>(x[j]));
            }
            if (lane % 8u == 0u) {
                var sum = floats[t];
                for (var i = 1u; i < 8u; i++) {
                    sum += floats[t + i];
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
    for (var step_ = 16u; step_ > 0u; step_ /= 2u) {
        if (lane < step_) {
            words[t] = max(words[t], words[t + step_]);
        }
        workgroupBarrier();
    }
    let most = words[t - lane];
    workgroupBarrier();
    let rule = rounding_of(most, p.limit);
    let codes = codes_by(x, rule, p.limit);
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
