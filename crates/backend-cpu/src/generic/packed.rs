//! Matrix products over resident layouts, a block of 32 rows at a time.
//!
//! A symmetric group adds `scale * sum(value * x)`, one with a kept bias `scale * sum(code * x) + bias * sum(x)`;
//! groups are added in ascending order. With integer activations the sums are exact integers and the group's result is
//! multiplied by the activation scale.

use super::unpack;
use super::vector::{LANES, Vector};
use crate::layout::{BLOCK, Codes, GROUP, Lanes, Layout, Segment};
use crate::memory::Plain;
use std::ops::Range;

/// Vectors of a block.
pub(crate) const QUARTERS: usize = BLOCK / LANES;

/// Most activation rows of a tile.
pub(crate) const MAX_ROWS: usize = 64;

/// Sums of integer activations over 32 columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct GroupSum {
    pub total: i32,
    /// Of absolute values.
    pub magnitude: i32,
}

// SAFETY: two integers without padding.
unsafe impl Plain for GroupSum {}

/// Float activations of a tile.
pub(crate) struct FloatRows<'a> {
    pub rows: usize,
    pub values: &'a [f32],
    pub place: Place,
    /// `[row][ceil(cols / 32)]`; dense weights need none.
    pub sums: &'a [f32],
}

/// Where the columns of float activations lie. Pixels that a convolution sees share what they have in common.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Rows of a line, of which there are whole ones only.
    pub rows: usize,
    /// How far apart rows of a line begin, and how far apart lines do.
    pub step: usize,
    pub line: usize,
    /// Columns that lie together: the next ones lie in the next line.
    pub run: usize,
}

impl Place {
    /// One row after another.
    pub(crate) fn rows(rows: usize, cols: usize) -> Self {
        Place { rows, step: cols, line: rows * cols, run: cols }
    }

    /// Where a column of the first row of a line lies.
    #[inline(always)]
    pub(crate) fn start(&self, line: usize, column: usize) -> usize {
        (line + column / self.run) * self.line + column % self.run
    }

    /// The columns from the first of these on that lie together.
    #[inline(always)]
    pub(crate) fn together(&self, columns: &Range<usize>) -> Range<usize> {
        columns.start..columns.end.min((columns.start / self.run + 1) * self.run)
    }
}

/// Integer activations of a tile.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only tiles of bytes ask for the limit and the bytes")
)]
pub(crate) struct IntRows<'a> {
    pub rows: usize,
    /// `[row][cols]`.
    pub values: &'a [i16],
    /// `[row][ceil(cols / 128)]`.
    pub scales: &'a [f32],
    /// `[row][ceil(cols / 32)]`.
    pub sums: &'a [GroupSum],
    /// The largest that a value can be.
    pub limit: i16,
    /// What [`Kernels::operand`](super::Kernels::operand) says for so many rows.
    pub tables: &'a [u8],
    /// Whether that is for many rows.
    pub many: bool,
}

impl IntRows<'_> {
    /// Scale of the activations in weight group `g` of row `m`.
    #[inline(always)]
    pub(crate) fn scale(&self, layout: &Layout, m: usize, g: usize) -> f32 {
        self.scales[m * layout.cols.div_ceil(GROUP) + g * layout.group / GROUP]
    }

    /// Sums of weight group `g` of row `m`.
    #[inline(always)]
    pub(crate) fn sum(&self, layout: &Layout, m: usize, g: usize) -> GroupSum {
        let start = m * layout.cols.div_ceil(32) + g * layout.group / 32;
        let mut sum = GroupSum::default();
        for s in &self.sums[start..start + layout.group / 32] {
            sum.total += s.total;
            sum.magnitude += s.magnitude;
        }
        sum
    }
}

impl FloatRows<'_> {
    /// Sum of group `g` of row `m`.
    #[inline(always)]
    fn sum(&self, layout: &Layout, m: usize, g: usize) -> f32 {
        let row = &self.sums[m * layout.cols.div_ceil(32)..][..layout.cols.div_ceil(32)];
        let start = g * layout.group / 32;
        row[start..(start + layout.group / 32).min(row.len())].iter().sum()
    }
}

/// Stored scale and bias of the rows of one record.
#[inline(always)]
pub(crate) fn params<V: Vector>(layout: &Layout, record: &[u8]) -> ([V; QUARTERS], Option<[V; QUARTERS]>) {
    let stored = unpack::lanes::<V>(layout.scale, &record[layout.code_bytes()..]);
    let mut bias = None;
    if let Some(kind) = layout.bias {
        bias = Some(unpack::lanes::<V>(kind, &record[layout.bias_start()..]));
    }
    (stored, bias)
}

