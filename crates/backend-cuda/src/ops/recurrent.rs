//! The recurrent half of a hybrid: what lives in state slots.

use super::{Call, Frame};
use crate::launch;
use crate::params::{ConvParams, DeltaParams, head_map};
use onebit_ops::{HeadMap, OpError, Tensor, Vector, View};

pub(super) fn conv_silu(
    frame: &Frame<'_>,
    x: View,
    weight: &Vector,
    kernel: usize,
    layer: usize,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let windows = frame.memory.windows(layer)?;
    let pending = frame.memory.pending_inputs(frame.areas, layer)?;
    let params = ConvParams {
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
    };
    Ok(vec![Call::new(launch::conv_silu(frame.bucket.rows, x.cols(), kernel)?, params)])
}

pub(super) struct Delta {
    pub qkv: [View; 3],
    /// Log decay and beta.
    pub gates: [View; 2],
    pub map: HeadMap,
    pub eps: f32,
    pub layer: usize,
    pub out: Tensor,
}

pub(super) fn gated_delta(frame: &Frame<'_>, op: &Delta) -> Result<Vec<Call>, OpError> {
    let [q, k, v] = op.qkv;
    let states = frame.memory.deltas(op.layer)?;
    let pending = frame.memory.pending_rows(frame.areas, op.layer)?;
    let params = DeltaParams {
        step: frame.step,
        q: frame.view(q),
        k: frame.view(k),
        v: frame.view(v),
        log_decay: frame.view(op.gates[0]),
        beta: frame.view(op.gates[1]),
        states: states.address,
        pending: pending.address,
        out: frame.place(op.out),
        slot_stride: states.stride,
        pending_stride: pending.stride,
        pending_row: launch::pending_row(v.heads, k.dim, v.dim) as u32,
        out_stride: frame.cols(op.out),
        map: match op.map {
            HeadMap::Grouped => head_map::GROUPED,
            HeadMap::Tiled => head_map::TILED,
        },
        eps: op.eps,
    };
    Ok(vec![Call::new(launch::gated_delta(frame.bucket.rows, v.heads, k.dim, v.dim)?, params)])
}
