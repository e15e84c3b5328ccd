//! Three stages, each a record or a part of one behind the one before: a record becomes bytes, tiles multiply them, their
//! sums become floats and are added up.
//!
//! The stages are mixed piece by piece. Tiles are busy for long with few instructions, and the processor looks only so
//! many instructions ahead for something else to do. Loops are plain: a closure would be compiled without the caller's
//! target features.

use super::activations::{BYTES, COLUMNS, SHIFT};
use super::tiles::{ROW, Sums, Tile, Tiles};
use super::weights::{Bytes, Expand};
use crate::generic::packed::{IntRows, MAX_ROWS};
use crate::layout::{BLOCK, Layout};
use crate::x86_64::avx512::bits::lanes;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Most activation rows of a tile.
const TALL: usize = 16;

/// Activation rows as tiles of one height; the last begins early enough to end with the last row.
#[derive(Clone, Copy)]
struct Heights {
    rows: usize,
    tiles: usize,
    height: usize,
}

impl Heights {
    fn new(rows: usize) -> Self {
        let height = rows.div_ceil(rows.div_ceil(TALL));
        Heights { rows, tiles: rows.div_ceil(height), height }
    }

    /// First row of tile `t`.
    #[inline(always)]
    fn start(self, t: usize) -> usize {
        (t * self.height).min(self.rows - self.height)
    }
}

/// What a group multiplies the sums of an activation row by.
#[derive(Clone, Copy)]
struct Factors {
    /// Of the values.
    value: f32,
    /// Sum of the integers, and what the bias is multiplied by; only where biases are kept.
    total: f32,
    bias: f32,
}

impl Factors {
    const ZERO: Factors = Factors { value: 0.0, total: 0.0, bias: 0.0 };

    fn take(factors: &mut [Factors; MAX_ROWS], layout: &Layout, x: &IntRows<'_>, g: usize) {
        for (m, f) in factors[..x.rows].iter_mut().enumerate() {
            let scale = x.scale(layout, m, g);
            f.value = scale * layout.factor;
            if layout.bias.is_some() {
                f.total = x.sum(layout, m, g).total as f32;
                f.bias = scale * f.total;
            }
        }
    }
}

/// A record on its way.
#[derive(Clone, Copy)]
struct Job<'a> {
    record: &'a [u8],
    group: usize,
    /// First of the block's results.
    results: usize,
    /// Which of two places its bytes have.
    place: usize,
    /// Next of its units of 16 columns that becomes bytes.
    unit: usize,
}

/// The sums of one or two tiles of activations, on their way to the results.
struct Part {
    /// The activation rows that remain.
    row: usize,
    end: usize,
    /// From a row to its place among the sums.
    skip: usize,
    /// Results of row 0.
    results: usize,
    factors: usize,
    /// Stored scales, and biases where they are kept.
    stored: [__m512; 2],
    bias: [__m512; 2],
    /// What the shift of the activations has added.
    shift: [__m512i; 2],
}

/// The three stages, for one segment and the rows of a tile of activations.
pub(super) struct Line<'a, E, const AFFINE: bool> {
    layout: &'a Layout,
    x: &'a IntRows<'a>,
    heights: Heights,
    /// Whether activations have two bytes.
    both: bool,
    tiles: Tiles,
    bytes: [Bytes; 2],
    expanded: Option<Job<'a>>,
    /// Of 16 weight rows, and of the next 16: tiles of activations behind one another.
    sums: [[Sums; 2 * TALL]; 2],
    multiplied: Part,
    /// Of the last two groups that were multiplied, and which of them is the latest.
    factors: [[Factors; MAX_ROWS]; 2],
    latest: usize,
    group: usize,
    /// Units and rows that are taken at a time while tiles multiply.
    units: usize,
    rows: usize,
    codes: PhantomData<E>,
}

