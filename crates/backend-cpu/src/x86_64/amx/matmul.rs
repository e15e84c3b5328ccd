//! The product: records of a few blocks in turn, each against all activation rows.
//!
//! While tiles multiply one pair, the sums of the pair before become floats and are added up: the processor does both at
//! once, since neither waits for the other.

use super::activations::{BYTES, COLUMNS, SHIFT};
use super::tiles::{Sums, Tiles};
use super::weights::Bytes;
use crate::generic::packed::{IntRows, MAX_ROWS, add_int_sparse};
use crate::layout::{BLOCK, Layout, Segment};
use crate::x86_64::avx512::bits::lanes;
use std::arch::x86_64::*;
use std::ops::Range;

/// Fewest activation rows: tables are faster for fewer.
pub(in crate::x86_64) const FEWEST: usize = 3;

/// Most activation rows of a tile.
const TALL: usize = 16;

/// Most blocks that are read side by side, and the bytes of their results that stay in the first-level cache.
const SET: usize = 8;
const RESULT_CACHE: usize = 16 * 1024;

/// Bytes of activations that stay in the second-level cache while blocks pass by.
const ACTIVATION_CACHE: usize = 768 * 1024;

/// Records between one that is expanded and one that is fetched meanwhile.
const AHEAD: usize = 2;

/// The sums of a range of blocks, as `Kernels::int_blocks`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,gfni,avx2,fma,f16c")]
pub(in crate::x86_64) fn int_blocks(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    acc.fill(0.0);
    let both = x.limit > SHIFT.into();
    match (both, segment.layout.bias.is_some()) {
        (false, false) => multiply::<false, false>(segment, blocks.clone(), x, acc),
        (false, true) => multiply::<false, true>(segment, blocks.clone(), x, acc),
        (true, false) => multiply::<true, false>(segment, blocks.clone(), x, acc),
        (true, true) => multiply::<true, true>(segment, blocks.clone(), x, acc),
    }
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_int_sparse(segment, b, x, m, acc);
        }
    }
}

/// Activation rows as tiles of one height; the last begins early enough to end with the last row.
#[derive(Clone, Copy)]
struct Heights {
    rows: usize,
    height: usize,
}

impl Heights {
    fn new(rows: usize) -> Self {
        Heights { rows, height: rows.div_ceil(rows.div_ceil(TALL)) }
    }

    /// Tiles, if rows are cut into some.
    fn count(self) -> usize {
        self.rows.div_ceil(self.height)
    }

    /// First row of tile `t`.
    fn start(self, t: usize) -> usize {
        (t * self.height).min(self.rows - self.height)
    }

    /// The rows that no tile before has.
    fn fresh(self, t: usize) -> Range<usize> {
        t * self.height..((t + 1) * self.height).min(self.rows)
    }
}

/// What a group multiplies the sums of each activation row by.
struct Factors {
    /// Of the values.
    value: [f32; MAX_ROWS],
    /// Of the biases; only where they are kept.
    total: [f32; MAX_ROWS],
    x: [f32; MAX_ROWS],
}

impl Factors {
    const NONE: Factors = Factors { value: [0.0; MAX_ROWS], total: [0.0; MAX_ROWS], x: [0.0; MAX_ROWS] };

    #[inline]
    fn take<const AFFINE: bool>(&mut self, layout: &Layout, x: &IntRows<'_>, g: usize) {
        for m in 0..x.rows {
            self.x[m] = x.scale(layout, m, g);
            self.value[m] = self.x[m] * layout.factor;
            if AFFINE {
                self.total[m] = x.sum(layout, m, g).total as f32;
            }
        }
    }
}

