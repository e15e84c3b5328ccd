//! Operations of image models on the device: a row, a head's keys or a tap of one pixel a dispatch.

use super::device::{BINDING_BYTES, Binding, Command};
use super::encode::Encoder;
use super::kernel::{self, Blocks, Slice, dot, floats, linear, put, silu};
use super::link::Buffer;
use super::resident::Block;
use onebit_ops::{Activations, Conv2d, Seen, Tensor, View};

/// A kernel and its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kernel {
    /// x, scale, shift -> row.
    Modulate { eps: f32 },
    /// x, gate, y -> row.
    GatedAdd,
    /// x, angles -> row.
    RotatePairs { x: Blocks },
    /// q, rows of keys, rows of values -> running maximum, sum and weighted values.
    Attend { rows: usize, first: bool, scale: f32, strides: [usize; 2] },
    /// rows -> sums of columns.
    Sums { rows: usize, stride: usize },
    /// -> sums become means of their groups of `n` values.
    Means { groups: usize, n: usize },
    /// rows -> sums of squared distances from the means.
    Squares { rows: usize, stride: usize },
    /// sums, gain, bias -> factors and offsets.
    Affine { groups: usize, n: usize, eps: f32 },
    /// pixel, [affine], weight slice, [bias], [residual] -> the slice's outputs. One tap; the first brings the bias.
    Tap { slice: Slice, column: usize, norm: Option<bool>, bias: bool, residual: bool },
}

impl Kernel {
    pub(super) fn run(self, reads: &[&[u8]], writes: &mut [Vec<u8>]) -> Result<(), String> {
        match self {
            Kernel::Modulate { eps } => {
                let (mut x, scale, shift) = (floats(reads[0]), floats(reads[1]), floats(reads[2]));
                let n = x.len() as f32;
                let mean = x.iter().sum::<f32>() / n;
                x.iter_mut().for_each(|v| *v -= mean);
                let inverse = 1.0 / (dot(&x, &x) / n + eps).sqrt();
                for (v, (scale, shift)) in x.iter_mut().zip(scale.iter().zip(shift)) {
                    *v = *v * inverse * (1.0 + scale) + shift;
                }
                put(&x, &mut writes[0]);
            }
            Kernel::GatedAdd => {
                let (mut x, gate, y) = (floats(reads[0]), floats(reads[1]), floats(reads[2]));
                x.iter_mut().zip(gate.iter().zip(y)).for_each(|(x, (gate, y))| *x += gate * y);
                put(&x, &mut writes[0]);
            }
            Kernel::RotatePairs { x } => {
                let (mut y, angles) = (x.gather(reads[0]), floats(reads[1]));
                let (cos, sin) = angles.split_at(x.dim / 2);
                for head in y.chunks_exact_mut(x.dim) {
                    for (i, pair) in head.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                        *pair = [pair[0] * cos[i] - pair[1] * sin[i], pair[1] * cos[i] + pair[0] * sin[i]];
                    }
                }
                put(&y, &mut writes[0]);
            }
            Kernel::Attend { rows, first, scale, strides } => {
                let (query, keys, values) = (floats(reads[0]), floats(reads[1]), floats(reads[2]));
                let mut running = floats(&writes[0]);
                if first {
                    running.fill(0.0);
                    running[0] = f32::NEG_INFINITY;
                }
                for row in 0..rows {
                    let score = scale * dot(&query, &keys[row * strides[0]..][..query.len()]);
                    let top = running[0].max(score);
                    let (old, new) = ((running[0] - top).exp(), (score - top).exp());
                    running[0] = top;
                    running[1] = running[1] * old + new;
                    let value = &values[row * strides[1]..];
                    running[2..].iter_mut().zip(value).for_each(|(sum, v)| *sum = *sum * old + new * v);
                }
                put(&running, &mut writes[0]);
            }
            Kernel::Sums { rows, stride } => {
                let (x, mut sums) = (floats(reads[0]), floats(&writes[0]));
                for row in 0..rows {
                    sums.iter_mut().zip(&x[row * stride..]).for_each(|(sum, v)| *sum += v);
                }
                put(&sums, &mut writes[0]);
            }
            Kernel::Means { groups, n } => {
                let mut sums = floats(&writes[0]);
                let size = sums.len() / groups;
                for group in sums.chunks_exact_mut(size) {
                    let mean = group.iter().sum::<f32>() / n as f32;
                    group.fill(mean);
                }
                put(&sums, &mut writes[0]);
            }
            Kernel::Squares { rows, stride } => {
                let (x, means, mut sums) = (floats(reads[0]), floats(reads[1]), floats(&writes[0]));
                for row in 0..rows {
                    for (sum, (v, mean)) in sums.iter_mut().zip(x[row * stride..].iter().zip(&means)) {
                        *sum += (v - mean) * (v - mean);
                    }
                }
                put(&sums, &mut writes[0]);
            }
            Kernel::Affine { groups, n, eps } => {
                let (sums, gain, bias) = (floats(reads[0]), floats(reads[1]), floats(reads[2]));
                let (means, squares) = sums.split_at(gain.len());
                let size = gain.len() / groups;
                let mut out = vec![0.0; 2 * gain.len()];
                for c in 0..gain.len() {
                    let group = c / size * size..(c / size + 1) * size;
                    let inverse = 1.0 / (squares[group].iter().sum::<f32>() / n as f32 + eps).sqrt();
                    out[c] = gain[c] * inverse;
                    out[gain.len() + c] = bias[c] - means[c] * out[c];
                }
                put(&out, &mut writes[0]);
            }
            Kernel::Tap { slice, column, norm, bias, residual } => {
                tap(reads, writes, slice, column, norm, bias, residual)?
            }
        }
        Ok(())
    }
}

