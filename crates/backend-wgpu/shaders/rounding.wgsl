// What the preparation of a product does to values, by whoever does it: gates, and rounding to integers.

const INPUT_PLAIN: u32 = 0u;
const INPUT_NORM: u32 = 1u;
const INPUT_GATED_NORM: u32 = 2u;
const INPUT_SIGMOID: u32 = 3u;
const INPUT_SWIGLU: u32 = 4u;

fn gated(x: vec4<f32>, gate: vec4<f32>) -> vec4<f32> {
    if (INPUT == INPUT_SIGMOID) {
        return x * vec4<f32>(sigmoid(gate.x), sigmoid(gate.y), sigmoid(gate.z), sigmoid(gate.w));
    }
    return x * vec4<f32>(silu(gate.x), silu(gate.y), silu(gate.z), silu(gate.w));
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
    let finite = (bitcast<vec4<u32>>(x) & vec4<u32>(INFINITE)) != vec4<u32>(INFINITE);
    let codes = round(select(vec4<f32>(), x * rule.inverse, finite));
    return vec4<i32>(clamp(codes, vec4<f32>(-limit), vec4<f32>(limit)));
}

fn packed_bytes(codes: vec4<i32>) -> u32 {
    let bytes = bitcast<vec4<u32>>(codes) & vec4<u32>(0xffu);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}
