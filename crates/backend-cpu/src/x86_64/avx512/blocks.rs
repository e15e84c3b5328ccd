//! Blocks of 4 and 8 bits against many activation rows: codes are widened once for all of them, and sixteen sums of 512 bits
//! take them, a pair of columns at a time.

use crate::generic::packed::{IntRows, QUARTERS, add_int_sparse, finish_group, params};
use crate::generic::vector::Vector;
use crate::layout::{BLOCK, Layout, Segment};
use crate::x86_64::avx2::F32x8;
use crate::x86_64::block::{self, MOST_PAIRS, widen};
use std::arch::x86_64::*;
use std::ops::Range;

/// Activation rows of a tile.
const TILE: usize = 8;

/// The sums of a range of blocks, as `Kernels::int_blocks`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in crate::x86_64) fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    if x.rows < TILE {
        return block::evex::int_blocks(segment, blocks, x, acc);
    }
    acc.fill(0.0);
    let layout = &segment.layout;
    let mut tile = [[_mm256_setzero_si256(); QUARTERS]; MOST_PAIRS];
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        for g in 0..layout.groups() {
            let record = segment.record(b, g);
            let params = params::<F32x8>(layout, record);
            let tile = &mut tile[..layout.group / 2];
            let center = widen(layout.codes, &record[..layout.code_bytes()], tile);
            let mut m = 0;
            while m < x.rows {
                let rest = x.rows - m;
                m += match rest {
                    1 => rows::<1>(layout, (tile, center), &params, (x, m, g), acc),
                    2..4 => rows::<2>(layout, (tile, center), &params, (x, m, g), acc),
                    4..TILE => rows::<4>(layout, (tile, center), &params, (x, m, g), acc),
                    _ => rows::<TILE>(layout, (tile, center), &params, (x, m, g), acc),
                };
            }
        }
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_int_sparse(segment, b, x, m, acc);
        }
    }
}

/// One widened record against `M` activation rows; returns M.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn rows<const M: usize>(
    layout: &Layout,
    (tile, center): (&[[__m256i; QUARTERS]], i32),
    params: &([F32x8; QUARTERS], Option<[F32x8; QUARTERS]>),
    (x, first, g): (&IntRows<'_>, usize, usize),
    acc: &mut [f32],
) -> usize {
    let (mut values, mut sums) = ([&[][..]; M], [[_mm512_setzero_si512(); 2]; M]);
    for m in 0..M {
        let row = &x.values[(first + m) * layout.cols + g * layout.group..][..layout.group];
        values[m] = &row.as_chunks::<2>().0[..tile.len()];
        sums[m] = [_mm512_set1_epi32(-center * x.sum(layout, first + m, g).total); 2];
    }
    for (i, weights) in tile.iter().enumerate() {
        // SAFETY: 64 of the 128 bytes of four vectors, from the first and from the third on.
        let weights = [0, 2].map(|quarter| unsafe { _mm512_loadu_si512((&raw const weights[quarter]).cast()) });
        for (sums, values) in sums.iter_mut().zip(&values) {
            let [a, b] = values[i];
            let pair = _mm512_set1_epi32(i32::from(a as u16) | (i32::from(b) << 16));
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = _mm512_dpwssd_epi32(*sum, weights, pair);
            }
        }
    }
    for (m, sums) in sums.into_iter().enumerate() {
        let mut dots = [F32x8::zero(); QUARTERS];
        for (dots, sum) in dots.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
            let halves = [_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum)];
            *dots = halves.map(|half| F32x8::new(_mm256_cvtepi32_ps(half)));
        }
        let row = first + m;
        finish_group(layout, x, (row, g), (dots, 1.0), params, &mut acc[row * BLOCK..(row + 1) * BLOCK]);
    }
    M
}