impl<'a, E: Expand, const AFFINE: bool> Line<'a, E, AFFINE> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
    pub(super) fn new(layout: &'a Layout, x: &'a IntRows<'a>) -> Self {
        let (heights, both) = (Heights::new(x.rows), x.limit > SHIFT.into());
        let steps = layout.group.div_ceil(COLUMNS) * (1 + usize::from(both));
        let zero = _mm512_setzero_ps();
        let shift = [_mm512_setzero_si512(); 2];
        Line {
            layout,
            x,
            heights,
            both,
            // SAFETY: whoever holds this tier has a proof; a tile has at most 16 rows, and groups are multiples of 32.
            // Tasks of a thread follow one another.
            tiles: unsafe { Tiles::new(heights.height, layout.group.min(COLUMNS)) },
            bytes: [Bytes::ZERO; 2],
            expanded: None,
            sums: [[[0; 16]; 2 * TALL]; 2],
            multiplied: Part {
                row: 0,
                end: 0,
                skip: 0,
                results: 0,
                factors: 0,
                stored: [zero; 2],
                bias: [zero; 2],
                shift,
            },
            factors: [[Factors::ZERO; MAX_ROWS]; 2],
            latest: 0,
            group: usize::MAX,
            units: (layout.group / 16).div_ceil(steps * heights.tiles.div_ceil(2)),
            rows: (heights.height * heights.tiles.min(2)).div_ceil(steps),
            codes: PhantomData,
        }
    }

    /// Takes a record in; the one before is multiplied.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
    pub(super) fn push(&mut self, record: &'a [u8], group: usize, results: usize, acc: &mut [f32]) {
        let mut next = Job { record, group, results, place: 0, unit: 0 };
        if let Some(job) = self.expanded {
            next.place = 1 - job.place;
            self.multiply(job, &mut next, acc);
        }
        self.expand(&mut next, usize::MAX);
        self.expanded = Some(next);
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
    pub(super) fn drain(mut self, acc: &mut [f32]) {
        if let Some(job) = self.expanded.take() {
            self.multiply(job, &mut Job { unit: usize::MAX, ..job }, acc);
        }
        self.add_up(usize::MAX, acc);
    }

    /// Makes bytes of some units of a record.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
    fn expand(&mut self, job: &mut Job<'a>, units: usize) {
        let end = job.unit.saturating_add(units).min(self.layout.group / 16);
        while job.unit < end {
            let codes = &job.record[job.unit * E::UNIT..(job.unit + 1) * E::UNIT];
            // SAFETY: this function is compiled for what the caller has a proof of.
            unsafe { E::expand(codes, self.bytes[job.place].columns(job.unit)) };
            job.unit += 1;
        }
    }

    /// Multiplies a record by all activation rows, while the next one is expanded and the sums before are added up.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
    fn multiply(&mut self, job: Job<'a>, next: &mut Job<'a>, acc: &mut [f32]) {
        let (layout, Heights { rows, tiles, height }) = (self.layout, self.heights);
        if self.group != job.group {
            (self.group, self.latest) = (job.group, 1 - self.latest);
            Factors::take(&mut self.factors[self.latest], layout, self.x, job.group);
        }
        let stored = lanes(layout.scale, &job.record[layout.code_bytes()..]);
        let bias = match layout.bias {
            Some(kind) if AFFINE => lanes(kind, &job.record[layout.bias_start()..]),
            _ => stored,
        };
        // SAFETY: this function is compiled for what the caller has a proof of.
        let [low, high] = unsafe { E::sums(&job.record[..layout.code_bytes()], &self.bytes[job.place]) };
        for tile in (0..tiles).step_by(2) {
            let first = tile * height;
            if tile + 1 < tiles {
                self.pair::<2>(job, tile, next, acc)
            } else {
                self.pair::<1>(job, tile, next, acc)
            }
            self.multiplied = Part {
                row: first,
                end: (first + 2 * height).min(rows),
                skip: self.heights.start(tile),
                results: job.results,
                factors: self.latest,
                stored,
                bias,
                shift: [times_shift(low), times_shift(high)],
            };
        }
    }

    /// `T` tiles of activations.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
    fn pair<const T: usize>(&mut self, job: Job<'a>, tile: usize, next: &mut Job<'a>, acc: &mut [f32]) {
        let (column, unit) = (job.group * self.layout.group, self.x.rows * BYTES);
        let depth = self.layout.group.div_ceil(COLUMNS);
        let units = &self.x.tables[column / COLUMNS * unit..][..depth * unit];
        let start = self.heights.start(tile);
        // The second tile's rows from those of the first.
        let apart = self.heights.start(tile + T - 1) - start;
        assert!(start + apart + self.heights.height <= self.x.rows, "tiles have rows of the product");
        let mut at = Place {
            activations: units[start * BYTES + column % COLUMNS..].as_ptr(),
            apart: apart * BYTES,
            weights: self.bytes[job.place].0.as_ptr().cast(),
        };
        // SAFETY: `T` tiles of rows with `depth` units each, and as many pairs of tiles of weights.
        unsafe {
            self.tiles.load::<6>(at.weights.cast(), ROW);
            self.tiles.load::<4>(at.activations, BYTES);
            self.tiles.load::<7>(at.weights.add(1).cast(), ROW);
            if T == 2 {
                self.tiles.load::<5>(at.activations.add(at.apart), BYTES);
            }
            self.tiles.clear();
            for k in 1..=depth {
                if self.both {
                    let signed = Place { activations: at.activations.add(COLUMNS), ..at };
                    self.step::<T, false, true, false>(signed);
                    self.beside(next, acc);
                }
                at =
                    Place { activations: at.activations.wrapping_add(unit), weights: at.weights.wrapping_add(2), ..at };
                match (self.both, k < depth) {
                    (false, false) => self.step::<T, false, false, false>(at),
                    (false, true) => self.step::<T, false, true, true>(at),
                    (true, false) => self.step::<T, true, false, false>(at),
                    (true, true) => self.step::<T, true, true, true>(at),
                }
                self.beside(next, acc);
            }
        }
        let [low, high] = &mut self.sums;
        self.tiles.store::<0>(rows_of(low, 0));
        self.tiles.store::<1>(rows_of(high, 0));
        if T == 2 {
            self.tiles.store::<2>(rows_of(low, apart));
            self.tiles.store::<3>(rows_of(high, apart));
        }
    }

    /// One product of all pairs of tiles, of signed activations or unsigned ones. A register is loaded for the next step
    /// right behind its last use here, `ACTIVATIONS` and `WEIGHTS`: behind the work of the other stages the processor would
    /// not see in time that it can.
    ///
    /// # Safety
    /// What is loaded must be there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
    unsafe fn step<const T: usize, const SIGNED: bool, const ACTIVATIONS: bool, const WEIGHTS: bool>(
        &mut self,
        next: Place,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.tiles.multiply::<0, 4, 6, SIGNED>();
            self.tiles.multiply::<1, 4, 7, SIGNED>();
            if ACTIVATIONS {
                self.tiles.load::<4>(next.activations, BYTES);
            }
            if T == 2 {
                self.tiles.multiply::<2, 5, 6, SIGNED>();
            }
            if WEIGHTS {
                self.tiles.load::<6>(next.weights.cast(), ROW);
            }
            if T == 2 {
                self.tiles.multiply::<3, 5, 7, SIGNED>();
            }
            if T == 2 && ACTIVATIONS {
                self.tiles.load::<5>(next.activations.add(next.apart), BYTES);
            }
            if WEIGHTS {
                self.tiles.load::<7>(next.weights.add(1).cast(), ROW);
            }
        }
    }

    /// Some work of the other stages.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
    fn beside(&mut self, next: &mut Job<'a>, acc: &mut [f32]) {
        self.expand(next, self.units);
        self.add_up(self.rows, acc);
    }

    /// Adds some rows of sums to the results.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
    fn add_up(&mut self, rows: usize, acc: &mut [f32]) {
        let part = &mut self.multiplied;
        let rows = part.row..part.row.saturating_add(rows).min(part.end);
        part.row = rows.end;
        let [low, high] = &self.sums;
        let sums =
            [&low[rows.start - part.skip..rows.end - part.skip], &high[rows.start - part.skip..rows.end - part.skip]];
        let factors = &self.factors[part.factors][rows.clone()];
        let acc = &mut acc[part.results + rows.start * BLOCK..part.results + rows.end * BLOCK];
        add_rows::<AFFINE>(self.layout, part, sums, factors, acc);
    }
}

