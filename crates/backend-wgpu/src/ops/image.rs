//! What image models need beside: copies of rows and columns, modulation, rotation of neighbours, attention without a cache,
//! group norm and convolution.

use super::simple::across;
use super::{Bound, Call, Extent, Frame, Launch, blocks};
use crate::layout::Codes;
use crate::shaders::{self, CONV_TILE, FULL_DIMS, FULL_QUERIES, FULL_VALUES, mix};
use crate::weight::{Chunk, resident};
use onebit_ops::{Conv2d, OpError, Seen, Tensor, Vector, View};

/// Rows of a chunk of a group norm's statistics.
const NORM_CHUNK: usize = 256;

fn wrong(op: &'static str, what: String, wanted: impl Into<String>, got: impl Into<String>) -> OpError {
    OpError::Shape { op, what, wanted: wanted.into(), got: got.into() }
}

/// Values of the rows of a temporary, to `to` and on.
fn values(frame: &Frame<'_>, op: u32, views: [[u32; 8]; 3], cols: usize, rows: Tensor, to: [u32; 2]) -> Call {
    let mut params = views.concat();
    params.extend([cols as u32, to[0], to[1], frame.count(rows)]);
    let launch = Launch::always(shaders::mix(op), across(cols, frame.rows(rows)));
    Call::new(launch, params, vec![frame.bound_step(), frame.bound_arena()])
}

fn copy(frame: &Frame<'_>, from: [u32; 8], cols: usize, rows: Tensor, to: [u32; 2]) -> Call {
    values(frame, mix::COPY, [from; 3], cols, rows, to)
}

pub(super) fn join_rows(frame: &Frame<'_>, parts: &[View], out: Tensor) -> Vec<Call> {
    let mut to = frame.place(out);
    let part = |view: &View| {
        let call = copy(frame, frame.view(*view), view.cols(), view.tensor, [to, frame.cols(out)]);
        to += frame.most_rows(view.tensor) as u32 * frame.cols(out);
        call
    };
    parts.iter().map(part).collect()
}

pub(super) fn join_columns(frame: &Frame<'_>, parts: &[View], out: Tensor) -> Vec<Call> {
    let mut to = frame.place(out);
    let part = |view: &View| {
        let call = copy(frame, frame.view(*view), view.cols(), out, [to, frame.cols(out)]);
        to += view.cols() as u32;
        call
    };
    parts.iter().map(part).collect()
}

pub(super) fn take_rows(frame: &Frame<'_>, x: View, start: usize, out: Tensor) -> Vec<Call> {
    let mut from = frame.view(x);
    from[0] += start as u32 * frame.cols(x.tensor);
    vec![copy(frame, from, x.cols(), out, [frame.place(out), frame.cols(out)])]
}

pub(super) fn gated_add(frame: &Frame<'_>, [x, gate, y]: [View; 3], out: Tensor) -> Vec<Call> {
    let views = [x, gate, y].map(|view| frame.view(view));
    vec![values(frame, mix::GATED_ADD, views, x.cols(), out, [frame.place(out), frame.cols(out)])]
}

pub(super) fn rotate_pairs(frame: &Frame<'_>, x: View, angles: View, out: Tensor) -> Vec<Call> {
    let angles = frame.view(angles);
    let views = [blocks(frame, x), angles, angles];
    vec![values(frame, mix::ROTATE_PAIRS, views, x.cols(), out, [frame.place(out), frame.cols(out)])]
}

pub(super) fn modulate(frame: &Frame<'_>, views: [View; 3], eps: f32, out: Tensor) -> Vec<Call> {
    let mut params = views.map(|view| frame.view(view)).concat();
    params.extend([views[0].cols() as u32, frame.place(out), frame.cols(out), eps.to_bits()]);
    let grid = [Extent::Fixed(1), Extent::Rows(frame.rows(out), 1), Extent::Fixed(1)];
    vec![Call::new(Launch::always(shaders::MODULATE.with(&[]), grid), params, vec![frame.bound_arena()])]
}

/// Operands of `Op::FullAttention`.
pub(super) struct Attention {
    pub qkv: [View; 3],
    pub scale: f32,
    pub seen: Seen,
    pub out: Tensor,
}

