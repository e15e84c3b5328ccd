//! Sixteen floats: two [`Vector`]s, or one register where a tier has registers of that size.

use super::vector::{LANES, POLYNOMIAL, REDUCTION, Vector};

/// Lanes of every [`Wide`].
pub(crate) const WIDTH: usize = 2 * LANES;

/// Sixteen floats at once. Every form rounds as two vectors do, and so gives the same bits.
///
/// Everything is `inline(always)`, as in [`Vector`].
pub(crate) trait Wide: Copy {
    /// Whether 24 of them stay in registers beside what they are made of. Twelve always should.
    const MANY: bool;

    fn splat(v: f32) -> Self;
    fn load(from: &[f32; WIDTH]) -> Self;
    fn store(self, to: &mut [f32; WIDTH]);
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    /// `self * a + b`, as [`Vector::mul_add`].
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// `o` where either is NaN.
    fn max(self, o: Self) -> Self;
    /// As [`Vector::round`].
    fn round(self) -> Self;
    /// As [`Vector::exp2_integer`].
    fn exp2_integer(self) -> Self;
    /// `e^v` of one number, as [`Vector::exp`].
    fn exp_one(v: f32) -> f32;
    /// Sum of the lanes: those of the halves, then as [`Vector::sum`].
    fn sum(self) -> f32;
    /// Largest lane, of which none is NaN.
    fn top(self) -> f32;

    /// As [`Vector::exp_weight`].
    #[inline(always)]
    fn exp_weight(self) -> Self {
        let x = Self::splat(-87.0).max(self);
        let n = x.mul(Self::splat(REDUCTION[0])).round();
        let r = n.mul_add(Self::splat(REDUCTION[1]), x);
        let r = n.mul_add(Self::splat(REDUCTION[2]), r);
        let mut p = Self::splat(POLYNOMIAL[0]);
        for c in &POLYNOMIAL[1..] {
            p = p.mul_add(r, Self::splat(*c));
        }
        p.mul_add(r.mul(r), r.add(Self::splat(1.0))).mul(n.exp2_integer())
    }
}

impl<V: Vector> Wide for [V; 2] {
    const MANY: bool = false;

    #[inline(always)]
    fn splat(v: f32) -> Self {
        [V::splat(v); 2]
    }
    #[inline(always)]
    fn load(from: &[f32; WIDTH]) -> Self {
        let halves = from.as_chunks().0;
        [V::load(&halves[0]), V::load(&halves[1])]
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; WIDTH]) {
        let halves = to.as_chunks_mut().0;
        self[0].store(&mut halves[0]);
        self[1].store(&mut halves[1]);
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        [self[0].add(o[0]), self[1].add(o[1])]
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        [self[0].sub(o[0]), self[1].sub(o[1])]
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        [self[0].mul(o[0]), self[1].mul(o[1])]
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        [self[0].mul_add(a[0], b[0]), self[1].mul_add(a[1], b[1])]
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        [self[0].max(o[0]), self[1].max(o[1])]
    }
    #[inline(always)]
    fn round(self) -> Self {
        [self[0].round(), self[1].round()]
    }
    #[inline(always)]
    fn exp2_integer(self) -> Self {
        [self[0].exp2_integer(), self[1].exp2_integer()]
    }
    #[inline(always)]
    fn exp_one(v: f32) -> f32 {
        V::splat(v).exp().to_array()[0]
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        self[0].add(self[1]).sum()
    }
    #[inline(always)]
    fn top(self) -> f32 {
        self[0].max(self[1]).top()
    }
}
