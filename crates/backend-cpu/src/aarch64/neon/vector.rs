//! Eight floats in two registers.

use crate::generic::vector::{LANES, Vector};
use std::arch::aarch64::*;

/// Two times four floats.
#[derive(Clone, Copy)]
pub(super) struct F32x8([float32x4_t; 2]);

impl F32x8 {
    #[inline(always)]
    pub(super) fn new(v: [float32x4_t; 2]) -> Self {
        F32x8(v)
    }
}

/// Wraps intrinsics of NEON.
macro_rules! neon {
    ($e:expr) => {
        // SAFETY: every aarch64 machine has NEON; loads and stores go through references to whole arrays.
        unsafe { $e }
    };
}

/// The same operation on both halves.
macro_rules! halves {
    ($op:ident, $($v:expr),+) => {
        F32x8(neon!([$op($($v.0[0]),+), $op($($v.0[1]),+)]))
    };
}

impl Vector for F32x8 {
    #[inline(always)]
    fn splat(v: f32) -> Self {
        F32x8(neon!([vdupq_n_f32(v); 2]))
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        F32x8(neon!([vld1q_f32(from.as_ptr()), vld1q_f32(from[4..].as_ptr())]))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        neon!({
            vst1q_f32(to.as_mut_ptr(), self.0[0]);
            vst1q_f32(to[4..].as_mut_ptr(), self.0[1]);
        });
    }
    #[inline(always)]
    fn load_f32(from: &[u8; 4 * LANES]) -> Self {
        let bytes = neon!([vld1q_u8(from.as_ptr()), vld1q_u8(from[16..].as_ptr())]);
        F32x8(neon!([vreinterpretq_f32_u8(bytes[0]), vreinterpretq_f32_u8(bytes[1])]))
    }
    /// Without the half-precision type, which is not stable in Rust: exponent and mantissa move to their places and a
    /// multiplication by 2^112 corrects the exponent, for subnormal numbers too; infinity and NaN are the largest
    /// exponent.
    #[inline(always)]
    fn load_f16(from: &[u8; 2 * LANES]) -> Self {
        let half = neon!(vreinterpretq_u16_u8(vld1q_u8(from.as_ptr())));
        let wide = neon!([vmovl_u16(vget_low_u16(half)), vmovl_u16(vget_high_u16(half))]);
        let mut out = Self::zero();
        for (out, h) in out.0.iter_mut().zip(wide) {
            *out = neon!({
                let sign = vshlq_n_u32::<16>(vandq_u32(h, vdupq_n_u32(0x8000)));
                let rest = vshlq_n_u32::<13>(vandq_u32(h, vdupq_n_u32(0x7fff)));
                let scaled = vmulq_f32(vreinterpretq_f32_u32(rest), vdupq_n_f32(f32::from_bits(0x7780_0000)));
                let top = vcgeq_u32(rest, vdupq_n_u32(0x0f80_0000));
                let top = vandq_u32(top, vdupq_n_u32(0x7f80_0000));
                vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(vreinterpretq_u32_f32(scaled), top), sign))
            });
        }
        out
    }
    #[inline(always)]
    fn splat_f16(bits: [u8; 2]) -> Self {
        Self::splat(onebit_quant::float::f16_to_f32(u16::from_le_bytes(bits)))
    }
    #[inline(always)]
    fn store_f32(self, to: &mut [u8; 4 * LANES]) {
        neon!({
            vst1q_u8(to.as_mut_ptr(), vreinterpretq_u8_f32(self.0[0]));
            vst1q_u8(to[16..].as_mut_ptr(), vreinterpretq_u8_f32(self.0[1]));
        });
    }
    /// Value by value: the narrowing instruction gives the half-precision type, which is not stable in Rust.
    #[inline(always)]
    fn store_f16(self, to: &mut [u8; 2 * LANES]) {
        let mut values = [0.0; LANES];
        self.store(&mut values);
        for (to, v) in to.as_chunks_mut::<2>().0.iter_mut().zip(values) {
            *to = onebit_quant::float::f32_to_f16(v).to_le_bytes();
        }
    }
    #[inline(always)]
    fn load_bf16(from: &[u8; 2 * LANES]) -> Self {
        let half = neon!(vreinterpretq_u16_u8(vld1q_u8(from.as_ptr())));
        F32x8(neon!([
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(half))),
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(half))),
        ]))
    }
    #[inline(always)]
    fn load_i8(from: &[u8; LANES]) -> Self {
        let wide = neon!(vmovl_s8(vreinterpret_s8_u8(vld1_u8(from.as_ptr()))));
        F32x8(neon!([vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide))),]))
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        halves!(vaddq_f32, self, o)
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        halves!(vsubq_f32, self, o)
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        halves!(vmulq_f32, self, o)
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        halves!(vdivq_f32, self, o)
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        halves!(vfmaq_f32, b, self, a)
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        // `o` where either is NaN: the instruction itself would return NaN.
        let less = halves_mask(self, o);
        select(less, self, o)
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        let greater = halves_mask(o, self);
        select(greater, self, o)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        halves!(vabsq_f32, self)
    }
    #[inline(always)]
    fn round(self) -> Self {
        halves!(vrndnq_f32, self)
    }
    #[inline(always)]
    fn exp2_integer(self) -> Self {
        let mut out = Self::zero();
        for (out, v) in out.0.iter_mut().zip(self.0) {
            *out = neon!({
                let biased = vaddq_s32(vcvtq_s32_f32(v), vdupq_n_s32(127));
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
            });
        }
        out
    }
    #[inline(always)]
    fn to_i16(self) -> [i16; LANES] {
        // The conversion makes zero of NaN.
        let wide = neon!([vmovn_s32(vcvtq_s32_f32(self.0[0])), vmovn_s32(vcvtq_s32_f32(self.0[1]))]);
        let mut out = [0; LANES];
        neon!(vst1q_s16(out.as_mut_ptr(), vcombine_s16(wide[0], wide[1])));
        out
    }
}

/// Where `a < b`.
#[inline(always)]
fn halves_mask(a: F32x8, b: F32x8) -> [uint32x4_t; 2] {
    neon!([vcltq_f32(a.0[0], b.0[0]), vcltq_f32(a.0[1], b.0[1])])
}

#[inline(always)]
fn select(mask: [uint32x4_t; 2], yes: F32x8, no: F32x8) -> F32x8 {
    F32x8(neon!([vbslq_f32(mask[0], yes.0[0], no.0[0]), vbslq_f32(mask[1], yes.0[1], no.0[1])]))
}