pub(super) fn full_attention(frame: &Frame<'_>, op: &Attention) -> Result<Vec<Call>, OpError> {
    let q = op.qkv[0];
    let dim = FULL_DIMS
        .into_iter()
        .find(|dim| *dim as usize >= q.dim)
        .ok_or_else(|| wrong("full_attention", "head dimension on wgpu".to_owned(), "up to 512", q.dim.to_string()))?;
    let (keys, causal) = match op.seen {
        Seen::All => (u32::MAX, 0),
        Seen::Causal { keys } => (keys as u32, 1),
    };
    let mut params = op.qkv.map(|view| blocks(frame, view)).concat();
    params.extend([frame.place(op.out), frame.cols(op.out), op.scale.to_bits(), keys]);
    params.extend([causal, frame.count(op.out), 0, 0]);
    let slices = Extent::Fixed(q.dim.div_ceil(FULL_VALUES));
    let grid = [Extent::Fixed(q.heads), Extent::Rows(frame.rows(op.out), FULL_QUERIES), slices];
    let launch = Launch::always(shaders::full_attention(dim), grid);
    Ok(vec![Call::new(launch, params, vec![frame.bound_step(), frame.bound_arena()])])
}

/// Words of a group norm's statistics: mean and squares for each group of each chunk.
pub(super) fn norm_scratch(rows: usize, groups: usize) -> usize {
    rows.div_ceil(NORM_CHUNK) * groups * 2
}

pub(super) fn group_norm(
    frame: &Frame<'_>,
    x: View,
    groups: usize,
    [gain, bias]: [&Vector; 2],
    eps: f32,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let (one, count) = (Extent::Fixed(1), frame.count(x.tensor));
    let mut params = frame.view(x).to_vec();
    params.extend([groups as u32, NORM_CHUNK as u32, 0, count]);
    let chunks = Extent::Rows(frame.rows(x.tensor), NORM_CHUNK);
    let bound = vec![frame.bound_step(), frame.bound_arena(), frame.bound_scratch()];
    let launch = Launch::always(shaders::GROUP_SUMS.with(&[]), [Extent::Fixed(groups), chunks, one]);
    let sums = Call::new(launch, params, bound);
    let params = vec![groups as u32, x.cols() as u32, NORM_CHUNK as u32, 0, frame.place(out), count, eps.to_bits(), 0];
    let vectors = [frame.bound_step(), frame.vector(gain)?, frame.vector(bias)?];
    let bound = vectors.into_iter().chain([frame.bound_scratch(), frame.bound_arena()]).collect();
    let launch = Launch::always(shaders::GROUP_NORM.with(&[]), [Extent::Fixed(groups), one, one]);
    Ok(vec![sums, Call::new(launch, params, bound)])
}

pub(super) fn conv2d(frame: &Frame<'_>, op: &Conv2d, out: Tensor) -> Result<Vec<Call>, OpError> {
    let weight = resident(&op.weight, frame.device)?;
    if weight.has_packed() {
        let got = op.weight.info().kernel.clone();
        return Err(wrong("conv2d", op.weight.name().to_owned(), "a dense weight", got));
    }
    if !op.x.is_contiguous() || op.norm.is_some_and(|norm| !norm.affine.is_contiguous()) {
        return Err(wrong("conv2d", "columns of the input on wgpu".to_owned(), "side by side", "blocks"));
    }
    let times: usize = if op.upsample { 2 } else { 1 };
    let (height, width) = (op.grid.height * times, op.grid.width * times);
    let affine = op.norm.map_or(u32::MAX, |norm| frame.view(norm.affine)[0]);
    let of_chunk = |chunk: &Chunk| {
        let kind = match chunk.shape.codes {
            Codes::Dense(kind) => kind,
            // Refused above.
            Codes::Packed { .. } => chunk.shape.scale,
        };
        let mut params = frame.view(op.x).to_vec();
        params.extend(op.residual.map_or([0; 8], |residual| frame.view(residual)));
        params.extend([height, width, op.kernel, times, op.x.cols()].map(|n| n as u32));
        params.extend([affine, op.norm.is_some_and(|norm| norm.silu).into(), op.residual.is_some().into()]);
        params.extend([chunk.shape.units(op.weight.cols()), chunk.rows, chunk.first_row].map(|n| n as u32));
        params.extend([frame.place(out), frame.cols(out), 0, 0, 0]);
        let grid = [height * width, chunk.rows].map(|n| Extent::Fixed(n.div_ceil(CONV_TILE)));
        let launch = Launch::always(shaders::conv2d(kind), [grid[0], grid[1], Extent::Fixed(1)]);
        let codes = Bound { buffer: chunk.buffer.clone(), offset: 0, size: chunk.code_bytes };
        Ok(Call::new(launch, params, vec![codes, frame.vector(&op.bias)?, frame.bound_arena()]))
    };
    weight.chunks.iter().map(of_chunk).collect()
}
