//! The recurrent half of a hybrid: causal convolution and the gated delta rule, token by token.
//!
//! Formula: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024), in the form that Qwen3-Next and Qwen3.5 use.

use super::{Frame, SlotMemory, memory, pointwise};
use crate::{Cache, HeadMap, Op, OpError, Program, Segment, StepInputs, View};

/// What one token does to the matrices of all value heads.
#[derive(Clone)]
pub(super) struct Update {
    /// Normalised keys, one for each value head: `(heads, key_dim)`.
    keys: Vec<f32>,
    /// `(heads, value_dim)`.
    values: Vec<f32>,
    log_decay: Vec<f32>,
    beta: Vec<f32>,
}

fn slot<'a>(slots: &'a mut [Vec<SlotMemory>], segment: &Segment, layer: usize) -> Result<&'a mut SlotMemory, OpError> {
    let count = slots.len();
    let found = slots.get_mut(segment.slot).and_then(|layers| layers.get_mut(layer));
    found.ok_or_else(|| OpError::Inputs(format!("state slot {} of {count}, layer {layer}", segment.slot)))
}

/// Refuses a step that accepts more rows than a layer of the program holds pending. Layers that the program does not
/// touch have none, and do not count.
pub(super) fn check_accepted(cache: &Cache, program: &Program, inputs: &StepInputs) -> Result<(), OpError> {
    let mut memory = memory(cache)?;
    for segment in inputs.segments.iter().filter(|s| s.accepted > 0) {
        for op in &program.ops {
            let pending = match op {
                Op::ConvSilu { layer, .. } => slot(&mut memory.slots, segment, *layer)?.pending_window.len(),
                Op::GatedDelta { layer, .. } => slot(&mut memory.slots, segment, *layer)?.pending_delta.len(),
                _ => continue,
            };
            if segment.accepted > pending {
                return Err(OpError::Inputs(format!("{} rows accepted of {pending} pending", segment.accepted)));
            }
        }
    }
    Ok(())
}

/// `y[t] = silu(sum_j w[c][j] x[t - kernel + 1 + j])`, the rows before the step coming from the window.
pub(super) fn conv_silu(
    frame: &Frame<'_>,
    x: View,
    weight: &[f32],
    kernel: usize,
    layer: usize,
) -> Result<Vec<Vec<f32>>, OpError> {
    let rows = frame.read(x);
    let channels = x.cols();
    let mut out = vec![vec![0.0; channels]; rows.len()];
    let mut memory = memory(frame.cache)?;
    for segment in &frame.inputs.segments {
        let state = slot(&mut memory.slots, segment, layer)?;
        let mut history: Vec<Vec<f32>> = state.window.chunks_exact(channels).map(<[f32]>::to_vec).collect();
        history.extend(state.pending_window.drain(..).take(segment.accepted));
        let start = history.len();
        history.extend(rows[segment.rows.clone()].iter().cloned());
        for (i, row) in segment.rows.clone().enumerate() {
            for c in 0..channels {
                let sum: f64 = (0..kernel)
                    .map(|j| f64::from(weight[c * kernel + j]) * f64::from(history[start + i + 1 + j - kernel][c]))
                    .sum();
                out[row][c] = pointwise::silu(sum as f32);
            }
        }
        let held = if segment.speculative {
            state.pending_window = history[start..].to_vec();
            start
        } else {
            history.len()
        };
        state.window = history[held + 1 - kernel..held].concat();
    }
    Ok(out)
}

/// The gated delta rule of one layer: `(rows, v.heads * v.dim)`.
pub(super) fn gated_delta(
    frame: &Frame<'_>,
    qkv: [View; 3],
    gates: [View; 2],
    map: HeadMap,
    eps: f32,
    layer: usize,
) -> Result<Vec<Vec<f32>>, OpError> {
    let [q, k, v] = qkv;
    let (queries, keys, values) = (frame.read(q), frame.read(k), frame.read(v));
    let (log_decay, beta) = (frame.read(gates[0]), frame.read(gates[1]));
    let key_head = |h: usize| match map {
        HeadMap::Grouped => h / (v.heads / k.heads),
        HeadMap::Tiled => h % k.heads,
    };
    let spread = |row: &[f32], factor: f64| -> Vec<f32> {
        (0..v.heads).flat_map(|h| l2_normalised(&row[key_head(h) * k.dim..][..k.dim], eps, factor)).collect()
    };
    let mut out = vec![vec![0.0; v.cols()]; queries.len()];
    let mut memory = memory(frame.cache)?;
    for segment in &frame.inputs.segments {
        let state = slot(&mut memory.slots, segment, layer)?;
        for update in state.pending_delta.drain(..).take(segment.accepted) {
            apply(&mut state.delta, &update, k.dim, v.dim);
        }
        let mut matrices = state.delta.clone();
        for row in segment.rows.clone() {
            let update = Update {
                keys: spread(&keys[row], 1.0),
                values: values[row].clone(),
                log_decay: log_decay[row].clone(),
                beta: beta[row].clone(),
            };
            apply(&mut matrices, &update, k.dim, v.dim);
            let query = spread(&queries[row], (k.dim as f64).powf(-0.5));
            for (h, s) in matrices.chunks_exact(k.dim * v.dim).enumerate() {
                let read = transposed_product(s, &query[h * k.dim..][..k.dim], v.dim);
                out[row][h * v.dim..][..v.dim].copy_from_slice(&read);
            }
            if segment.speculative {
                state.pending_delta.push(update);
            }
        }
        if !segment.speculative {
            state.delta = matrices;
        }
    }
    Ok(out)
}

/// `x * rsqrt(sum(x^2) + eps) * factor`.
fn l2_normalised(x: &[f32], eps: f32, factor: f64) -> Vec<f32> {
    let sum: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    let inverse = factor / (sum + f64::from(eps)).sqrt();
    x.iter().map(|v| (f64::from(*v) * inverse) as f32).collect()
}

/// `S *= exp(g)`; `d = beta * (v - S^T k)`; `S += k d^T`, for every value head.
fn apply(matrices: &mut [f32], update: &Update, key_dim: usize, value_dim: usize) {
    for (h, s) in matrices.chunks_exact_mut(key_dim * value_dim).enumerate() {
        let key = &update.keys[h * key_dim..][..key_dim];
        let decay = f64::from(update.log_decay[h]).exp() as f32;
        s.iter_mut().for_each(|x| *x *= decay);
        let read = transposed_product(s, key, value_dim);
        let value = &update.values[h * value_dim..][..value_dim];
        let delta: Vec<f32> = value.iter().zip(&read).map(|(v, r)| update.beta[h] * (v - r)).collect();
        for (row, k) in s.chunks_exact_mut(value_dim).zip(key) {
            row.iter_mut().zip(&delta).for_each(|(s, d)| *s += k * d);
        }
    }
}

/// `S^T x` for S `(key_dim, value_dim)`, summed in f64.
fn transposed_product(s: &[f32], x: &[f32], value_dim: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; value_dim];
    for (row, x) in s.chunks_exact(value_dim).zip(x) {
        sums.iter_mut().zip(row).for_each(|(sum, s)| *sum += f64::from(*x) * f64::from(*s));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}
