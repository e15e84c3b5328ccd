//! Dense weights against rows of floats, in registers of 512 bits: twice as many products an operation as of 256 where a
//! processor has units as wide. A row's sum is the same chain for each output, and so has the same bits.

use crate::generic::packed::{FloatRows, float_blocks as narrow};
use crate::generic::unpack;
use crate::layout::{BLOCK, Codes, GROUP, Segment};
use crate::x86_64::avx2::F32x8;
use std::arch::x86_64::*;
use std::ops::Range;

/// Outputs of a vector.
const WIDTH: usize = 16;
/// Vectors of a block.
const HALVES: usize = BLOCK / WIDTH;

/// The sums of a range of blocks, as `Kernels::float_blocks`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
pub(in crate::x86_64) fn float_blocks(segment: &Segment, blocks: Range<usize>, x: &FloatRows<'_>, acc: &mut [f32]) {
    let layout = &segment.layout;
    let Codes::Dense(kind) = layout.codes else {
        return narrow::<F32x8>(segment, blocks, x, acc);
    };
    let (mut tile, mut copy) = ([[0.0f32; BLOCK]; GROUP], Vec::new());
    // Dense weights have no residuals to add.
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        acc.fill(0.0);
        for g in 0..layout.groups() {
            let record = segment.gathered(b, g, &mut copy);
            let columns = layout.columns(g);
            unpack::dense::<F32x8>(kind, record, &mut tile[..columns.len()]);
            let mut rest = columns.clone();
            while !rest.is_empty() {
                let part = x.place.together(&rest);
                let tile = &tile[part.start - columns.start..part.end - columns.start];
                for line in 0..x.rows / x.place.rows {
                    let (acc, start) = (&mut acc[line * x.place.rows * BLOCK..], x.place.start(line, part.start));
                    let mut m = 0;
                    while m < x.place.rows {
                        let (values, acc) = (&x.values[start + m * x.place.step..], &mut acc[m * BLOCK..]);
                        m += match x.place.rows - m {
                            1 => rows::<1>(tile, values, x.place.step, acc),
                            2 => rows::<2>(tile, values, x.place.step, acc),
                            3 => rows::<3>(tile, values, x.place.step, acc),
                            4..8 => rows::<4>(tile, values, x.place.step, acc),
                            // Twice eight are better than twelve and four.
                            8..12 | 16 => rows::<8>(tile, values, x.place.step, acc),
                            _ => rows::<12>(tile, values, x.place.step, acc),
                        };
                    }
                }
                rest.start = part.end;
            }
        }
    }
}

/// Adds unpacked columns, `[column][output]`, to the results of `M` activation rows, which lie `step` apart; returns M. Twelve
/// rows with two vectors each leave room in 32 registers for what the sums are made of.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
fn rows<const M: usize>(tile: &[[f32; BLOCK]], x: &[f32], step: usize, acc: &mut [f32]) -> usize {
    let mut values = [&[][..]; M];
    for (m, row) in values.iter_mut().enumerate() {
        *row = &x[m * step..][..tile.len()];
    }
    let load = |from: &[f32; WIDTH]| {
        // SAFETY: sixteen floats.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    };
    let mut sums = [[_mm512_setzero_ps(); HALVES]; M];
    for (k, column) in tile.iter().enumerate() {
        let column = column.as_chunks::<WIDTH>().0;
        let weights = [load(&column[0]), load(&column[1])];
        for (sums, row) in sums.iter_mut().zip(values) {
            let x = _mm512_set1_ps(row[k]);
            for (sum, w) in sums.iter_mut().zip(weights) {
                *sum = _mm512_fmadd_ps(w, x, *sum);
            }
        }
    }
    for (sums, acc) in sums.iter().zip(acc.chunks_exact_mut(BLOCK)) {
        for (sum, acc) in sums.iter().zip(acc.as_chunks_mut::<WIDTH>().0) {
            let added = _mm512_add_ps(*sum, load(acc));
            // SAFETY: sixteen floats.
            unsafe { _mm512_storeu_ps(acc.as_mut_ptr(), added) };
        }
    }
    M
}
