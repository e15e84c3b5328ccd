//! Ops whose rows, heads or values are independent of each other.

use super::{Call, Frame};
use crate::launch;
use crate::params::{
    Address, DeltaGatesParams, EmbedParams, MAX_PARTS, NormParams, Part, PointwiseParams, PrepareParams, RopeParams,
    SAMPLE_SHARE, SAMPLE_SHARE_BYTES, SampleParams, SelectRowsParams,
};
use crate::weight::resident;
use onebit_ops::{Norm, OpError, RopeTable, Tensor, Vector, View, Weight};
use std::sync::Arc;

/// The parts as a fixed list.
pub(super) fn parts_list(parts: &[Part]) -> [Part; MAX_PARTS] {
    let none = Part {
        codes: 0,
        scales: 0,
        biases: 0,
        residual_first: 0,
        residuals: 0,
        rows: 0,
        first_row: 0,
        first_block: 0,
        format: 0,
        group: 0,
        groups: 0,
        units: 0,
        scale_type: 0,
        bias_type: 0,
        factor: 0.0,
        center: 0,
        reserved: 0,
    };
    std::array::from_fn(|i| parts.get(i).copied().unwrap_or(none))
}

/// `next`: what makes the rows the input of a product at once.
pub(super) fn embed(
    frame: &Frame<'_>,
    table: &Weight,
    out: Tensor,
    next: Option<PrepareParams>,
) -> Result<Vec<Call>, OpError> {
    let parts = &resident(table, frame.device)?.parts;
    if parts.len() > MAX_PARTS {
        return Err(OpError::Shape {
            op: "embed",
            what: format!("parts of `{}` on cuda", table.name()),
            wanted: format!("up to {MAX_PARTS}"),
            got: parts.len().to_string(),
        });
    }
    let params = EmbedParams {
        step: frame.step,
        sampled: frame.memory.sampled().address(),
        out: frame.place(out),
        cols: frame.cols(out),
        part_count: parts.len() as u32,
        parts: parts_list(parts),
        next: next.unwrap_or_default(),
    };
    Ok(vec![Call::new(launch::embed(frame.bucket.rows, table.cols()), params)])
}

pub(super) fn norm(
    frame: &Frame<'_>,
    kernel: &str,
    x: View,
    z: Option<View>,
    norm: &Norm,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let (most, rows) = frame.rows(out);
    // A gate that was recorded as one stretch is read in the blocks of `x`.
    let blocks = |z: View| if z.heads == x.heads { z } else { View { heads: x.heads, dim: x.dim, stride: x.dim, ..z } };
    let z = z.map_or(x, blocks);
    let params = NormParams {
        rows,
        x: frame.view(x),
        z: frame.view(z),
        gain: frame.vector(&norm.gain)?,
        out: frame.place(out),
        out_stride: frame.cols(out),
        eps: norm.eps,
    };
    Ok(vec![Call::new(launch::norm(kernel, most, x.heads, x.dim), params)])
}

/// Combines two views of equal width value by value.
pub(super) fn zip(frame: &Frame<'_>, kernel: &str, a: View, b: View, out: Tensor) -> Vec<Call> {
    let (most, rows) = frame.rows(out);
    let params = PointwiseParams {
        rows,
        a: frame.view(a),
        b: frame.view(b),
        out: frame.place(out),
        out_stride: frame.cols(out),
        reserved: 0,
    };
    vec![Call::new(launch::pointwise(kernel, most, a.cols()), params)]
}

pub(super) fn select_rows(frame: &Frame<'_>, x: View, out: Tensor) -> Vec<Call> {
    let (most, _) = frame.rows(out);
    let params = SelectRowsParams {
        step: frame.step,
        x: frame.view(x),
        out: frame.place(out),
        out_stride: frame.cols(out),
        reserved: 0,
    };
    vec![Call::new(launch::pointwise("select_rows", most, x.cols()), params)]
}

/// Bytes for the keys of the logits, and for what is found in the shares.
pub(super) fn sample_scratch(rows: usize, logits: View) -> usize {
    sample_keys(rows, logits) + rows * logits.cols().div_ceil(SAMPLE_SHARE) * SAMPLE_SHARE_BYTES
}

fn sample_keys(rows: usize, logits: View) -> usize {
    (rows * logits.cols() * size_of::<f32>()).next_multiple_of(16)
}

pub(super) fn sample(frame: &Frame<'_>, logits: View) -> Vec<Call> {
    let rows = frame.bucket.logits;
    let params = SampleParams {
        step: frame.step,
        logits: frame.view(View { heads: 1, dim: logits.cols(), stride: logits.cols(), ..logits }),
        scratch: frame.scratch,
        shares: frame.scratch + sample_keys(rows, logits) as Address,
        sampled: frame.memory.sampled().address(),
    };
    launch::sample(rows, logits.cols()).map(|launch| Call::new(launch, params)).into()
}

pub(super) fn rope(frame: &Frame<'_>, x: View, table: &Arc<RopeTable>, out: Tensor) -> Result<Vec<Call>, OpError> {
    let (most, rows) = frame.rows(out);
    let pairs = table.inv_freq.len();
    let params = RopeParams {
        rows,
        positions: frame.step.positions,
        x: frame.view(x),
        table: frame.table(table)?,
        out: frame.place(out),
        pairs: pairs as u32,
        attention_factor: table.attention_factor,
        out_stride: frame.cols(out),
        reserved: 0,
    };
    Ok(vec![Call::new(launch::rope(most), params)])
}

pub(super) fn delta_gates(
    frame: &Frame<'_>,
    [a, b]: [View; 2],
    [decay_rate, dt_bias]: [&Vector; 2],
    [log_decay, beta]: [Tensor; 2],
) -> Result<Vec<Call>, OpError> {
    let (most, rows) = frame.rows(log_decay);
    let params = DeltaGatesParams {
        rows,
        a: frame.view(a),
        b: frame.view(b),
        decay_rate: frame.vector(decay_rate)?,
        dt_bias: frame.vector(dt_bias)?,
        log_decay: frame.place(log_decay),
        beta: frame.place(beta),
    };
    Ok(vec![Call::new(launch::delta_gates(most, a.cols()), params)])
}