/// Sums that wait to be added up.
#[derive(Clone, Copy)]
struct Pending<'a> {
    record: &'a [u8],
    /// Of the two factors in use.
    factors: usize,
    /// First of the block's results.
    results: usize,
    /// The first tile of activations.
    tile: usize,
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,gfni,avx2,fma,f16c")]
fn multiply<const BOTH: bool, const AFFINE: bool>(
    segment: &Segment,
    blocks: Range<usize>,
    x: &IntRows<'_>,
    acc: &mut [f32],
) {
    let layout = &segment.layout;
    let (stride, heights) = (x.rows * BLOCK, Heights::new(x.rows));
    let (block_bytes, record_bytes) = (layout.block_bytes(), layout.record_bytes());
    let set = (RESULT_CACHE / (stride * size_of::<f32>())).clamp(1, SET);
    let chunk = (ACTIVATION_CACHE / (x.rows * BYTES * layout.group.div_ceil(COLUMNS))).max(1);
    let (mut bytes, mut sums) = (Bytes::new(), [[[[0; 16]; 16]; 2]; 2]);
    let mut factors = [Factors::NONE; 2];
    let mut pending: Option<Pending<'_>> = None;
    // SAFETY: whoever holds this tier has a proof; a tile has at most 16 rows, and groups are multiples of 32. Tasks of a
    // thread follow one another.
    let mut tiles = unsafe { Tiles::new(heights.height, layout.group.min(COLUMNS)) };
    for first in (0..layout.groups()).step_by(chunk) {
        let groups = first..(first + chunk).min(layout.groups());
        for start in blocks.clone().step_by(set) {
            let end = (start + set).min(blocks.end);
            for g in groups.clone() {
                factors[g % 2].take::<AFFINE>(layout, x, g);
                // The last groups fetch the first ones of the next blocks.
                let wrap = if g + AHEAD < groups.end { 0 } else { set * block_bytes - groups.len() * record_bytes };
                let ahead = AHEAD * record_bytes + wrap;
                for b in start..end {
                    let record = segment.record(b, g);
                    bytes.expand(layout, record, ahead);
                    for tile in (0..heights.count()).step_by(2) {
                        let starts = [heights.start(tile), heights.start((tile + 1).min(heights.count() - 1))];
                        if tile + 1 < heights.count() {
                            pair::<2, BOTH>(&mut tiles, layout, x, g, (starts, heights.height), &bytes);
                        } else {
                            pair::<1, BOTH>(&mut tiles, layout, x, g, (starts, heights.height), &bytes);
                        }
                        let now = Pending { record, factors: g % 2, results: (b - blocks.start) * stride, tile };
                        if let Some(before) = pending.replace(now) {
                            add_up::<AFFINE>(layout, heights, &before, &factors[before.factors], &sums, acc);
                        }
                        if tile + 1 < heights.count() { tiles.end::<2>(&mut sums) } else { tiles.end::<1>(&mut sums) }
                    }
                }
            }
        }
    }
    if let Some(before) = pending {
        add_up::<AFFINE>(layout, heights, &before, &factors[before.factors], &sums, acc);
    }
}

/// Multiplies one or two tiles of activations.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,gfni,avx2,fma,f16c")]
fn pair<const T: usize, const BOTH: bool>(
    tiles: &mut Tiles,
    layout: &Layout,
    x: &IntRows<'_>,
    g: usize,
    (starts, height): ([usize; 2], usize),
    weights: &Bytes,
) {
    tiles.begin::<T>(&weights.before);
    for k in 0..layout.group.div_ceil(COLUMNS) {
        let column = g * layout.group + k * COLUMNS;
        let mut rows = [std::ptr::null(); 2];
        for (row, start) in rows.iter_mut().zip(starts) {
            let unit = (column / COLUMNS * x.rows + start) * BYTES;
            *row = x.tables[unit..unit + height * BYTES][column % COLUMNS..].as_ptr();
        }
        let [first, second] = &weights.tiles[k];
        // SAFETY: `height` rows of whole units begin there.
        unsafe { tiles.multiply::<T, BOTH>(rows, BYTES, [first, second]) };
    }
}

/// Adds a group's sums of one block and up to two tiles of activations: as `generic::packed::finish_group`, with the same
/// roundings.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,gfni,avx2,fma,f16c")]
fn add_up<const AFFINE: bool>(
    layout: &Layout,
    heights: Heights,
    pending: &Pending<'_>,
    factors: &Factors,
    sums: &[[Sums; 2]; 2],
    acc: &mut [f32],
) {
    let stored = lanes(layout.scale, &pending.record[layout.code_bytes()..]);
    let bias = match layout.bias {
        Some(kind) if AFFINE => lanes(kind, &pending.record[layout.bias_start()..]),
        _ => stored,
    };
    for (t, sums) in (pending.tile..heights.count()).zip(sums) {
        let (start, fresh) = (heights.start(t), heights.fresh(t));
        let acc = &mut acc[pending.results + fresh.start * BLOCK..pending.results + fresh.end * BLOCK];
        for (m, acc) in fresh.zip(acc.as_chunks_mut::<BLOCK>().0) {
            let value = _mm512_set1_ps(factors.value[m]);
            for (v, acc) in acc.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                // SAFETY: 16 integers and 16 floats.
                unsafe {
                    let dots = _mm512_cvtepi32_ps(_mm512_loadu_si512(sums[v][m - start].as_ptr().cast()));
                    let scale = _mm512_mul_ps(stored[v], value);
                    let before = _mm512_loadu_ps(acc.as_ptr());
                    let sum = if AFFINE {
                        let shift = _mm512_set1_ps(factors.total[m] * (layout.center / layout.factor));
                        let sum = _mm512_fmadd_ps(_mm512_add_ps(dots, shift), scale, before);
                        _mm512_fmadd_ps(bias[v], _mm512_set1_ps(factors.x[m] * factors.total[m]), sum)
                    } else {
                        _mm512_fmadd_ps(dots, scale, before)
                    };
                    _mm512_storeu_ps(acc.as_mut_ptr(), sum);
                }
            }
        }
    }
}
