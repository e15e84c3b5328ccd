//! Row by row operations of image models.

use super::{Frame, Tiles, vector};
use crate::memory::{Carve, carved_bytes};
use onebit_ops::{OpError, Tensor, Vector, View};

pub(crate) fn input(frame: &Frame<'_>, name: &str, out: Tensor) {
    let (rows, out) = (frame.rows(out), frame.write(out));
    // The step's inputs were checked.
    for (r, values) in frame.inputs.values[name].chunks_exact(out.cols.max(1)).enumerate().take(rows) {
        // SAFETY: one row at a time.
        unsafe { out.row(r) }.copy_from_slice(values);
    }
}

pub(crate) fn modulate(frame: &Frame<'_>, [x, scale, shift]: [View; 3], eps: f32, out: Tensor) {
    let rows = frame.rows(out);
    let (x, scale, shift, out) = (frame.read(x), frame.read(scale).row(0), frame.read(shift).row(0), frame.write(out));
    frame.exec.each(rows, 2 * out.cols, &|r, _| {
        // SAFETY: each row is one task.
        (frame.exec.kernels.modulate)(x.row(r), scale, shift, eps, unsafe { out.row(r) });
    });
}

pub(crate) fn gated_add(frame: &Frame<'_>, [x, gate, y]: [View; 3], out: Tensor) {
    let rows = frame.rows(out);
    let (x, gate, y, out) = (frame.read(x), frame.read(gate).row(0), frame.read(y), frame.write(out));
    frame.exec.each(rows, out.cols, &|r, _| {
        // SAFETY: each row is one task.
        (frame.exec.kernels.gated_add)(x.row(r), gate, y.row(r), unsafe { out.row(r) });
    });
}

pub(crate) fn rotate_pairs(frame: &Frame<'_>, x: View, angles: View, out: Tensor) {
    let rows = frame.rows(out);
    let (x, angles, out) = (frame.read(x), frame.read(angles), frame.write(out));
    frame.exec.each(rows, 2 * out.cols, &|r, _| {
        for h in 0..x.view.heads {
            // SAFETY: each row is one task.
            let to = unsafe { out.piece(r, h * x.view.dim..(h + 1) * x.view.dim) };
            (frame.exec.kernels.rotate_pairs)(x.head(r, h), angles.row(r), to);
        }
    });
}

/// Rows of all parts.
pub(crate) fn join_rows(frame: &Frame<'_>, parts: &[View], out: Tensor) {
    let to = frame.write(out);
    let mut first = 0;
    for part in parts {
        let rows = frame.rows(part.tensor);
        let from = frame.read(*part);
        frame.exec.each(rows, to.cols, &|r, _| {
            for (start, piece) in from.pieces(r) {
                // SAFETY: each row is one task.
                unsafe { to.piece(first + r, start..start + piece.len()) }.copy_from_slice(piece);
            }
        });
        first += rows;
    }
}

/// Rows from `first` on.
pub(crate) fn take_rows(frame: &Frame<'_>, x: View, first: usize, out: Tensor) {
    let rows = frame.rows(out);
    let (from, to) = (frame.read(x), frame.write(out));
    frame.exec.each(rows, to.cols, &|r, _| {
        for (start, piece) in from.pieces(first + r) {
            // SAFETY: each row is one task.
            unsafe { to.piece(r, start..start + piece.len()) }.copy_from_slice(piece);
        }
    });
}

/// Columns of all parts.
pub(crate) fn join_columns(frame: &Frame<'_>, parts: &[View], out: Tensor) {
    let (rows, to) = (frame.rows(out), frame.write(out));
    let parts: Vec<_> = parts.iter().map(|p| frame.read(*p)).collect();
    frame.exec.each(rows, to.cols, &|r, _| {
        let mut first = 0;
        for part in &parts {
            for (start, piece) in part.pieces(r) {
                // SAFETY: each row is one task.
                unsafe { to.piece(r, first + start..first + start + piece.len()) }.copy_from_slice(piece);
            }
            first += part.view.cols();
        }
    });
}

/// Rows whose sums one task takes. Fixed, so that results do not depend on threads.
const CHUNK: usize = 1024;

/// Shared scratch bytes of a group norm over so many rows.
pub(crate) fn group_norm_scratch(rows: usize, x: View) -> usize {
    carved_bytes::<f64>(rows.div_ceil(CHUNK) * 2 * x.cols())
}

/// The operands of `Op::GroupNorm`.
pub(crate) struct GroupNorm<'a> {
    pub x: View,
    pub groups: usize,
    pub gain: &'a Vector,
    pub bias: &'a Vector,
    pub eps: f32,
    pub out: Tensor,
}

pub(crate) fn group_norm(frame: &mut Frame<'_>, op: &GroupNorm<'_>) -> Result<(), OpError> {
    let (gain, bias) = (vector(op.gain)?, vector(op.bias)?);
    let (rows, columns, kernels) = (frame.rows(op.x.tensor), op.x.cols(), frame.exec.kernels);
    let (x, out) = (frame.read(op.x), frame.write(op.out));
    let chunks = rows.div_ceil(CHUNK);
    let sums = Carve::new(&mut *frame.scratch).take::<f64>(chunks * 2 * columns);
    sums.fill(0.0);
    let parts = Tiles::new(&mut *sums, 2 * columns);
    frame.exec.each(chunks, CHUNK * columns, &|chunk, _| {
        // SAFETY: each chunk is one task.
        let sums = unsafe { parts.piece(chunk) };
        for r in chunk * CHUNK..rows.min((chunk + 1) * CHUNK) {
            (kernels.channel_sums)(x.row(r), sums);
        }
    });
    let (total, rest) = sums.split_at_mut(2 * columns);
    for part in rest.chunks_exact(2 * columns) {
        total.iter_mut().zip(part).for_each(|(sum, more)| *sum += more);
    }
    let (sums, squares) = total.split_at(columns);
    let size = columns / op.groups;
    let n = (rows * size) as f64;
    // SAFETY: one row, and nobody else holds it.
    let out = unsafe { out.row(0) };
    for g in 0..op.groups {
        let group = g * size..(g + 1) * size;
        let mean = sums[group.clone()].iter().sum::<f64>() / n;
        // Rounding may leave less than nothing of a variance of zero.
        let var = (squares[group.clone()].iter().sum::<f64>() / n - mean * mean).max(0.0);
        let inverse = 1.0 / (var + f64::from(op.eps)).sqrt();
        for c in group {
            let factor = f64::from(gain[c]) * inverse;
            out[c] = factor as f32;
            out[columns + c] = (f64::from(bias[c]) - mean * factor) as f32;
        }
    }
    Ok(())
}
