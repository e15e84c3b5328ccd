//! Eight floats: all that the generic loops ask of an instruction set.

/// Lanes of every [`Vector`].
pub(crate) const LANES: usize = 8;

/// What takes multiples of ln 2 off the argument of an exponential: 1 / ln 2, and the two parts of -ln 2.
pub(super) const REDUCTION: [f32; 3] = [std::f32::consts::LOG2_E, -0.693_359_4, 2.121_944_4e-4];

/// Factors of the polynomial for the rest, the highest power first.
pub(super) const POLYNOMIAL: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// Eight floats at once. The portable form is an array; the others are a register.
///
/// Everything is `inline(always)`, so that a loop over vectors is compiled with the features of the function that it
/// is inlined into.
pub(crate) trait Vector: Copy {
    fn splat(v: f32) -> Self;
    fn load(from: &[f32; LANES]) -> Self;
    fn store(self, to: &mut [f32; LANES]);
    /// Little-endian floats at any alignment.
    fn load_f32(from: &[u8; 4 * LANES]) -> Self;
    /// Widens binary16 values.
    fn load_f16(from: &[u8; 2 * LANES]) -> Self;
    /// Widens bfloat16 values.
    fn load_bf16(from: &[u8; 2 * LANES]) -> Self;
    /// Converts signed bytes.
    fn load_i8(from: &[u8; LANES]) -> Self;
    /// A binary16 value in every lane.
    fn splat_f16(bits: [u8; 2]) -> Self;
    /// Little-endian floats at any alignment.
    fn store_f32(self, to: &mut [u8; 4 * LANES]);
    /// Narrows to binary16, ties to even.
    fn store_f16(self, to: &mut [u8; 2 * LANES]);
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    fn div(self, o: Self) -> Self;
    /// `self * a + b`, rounded once or twice.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// `o` where either is NaN.
    fn min(self, o: Self) -> Self;
    /// `o` where either is NaN.
    fn max(self, o: Self) -> Self;
    fn abs(self) -> Self;
    /// Nearest integer, ties to even; for magnitudes below 2^22.
    fn round(self) -> Self;
    /// `2^self` for integers in -126..=127.
    fn exp2_integer(self) -> Self;
    /// Integers in range as i16; NaN as zero.
    fn to_i16(self) -> [i16; LANES];

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        self.store(&mut out);
        out
    }

    /// Sum of the lanes, in one fixed order.
    #[inline(always)]
    fn sum(self) -> f32 {
        let a = self.to_array();
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }

    /// The sums of eight vectors, each in the order of [`Vector::sum`] for this form.
    #[inline(always)]
    fn sums(of: [Self; LANES]) -> Self {
        let mut out = [0.0; LANES];
        for (out, v) in out.iter_mut().zip(of) {
            *out = v.sum();
        }
        Self::load(&out)
    }

    /// Asks for the cache line at this address, which need not be one of ours, to come as near as the second level.
    #[inline(always)]
    fn prefetch(_line: *const u8) {}

    /// Largest lane, of which none is NaN.
    #[inline(always)]
    fn top(self) -> f32 {
        self.to_array().into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// `n` and `e` so that `e^self = 2^n e`, for magnitudes up to 104.
    ///
    /// Cody-Waite reduction by ln 2 in two parts, then the minimax polynomial of Cephes' `expf`.
    #[inline(always)]
    fn exp_parts(self) -> (Self, Self) {
        let n = self.mul(Self::splat(REDUCTION[0])).round();
        let r = n.mul_add(Self::splat(REDUCTION[1]), self);
        let r = n.mul_add(Self::splat(REDUCTION[2]), r);
        let mut p = Self::splat(POLYNOMIAL[0]);
        for c in &POLYNOMIAL[1..] {
            p = p.mul_add(r, Self::splat(*c));
        }
        (n, p.mul_add(r.mul(r), r.add(Self::splat(1.0))))
    }

    /// `e^self` within 2 units in the last place, from 0 through the subnormal numbers to infinity.
    #[inline(always)]
    fn exp(self) -> Self {
        // In this order NaN passes through both bounds.
        let (n, e) = Self::splat(-104.0).max(Self::splat(104.0).min(self)).exp_parts();
        // 2^n in two factors, since n reaches beyond the exponents of normal numbers on both sides.
        let half = n.mul(Self::splat(0.5)).round();
        e.mul(half.exp2_integer()).mul(n.sub(half).exp2_integer())
    }

    /// `e^self` for numbers up to 0, with all below -87 taken for -87: a weight of 10^-38 beside one of 1.
    #[inline(always)]
    fn exp_weight(self) -> Self {
        let (n, e) = Self::splat(-87.0).max(self).exp_parts();
        e.mul(n.exp2_integer())
    }

    /// `1 / (1 + e^-self)`.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        let one = Self::splat(1.0);
        one.div(one.add(Self::zero().sub(self).exp()))
    }
}

