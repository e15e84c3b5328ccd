//! Sixteen floats in a zmm register.

use crate::generic::vector::Vector;
use crate::generic::wide::{WIDTH, Wide};
use crate::x86_64::avx2::F32x8;
use std::arch::x86_64::*;

/// Exists only inside the kernels of tiers with AVX-512.
#[derive(Clone, Copy)]
pub(super) struct F32x16(__m512);

/// Wraps intrinsics whose features the kernels' proof covers.
macro_rules! zmm {
    ($e:expr) => {
        // SAFETY: a value of this type is made only by kernels that run with a proof of AVX-512; loads and stores go
        // through references to whole arrays.
        unsafe { $e }
    };
}

impl F32x16 {
    #[inline(always)]
    fn halves(self) -> [F32x8; 2] {
        let high = zmm!(_mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0))));
        [zmm!(_mm512_castps512_ps256(self.0)), high].map(F32x8::new)
    }
}

impl Wide for F32x16 {
    const MANY: bool = true;

    #[inline(always)]
    fn splat(v: f32) -> Self {
        F32x16(zmm!(_mm512_set1_ps(v)))
    }
    #[inline(always)]
    fn load(from: &[f32; WIDTH]) -> Self {
        F32x16(zmm!(_mm512_loadu_ps(from.as_ptr())))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; WIDTH]) {
        zmm!(_mm512_storeu_ps(to.as_mut_ptr(), self.0));
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        F32x16(zmm!(_mm512_add_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        F32x16(zmm!(_mm512_sub_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        F32x16(zmm!(_mm512_mul_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        F32x16(zmm!(_mm512_fmadd_ps(self.0, a.0, b.0)))
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        F32x16(zmm!(_mm512_max_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        F32x16(zmm!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)))
    }
    #[inline(always)]
    fn exp2_integer(self) -> Self {
        let biased = zmm!(_mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127)));
        F32x16(zmm!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))))
    }
    #[inline(always)]
    fn exp_one(v: f32) -> f32 {
        F32x8::splat(v).exp().to_array()[0]
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let [low, high] = self.halves();
        low.add(high).sum()
    }
    #[inline(always)]
    fn top(self) -> f32 {
        let [low, high] = self.halves();
        low.max(high).top()
    }
}
