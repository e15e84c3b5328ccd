//! The recurrent half of a hybrid: what lives in state slots.

use super::linear::Target;
use super::{Bound, Call, Extent, Frame, Launch, Steps};
use crate::cache::guess_row;
use crate::inputs::Counts;
use crate::shaders::{self, KEPT};
use onebit_ops::{HeadMap, Norm, OpError, Rows, Tensor, Vector, View};

/// Rows of a segment from which on it pays to make beforehand what heads share, in a kernel more.
const MANY_ROWS: usize = 16;

/// Parts of a column, of which a thread for few rows has one.
const PARTS: usize = 8;

/// Values of a part of a column.
fn kept(k: View) -> Option<u32> {
    KEPT.into_iter().find(|kept| *kept as usize * PARTS >= k.dim)
}

/// Words for what `delta_make` makes of so many rows.
pub(super) fn scratch(rows: usize, k: View, v: View) -> usize {
    let row = |kept: u32| 2 * k.heads * kept as usize * PARTS + (2 * v.heads).next_multiple_of(4);
    if rows < MANY_ROWS { 0 } else { rows * kept(k).map_or(0, row) }
}

/// Whether `delta_one` may run: for sequences with a row each.
fn is_one_each(counts: &Counts) -> bool {
    counts.longest == 1 && !counts.guesses
}

/// The steps whose result is left to the preparation of the product behind it.
pub(super) fn leaves_rounding(counts: &Counts) -> bool {
    !is_one_each(counts)
}

fn has_many_rows(counts: &Counts) -> bool {
    counts.longest >= MANY_ROWS && !counts.guesses
}

/// A convolution, for these steps.
pub(super) fn conv(
    frame: &Frame<'_>,
    steps: Steps,
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
    Ok(vec![Call::new(Launch::when(steps, shaders::CONV.with(&[]), grid), params, bound)])
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
    pub behind: Option<Behind<'a>>,
}

/// The norm behind the delta rule, its gate, and where the result is prepared for a product.
pub(super) struct Behind<'a> {
    pub gate: View,
    pub norm: &'a Norm,
    pub target: Target,
}

pub(super) fn delta(frame: &Frame<'_>, op: &Delta<'_>) -> Result<Vec<Call>, OpError> {
    let [q, k, v] = op.qkv;
    let state = frame.memory.state()?;
    let kept = kept(k).ok_or_else(|| OpError::Shape {
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
    params.extend(frame.view(op.behind.as_ref().map_or(v, |behind| behind.gate)));
    let map = match op.map {
        HeadMap::Grouped => 0,
        HeadMap::Tiled => 1,
    };
    params.extend([frame.place(op.out), frame.cols(op.out)]);
    params.extend([state.delta_len(), guess_row(&state) * state.max_pending, guess_row(&state)].map(|n| n as u32));
    let factor = (q.dim as f64).powf(-0.5) as f32;
    // At the front of the scratch memory is what is made beforehand.
    params.extend([map, op.eps.to_bits(), factor.to_bits(), 0]);
    params.push(op.behind.as_ref().map_or(0.0, |behind| behind.norm.eps).to_bits());
    params.extend(op.behind.as_ref().map_or([0; 5], |behind| behind.target.words));
    params.push(0);
    let (arena, step, scratch) = (frame.bound_arena(), frame.bound_step(), frame.bound_scratch());
    let states = Bound::whole(frame.memory.deltas(op.layer));
    let makes = matches!(op.gates, Gates::Made { .. });
    let heads = Extent::Fixed(v.heads);
    let grid = [Extent::Fixed(v.dim.div_ceil(32)), heads, Extent::Segments];
    let others: Steps = match op.behind {
        Some(_) => |counts| !has_many_rows(counts) && !is_one_each(counts),
        None => |counts| !has_many_rows(counts),
    };
    let few = Launch::when(others, shaders::delta(kept, makes), grid);
    let guesses = Bound::whole(&frame.areas.rows[op.layer]);
    let bound = vec![step.clone(), rate.clone(), bias.clone(), states.clone(), guesses, arena.clone()];
    let mut calls = vec![Call::new(few, params.clone(), bound)];
    if let Some(behind) = &op.behind {
        let kernel = shaders::delta_one(kept, k.dim == kept as usize * PARTS, makes, behind.target.kind);
        let launch = Launch::when(is_one_each, kernel, [heads, Extent::Rows(Rows::Step, 1), Extent::Fixed(1)]);
        let (rate, bias, gain) = (rate.clone(), bias.clone(), frame.vector(&behind.norm.gain)?);
        let bound = vec![step.clone(), rate, bias, gain, arena.clone(), states.clone(), scratch.clone()];
        calls.push(Call::new(launch, params.clone(), bound));
    }
    if frame.bucket.rows >= MANY_ROWS {
        let grid = [Extent::Fixed((2 * k.heads).div_ceil(8)), Extent::Rows(Rows::Step, 1), Extent::Fixed(1)];
        let make = Launch::when(has_many_rows, shaders::delta_make(kept, makes), grid);
        calls.push(Call::new(make, params.clone(), vec![rate, bias, arena.clone(), scratch.clone()]));
        let grid = [Extent::Fixed(v.dim.div_ceil(16)), heads, Extent::Segments];
        let rows = Launch::when(has_many_rows, shaders::delta_rows(kept), grid);
        calls.push(Call::new(rows, params, vec![step, scratch.clone(), scratch, states, arena]));
    }
    Ok(calls)
}