/// Eight floats in an array: the portable form.
#[derive(Clone, Copy)]
pub(crate) struct Array([f32; LANES]);

impl Array {
    #[inline(always)]
    fn zip(self, o: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Array(std::array::from_fn(|i| f(self.0[i], o.0[i])))
    }
}

impl Vector for Array {
    #[inline(always)]
    fn splat(v: f32) -> Self {
        Array([v; LANES])
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Array(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[inline(always)]
    fn load_f32(from: &[u8; 4 * LANES]) -> Self {
        Array(std::array::from_fn(|i| f32::from_le_bytes(from.as_chunks::<4>().0[i])))
    }
    #[inline(always)]
    fn load_f16(from: &[u8; 2 * LANES]) -> Self {
        Array(std::array::from_fn(|i| {
            onebit_quant::float::f16_to_f32(u16::from_le_bytes([from[2 * i], from[2 * i + 1]]))
        }))
    }
    #[inline(always)]
    fn load_bf16(from: &[u8; 2 * LANES]) -> Self {
        Array(std::array::from_fn(|i| {
            onebit_quant::float::bf16_to_f32(u16::from_le_bytes([from[2 * i], from[2 * i + 1]]))
        }))
    }
    #[inline(always)]
    fn load_i8(from: &[u8; LANES]) -> Self {
        Array(from.map(|v| f32::from(v as i8)))
    }
    #[inline(always)]
    fn splat_f16(bits: [u8; 2]) -> Self {
        Self::splat(onebit_quant::float::f16_to_f32(u16::from_le_bytes(bits)))
    }
    #[inline(always)]
    fn store_f32(self, to: &mut [u8; 4 * LANES]) {
        for (to, v) in to.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            *to = v.to_le_bytes();
        }
    }
    #[inline(always)]
    fn store_f16(self, to: &mut [u8; 2 * LANES]) {
        for (to, v) in to.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *to = onebit_quant::float::f32_to_f16(v).to_le_bytes();
        }
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        self.zip(o, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        self.zip(o, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        self.zip(o, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        self.zip(o, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        // Not f32::mul_add: without the instruction that is a library call.
        self.mul(a).add(b)
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        self.zip(o, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        self.zip(o, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Array(self.0.map(f32::abs))
    }
    #[inline(always)]
    fn round(self) -> Self {
        // Adding 1.5 * 2^23 leaves no bits for a fraction, and the hardware rounds ties to even.
        const SHIFT: f32 = 12_582_912.0;
        Array(self.0.map(|v| (v + SHIFT) - SHIFT))
    }
    #[inline(always)]
    fn exp2_integer(self) -> Self {
        Array(self.0.map(|v| f32::from_bits(((v as i32 + 127) << 23) as u32)))
    }
    #[inline(always)]
    fn to_i16(self) -> [i16; LANES] {
        self.0.map(|v| v as i16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units() {
        for i in -8000..8290 {
            let x = i as f32 * 0.0107;
            let got = Array::splat(x).exp().to_array()[3];
            let want = f64::from(x).exp();
            assert!((f64::from(got) - want).abs() <= 2.5e-7 * want + 1e-44, "exp({x}) = {got}, wanted {want}");
        }
        for (x, want) in [(0.0, 1.0), (-110.0, 0.0), (89.0, f32::INFINITY), (f32::INFINITY, f32::INFINITY)] {
            assert_eq!(Array::splat(x).exp().to_array()[0], want);
        }
        assert!(Array::splat(f32::NAN).exp().to_array()[0].is_nan());
        for x in [0.0, -0.3, -17.0, -86.9, -87.0] {
            assert_eq!(Array::splat(x).exp_weight().to_array()[0], Array::splat(x).exp().to_array()[0]);
        }
        assert!(Array::splat(f32::NEG_INFINITY).exp_weight().to_array()[0] < 1.7e-38);
        assert!(Array::splat(f32::NAN).exp_weight().to_array()[0].is_nan());
    }

    #[test]
    fn round_ties_to_even() {
        for v in [0.5, 1.5, -2.5, 254.5, -0.49, 1e5 + 0.5] {
            assert_eq!(Array::splat(v).round().to_array()[0], v.round_ties_even());
        }
    }
}