fn tap(
    reads: &[&[u8]],
    writes: &mut [Vec<u8>],
    slice: Slice,
    column: usize,
    norm: Option<bool>,
    bias: bool,
    residual: bool,
) -> Result<(), String> {
    let mut pixel = floats(reads[0]);
    let mut rest = &reads[1..];
    if let Some(with_silu) = norm {
        let affine = floats(rest[0]);
        let (factors, offsets) = affine.split_at(pixel.len());
        for (v, (factor, offset)) in pixel.iter_mut().zip(factors.iter().zip(offsets)) {
            let y = factor * *v + offset;
            *v = if with_silu { silu(y) } else { y };
        }
        rest = &rest[1..];
    }
    // The tap's columns of the weight, against zeros elsewhere.
    let mut x = vec![0.0; slice.cols];
    x[column..column + pixel.len()].copy_from_slice(&pixel);
    let y = linear(&x, &slice.matrix(rest)?, Activations::F32);
    rest = &rest[slice.bindings()..];
    let mut sums = floats(&writes[0]);
    if bias {
        sums = floats(rest[0]);
        rest = &rest[1..];
    }
    sums.iter_mut().zip(y).for_each(|(sum, y)| *sum += y);
    if residual {
        sums.iter_mut().zip(floats(rest[0])).for_each(|(sum, r)| *sum += r);
    }
    put(&sums, &mut writes[0]);
    Ok(())
}

