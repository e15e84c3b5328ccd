//! Half-precision and bfloat16 to f32 and back, in integer arithmetic that any reader can follow.
//!
//! Source of the formats: IEEE 754-2019 binary16 (1 sign, 5 exponent, 10 fraction bits) and bfloat16 (the upper
//! half of a binary32).

/// binary16 bits to f32; exact for every value, subnormals and infinities included.
#[inline]
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    // Moving the 15 magnitude bits to the top of an f32 reads the exponent with bias 127 instead of 15. The product
    // with 2^112 corrects it, and it is exact for subnormals too: they are subnormal f32 before it.
    let value = if magnitude >= 0x7c00 {
        f32::from_bits((magnitude << 13) | 0x7f80_0000)
    } else {
        f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)
    };
    f32::from_bits(value.to_bits() | sign)
}

/// f32 to binary16 bits, rounding to nearest, ties to even; too large becomes infinity, NaN stays (quiet) NaN.
#[must_use]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    // 65520 is halfway between the largest finite value 65504 and 2^16: it and all above round to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude >= 0x3880_0000 {
        // Normal result: rebias the exponent by 112 and drop 13 fraction bits.
        return sign | round_shift(magnitude - (112 << 23), 13);
    }
    // Subnormal result: a whole number of steps of 2^-24. With exponent field e the 24-bit significand counts
    // steps of 2^(e-150), so it must move right by 126 - e.
    let shift = 126 - (magnitude >> 23);
    if shift > 25 {
        return sign;
    }
    sign | round_shift((magnitude & 0x007f_ffff) | 0x0080_0000, shift)
}

/// `value / 2^shift`, rounded to nearest with ties to even. `shift` is 1 to 25, the result fits in 15 bits.
fn round_shift(value: u32, shift: u32) -> u16 {
    let floor = value >> shift;
    let rest = value & ((1 << shift) - 1);
    let half = 1 << (shift - 1);
    let up = rest > half || (rest == half && floor & 1 == 1);
    (floor + u32::from(up)) as u16
}

/// bfloat16 bits to f32; exact.
#[inline]
#[must_use]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// f32 to bfloat16 bits, rounding to nearest, ties to even; NaN stays (quiet) NaN.
#[must_use]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x0040;
    }
    let odd = (bits >> 16) & 1;
    ((bits + 0x7fff + odd) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_half_values() {
        for (bits, value) in [
            (0x0000, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0400, 2f32.powi(-14)),
            (0x0001, 2f32.powi(-24)),
            (0x03ff, 1023.0 * 2f32.powi(-24)),
            (0x7c00, f32::INFINITY),
            (0xfc00, f32::NEG_INFINITY),
        ] {
            assert_eq!(f16_to_f32(bits), value, "{bits:#06x}");
            assert_eq!(f32_to_f16(value), bits, "{value}");
        }
        assert!(f16_to_f32(0x7e01).is_nan());
        assert_eq!(f16_to_f32(0x8000).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn every_half_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan());
            } else {
                assert_eq!(f32_to_f16(value), bits);
            }
        }
    }

    /// Between two neighbours the midpoint goes to the even one and everything else to the nearer one. Checked at
    /// the midpoint and one f32 step beside it for all neighbours, this fixes the rounding of every f32.
    #[test]
    fn halves_round_to_nearest_even_everywhere() {
        for low in 0..0x7bffu16 {
            let high = low + 1;
            let mid = (f64::from(f16_to_f32(low)) + f64::from(f16_to_f32(high))) / 2.0;
            let mid = mid as f32;
            let even = if low & 1 == 0 { low } else { high };
            for sign in [0, 0x8000u16] {
                let at = |m: f32| f32_to_f16(if sign == 0 { m } else { -m });
                assert_eq!(at(mid), even | sign, "{low:#06x}");
                assert_eq!(at(f32::from_bits(mid.to_bits() + 1)), high | sign, "{low:#06x}");
                assert_eq!(at(f32::from_bits(mid.to_bits() - 1)), low | sign, "{low:#06x}");
            }
        }
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::MAX), 0x7c00);
        assert_eq!(f32_to_f16(f32::MIN_POSITIVE), 0);
        assert_eq!(f32_to_f16(-1e-45), 0x8000);
    }

    #[test]
    fn every_bfloat_survives_the_round_trip_and_ties_go_to_even() {
        for bits in 0..=u16::MAX {
            let value = bf16_to_f32(bits);
            if value.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(value)).is_nan());
            } else {
                assert_eq!(f32_to_bf16(value), bits);
            }
        }
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
    }
}
