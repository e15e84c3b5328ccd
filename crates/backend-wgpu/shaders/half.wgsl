// A number as f16, ties to even, whatever a device does by itself.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > INFINITE) {
        return sign | 0x7e00u;
    }
    // From 65520 on everything rounds to infinity.
    if (size >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (size >= 0x38800000u) {
        let rebased = size - 0x38000000u;
        return sign | ((rebased + 0xfffu + ((rebased >> 13u) & 1u)) >> 13u);
    }
    // Below 2^-14: multiples of 2^-24. Below half of that, zero.
    if (size < 0x33000000u) {
        return sign;
    }
    let mantissa = (size & 0x7fffffu) | 0x800000u;
    let shift = 126u - (size >> 23u);
    let kept = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let half = 1u << (shift - 1u);
    let up = rest > half || (rest == half && (kept & 1u) == 1u);
    return sign | (kept + select(0u, 1u, up));
}
