//! The recurrent half of a hybrid: what lives in state slots.

use super::{Bound, Call, Extent, Frame, Launch};
use crate::cache::guess_row;
use crate::shaders::{self, KEPT, Value};
use onebit_ops::{HeadMap, OpError, Tensor, Vector, View};

pub(super) fn conv(
    frame: &Frame<'_>,
    x: View,
    weight: &Vector,
    kernel: usize,
    layer: usize,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let state = frame.memory.state()?;
    let mut params = frame.view(x).to_vec();
    params.extend([x.cols(), kernel].map(|n| n as u32));
    params.extend([frame.place(out), frame.cols(out)]);
    params.extend([state.window_len(), state.channels * state.max_pending].map(|n| n as u32));
    params.extend([0, 0]);
    let bound = vec![
        frame.bound_step(),
        frame.vector(weight)?,
        Bound::whole(frame.memory.windows(layer)),
        Bound::whole(&frame.areas.inputs[layer]),
        frame.bound_arena(),
    ];
    let grid = [Extent::Fixed(x.cols().div_ceil(128)), Extent::Tiles, Extent::Fixed(1)];
    Ok(vec![Call::new(Launch::always(shaders::CONV.with(&[]), grid), params, bound)])
}

pub(super) fn delta(
    frame: &Frame<'_>,
    [q, k, v]: [View; 3],
    [log_decay, beta]: [View; 2],
    map: HeadMap,
    eps: f32,
    layer: usize,
    out: Tensor,
) -> Result<Vec<Call>, OpError> {
    let state = frame.memory.state()?;
    let kept = KEPT.into_iter().find(|kept| kept * 8 >= k.dim as u32);
    let kept = kept.ok_or_else(|| OpError::Shape {
        op: "gated_delta",
        what: "key dimension on wgpu".to_owned(),
        wanted: "up to 256".to_owned(),
        got: k.dim.to_string(),
    })?;
    let mut params = Vec::new();
    // Kernels ask for the heads of keys and values, so their blocks stay.
    for view in [q, k, v] {
        params.extend(super::blocks(frame, view));
    }
    for view in [log_decay, beta] {
        params.extend(frame.view(view));
    }
    let map = match map {
        HeadMap::Grouped => 0,
        HeadMap::Tiled => 1,
    };
    params.extend([frame.place(out), frame.cols(out)]);
    params.extend([state.delta_len(), guess_row(&state) * state.max_pending, guess_row(&state)].map(|n| n as u32));
    let factor = (k.dim as f64).powf(-0.5) as f32;
    params.extend([map, eps.to_bits(), factor.to_bits()]);
    let bound = vec![
        frame.bound_step(),
        Bound::whole(frame.memory.deltas(layer)),
        Bound::whole(&frame.areas.rows[layer]),
        frame.bound_arena(),
    ];
    let grid = [Extent::Fixed(v.dim.div_ceil(32)), Extent::Fixed(v.heads), Extent::Segments];
    let kernel = shaders::DELTA.with(&[("KEPT", Value::Number(kept))]);
    Ok(vec![Call::new(Launch::always(kernel, grid), params, bound)])
}
