//! 1-bit and 2-bit weights against integer activations, by table lookup.
//!
//! Two registers hold one byte of each of 32 rows: eight weights a row, two patterns of four bits. `tbl` looks both up
//! in the tables of their quads (see [`super::tables`]). Eight lookups add up in bytes, then widening multiply-adds
//! join low and high bytes into 16 bits. With `A = sum |x|` and U the looked-up sum of a group,
//! `sum (2 bit - 1) x = 2 U - A`, at most 255 * 128 = 32,640 in magnitude, so nothing is rounded until a group is done.
//!
//! Two bits are two planes of single bits over the same tables. Their sums meet in 32 bits, since code 3 reaches
//! beyond 16.

use super::tables;
use super::vector::F32x8;
use crate::generic::packed::{GroupSum, IntRows, QUARTERS, add_int_sparse, finish_group, params};
use crate::generic::vector::Vector;
use crate::layout::{BLOCK, Codes, Segment};
use std::arch::aarch64::*;
use std::ops::Range;

/// Columns whose lookups add up in bytes: eight quads.
const STRETCH: usize = 32;

/// 16-bit sums of 32 rows.
type Sums = [int16x8_t; QUARTERS];

/// The sums of a range of blocks, as `Kernels::int_blocks`.
pub(super) fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    acc.fill(0.0);
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        for g in 0..segment.layout.groups() {
            group(segment, (b, g), x, acc);
        }
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_int_sparse(segment, b, x, m, acc);
        }
    }
}

/// Adds one record, which stays in the first-level cache for all activation rows.
fn group(segment: &Segment, (b, g): (usize, usize), x: &IntRows<'_>, acc: &mut [f32]) {
    let layout = &segment.layout;
    let record = segment.record(b, g);
    let codes = &record[..layout.code_bytes()];
    let params = params::<F32x8>(layout, record);
    for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
        let start = (m * layout.cols + g * layout.group) / 4 * tables::BYTES;
        let quads = &x.tables[start..start + layout.group / 4 * tables::BYTES];
        let GroupSum { total, magnitude } = x.sum(layout, m, g);
        let dots = if layout.codes == Codes::Bits1 {
            floats(look_up::<2>(codes, BLOCK, quads, -magnitude as i16))
        } else {
            // Tables hold sums less the negative activations, of which there are (A - T) / 2 in all; and in
            // sum (low + 2 high - 1) x the low plane takes the subtraction.
            let negative = (magnitude - total) / 2;
            let low = look_up::<1>(codes, 2 * BLOCK, quads, (-negative - total) as i16);
            let high = look_up::<1>(&codes[BLOCK..], 2 * BLOCK, quads, -negative as i16);
            joined(low, high)
        };
        finish_group(layout, x, (m, g), (dots, 1.0), &params, acc);
    }
}

/// Looks up one group of a stream of bits: 32 bytes for each eight columns, `stride` bytes apart. Sums begin at
/// `start`; low bytes count `LOW` times, high bytes `32 * LOW` times.
fn look_up<const LOW: u8>(stream: &[u8], stride: usize, quads: &[u8], start: i16) -> Sums {
    // SAFETY: every aarch64 machine has NEON; loads and stores go through references to whole arrays.
    unsafe {
        let (one, thirty_two) = (vdup_n_u8(LOW), vdup_n_u8(32 * LOW));
        let mut sums = [vreinterpretq_u16_s16(vdupq_n_s16(start)); QUARTERS];
        for (i, quads) in quads.as_chunks::<{ STRETCH / 4 * tables::BYTES }>().0.iter().enumerate() {
            let mut low = [vdupq_n_u8(0); 2];
            let mut high = [vdupq_n_u8(0); 2];
            for (j, pair) in quads.as_chunks::<{ 2 * tables::BYTES }>().0.iter().enumerate() {
                let bytes = &stream[(i * STRETCH / 8 + j) * stride..][..BLOCK];
                let [l0, h0, l1, h1] = [0, 16, 32, 48].map(|at| vld1q_u8(pair[at..at + 16].as_ptr()));
                for half in 0..2 {
                    let bits = vld1q_u8(bytes[16 * half..16 * half + 16].as_ptr());
                    let (first, second) = (vandq_u8(bits, vdupq_n_u8(15)), vshrq_n_u8::<4>(bits));
                    low[half] = vaddq_u8(low[half], vaddq_u8(vqtbl1q_u8(l0, first), vqtbl1q_u8(l1, second)));
                    high[half] = vaddq_u8(high[half], vaddq_u8(vqtbl1q_u8(h0, first), vqtbl1q_u8(h1, second)));
                }
            }
            for half in 0..2 {
                let (l, h) = (low[half], high[half]);
                let sum = vmlal_u8(sums[2 * half], vget_low_u8(l), one);
                sums[2 * half] = vmlal_u8(sum, vget_low_u8(h), thirty_two);
                let sum = vmlal_u8(sums[2 * half + 1], vget_high_u8(l), one);
                sums[2 * half + 1] = vmlal_u8(sum, vget_high_u8(h), thirty_two);
            }
        }
        sums.map(|s| vreinterpretq_s16_u16(s))
    }
}

fn floats(sums: Sums) -> [F32x8; QUARTERS] {
    // SAFETY: every aarch64 machine has NEON.
    sums.map(|s| unsafe {
        F32x8::new([vcvtq_f32_s32(vmovl_s16(vget_low_s16(s))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(s)))])
    })
}

/// `low + 2 high`.
fn joined(low: Sums, high: Sums) -> [F32x8; QUARTERS] {
    let mut dots = [F32x8::zero(); QUARTERS];
    for (dot, (l, h)) in dots.iter_mut().zip(low.into_iter().zip(high)) {
        // SAFETY: every aarch64 machine has NEON.
        *dot = unsafe {
            let first = vaddq_s32(vmovl_s16(vget_low_s16(l)), vshll_n_s16::<1>(vget_low_s16(h)));
            let second = vaddq_s32(vmovl_s16(vget_high_s16(l)), vshll_n_s16::<1>(vget_high_s16(h)));
            F32x8::new([vcvtq_f32_s32(first), vcvtq_f32_s32(second)])
        };
    }
    dots
}