/// Where a step reads.
#[derive(Clone, Copy)]
struct Place {
    /// The first tile of activations.
    activations: *const u8,
    /// Bytes from there to the second.
    apart: usize,
    /// Two tiles of weights.
    weights: *const Tile,
}

/// The rows of a tile from `first` on.
#[inline(always)]
fn rows_of(sums: &mut [Sums; 2 * TALL], first: usize) -> &mut [Sums; TALL] {
    sums[first..].first_chunk_mut().expect("tiles begin at most 16 rows apart")
}

/// As `generic::packed::finish_group`, with the same roundings.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bitalg,gfni,avx2,fma,f16c")]
fn add_rows<const AFFINE: bool>(
    layout: &Layout,
    part: &Part,
    sums: [&[Sums]; 2],
    factors: &[Factors],
    acc: &mut [f32],
) {
    let rows = sums[0].iter().zip(sums[1]).zip(factors).zip(acc.as_chunks_mut::<BLOCK>().0);
    for (((low, high), f), acc) in rows {
        let value = _mm512_set1_ps(f.value);
        let (first, second) = acc.split_at_mut(16);
        for (v, sums, acc) in [(0, low, first), (1, high, second)] {
            // SAFETY: 16 integers and 16 floats.
            unsafe {
                let sums = _mm512_sub_epi32(_mm512_loadu_si512(sums.as_ptr().cast()), part.shift[v]);
                let (dots, scale) = (_mm512_cvtepi32_ps(sums), _mm512_mul_ps(part.stored[v], value));
                let before = _mm512_loadu_ps(acc.as_ptr());
                let sum = if AFFINE {
                    let total = _mm512_set1_ps(f.total * (layout.center / layout.factor));
                    let sum = _mm512_fmadd_ps(_mm512_add_ps(dots, total), scale, before);
                    _mm512_fmadd_ps(part.bias[v], _mm512_set1_ps(f.bias), sum)
                } else {
                    _mm512_fmadd_ps(dots, scale, before)
                };
                _mm512_storeu_ps(acc.as_mut_ptr(), sum);
            }
        }
    }
}

/// `127 x`.
#[inline]
#[target_feature(enable = "avx512f")]
fn times_shift(x: __m512i) -> __m512i {
    const { assert!(SHIFT == 127) };
    _mm512_sub_epi32(_mm512_slli_epi32::<7>(x), x)
}