/// Adds the sparse residuals of a block to the sums of row `m`, whose groups sum to `x_sum`.
#[inline(always)]
pub(crate) fn add_sparse(segment: &Segment, b: usize, acc: &mut [f32], x_sum: impl Fn(usize) -> f32) {
    for residual in segment.sparse_of(b) {
        acc[residual.row % BLOCK] += residual.value * x_sum(residual.group);
    }
}

#[inline(always)]
pub(crate) fn float_blocks<V: Vector>(segment: &Segment, blocks: Range<usize>, x: &FloatRows<'_>, acc: &mut [f32]) {
    let layout = &segment.layout;
    let mut tile = [[0.0f32; BLOCK]; GROUP];
    let (mut codes, mut copy) = ([[0i8; BLOCK]; GROUP], Vec::new());
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        acc.fill(0.0);
        for g in 0..layout.groups() {
            let record = segment.gathered(b, g, &mut copy);
            let columns = layout.columns(g);
            let tile = &mut tile[..columns.len()];
            let (scale, bias) = if let Codes::Dense(kind) = layout.codes {
                unpack::dense::<V>(kind, record, tile);
                ([V::splat(1.0); QUARTERS], None)
            } else {
                let codes = &mut codes[..columns.len()];
                unpack::values(layout, record, codes);
                let (mut stored, bias) = params::<V>(layout, record);
                // Beside a kept bias, values are turned back into codes: see `finish_group`.
                let (step, center) = if bias.is_some() { (layout.factor, layout.center) } else { (1.0, 0.0) };
                for (to, from) in tile.iter_mut().zip(codes) {
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = f32::from(*from) * step + center;
                    }
                }
                for s in &mut stored {
                    *s = s.mul(V::splat(layout.factor / step));
                }
                (stored, bias)
            };
            let mut rest = columns.clone();
            while !rest.is_empty() {
                let part = x.place.together(&rest);
                let tile = &tile[part.start - columns.start..part.end - columns.start];
                let group = FloatGroup { layout, g, tile, scale, bias };
                for line in 0..x.rows / x.place.rows {
                    let (first, start) = (line * x.place.rows, x.place.start(line, part.start));
                    let mut m = 0;
                    while m < x.place.rows {
                        let (at, rows) = ((first + m, start + m * x.place.step), &mut acc[(first + m) * BLOCK..]);
                        m += match x.place.rows - m {
                            1 => group.add::<1, QUARTERS>(x, at, rows),
                            2 => group.add::<2, QUARTERS>(x, at, rows),
                            3..6 => group.add::<3, QUARTERS>(x, at, rows),
                            _ => group.add::<6, 2>(x, at, rows),
                        };
                    }
                }
                rest.start = part.end;
            }
        }
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_sparse(segment, b, acc, |g| x.sum(layout, m, g));
        }
    }
}

/// An unpacked record, or those of its columns that lie together.
struct FloatGroup<'a, V> {
    layout: &'a Layout,
    g: usize,
    /// `[column][row of the block]`.
    tile: &'a [Lanes<f32>],
    scale: [V; QUARTERS],
    bias: Option<[V; QUARTERS]>,
}

impl<V: Vector> FloatGroup<'_, V> {
    /// Adds the group to the results of `M` activation rows, of which the first has its columns at `start`, `Q` vectors of
    /// the block at a time; returns M. Twelve sums leave
    /// room in sixteen registers for what they are made of: two vectors of weights and one value, of which six rows make
    /// better use than three rows with four vectors. A row's sum is one chain whatever M and Q are.
    #[inline(always)]
    fn add<const M: usize, const Q: usize>(
        &self,
        x: &FloatRows<'_>,
        (first, start): (usize, usize),
        acc: &mut [f32],
    ) -> usize {
        let mut rows = [&[][..]; M];
        for (m, row) in rows.iter_mut().enumerate() {
            *row = &x.values[start + m * x.place.step..][..self.tile.len()];
        }
        for part in (0..QUARTERS).step_by(Q) {
            let mut dots = [[V::zero(); Q]; M];
            for (k, column) in self.tile.iter().enumerate() {
                let column = &column.as_chunks::<LANES>().0[part..part + Q];
                for (dots, row) in dots.iter_mut().zip(rows) {
                    let x = V::splat(row[k]);
                    for (dot, w) in dots.iter_mut().zip(column) {
                        *dot = V::load(w).mul_add(x, *dot);
                    }
                }
            }
            for (m, (dots, acc)) in dots.iter().zip(acc.chunks_exact_mut(BLOCK)).enumerate() {
                let x_sum = V::splat(if self.bias.is_some() { x.sum(self.layout, first + m, self.g) } else { 0.0 });
                let acc = &mut acc.as_chunks_mut::<LANES>().0[part..part + Q];
                for (i, (dot, acc)) in dots.iter().zip(acc).enumerate() {
                    let mut sum = dot.mul_add(self.scale[part + i], V::load(acc));
                    if let Some(bias) = &self.bias {
                        sum = bias[part + i].mul_add(x_sum, sum);
                    }
                    sum.store(acc);
                }
            }
        }
        M
    }
}

