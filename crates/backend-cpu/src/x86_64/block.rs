//! 4-bit and 8-bit weights against integer activations: pairs of columns, sums in 32 bits.
//!
//! The loop is compiled once for each instruction that adds the products of pairs: `vpmaddwd` and an addition, or
//! `vpdpwssd`, which does both. The latter has two encodings for the same 256-bit operation, AVX-VNNI's (VEX) on recent
//! laptops and AVX-512 VNNI's (EVEX); a machine with either one tests the loop of both.
//!
//! Against many rows codes are widened once for all rows, where that was measured to pay: on AVX2, whose sixteen registers do
//! not hold the sums beside the widening, and in 512 bits (`avx512::blocks`).

use super::avx2::F32x8;
use crate::generic::packed::{IntRows, QUARTERS, add_int_sparse, finish_group, params};
use crate::generic::vector::Vector;
use crate::layout::{BLOCK, Codes, GROUP, Layout, Segment};
use std::arch::x86_64::*;
use std::ops::Range;

macro_rules! block_kernels {
    ($(#[$doc:meta])* $name:ident, $features:literal, $dot:ident, $widened:literal) => {
        $(#[$doc])*
        pub(super) mod $name {
            use super::*;

            /// Whether widening a record once for many rows was measured to pay.
            const WIDENED: bool = $widened;

            /// The sums of a range of blocks, as `Kernels::int_blocks`.
            #[target_feature(enable = $features)]
            pub(in crate::x86_64) fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
                acc.fill(0.0);
                let mut tile = [[_mm256_setzero_si256(); QUARTERS]; MOST_PAIRS];
                for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
                    for g in 0..segment.layout.groups() {
                        if WIDENED && x.rows >= MANY {
                            tiled_group(segment, (b, g), x, &mut tile, acc);
                            continue;
                        }
                        let mut m = 0;
                        while m < x.rows {
                            let count = if m + 2 <= x.rows { 2 } else { 1 };
                            match (segment.layout.codes, count) {
                                (Codes::Block4, 2) => group::<true, 2>(segment, (b, g), x, m, acc),
                                (Codes::Block4, _) => group::<true, 1>(segment, (b, g), x, m, acc),
                                (_, 2) => group::<false, 2>(segment, (b, g), x, m, acc),
                                _ => group::<false, 1>(segment, (b, g), x, m, acc),
                            }
                            m += count;
                        }
                    }
                    for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
                        add_int_sparse(segment, b, x, m, acc);
                    }
                }
            }

            /// One record against all activation rows: codes are widened once for all of them.
            #[inline]
            #[target_feature(enable = $features)]
            fn tiled_group(
                segment: &Segment,
                (b, g): (usize, usize),
                x: &IntRows<'_>,
                tile: &mut [[__m256i; QUARTERS]; MOST_PAIRS],
                acc: &mut [f32],
            ) {
                let layout = &segment.layout;
                let record = segment.record(b, g);
                let params = params::<F32x8>(layout, record);
                let tile = &mut tile[..layout.group / 2];
                let center = widen(layout.codes, &record[..layout.code_bytes()], tile);
                let mut m = 0;
                while m + 2 <= x.rows {
                    tiled_rows::<2>(layout, (tile, center), &params, (x, m, g), acc);
                    m += 2;
                }
                if m < x.rows {
                    tiled_rows::<1>(layout, (tile, center), &params, (x, m, g), acc);
                }
            }

            /// One widened record against `M` activation rows. Eight sums, a vector of weights, a product and two pairs fit into
            /// sixteen registers.
            #[inline]
            #[target_feature(enable = $features)]
            fn tiled_rows<const M: usize>(
                layout: &Layout,
                (tile, center): (&[[__m256i; QUARTERS]], i32),
                params: &([F32x8; QUARTERS], Option<[F32x8; QUARTERS]>),
                (x, first, g): (&IntRows<'_>, usize, usize),
                acc: &mut [f32],
            ) {
                let (mut values, mut sums) = ([&[][..]; M], [[_mm256_setzero_si256(); QUARTERS]; M]);
                for m in 0..M {
                    values[m] = x.values[(first + m) * layout.cols + g * layout.group..][..layout.group].as_chunks::<2>().0;
                    sums[m] = [_mm256_set1_epi32(-center * x.sum(layout, first + m, g).total); QUARTERS];
                }
                for (i, weights) in tile.iter().enumerate() {
                    let mut pairs = [_mm256_setzero_si256(); M];
                    for (pair, values) in pairs.iter_mut().zip(values) {
                        let [a, b] = values[i];
                        *pair = _mm256_set1_epi32(i32::from(a as u16) | (i32::from(b) << 16));
                    }
                    for (v, weights) in weights.iter().enumerate() {
                        for (sums, pair) in sums.iter_mut().zip(pairs) {
                            sums[v] = $dot(sums[v], *weights, pair);
                        }
                    }
                }
                for (m, sums) in sums.into_iter().enumerate() {
                    let mut dots = [F32x8::zero(); QUARTERS];
                    for (dot, sum) in dots.iter_mut().zip(sums) {
                        *dot = F32x8::new(_mm256_cvtepi32_ps(sum));
                    }
                    let row = first + m;
                    finish_group(layout, x, (row, g), (dots, 1.0), params, &mut acc[row * BLOCK..(row + 1) * BLOCK]);
                }
            }

            /// One record against `M` activation rows.
            #[inline]
            #[target_feature(enable = $features)]
            fn group<const NIBBLES: bool, const M: usize>(
                segment: &Segment,
                (b, g): (usize, usize),
                x: &IntRows<'_>,
                first: usize,
                acc: &mut [f32],
            ) {
                let layout = &segment.layout;
                let record = segment.record(b, g);
                // Codes of four bits are summed as they are; their center is 8.
                let (columns, center) = if NIBBLES { (4, 8) } else { (2, 0) };
                let (mut values, mut sums) = ([&[][..]; M], [[_mm256_setzero_si256(); QUARTERS]; M]);
                for m in 0..M {
                    values[m] = &x.values[(first + m) * layout.cols + g * layout.group..][..layout.group];
                    sums[m] = [_mm256_set1_epi32(-center * x.sum(layout, first + m, g).total); QUARTERS];
                }
                for (i, bytes) in record[..layout.code_bytes()].as_chunks::<{ 2 * BLOCK }>().0.iter().enumerate() {
                    let mut pairs = [[_mm256_setzero_si256(); 2]; M];
                    for (pairs, values) in pairs.iter_mut().zip(values) {
                        for (pair, values) in pairs.iter_mut().zip(values[i * columns..(i + 1) * columns].as_chunks::<2>().0) {
                            *pair = _mm256_set1_epi32(i32::from(values[0] as u16) | (i32::from(values[1]) << 16));
                        }
                    }
                    for (v, bytes) in bytes.as_chunks::<16>().0.iter().enumerate() {
                        // SAFETY: 16 bytes.
                        let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
                        if NIBBLES {
                            let wide = _mm256_cvtepu8_epi16(bytes);
                            let (low, high) = (_mm256_and_si256(wide, _mm256_set1_epi16(15)), _mm256_srli_epi16::<4>(wide));
                            for (sums, pairs) in sums.iter_mut().zip(&pairs) {
                                sums[v] = $dot($dot(sums[v], low, pairs[0]), high, pairs[1]);
                            }
                        } else {
                            let wide = _mm256_cvtepi8_epi16(bytes);
                            for (sums, pairs) in sums.iter_mut().zip(&pairs) {
                                sums[v] = $dot(sums[v], wide, pairs[0]);
                            }
                        }
                    }
                }
                let params = params::<F32x8>(layout, record);
                for (m, sums) in sums.into_iter().enumerate() {
                    let mut dots = [F32x8::zero(); QUARTERS];
                    for (dot, sum) in dots.iter_mut().zip(sums) {
                        *dot = F32x8::new(_mm256_cvtepi32_ps(sum));
                    }
                    let row = first + m;
                    finish_group(layout, x, (row, g), (dots, 1.0), &params, &mut acc[row * BLOCK..(row + 1) * BLOCK]);
                }
            }
        }
    };
}

