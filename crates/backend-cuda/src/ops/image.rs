//! What image models need beside: copies of rows and columns, modulation, rotation of neighbours, attention without a
//! cache, group norm and convolution.

use super::{Call, Frame};
use crate::driver::Device;
use crate::launch::{self, Convolution, Halves};
use crate::params::{
    Address, Conv2dParams, FullAttentionParams, GroupNormParams, HalvesParams, MOST_CHANNELS, MixParams,
    PointwiseParams, View as Place,
};
use crate::weight::resident;
use onebit_ops::{Conv2d, OpError, Seen, Tensor, Vector, View};

const FLOAT: usize = size_of::<f32>();

/// `modulate` or `gated_add`.
pub(super) fn mix(frame: &Frame<'_>, kernel: &str, [x, a, b]: [View; 3], eps: f32, out: Tensor) -> Vec<Call> {
    let (most, rows) = frame.rows(out);
    let params = MixParams {
        rows,
        x: frame.view(x),
        a: frame.view(a),
        b: frame.view(b),
        out: frame.place(out),
        out_stride: frame.cols(out),
        eps,
    };
    vec![Call::new(launch::each_row(kernel, most), params)]
}

pub(super) fn rotate_pairs(frame: &Frame<'_>, x: View, angles: View, out: Tensor) -> Vec<Call> {
    let (most, rows) = frame.rows(out);
    let params = PointwiseParams {
        rows,
        a: frame.view(x),
        b: frame.view(angles),
        out: frame.place(out),
        out_stride: frame.cols(out),
        reserved: 0,
    };
    vec![Call::new(launch::each_row("rotate_pairs", most), params)]
}

/// The rows of a temporary, or of a stretch of it, to a place.
fn copy(frame: &Frame<'_>, tensor: Tensor, from: Place, cols: usize, to: Address, stride: u32) -> Call {
    let (most, rows) = frame.rows(tensor);
    let params = PointwiseParams { rows, a: from, b: from, out: to, out_stride: stride, reserved: 0 };
    Call::new(launch::pack(most, cols), params)
}

pub(super) fn join_rows(frame: &Frame<'_>, parts: &[View], out: Tensor) -> Vec<Call> {
    let stride = frame.cols(out);
    let mut to = frame.place(out);
    let part = |view: &View| {
        let call = copy(frame, view.tensor, frame.view(*view), view.cols(), to, stride);
        to += (frame.rows(view.tensor).0 * stride as usize * FLOAT) as Address;
        call
    };
    parts.iter().map(part).collect()
}

pub(super) fn join_columns(frame: &Frame<'_>, parts: &[View], out: Tensor) -> Vec<Call> {
    let mut to = frame.place(out);
    let part = |view: &View| {
        let call = copy(frame, out, frame.view(*view), view.cols(), to, frame.cols(out));
        to += (view.cols() * FLOAT) as Address;
        call
    };
    parts.iter().map(part).collect()
}

pub(super) fn take_rows(frame: &Frame<'_>, x: View, start: usize, out: Tensor) -> Vec<Call> {
    let from = frame.view(x);
    let skipped = (start * from.row_stride as usize * FLOAT) as Address;
    let from = Place { data: from.data + skipped, ..from };
    vec![copy(frame, out, from, x.cols(), frame.place(out), frame.cols(out))]
}

/// How attention between all rows runs on the matrix units, if it does.
fn halves(rows: usize, q: View, seen: Seen, device: &Device) -> Option<Halves> {
    // What a row does not see may be anything, and all rows share the scale of halves.
    if seen == Seen::All { launch::full_attention_halves(rows, q.heads, q.dim, device.shared_bytes) } else { None }
}

/// Bytes of the pieces that it needs: halves of queries, keys and values, largest numbers, factors.
fn halves_pieces(halves: &Halves, q: View, k: View) -> [usize; 5] {
    let of = |heads: usize| heads * halves.padded_rows * halves.dim * FLOAT;
    let all = [of(q.heads), of(k.heads), of(k.heads), 3 * q.heads * halves.blocks * FLOAT, 3 * q.heads * FLOAT];
    all.map(|bytes| bytes.next_multiple_of(256))
}

/// Bytes of memory that attention between the rows of a step uses for itself.
pub(super) fn attention_scratch(rows: usize, q: View, k: View, seen: Seen, device: &Device) -> usize {
    halves(rows, q, seen, device).map_or(0, |halves| halves_pieces(&halves, q, k).iter().sum())
}

