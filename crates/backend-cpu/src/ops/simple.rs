//! Ops that work row by row, or head by head.

use super::{Frame, Input, Output, vector, weight};
use crate::generic::unpack;
use crate::layout::Packed;
use onebit_ops::{Norm, OpError, RopeTable, Sampled, Tensor, Vector, View, Weight};

pub(crate) fn embed(frame: &Frame<'_>, table: &Weight, out: Tensor) -> Result<(), OpError> {
    let packed: &Packed = weight(table)?;
    let (tokens, out) = (frame.tokens, frame.write(out));
    frame.exec.each(tokens.len(), 4 * table.cols(), &|r, _| {
        let token = tokens[r] as usize;
        // SAFETY: each row is one task.
        let row = unsafe { out.row(r) };
        if tokens[r] == Sampled::NOT_FINITE {
            return row.fill(f32::NAN);
        }
        if let Some(table) = &packed.table {
            table.matrix().decode_row(token, row);
        }
        // The step's inputs were checked: the token is a row of some segment.
        if let Some(segment) = packed.segments.iter().find(|s| s.rows.contains(&token)) {
            unpack::row(segment, token - segment.rows.start, row);
        }
    });
    Ok(())
}

pub(crate) fn rms_norm(frame: &Frame<'_>, x: View, norm: &Norm, out: Tensor) -> Result<(), OpError> {
    let gain = vector(&norm.gain)?;
    each_head(frame, x, out, |x, to| (frame.exec.kernels.rms_norm)(x, gain, norm.eps, 0, to));
    Ok(())
}

/// `f(block, out)` for every block of every row.
fn each_head(frame: &Frame<'_>, x: View, out: Tensor, f: impl Fn(&[f32], &mut [f32]) + Sync) {
    let rows = frame.rows(out);
    let (x, out) = (frame.read(x), frame.write(out));
    frame.exec.each(rows, x.view.cols(), &|r, _| {
        frame.exec.fetch(&x, r);
        for h in 0..x.view.heads {
            // SAFETY: each row is one task.
            let to = unsafe { out.piece(r, h * x.view.dim..(h + 1) * x.view.dim) };
            f(x.head(r, h), to);
        }
    });
}

/// `out = f(a, b)`, value by value; `f` takes equal lengths.
pub(crate) fn zip(frame: &Frame<'_>, a: View, b: View, out: Tensor, f: fn(&[f32], &[f32], &mut [f32])) {
    let rows = frame.rows(out);
    let (a, b, out) = (frame.read(a), frame.read(b), frame.write(out));
    frame.exec.each(rows, out.cols, &|r, _| {
        frame.exec.fetch(&a, r);
        frame.exec.fetch(&b, r);
        zip_row(&a, &b, out, r, f);
    });
}

/// Views may be cut differently; the shorter pieces decide.
fn zip_row(a: &Input<'_>, b: &Input<'_>, out: Output<'_>, r: usize, f: fn(&[f32], &[f32], &mut [f32])) {
    for (a_start, a) in a.pieces(r) {
        for (b_start, b) in b.pieces(r) {
            let start = a_start.max(b_start);
            let end = (a_start + a.len()).min(b_start + b.len());
            if start < end {
                // SAFETY: each row is one task, and one piece is alive at a time.
                let to = unsafe { out.piece(r, start..end) };
                f(&a[start - a_start..end - a_start], &b[start - b_start..end - b_start], to);
            }
        }
    }
}

/// `angles`: cosines and sines of each row, `[row][cos, sin][pairs]`.
pub(crate) fn rope(frame: &Frame<'_>, x: View, table: &RopeTable, angles: &[f32], out: Tensor) {
    let n = table.inv_freq.len();
    let rows = frame.rows(out);
    let (x, out) = (frame.read(x), frame.write(out));
    frame.exec.each(rows, x.view.cols(), &|r, _| {
        frame.exec.fetch(&x, r);
        let (cos, sin) = angles[r * 2 * n..(r + 1) * 2 * n].split_at(n);
        for h in 0..x.view.heads {
            // SAFETY: each row is one task.
            let to = unsafe { out.piece(r, h * x.view.dim..(h + 1) * x.view.dim) };
            (frame.exec.kernels.rope)(x.head(r, h), cos, sin, to);
        }
    });
}

/// The operands of `Op::DeltaGates`.
pub(crate) struct Gates<'a> {
    pub a: View,
    pub b: View,
    pub decay_rate: &'a Vector,
    pub dt_bias: &'a Vector,
    pub log_decay: Tensor,
    pub beta: Tensor,
}

pub(crate) fn delta_gates(frame: &Frame<'_>, op: &Gates<'_>) -> Result<(), OpError> {
    let (rate, bias) = (vector(op.decay_rate)?, vector(op.dt_bias)?);
    let (log_decay, beta) = (frame.write(op.log_decay), frame.write(op.beta));
    let (a, b) = (frame.read(op.a), frame.read(op.b));
    // Linear above 20, as in the reference implementation.
    let softplus = |x: f32| if x > 20.0 { x } else { x.exp().ln_1p() };
    frame.exec.each(frame.rows(op.beta), 16 * rate.len(), &|r, _| {
        // SAFETY: each row is one task, and the two are different temporaries.
        let (log_decay, beta) = unsafe { (log_decay.row(r), beta.row(r)) };
        for (start, a) in a.pieces(r) {
            for (i, a) in a.iter().enumerate() {
                log_decay[start + i] = rate[start + i] * softplus(a + bias[start + i]);
            }
        }
        for (start, b) in b.pieces(r) {
            for (i, b) in b.iter().enumerate() {
                beta[start + i] = 1.0 / (1.0 + (-b).exp());
            }
        }
    });
    Ok(())
}

pub(crate) fn gated_norm(frame: &Frame<'_>, x: View, z: View, norm: &Norm, out: Tensor) -> Result<(), OpError> {
    let gain = vector(&norm.gain)?;
    let rows = frame.rows(out);
    let kernels = frame.exec.kernels;
    let (x, z, out) = (frame.read(x), frame.read(z), frame.write(out));
    frame.exec.each(rows, x.view.cols(), &|r, _| {
        frame.exec.fetch(&x, r);
        frame.exec.fetch(&z, r);
        for h in 0..x.view.heads {
            // SAFETY: each row is one task.
            let to = unsafe { out.piece(r, h * x.view.dim..(h + 1) * x.view.dim) };
            (kernels.rms_norm)(x.head(r, h), gain, norm.eps, 0, to);
        }
        for (start, z) in z.pieces(r) {
            // SAFETY: as above, and the blocks are no longer held.
            let to = unsafe { out.piece(r, start..start + z.len()) };
            (kernels.silu_scale)(z, to);
        }
    });
    Ok(())
}

pub(crate) fn select_rows(frame: &Frame<'_>, x: View, out: Tensor) {
    let (x, out) = (frame.read(x), frame.write(out));
    for (to, from) in frame.inputs.logit_rows.iter().enumerate() {
        // SAFETY: one row at a time.
        unsafe { out.row(to) }.copy_from_slice(x.row(*from));
    }
}

/// All rows of a view, side by side.
pub(crate) fn output(frame: &Frame<'_>, x: View) -> Vec<f32> {
    let rows = frame.rows(x.tensor);
    let x = frame.read(x);
    let mut all = Vec::with_capacity(rows * x.view.cols());
    (0..rows).for_each(|r| all.extend_from_slice(x.row(r)));
    all
}