/// Most pairs of columns of a record.
pub(super) const MOST_PAIRS: usize = GROUP / 2;

/// Activation rows from which on widening a record once pays for writing it.
const MANY: usize = 8;

/// Widens the codes of a record, a pair of columns after the other; returns what is to be taken from each.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn widen(codes: Codes, bytes: &[u8], tile: &mut [[__m256i; QUARTERS]]) -> i32 {
    let vectors = bytes.as_chunks::<{ 2 * BLOCK }>().0;
    // SAFETY: 16 bytes.
    let load = |bytes: &[u8; 16]| unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    if codes == Codes::Block4 {
        for (bytes, pairs) in vectors.iter().zip(tile.as_chunks_mut::<2>().0) {
            for (v, bytes) in bytes.as_chunks::<16>().0.iter().enumerate() {
                let wide = _mm256_cvtepu8_epi16(load(bytes));
                pairs[0][v] = _mm256_and_si256(wide, _mm256_set1_epi16(15));
                pairs[1][v] = _mm256_srli_epi16::<4>(wide);
            }
        }
        return 8;
    }
    for (bytes, pair) in vectors.iter().zip(tile) {
        for (v, bytes) in bytes.as_chunks::<16>().0.iter().enumerate() {
            pair[v] = _mm256_cvtepi8_epi16(load(bytes));
        }
    }
    0
}

/// `sums + a b` over pairs.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply_add(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(sums, _mm256_madd_epi16(a, b))
}

block_kernels!(
    /// AVX2.
    plain, "avx2,fma,f16c", multiply_add, true
);
block_kernels!(
    /// AVX-VNNI.
    vex, "avx2,fma,f16c,avxvnni", _mm256_dpwssd_avx_epi32, false
);
block_kernels!(
    /// AVX-512 VNNI with VL.
    evex, "avx2,fma,f16c,avx512f,avx512vl,avx512vnni", _mm256_dpwssd_epi32, false
);
