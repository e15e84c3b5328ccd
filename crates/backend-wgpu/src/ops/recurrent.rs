//! The recurrent half of a hybrid: what lives in state slots.

use super::{Bound, Call, Extent, Frame, Launch};
use crate::cache::guess_row;
use crate::shaders::{self, KEPT};
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
}

pub(super) fn delta(frame: &Frame<'_>, op: &Delta<'_>) -> Result<Vec<Call>, OpError> {
    let [q, k, v] = op.qkv;
    let state = frame.memory.state()?;
    let kept = KEPT.into_iter().find(|kept| kept * 8 >= k.dim as u32);
    let kept = kept.ok_or_else(|| OpError::Shape {
        op: "gated_delta",
        what: "key dimension on wgpu".to_owned(),
        wanted: "up to 256".to_owned(),
        got: k.dim.to_string(),
    })?;
    // Without gates to make, what they are made with is not looked at; the step's arrays are always there.
    let (gates, [rate, bias]) = match &op.gates {
        Gates::Given(gates) => (*gates, [frame.bound_step(), frame.bound_step()]),
        Gates::Made { a, b, decay_rate, dt_bias } => ([*a, *b], [frame.vector(decay_rate)?, frame.vector(dt_bias)?]),
    };
    let mut params = Vec::new();
    // Kernels ask for the heads of keys and values, so their blocks stay.
    for view in op.qkv {
        params.extend(super::blocks(frame, view));
    }
    for view in gates {
        params.extend(frame.view(view));
    }
    let map = match op.map {
        HeadMap::Grouped => 0,
        HeadMap::Tiled => 1,
    };
    params.extend([frame.place(op.out), frame.cols(op.out)]);
    params.extend([state.delta_len(), guess_row(&state) * state.max_pending, guess_row(&state)].map(|n| n as u32));
    let factor = (q.dim as f64).powf(-0.5) as f32;
    params.extend([map, op.eps.to_bits(), factor.to_bits()]);
    let bound = vec![
        frame.bound_step(),
        rate,
        bias,
        Bound::whole(frame.memory.deltas(op.layer)),
        Bound::whole(&frame.areas.rows[op.layer]),
        frame.bound_arena(),
    ];
    let grid = [Extent::Fixed(v.dim.div_ceil(32)), Extent::Fixed(v.heads), Extent::Segments];
    let kernel = shaders::delta(kept, matches!(op.gates, Gates::Made { .. }));
    Ok(vec![Call::new(Launch::always(kernel, grid), params, bound)])
}
