//! Blocks of 4 and 8 bits against three activation rows and more: products of bytes, four columns in each lane.
//!
//! `vpdpbusd` multiplies unsigned bytes by signed ones, and a nine-bit activation is neither. Its magnitude is an unsigned
//! byte, and its sign goes to the weight: where it is negative all bits of the weight are turned, which makes -w - 1 of w, so
//!
//! ```text
//! sum x w = sum |x| (w ^ sign(x)) + sum of |x| where x < 0
//! ```
//!
//! and what comes last is known from the group's sums. An exclusive or and one product are half of what two products of pairs
//! of 16 bits are: other units of a core do the former.
//!
//! ```text
//! activations   [unit of 64 columns][row][4 columns][4 magnitudes, 4 signs]
//! ```
//!
//! A stretch of columns whose activations stay in the second-level cache meets all blocks before the next one. Groups are added
//! in the order and with the roundings of [`finish_group`](crate::generic::packed::finish_group).

use crate::generic::packed::{IntRows, MAX_ROWS, add_int_sparse, params};
use crate::generic::{Many, Operand};
use crate::layout::{BLOCK, Codes, GROUP, LINE, Layout, Segment};
use crate::x86_64::avx2::F32x8;
use crate::x86_64::block;
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns of a unit, and bytes of one row of it.
const COLUMNS: usize = 64;
const BYTES: usize = 2 * COLUMNS;

/// Four columns of one row of activations: magnitudes, then signs.
type Quad = [u8; 8];
/// Quads of a unit.
const QUADS: usize = COLUMNS / 4;

/// Columns of a stretch, of 64 rows 128 KB.
const STRETCH: usize = 1024;

/// Most groups of a stretch: of 32 columns.
const GROUPS: usize = STRETCH / 32;

/// Records between one that is multiplied and one that is fetched meanwhile: with few rows, memory takes as long as that.
const AHEAD: usize = 8;

/// Fewest activation rows for which that was measured to be faster than products of pairs.
const FEWEST: usize = 3;

/// Activation rows of a tile.
const TILE: usize = 8;

/// Weights of 16 rows in 4 columns, and of the next 16.
type Weights = [__m512i; 2];

pub(in crate::x86_64) const MANY: Many = Many {
    fewest: |codes| match codes {
        Codes::Block4 | Codes::Block8 => FEWEST,
        // Bits are looked up for any number of rows.
        _ => usize::MAX,
    },
    operand: Operand {
        bytes: BYTES * 4 / COLUMNS,
        unit: Some(COLUMNS),
        // SAFETY: whoever holds the table of kernels has a proof that the machine has these features.
        build: |values, unit| unsafe { build(values, unit) },
    },
};

/// One unit of one row. A shorter one, at a row's end, leaves the remaining bytes as they are: nothing reads them.
#[target_feature(enable = "avx512f,avx512bw")]
fn build(values: &[i16], unit: &mut [u8]) {
    for (values, quad) in values.as_chunks::<4>().0.iter().zip(unit.as_chunks_mut::<8>().0) {
        for (i, v) in values.iter().enumerate() {
            quad[i] = v.unsigned_abs() as u8;
            quad[4 + i] = (v >> 15) as u8;
        }
    }
}

/// What a group of one activation row takes part with beside its columns.
#[derive(Clone, Copy, Default)]
struct Numbers {
    /// Magnitudes of what is below zero.
    below: i32,
    /// Scale of the values.
    scale: f32,
    /// What makes sums of codes of sums of values, and the scaled sum of the row: for biases.
    shift: f32,
    sum: f32,
}

impl Numbers {
    fn of(layout: &Layout, x: &IntRows<'_>, m: usize, g: usize) -> Self {
        let (scale, sum) = (x.scale(layout, m, g), x.sum(layout, m, g));
        let total = sum.total as f32;
        Numbers {
            below: (sum.magnitude - sum.total) / 2,
            scale: scale * layout.factor,
            shift: total * (layout.center / layout.factor),
            sum: scale * total,
        }
    }
}

/// One record for all activation rows.
struct Record<'a> {
    /// Of each four columns.
    weights: &'a [Weights],
    /// The first quad of a row.
    first: usize,
    scale: [__m512; 2],
    bias: Option<[__m512; 2]>,
}

