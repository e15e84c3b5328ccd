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
