//! Convolution of a picture as a matrix product: a task takes some pixels of one row, normalises what they see once,
//! gathers it as rows of `[dy][dx][channel]`, and multiplies these by the dense blocks of the weight.

use super::{Exec, Frame, Input, Output, PerWorker, vector, weight};
use crate::generic::packed::FloatRows;
use crate::layout::{BLOCK, Packed};
use crate::memory::{Carve, carved_bytes};
use onebit_ops::{Conv2d, Grid, OpError, Tensor, Weight};
use std::ops::Range;

/// Bytes of gathered rows that stay in a core's second cache while all blocks of the weight go over them.
const GATHERED: usize = 448 << 10;

/// Most and fewest pixels of a task. A kernel takes six rows at a time.
const PIXELS: [usize; 2] = [48, 12];

/// Pixels of a task, of a row of `width`.
fn span(width: usize, cols: usize) -> usize {
    let most = (GATHERED / (cols * size_of::<f32>()).max(1)).clamp(PIXELS[1], PIXELS[0]);
    width.div_ceil(width.div_ceil(most).max(1)).next_multiple_of(6).min(most)
}

/// Scratch bytes of each worker.
pub(crate) fn scratch(op: &Conv2d) -> usize {
    let (kernel, cols, channels) = (op.kernel, op.weight.cols(), op.x.cols());
    let span = span(op.grid.width * if op.upsample { 2 } else { 1 }, cols);
    carved_bytes::<f32>(kernel * (span + kernel - 1) * channels)
        + carved_bytes::<f32>(span * cols)
        + carved_bytes::<f32>(span * BLOCK)
}

/// Refuses weights that the loops are not made for.
pub(crate) fn check(w: &Weight) -> Result<(), OpError> {
    let packed = weight(w)?;
    if packed.table.is_none() && packed.segments.iter().all(|s| !s.layout.is_packed()) {
        return Ok(());
    }
    let (wanted, got) = ("a dense weight".to_owned(), w.info().kernel.clone());
    Err(OpError::Shape { op: "conv2d", what: w.name().to_owned(), wanted, got })
}

pub(crate) fn run(frame: &mut Frame<'_>, op: &Conv2d, out: Tensor) -> Result<(), OpError> {
    let times = if op.upsample { 2 } else { 1 };
    let (height, width) = (op.grid.height * times, op.grid.width * times);
    let cols = op.weight.cols();
    let span = span(width, cols);
    let pieces = width.div_ceil(span);
    let conv = Conv {
        exec: frame.exec,
        grid: op.grid,
        times,
        kernel: op.kernel,
        channels: op.x.cols(),
        packed: weight(&op.weight)?,
        bias: vector(&op.bias)?,
        norm: op.norm.map(|n| (frame.read(n.affine).row(0), n.silu)),
        x: frame.read(op.x),
        residual: op.residual.map(|r| frame.read(r)),
        out: frame.write(out),
    };
    let worker_scratch = PerWorker::new(&mut *frame.worker_scratch, frame.exec.pool.threads());
    frame.exec.each(height * pieces, span * cols * op.weight.rows(), &|task, worker| {
        let (y, first) = (task / pieces, task % pieces * span);
        // SAFETY: this task runs on this worker.
        let carve = Carve::new(unsafe { worker_scratch.piece(worker) });
        conv.pixels(y, first..width.min(first + span), carve);
    });
    Ok(())
}

/// A convolution with its operands.
struct Conv<'a> {
    exec: Exec<'a>,
    grid: Grid,
    /// Pixels of the result for one of the input, in each direction.
    times: usize,
    kernel: usize,
    channels: usize,
    packed: &'a Packed,
    bias: &'a [f32],
    norm: Option<(&'a [f32], bool)>,
    x: Input<'a>,
    residual: Option<Input<'a>>,
    out: Output<'a>,
}

impl Conv<'_> {
    /// Some pixels of row `y` of the result.
    fn pixels(&self, y: usize, columns: Range<usize>, mut carve: Carve<'_>) {
        let (channels, kernel, count) = (self.channels, self.kernel, columns.len());
        let wide = (count + kernel - 1) * channels;
        let strip = carve.take::<f32>(kernel * wide);
        for (dy, line) in strip.chunks_exact_mut(wide).enumerate() {
            self.line((y + dy).checked_sub(kernel / 2), &columns, line);
        }
        let (cols, taps) = (kernel * kernel * channels, kernel * channels);
        let gathered = carve.take::<f32>(count * cols);
        for (i, row) in gathered.chunks_exact_mut(cols).enumerate() {
            for (line, to) in strip.chunks_exact(wide).zip(row.chunks_exact_mut(taps)) {
                to.copy_from_slice(&line[i * channels..i * channels + taps]);
            }
        }
        let rows = FloatRows { rows: count, values: gathered, sums: &[] };
        let acc = carve.take::<f32>(count * BLOCK);
        let width = self.grid.width * self.times;
        for segment in &self.packed.segments {
            for b in 0..segment.blocks() {
                (self.exec.kernels.float_blocks)(segment, b..b + 1, &rows, acc);
                let start = segment.rows.start + b * BLOCK;
                let outputs = start..(start + BLOCK).min(segment.rows.end);
                for (column, acc) in columns.clone().zip(acc.chunks_exact(BLOCK)) {
                    let pixel = y * width + column;
                    // SAFETY: each pixel is in one task.
                    let to = unsafe { self.out.piece(pixel, outputs.clone()) };
                    (self.exec.kernels.add)(acc, &self.bias[outputs.clone()], to);
                    if let Some(residual) = &self.residual {
                        to.iter_mut().zip(&residual.row(pixel)[outputs.clone()]).for_each(|(to, r)| *to += r);
                    }
                }
            }
        }
    }

    /// What the pixels see of one row of the doubled input: zeros outside, and before the first row.
    fn line(&self, y: Option<usize>, columns: &Range<usize>, line: &mut [f32]) {
        let (height, width) = (self.grid.height * self.times, self.grid.width * self.times);
        let reach = self.kernel / 2;
        let Some(y) = y.filter(|y| *y < height) else { return line.fill(0.0) };
        for (i, to) in line.chunks_exact_mut(self.channels).enumerate() {
            let Some(column) = (columns.start + i).checked_sub(reach).filter(|c| *c < width) else {
                to.fill(0.0);
                continue;
            };
            let from = self.x.row(y / self.times * self.grid.width + column / self.times);
            match self.norm {
                Some((affine, silu)) => (self.exec.kernels.channel_norm)(from, affine, silu, to),
                None => to.copy_from_slice(from),
            }
        }
    }
}
