//! 4-bit and 8-bit weights against integer activations: widening multiply-adds, sums in 32 bits.

use super::vector::F32x8;
use crate::generic::packed::{IntRows, QUARTERS, add_int_sparse, finish_group, params};
use crate::generic::vector::Vector;
use crate::layout::{BLOCK, Codes, Segment};
use std::arch::aarch64::*;
use std::ops::Range;

/// The sums of a range of blocks, as `Kernels::int_blocks`.
pub(super) fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    acc.fill(0.0);
    let layout = &segment.layout;
    let nibbles = layout.codes == Codes::Block4;
    // Codes of four bits are summed as they are; their center is 8.
    let (columns, center) = if nibbles { (4, 8) } else { (2, 0) };
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        for g in 0..layout.groups() {
            let record = segment.record(b, g);
            let params = params::<F32x8>(layout, record);
            for m in 0..x.rows {
                let values = &x.values[m * layout.cols + g * layout.group..][..layout.group];
                // SAFETY: every aarch64 machine has NEON.
                let mut sums = [[unsafe { vdupq_n_s32(-center * x.sum(layout, m, g).total) }; 2]; QUARTERS];
                let records = record[..layout.code_bytes()].as_chunks::<{ 2 * BLOCK }>().0;
                for (bytes, values) in records.iter().zip(values.chunks_exact(columns)) {
                    for half in 0..2 {
                        let sums = &mut sums[2 * half..2 * half + 2];
                        // SAFETY: 32 bytes begin there; every aarch64 machine has NEON.
                        unsafe {
                            let pair = vld2q_u8(bytes[BLOCK * half..BLOCK * (half + 1)].as_ptr());
                            for (j, bytes) in [pair.0, pair.1].into_iter().enumerate() {
                                if nibbles {
                                    add(sums, vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))), values[j]);
                                    add(sums, vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes)), values[2 + j]);
                                } else {
                                    add(sums, vreinterpretq_s8_u8(bytes), values[j]);
                                }
                            }
                        }
                    }
                }
                let mut dots = [F32x8::zero(); QUARTERS];
                for (dot, sums) in dots.iter_mut().zip(sums) {
                    // SAFETY: every aarch64 machine has NEON.
                    *dot = unsafe { F32x8::new([vcvtq_f32_s32(sums[0]), vcvtq_f32_s32(sums[1])]) };
                }
                finish_group(layout, x, (m, g), (dots, 1.0), &params, &mut acc[m * BLOCK..(m + 1) * BLOCK]);
            }
        }
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_int_sparse(segment, b, x, m, acc);
        }
    }
}

/// Adds the products of 16 codes and one value.
#[inline]
fn add(sums: &mut [[int32x4_t; 2]], codes: int8x16_t, value: i16) {
    // SAFETY: every aarch64 machine has NEON.
    unsafe {
        for (sums, wide) in sums.iter_mut().zip([vmovl_s8(vget_low_s8(codes)), vmovl_s8(vget_high_s8(codes))]) {
            sums[0] = vmlal_n_s16(sums[0], vget_low_s16(wide), value);
            sums[1] = vmlal_n_s16(sums[1], vget_high_s16(wide), value);
        }
    }
}