pub(super) fn full_attention(
    frame: &Frame<'_>,
    [q, k, v]: [View; 3],
    scale: f32,
    seen: Seen,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let (most, rows) = frame.rows(out);
    if let Some(halves) = halves(most, q, seen, frame.device) {
        let mut end = frame.scratch;
        let [q_halves, k_halves, v_halves, largest, factors] = halves_pieces(&halves, q, k).map(|bytes| {
            let at = end;
            end += bytes as Address;
            at
        });
        let params = HalvesParams {
            rows,
            q: frame.view(q),
            k: frame.view(k),
            v: frame.view(v),
            halves: [q_halves, k_halves, v_halves],
            largest,
            factors,
            out: frame.place(out),
            out_stride: frame.cols(out),
            scale,
            dim: halves.dim as u32,
            padded_rows: halves.padded_rows as u32,
        };
        return Ok(halves.launches.map(|launch| Call::new(launch, params)).into());
    }
    let (keys, causal) = match seen {
        Seen::All => (u32::MAX, 0),
        Seen::Causal { keys } => (keys as u32, 1),
    };
    let params = FullAttentionParams {
        rows,
        q: frame.view(q),
        k: frame.view(k),
        v: frame.view(v),
        out: frame.place(out),
        out_stride: frame.cols(out),
        scale,
        keys,
        causal,
    };
    Ok(vec![Call::new(launch::full_attention(most, q.heads, q.dim)?, params)])
}

/// Bytes of a group norm's statistics: two doubles for each group of each chunk.
pub(super) fn norm_scratch(rows: usize, groups: usize) -> usize {
    rows.div_ceil(launch::NORM_CHUNK) * groups * 2 * size_of::<f64>()
}

pub(super) fn group_norm(
    frame: &Frame<'_>,
    x: View,
    groups: usize,
    [gain, bias]: [&Vector; 2],
    eps: f32,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    if x.cols() > MOST_CHANNELS {
        return Err(OpError::Shape {
            op: "group_norm",
            what: "columns on cuda".to_owned(),
            wanted: format!("up to {MOST_CHANNELS}"),
            got: x.cols().to_string(),
        });
    }
    let (most, rows) = frame.rows(x.tensor);
    let params = GroupNormParams {
        rows,
        x: frame.view(x),
        gain: frame.vector(gain)?,
        bias: frame.vector(bias)?,
        partials: frame.scratch,
        out: frame.place(out),
        groups: groups as u32,
        eps,
        chunk: launch::NORM_CHUNK as u32,
        chunks: most.div_ceil(launch::NORM_CHUNK) as u32,
    };
    Ok(launch::group_norm(most, groups).map(|launch| Call::new(launch, params)).into())
}

pub(super) fn conv2d(frame: &Frame<'_>, op: &Conv2d, out: Tensor) -> Result<Vec<Call>, OpError> {
    let refuse =
        |what: String, wanted: &str, got: String| OpError::Shape { op: "conv2d", what, wanted: wanted.to_owned(), got };
    let weight = resident(&op.weight, frame.device)?;
    let [part] = weight.parts[..] else {
        return Err(refuse(format!("parts of `{}` on cuda", op.weight.name()), "one", weight.parts.len().to_string()));
    };
    let codes = weight.shapes[0].codes;
    if codes.is_packed() {
        return Err(refuse(op.weight.name().to_owned(), "a dense weight", op.weight.info().kernel.clone()));
    }
    if !op.x.is_contiguous() || op.norm.is_some_and(|norm| !norm.affine.is_contiguous()) {
        return Err(refuse("columns of the input on cuda".to_owned(), "side by side", "blocks".to_owned()));
    }
    let times: usize = if op.upsample { 2 } else { 1 };
    let (height, width) = (op.grid.height * times, op.grid.width * times);
    let none = Place { data: 0, row_stride: 0, heads: 1, dim: 0, head_stride: 0 };
    let params = Conv2dParams {
        x: frame.view(op.x),
        residual: op.residual.map_or(none, |residual| frame.view(residual)),
        affine: op.norm.map_or(0, |norm| frame.view(norm.affine).data),
        bias: frame.vector(&op.bias)?,
        out: frame.place(out),
        part,
        height: height as u32,
        width: width as u32,
        kernel: op.kernel as u32,
        times: times as u32,
        channels: op.x.cols() as u32,
        silu: op.norm.is_some_and(|norm| norm.silu).into(),
        out_stride: frame.cols(out),
        reserved: 0,
    };
    let launch = launch::conv2d(Convolution {
        height,
        width,
        channels: op.x.cols(),
        outputs: op.weight.rows(),
        kernel: op.kernel,
        codes,
        aligned: (params.x.data | params.affine).is_multiple_of(16) && params.x.row_stride.is_multiple_of(4),
    });
    Ok(vec![Call::new(launch, params)])
}