impl Encoder<'_> {
    fn image(&mut self, kernel: Kernel, reads: Vec<Binding>, writes: Vec<Binding>) {
        self.dispatch(kernel::Kernel::Image(kernel), reads, writes);
    }

    pub(super) fn input(&mut self, name: &str, out: Tensor) {
        let bytes: Vec<u8> = self.inputs.values[name].iter().flat_map(|v| v.to_le_bytes()).collect();
        if bytes.is_empty() {
            return;
        }
        let Binding { buffer, start, .. } = self.row(out, 0);
        self.commands.push(Command::Write { buffer, start, bytes });
    }

    pub(super) fn modulate(&mut self, [x, scale, shift]: [View; 3], eps: f32, out: Tensor) {
        for row in 0..self.rows(out) {
            let reads = vec![self.span(x, row), self.span(scale, 0), self.span(shift, 0)];
            self.image(Kernel::Modulate { eps }, reads, vec![self.row(out, row)]);
        }
    }

    pub(super) fn gated_add(&mut self, [x, gate, y]: [View; 3], out: Tensor) {
        for row in 0..self.rows(out) {
            let reads = vec![self.span(x, row), self.span(gate, 0), self.span(y, row)];
            self.image(Kernel::GatedAdd, reads, vec![self.row(out, row)]);
        }
    }

    pub(super) fn rotate_pairs(&mut self, x: View, angles: View, out: Tensor) {
        for row in 0..self.rows(out) {
            let reads = vec![self.span(x, row), self.span(angles, row)];
            self.image(Kernel::RotatePairs { x: x.into() }, reads, vec![self.row(out, row)]);
        }
    }

    /// One block of some rows of a view, with the distance of these in values.
    fn column(&self, view: View, head: usize, first: usize, rows: usize) -> (Binding, usize) {
        let stride = self.program.tensors[view.tensor.0 as usize].cols;
        let start = view.offset + head * view.stride;
        (self.columns(view.tensor, first, start, (rows - 1) * stride + view.dim), stride)
    }

    pub(super) fn full_attention(&mut self, [q, k, v]: [View; 3], scale: f32, seen: Seen, out: Tensor) {
        let rows = self.rows(out);
        let running = self.fixed.scratch[0].floats(0, v.dim + 2);
        let widest = [k, v].map(|view| self.program.tensors[view.tensor.0 as usize].cols);
        // The last row of a chunk takes its block alone.
        let chunk = (BINDING_BYTES / 4 - k.dim) / widest[0].max(widest[1]) + 1;
        for row in 0..rows {
            let keys = match seen {
                Seen::All => rows,
                Seen::Causal { keys } => keys.min(row + 1),
            };
            for head in 0..q.heads {
                let of = head / (q.heads / k.heads);
                for first in (0..keys).step_by(chunk) {
                    let count = chunk.min(keys - first);
                    let [(keys, key_stride), (values, value_stride)] =
                        [k, v].map(|view| self.column(view, of, first, count));
                    let strides = [key_stride, value_stride];
                    let kernel = Kernel::Attend { rows: count, first: first == 0, scale, strides };
                    self.image(kernel, vec![self.head(q, row, head), keys, values], vec![running]);
                }
                let y = self.columns(out, row, head * v.dim, v.dim);
                self.dispatch(kernel::Kernel::AttendEnd, vec![running], vec![y]);
            }
        }
    }

    /// A row of a view to columns of a row of a temporary.
    pub(super) fn copy_row(&mut self, from: View, row: usize, out: Tensor, to: usize, first: usize) {
        for head in 0..from.heads {
            let to = self.columns(out, to, first + head * from.dim, from.dim);
            self.copy(self.head(from, row, head), to);
        }
    }

    pub(super) fn join_rows(&mut self, parts: &[View], out: Tensor) {
        let mut first = 0;
        for part in parts {
            let rows = self.rows(part.tensor);
            for row in 0..rows {
                self.copy_row(*part, row, out, first + row, 0);
            }
            first += rows;
        }
    }

    pub(super) fn join_columns(&mut self, parts: &[View], out: Tensor) {
        for row in 0..self.rows(out) {
            let mut first = 0;
            for part in parts {
                self.copy_row(*part, row, out, row, first);
                first += part.cols();
            }
        }
    }

    /// Means first, then squared distances from them: a device without f64 would lose the variance beside a large mean.
    pub(super) fn group_norm(&mut self, x: View, groups: usize, [gain, bias]: [&Buffer; 2], eps: f32, out: Tensor) {
        let (rows, columns) = (self.rows(x.tensor), x.cols());
        let stride = self.program.tensors[x.tensor.0 as usize].cols;
        let [means, squares] = [0, columns].map(|at| self.fixed.scratch[3].floats(at, columns));
        let both = self.fixed.scratch[3].floats(0, 2 * columns);
        self.commands.push(Command::Fill { range: both, byte: 0 });
        let chunk = (BINDING_BYTES / 4 - columns) / stride + 1;
        let n = rows * columns / groups;
        let chunks: Vec<(usize, usize)> = (0..rows).step_by(chunk).map(|r| (r, chunk.min(rows - r))).collect();
        for (first, rows) in &chunks {
            let some = self.columns(x.tensor, *first, x.offset, (rows - 1) * stride + columns);
            self.image(Kernel::Sums { rows: *rows, stride }, vec![some], vec![means]);
        }
        self.image(Kernel::Means { groups, n }, vec![], vec![means]);
        for (first, rows) in &chunks {
            let some = self.columns(x.tensor, *first, x.offset, (rows - 1) * stride + columns);
            self.image(Kernel::Squares { rows: *rows, stride }, vec![some, means], vec![squares]);
        }
        let reads = vec![both, gain.whole(), bias.whole()];
        self.image(Kernel::Affine { groups, n, eps }, reads, vec![self.row(out, 0)]);
    }

    /// Tap by tap of every pixel.
    pub(super) fn conv2d(&mut self, conv: &Conv2d, out: Tensor, weight: &[Block], bias: &Buffer) {
        let Conv2d { x, grid, norm, upsample, kernel, residual, .. } = conv;
        let times = if *upsample { 2 } else { 1 };
        let (height, width, reach) = (grid.height * times, grid.width * times, kernel / 2);
        for pixel in 0..height * width {
            let (y, column) = (pixel / width, pixel % width);
            let inside = |tap: &usize| {
                let (y, column) = (y + tap / kernel, column + tap % kernel);
                (reach..height + reach).contains(&y) && (reach..width + reach).contains(&column)
            };
            let taps: Vec<usize> = (0..kernel * kernel).filter(inside).collect();
            for block in weight {
                let Block { first, slice, .. } = *block;
                for (i, tap) in taps.iter().enumerate() {
                    let (y, column) = (y + tap / kernel - reach, column + tap % kernel - reach);
                    let mut reads = vec![self.span(*x, y / times * grid.width + column / times)];
                    reads.extend(norm.map(|n| self.span(n.affine, 0)));
                    reads.extend(block.bindings());
                    let (bring_bias, last) = (i == 0, i + 1 == taps.len());
                    if bring_bias {
                        reads.push(bias.floats(first, slice.rows));
                    }
                    let residual = residual.filter(|_| last);
                    reads.extend(residual.map(|r| self.columns(r.tensor, pixel, r.offset + first, slice.rows)));
                    let kernel = Kernel::Tap {
                        slice,
                        column: tap * x.cols(),
                        norm: norm.map(|n| n.silu),
                        bias: bring_bias,
                        residual: residual.is_some(),
                    };
                    self.image(kernel, reads, vec![self.columns(out, pixel, first, slice.rows)]);
                }
            }
        }
    }
}
