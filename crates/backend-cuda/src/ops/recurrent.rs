//! The recurrent half of a hybrid: what lives in state slots.

use super::{Call, Frame};
use crate::delta::{self, Room};
use crate::launch::{self, Launch};
use crate::params::{ConvParams, DeltaParams, PrepareParams, head_map};
use onebit_ops::{HeadMap, OpError, Tensor, Vector, View};

pub(super) fn conv_silu(
    frame: &Frame<'_>,
    x: View,
    weight: &Vector,
    kernel: usize,
    layer: usize,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let params = conv_params(frame, x, weight, kernel, layer, out)?;
    Ok(vec![Call::new(launch::conv_silu(frame.bucket.rows, x.cols(), kernel)?, params)])
}

/// What a convolution is handed.
pub(super) fn conv_params(
    frame: &Frame<'_>,
    x: View,
    weight: &Vector,
    kernel: usize,
    layer: usize,
    out: Tensor,
) -> Result<ConvParams, OpError> {
    let windows = frame.memory.windows(layer)?;
    let pending = frame.memory.pending_inputs(frame.areas, layer)?;
    Ok(ConvParams {
        step: frame.step,
        x: frame.view(x),
        weight: frame.vector(weight)?,
        windows: windows.address,
        pending: pending.address,
        out: frame.place(out),
        slot_stride: windows.stride,
        pending_stride: pending.stride,
        kernel: kernel as u32,
        out_stride: frame.cols(out),
    })
}

/// What the delta rule decays and learns by.
pub(super) enum Gates<'a> {
    /// Log decay and beta.
    Given([View; 2]),
    /// What `DeltaGates` makes them of.
    Made { a: View, b: View, decay_rate: &'a Vector, dt_bias: &'a Vector },
}

pub(super) struct Delta<'a> {
    pub qkv: [View; 3],
    pub gates: Gates<'a>,
    pub map: HeadMap,
    pub eps: f32,
    pub layer: usize,
    pub out: Tensor,
    /// What is made of the results at once, as a product's input; they are written nowhere then.
    pub next: Option<PrepareParams>,
}

/// The kernel that can make its results the input of a product.
fn rounding(frame: &Frame<'_>, k: View, v: View) -> Option<Launch> {
    let device = frame.device;
    let room = Room { arch: device.arch, shared: device.shared_bytes, multiprocessors: device.multiprocessors };
    delta::rounds(frame.bucket.rows, v.heads, [k.dim, v.dim], room)
}

/// Whether there is one.
pub(super) fn rounds(frame: &Frame<'_>, k: View, v: View) -> bool {
    rounding(frame, k, v).is_some()
}

fn launches(rows: usize, k: View, v: View) -> Result<(Vec<Launch>, usize), OpError> {
    delta::gated_delta(rows, [k.heads, v.heads], [k.dim, v.dim])
}

/// Bytes for what is made of all rows beforehand.
pub(super) fn delta_scratch(rows: usize, k: View, v: View) -> Result<usize, OpError> {
    Ok(launches(rows, k, v)?.1)
}

pub(super) fn gated_delta(frame: &Frame<'_>, op: &Delta<'_>) -> Result<Vec<Call>, OpError> {
    let [q, k, v] = op.qkv;
    let states = frame.memory.deltas(op.layer)?;
    let pending = frame.memory.pending_rows(frame.areas, op.layer)?;
    let ([log_decay, beta], made_of) = match op.gates {
        Gates::Given(gates) => (gates, [0; 2]),
        Gates::Made { a, b, decay_rate, dt_bias } => ([a, b], [frame.vector(decay_rate)?, frame.vector(dt_bias)?]),
    };
    let params = DeltaParams {
        step: frame.step,
        q: frame.view(q),
        k: frame.view(k),
        v: frame.view(v),
        log_decay: frame.view(log_decay),
        beta: frame.view(beta),
        decay_rate: made_of[0],
        dt_bias: made_of[1],
        states: states.address,
        pending: pending.address,
        out: frame.place(op.out),
        made: frame.scratch,
        slot_stride: states.stride,
        pending_stride: pending.stride,
        pending_row: delta::pending_row(v.heads, k.dim, v.dim) as u32,
        out_stride: frame.cols(op.out),
        map: match op.map {
            HeadMap::Grouped => head_map::GROUPED,
            HeadMap::Tiled => head_map::TILED,
        },
        eps: op.eps,
        next: op.next.unwrap_or_default(),
    };
    let launches = match rounding(frame, k, v).filter(|_| op.next.is_some()) {
        Some(one) => vec![one],
        None => launches(frame.bucket.rows, k, v)?.0,
    };
    Ok(launches.into_iter().map(|launch| Call::new(launch, params)).collect())
}
