//! Ops whose rows, heads or values are independent of each other.

use super::{Bound, Call, Extent, Frame, Launch, blocks, stretch};
use crate::layout::Codes;
use crate::shaders;
use crate::weight::resident;
use onebit_ops::{Norm, OpError, RopeTable, Rows, Tensor, Vector, View, Weight};
use std::sync::Arc;

/// Logits of one workgroup, and words that it leaves; as in `sample_keys.wgsl`.
const CHUNK: usize = 4096;
const PARTIAL_WORDS: usize = 5;

/// A thread a value; the kernel finds its row by `row_of`.
pub(super) fn across(cols: usize, rows: Rows) -> [Extent; 3] {
    [Extent::Fixed(cols.div_ceil(256)), Extent::SideBySide(rows), Extent::Stacked(rows)]
}

pub(super) fn embed(frame: &Frame<'_>, table: &Weight, out: Tensor) -> Result<Vec<Call>, OpError> {
    let cols = table.cols();
    let call = |chunk: &crate::weight::Chunk| {
        let shape = chunk.shape;
        let params = vec![
            chunk.first_row as u32,
            chunk.rows as u32,
            table.rows() as u32,
            cols as u32,
            frame.place(out),
            shape.units(cols) as u32,
            shape.groups(cols) as u32,
            chunk.biases,
            chunk.residual_first,
            chunk.residuals,
            shape.factor().to_bits(),
            0,
        ];
        let kernel = match shape.codes {
            Codes::Dense(kind) => shaders::embed_dense(kind),
            Codes::Packed { bits, group } => {
                shaders::embed_packed(bits, group, shape.scale, shape.bias, chunk.has_residuals)
            }
        };
        let size = chunk.buffer.size();
        let bound = vec![
            Bound { buffer: chunk.buffer.clone(), offset: 0, size: chunk.code_bytes },
            Bound { buffer: chunk.buffer.clone(), offset: chunk.side_at, size: size - chunk.side_at },
            frame.bound_step(),
            Bound::whole(frame.memory.sampled()),
            frame.bound_arena(),
        ];
        Call::new(Launch::always(kernel, across(cols, frame.rows(out))), params, bound)
    };
    Ok(resident(table, frame.device)?.chunks.iter().map(call).collect())
}

pub(super) fn norm(
    frame: &Frame<'_>,
    x: View,
    z: Option<View>,
    norm: &Norm,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let mut params = blocks(frame, x).to_vec();
    params.extend(frame.view(z.unwrap_or(x)));
    params.extend([frame.place(out), frame.cols(out), norm.eps.to_bits(), 0]);
    let grid = [Extent::Fixed(x.heads), Extent::Rows(frame.rows(out), 1), Extent::Fixed(1)];
    let launch = Launch::always(shaders::norm(z.is_some(), x.dim), grid);
    Ok(vec![Call::new(launch, params, vec![frame.vector(&norm.gain)?, frame.bound_arena()])])
}

/// Combines two views of equal width value by value, or selects rows of one.
pub(super) fn zip(frame: &Frame<'_>, op: u32, a: View, b: View, out: Tensor) -> Vec<Call> {
    let mut params = frame.view(a).to_vec();
    params.extend(frame.view(b));
    params.extend([a.cols() as u32, frame.place(out), frame.cols(out), frame.count(out)]);
    let launch = Launch::always(shaders::pointwise(op), across(a.cols(), frame.rows(out)));
    vec![Call::new(launch, params, vec![frame.bound_step(), frame.bound_arena()])]
}

pub(super) fn rope(frame: &Frame<'_>, x: View, table: &Arc<RopeTable>, out: Tensor) -> Result<Vec<Call>, OpError> {
    let known = frame.tables.iter().position(|known| known == table);
    let angles = frame.layout.angles(known.ok_or(OpError::ForeignHandle("a rotary table"))?);
    let mut params = blocks(frame, x).to_vec();
    params.extend([angles, table.inv_freq.len() as u32, frame.place(out), frame.cols(out)]);
    let launch = Launch::always(shaders::ROPE.with(&[]), across(x.cols(), frame.rows(out)));
    Ok(vec![Call::new(launch, params, vec![frame.bound_step(), frame.bound_arena()])])
}

pub(super) fn gates(
    frame: &Frame<'_>,
    [a, b]: [View; 2],
    [rate, bias]: [&Vector; 2],
    [log_decay, beta]: [Tensor; 2],
) -> Result<Vec<Call>, OpError> {
    let mut params = frame.view(a).to_vec();
    params.extend(frame.view(b));
    params.extend([a.cols() as u32, frame.place(log_decay), frame.place(beta), 0]);
    let grid = [Extent::Fixed(a.cols().div_ceil(64)), Extent::Rows(frame.rows(log_decay), 1), Extent::Fixed(1)];
    let launch = Launch::always(shaders::GATES.with(&[]), grid);
    Ok(vec![Call::new(launch, params, vec![frame.vector(rate)?, frame.vector(bias)?, frame.bound_arena()])])
}

/// Words for keys, and for what each piece of a row leaves.
pub(super) fn sample_scratch(rows: usize, logits: View) -> usize {
    rows * (logits.cols() + logits.cols().div_ceil(CHUNK) * PARTIAL_WORDS)
}

pub(super) fn sample(frame: &Frame<'_>, logits: View) -> Vec<Call> {
    let vocab = logits.cols();
    let chunks = vocab.div_ceil(CHUNK);
    let partials = frame.bucket.logits * vocab;
    let mut params = frame.view(stretch(logits)).to_vec();
    params.extend([vocab as u32, 0, partials as u32, chunks as u32]);
    let rows = Extent::Rows(Rows::Logits, 1);
    let scan = Launch::always(shaders::SAMPLE_SCAN.with(&[]), [Extent::Fixed(chunks), rows, Extent::Fixed(1)]);
    let threads = if frame.device.abilities.threads >= 512 { 512 } else { 256 };
    let choose = Launch::always(shaders::sample(threads), [rows, Extent::Fixed(1), Extent::Fixed(1)]);
    let bound = [frame.bound_step(), frame.bound_arena(), frame.bound_scratch()];
    let sampled = Bound::whole(frame.memory.sampled());
    vec![
        Call::new(scan, params.clone(), bound.to_vec()),
        Call::new(choose, params, bound.into_iter().chain([sampled]).collect()),
    ]
}

pub(super) fn output(frame: &Frame<'_>, x: View, name: &str) -> Vec<Call> {
    let mut params = frame.view(x).to_vec();
    params.extend([x.cols() as u32, frame.outputs.first(x, name) as u32, frame.count(x.tensor), 0]);
    let launch = Launch::always(shaders::OUTPUT.with(&[]), across(x.cols(), frame.rows(x.tensor)));
    vec![Call::new(launch, params, vec![frame.bound_step(), frame.bound_arena(), Bound::whole(frame.packed)])]
}
