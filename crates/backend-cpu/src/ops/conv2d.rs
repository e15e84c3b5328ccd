//! Convolution of a picture as a matrix product: a task takes a rectangle of pixels, normalises what they see once, and multiplies
//! it by the dense blocks of the weight. What a pixel sees of one line lies together, so nothing is gathered.

use super::{Exec, Frame, Input, Output, PerWorker, vector, weight};
use crate::generic::packed::{FloatRows, Place};
use crate::layout::{BLOCK, Packed};
use crate::memory::{Carve, carved_bytes};
use onebit_ops::{Conv2d, Grid, OpError, Tensor, Weight};
use std::ops::Range;

/// Bytes of what the pixels of a task see: that stays in a core's second cache while all blocks of the weight go over it.
const SEEN: usize = 448 << 10;

/// Most and fewest pixels of a line of a task.
const PIXELS: [usize; 2] = [128, 12];

/// Most lines of a task. The lines above and below are normalised for it as well.
const LINES: usize = 4;

/// Fewest tasks for each thread, or a task has fewer lines.
const TASKS: usize = 8;

/// Pixels of a task in each of its lines of `width`.
fn span(width: usize, kernel: usize, channels: usize) -> usize {
    let column = (LINES + kernel - 1) * channels * size_of::<f32>();
    let most = (SEEN / column.max(1)).saturating_sub(kernel - 1).clamp(PIXELS[1], PIXELS[0]);
    width.div_ceil(width.div_ceil(most).max(1)).next_multiple_of(4).min(most)
}

/// Scratch bytes of each worker.
pub(crate) fn scratch(op: &Conv2d) -> usize {
    let (kernel, channels) = (op.kernel, op.x.cols());
    let span = span(op.grid.width * if op.upsample { 2 } else { 1 }, kernel, channels);
    carved_bytes::<f32>((LINES + kernel - 1) * (span + kernel - 1) * channels)
        + carved_bytes::<f32>(LINES * span * BLOCK)
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
    let span = span(width, op.kernel, op.x.cols());
    let pieces = width.div_ceil(span);
    let mut lines = LINES;
    while lines > 1 && height.div_ceil(lines) * pieces < TASKS * frame.exec.pool.threads() {
        lines /= 2;
    }
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
    let size = lines * span * op.weight.cols() * op.weight.rows();
    frame.exec.each(height.div_ceil(lines) * pieces, size, &|task, worker| {
        let (top, first) = (task / pieces * lines, task % pieces * span);
        // SAFETY: this task runs on this worker.
        let carve = Carve::new(unsafe { worker_scratch.piece(worker) });
        conv.pixels(top..height.min(top + lines), first..width.min(first + span), carve);
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
    /// A rectangle of the result.
    fn pixels(&self, lines: Range<usize>, columns: Range<usize>, mut carve: Carve<'_>) {
        let (channels, kernel, count) = (self.channels, self.kernel, columns.len());
        let wide = (count + kernel - 1) * channels;
        let seen = carve.take::<f32>((lines.len() + kernel - 1) * wide);
        for (y, line) in (lines.start..).zip(seen.chunks_exact_mut(wide)) {
            self.line(y.checked_sub(kernel / 2), &columns, line);
        }
        let place = Place { rows: count, step: channels, line: wide, run: kernel * channels };
        let rows = FloatRows { rows: lines.len() * count, values: seen, place, sums: &[] };
        let acc = carve.take::<f32>(rows.rows * BLOCK);
        let width = self.grid.width * self.times;
        for segment in &self.packed.segments {
            for b in 0..segment.blocks() {
                (self.exec.kernels.float_blocks)(segment, b..b + 1, &rows, acc);
                let start = segment.rows.start + b * BLOCK;
                let outputs = start..(start + BLOCK).min(segment.rows.end);
                let pixels = lines.clone().flat_map(|y| columns.clone().map(move |column| y * width + column));
                for (pixel, acc) in pixels.zip(acc.chunks_exact(BLOCK)) {
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