/// The portable integer form: codes are unpacked inside the tile, whatever the layout.
#[inline(always)]
pub(crate) fn int_blocks<V: Vector>(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]) {
    let layout = &segment.layout;
    let mut codes = [[0i8; BLOCK]; GROUP];
    for (b, acc) in blocks.zip(acc.chunks_exact_mut(x.rows * BLOCK)) {
        acc.fill(0.0);
        for g in 0..layout.groups() {
            let record = segment.record(b, g);
            let codes = &mut codes[..layout.group];
            unpack::values(layout, record, codes);
            let params = params::<V>(layout, record);
            for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
                let values = &x.values[m * layout.cols + g * layout.group..][..layout.group];
                let mut sums = [0i32; BLOCK];
                for (column, q) in codes.iter().zip(values) {
                    for (s, c) in sums.iter_mut().zip(column) {
                        *s += i32::from(*c) * i32::from(*q);
                    }
                }
                let sums = sums.map(|s| s as f32);
                let dots = std::array::from_fn(|i| V::load(&sums.as_chunks::<LANES>().0[i]));
                finish_group(layout, x, (m, g), (dots, 1.0), &params, acc);
            }
        }
        for (m, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
            add_int_sparse(segment, b, x, m, acc);
        }
    }
}

/// Adds the sparse residuals of a block to the results of row `m`.
#[inline(always)]
pub(crate) fn add_int_sparse(segment: &Segment, b: usize, x: &IntRows<'_>, m: usize, acc: &mut [f32]) {
    let layout = &segment.layout;
    add_sparse(segment, b, acc, |g| x.scale(layout, m, g) * x.sum(layout, m, g).total as f32);
}

/// Adds one group of integer sums of values to the results of row `m`; the sums come `unit` times too large, a power
/// of two.
///
/// Where a bias is kept, sums of values become sums of codes first, in whole numbers below 2^24: around another center
/// than that of the bias the two products would cancel.
#[inline(always)]
pub(crate) fn finish_group<V: Vector>(
    layout: &Layout,
    x: &IntRows<'_>,
    (m, g): (usize, usize),
    (dots, unit): ([V; QUARTERS], f32),
    (stored, bias): &([V; QUARTERS], Option<[V; QUARTERS]>),
    acc: &mut [f32],
) {
    let x_scale = x.scale(layout, m, g);
    let value_scale = x_scale * (layout.factor / unit);
    let Some(bias) = bias else {
        add_group(dots, stored, value_scale, acc);
        return;
    };
    let value_scale = V::splat(value_scale);
    let total = x.sum(layout, m, g).total as f32;
    let (shift, x_sum) = (V::splat(total * (layout.center / layout.factor * unit)), V::splat(x_scale * total));
    let acc = acc.as_chunks_mut::<LANES>().0;
    for i in 0..QUARTERS {
        let sum = dots[i].add(shift).mul_add(stored[i].mul(value_scale), V::load(&acc[i]));
        bias[i].mul_add(x_sum, sum).store(&mut acc[i]);
    }
}

/// Adds one symmetric group of integer sums to the results of a row: [`finish_group`] without a bias.
#[inline(always)]
pub(crate) fn add_group<V: Vector>(dots: [V; QUARTERS], stored: &[V; QUARTERS], value_scale: f32, acc: &mut [f32]) {
    let (value_scale, acc) = (V::splat(value_scale), acc.as_chunks_mut::<LANES>().0);
    for i in 0..QUARTERS {
        dots[i].mul_add(stored[i].mul(value_scale), V::load(&acc[i])).store(&mut acc[i]);
    }
}