/// The sums of a range of blocks, as `Kernels::int_blocks`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(in crate::x86_64) fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    if !x.many {
        return block::evex::int_blocks(segment, blocks, x, acc);
    }
    acc.fill(0.0);
    let layout = &segment.layout;
    let quads = x.tables.as_chunks().0.as_chunks::<QUADS>().0;
    let mut numbers = [[Numbers::default(); MAX_ROWS]; GROUPS];
    let mut weights = [[_mm512_setzero_si512(); 2]; GROUP / 4];
    let (groups, block_bytes, record_bytes) = (STRETCH / layout.group, layout.block_bytes(), layout.record_bytes());
    for stretch in (0..layout.groups()).step_by(groups) {
        let stretch = stretch..layout.groups().min(stretch + groups);
        for (g, numbers) in stretch.clone().zip(&mut numbers) {
            for (m, numbers) in numbers.iter_mut().enumerate().take(x.rows) {
                *numbers = Numbers::of(layout, x, m, g);
            }
        }
        for (b, acc) in blocks.clone().zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
            for (g, numbers) in stretch.clone().zip(&numbers) {
                let record = segment.record(b, g);
                // The last groups fetch the first ones of the next block.
                let wrap = if g + AHEAD < stretch.end { 0 } else { block_bytes - stretch.len() * record_bytes };
                let next = AHEAD * record_bytes + wrap;
                for line in record.as_chunks::<LINE>().0 {
                    _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(next).cast());
                }
                let weights = &mut weights[..layout.group / 4];
                widen(layout.codes, &record[..layout.code_bytes()], weights);
                let (scale, bias) = params::<F32x8>(layout, record);
                let mut both = None;
                if let Some(bias) = bias {
                    both = Some(join(bias));
                }
                let record = Record { weights, first: g * layout.group / 4, scale: join(scale), bias: both };
                let mut m = 0;
                while m < x.rows {
                    m += match x.rows - m {
                        1 => rows::<1>(&record, quads, (x.rows, m), numbers, acc),
                        2..4 => rows::<2>(&record, quads, (x.rows, m), numbers, acc),
                        4..TILE => rows::<4>(&record, quads, (x.rows, m), numbers, acc),
                        _ => rows::<TILE>(&record, quads, (x.rows, m), numbers, acc),
                    };
                }
            }
        }
    }
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_int_sparse(segment, b, x, m, acc);
        }
    }
}

/// Four vectors as two.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f")]
fn join(quarters: [F32x8; 4]) -> [__m512; 2] {
    let [a, b, c, d] = quarters.map(F32x8::bits);
    [[a, b], [c, d]].map(|[low, high]| {
        let low = _mm512_castps_pd(_mm512_castps256_ps512(low));
        _mm512_castpd_ps(_mm512_insertf64x4::<1>(low, _mm256_castps_pd(high)))
    })
}

/// The values (code - center) of a record.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn widen(codes: Codes, bytes: &[u8], weights: &mut [Weights]) {
    let lines = bytes.as_chunks::<LINE>().0;
    // SAFETY: 64 bytes.
    let load = |line: &[u8; LINE]| unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
    if codes == Codes::Block4 {
        let (low, center) = (_mm512_set1_epi8(15), _mm512_set1_epi8(8));
        for (line, weights) in lines.iter().zip(weights) {
            let line = load(line);
            let (first, second) = (_mm512_and_si512(line, low), _mm512_and_si512(_mm512_srli_epi16::<4>(line), low));
            *weights = pairs(_mm512_sub_epi8(first, center), _mm512_sub_epi8(second, center));
        }
    } else {
        for (lines, weights) in lines.as_chunks::<2>().0.iter().zip(weights) {
            *weights = pairs(load(&lines[0]), load(&lines[1]));
        }
    }
}

/// Two columns of 32 rows and the next two, as four columns of 16 rows and of the next 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn pairs(first: __m512i, second: __m512i) -> Weights {
    let (low, high) = (_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second));
    [
        _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high),
        _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high),
    ]
}

/// One record against `M` activation rows from `first` on; returns M.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
fn rows<const M: usize>(
    record: &Record<'_>,
    quads: &[[Quad; QUADS]],
    (count, first): (usize, usize),
    numbers: &[Numbers; MAX_ROWS],
    acc: &mut [f32],
) -> usize {
    let numbers = &numbers[first..first + M];
    let mut sums = [[_mm512_setzero_si512(); 2]; M];
    for (sums, numbers) in sums.iter_mut().zip(numbers) {
        *sums = [_mm512_set1_epi32(numbers.below); 2];
    }
    let (mut at, mut rest) = (record.first, record.weights);
    while !rest.is_empty() {
        let (unit, inside) = (at / QUADS, at % QUADS);
        let weights;
        (weights, rest) = rest.split_at(rest.len().min(QUADS - inside));
        at += weights.len();
        let unit = &quads[unit * count + first..].as_chunks::<M>().0[0];
        for (i, weights) in weights.iter().enumerate() {
            for (sums, row) in sums.iter_mut().zip(unit) {
                let [a, b, c, d, signs @ ..] = row[inside + i];
                let (magnitudes, signs) = (i32::from_le_bytes([a, b, c, d]), i32::from_le_bytes(signs));
                let (magnitudes, signs) = (_mm512_set1_epi32(magnitudes), _mm512_set1_epi32(signs));
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    *sum = _mm512_dpbusd_epi32(*sum, magnitudes, _mm512_xor_si512(*weights, signs));
                }
            }
        }
    }
    for ((sums, numbers), acc) in sums.iter().zip(numbers).zip(acc[first * BLOCK..].as_chunks_mut::<BLOCK>().0) {
        for (i, acc) in acc.as_chunks_mut::<{ BLOCK / 2 }>().0.iter_mut().enumerate() {
            let mut dots = _mm512_cvtepi32_ps(sums[i]);
            if record.bias.is_some() {
                dots = _mm512_add_ps(dots, _mm512_set1_ps(numbers.shift));
            }
            let scale = _mm512_mul_ps(record.scale[i], _mm512_set1_ps(numbers.scale));
            // SAFETY: sixteen floats.
            let mut sum = _mm512_fmadd_ps(dots, scale, unsafe { _mm512_loadu_ps(acc.as_ptr()) });
            if let Some(bias) = &record.bias {
                sum = _mm512_fmadd_ps(bias[i], _mm512_set1_ps(numbers.sum), sum);
            }
            // SAFETY: sixteen floats.
            unsafe { _mm512_storeu_ps(acc.as_mut_ptr(), sum) };
        }
    }
    M
}
