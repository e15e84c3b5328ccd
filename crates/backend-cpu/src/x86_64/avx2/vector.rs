//! Eight floats in a ymm register.

use crate::generic::vector::{LANES, Vector};
use std::arch::x86_64::*;

/// Exists only inside the kernels of x86-64 tiers, which run on machines that have AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct F32x8(__m256);

impl F32x8 {
    #[inline(always)]
    pub(in crate::x86_64) fn new(v: __m256) -> Self {
        F32x8(v)
    }
    #[inline(always)]
    pub(in crate::x86_64) fn bits(self) -> __m256 {
        self.0
    }
}

/// Wraps intrinsics whose features the kernels' proof covers.
macro_rules! ymm {
    ($e:expr) => {
        // SAFETY: a value of this type is made only by kernels that run with a proof of AVX2, FMA and F16C; loads and
        // stores go through references to whole arrays.
        unsafe { $e }
    };
}

impl Vector for F32x8 {
    #[inline(always)]
    fn splat(v: f32) -> Self {
        F32x8(ymm!(_mm256_set1_ps(v)))
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        F32x8(ymm!(_mm256_loadu_ps(from.as_ptr())))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        ymm!(_mm256_storeu_ps(to.as_mut_ptr(), self.0));
    }
    #[inline(always)]
    fn load_f32(from: &[u8; 4 * LANES]) -> Self {
        F32x8(ymm!(_mm256_loadu_ps(from.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_f16(from: &[u8; 2 * LANES]) -> Self {
        F32x8(ymm!(_mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast()))))
    }
    #[inline(always)]
    fn load_bf16(from: &[u8; 2 * LANES]) -> Self {
        let wide = ymm!(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast())));
        F32x8(ymm!(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))))
    }
    #[inline(always)]
    fn load_i8(from: &[u8; LANES]) -> Self {
        F32x8(ymm!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast())))))
    }
    #[inline(always)]
    fn splat_f16(bits: [u8; 2]) -> Self {
        F32x8(ymm!(_mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(bits)))))
    }
    #[inline(always)]
    fn store_f32(self, to: &mut [u8; 4 * LANES]) {
        ymm!(_mm256_storeu_ps(to.as_mut_ptr().cast(), self.0));
    }
    #[inline(always)]
    fn store_f16(self, to: &mut [u8; 2 * LANES]) {
        let half = ymm!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
        ymm!(_mm_storeu_si128(to.as_mut_ptr().cast(), half));
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        F32x8(ymm!(_mm256_add_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        F32x8(ymm!(_mm256_sub_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        F32x8(ymm!(_mm256_mul_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        F32x8(ymm!(_mm256_div_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        F32x8(ymm!(_mm256_fmadd_ps(self.0, a.0, b.0)))
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        F32x8(ymm!(_mm256_min_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        F32x8(ymm!(_mm256_max_ps(self.0, o.0)))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        F32x8(ymm!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        F32x8(ymm!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)))
    }
    #[inline(always)]
    fn exp2_integer(self) -> Self {
        let biased = ymm!(_mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127)));
        F32x8(ymm!(_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))))
    }
    #[inline(always)]
    fn to_i16(self) -> [i16; LANES] {
        let ordered = ymm!(_mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_ORD_Q>(self.0, self.0)));
        let wide = ymm!(_mm256_cvtps_epi32(ordered));
        let mut out = [0; LANES];
        ymm!(_mm_storeu_si128(
            out.as_mut_ptr().cast(),
            _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide))
        ));
        out
    }
    #[inline(always)]
    fn top(self) -> f32 {
        let (low, high) = (ymm!(_mm256_castps256_ps128(self.0)), ymm!(_mm256_extractf128_ps::<1>(self.0)));
        let four = ymm!(_mm_max_ps(low, high));
        let two = ymm!(_mm_max_ps(four, _mm_movehl_ps(four, four)));
        ymm!(_mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two))))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // The order of the provided method.
        let (low, high) = (ymm!(_mm256_castps256_ps128(self.0)), ymm!(_mm256_extractf128_ps::<1>(self.0)));
        let four = ymm!(_mm_add_ps(low, high));
        let two = ymm!(_mm_add_ps(four, _mm_movehl_ps(four, four)));
        ymm!(_mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two))))
    }
    #[inline(always)]
    fn sums(of: [Self; LANES]) -> Self {
        // Three rounds, each of which halves the vectors: lanes (0 + 2, 1 + 3) of two sides, then those added, then
        // the upper half of each register to its lower one.
        let [a, b, c, d, e, f, g, h] = of;
        let two = |a: Self, b: Self| {
            ymm!(_mm256_add_ps(
                _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a.0), _mm256_castps_pd(b.0))),
                _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a.0), _mm256_castps_pd(b.0)))
            ))
        };
        let four = |a: __m256, b: __m256| {
            ymm!(_mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b)))
        };
        let (low, high) = (four(two(a, b), two(c, d)), four(two(e, f), two(g, h)));
        F32x8(ymm!(_mm256_add_ps(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))))
    }
    #[inline(always)]
    fn prefetch(line: *const u8) {
        ymm!(_mm_prefetch::<_MM_HINT_T1>(line.cast()));
    }
}
