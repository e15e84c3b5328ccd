//! The causal convolution and the gated delta rule over state slots.
//!
//! Rows of a speculative step stay beside the state until the next step says how many of them hold; those are applied
//! first (that so many are there was checked before the step). Segments go one after another, each spread over channels or heads, so that two that share a scratch slot do
//! not meet.

use super::{Frame, PerWorker, Tiles, vector};
use crate::generic::delta::{Head, Token, slab_len};
pub(crate) use crate::generic::rows::MAX_KERNEL;
use crate::memory::{Carve, Disjoint, carved_bytes};
use onebit_ops::{HeadMap, OpError, Tensor, Vector, View};
use std::ops::Range;

/// Channels of a task of the convolution are a multiple of this, and there are some tasks for each thread.
const CHANNELS: usize = 256;

/// `taps` is `[kernel][channels]`.
pub(crate) fn conv_silu(
    frame: &mut Frame<'_>,
    x: View,
    taps: &[f32],
    layer: usize,
    out: Tensor,
) -> Result<(), OpError> {
    let channels = x.cols();
    let kept = taps.len() / channels - 1;
    let (x, out) = (frame.read(x), frame.write(out));
    let (exec, segments) = (frame.exec, &frame.inputs.segments);
    for segment in segments {
        let (shape, index, range) = frame.cache.record(segment.slot, layer)?;
        // A second segment of the same slot finds nothing held.
        let accepted = segment.accepted.min(frame.cache.pending[index].0);
        let record = Disjoint::new(&mut frame.cache.slots.floats_mut()[range]);
        let rows = segment.rows.clone();
        let width = channels.div_ceil(2 * exec.pool.threads()).next_multiple_of(CHANNELS);
        exec.each(channels.div_ceil(width), 4 * width * rows.len(), &|task, _| {
            let columns = task * width..channels.min((task + 1) * width);
            let part = |row: usize| row + columns.start..row + columns.end;
            let window = |j: usize| part(shape.window().start + j * channels);
            // SAFETY: each piece of the columns is one task, which holds one of these at a time.
            let pending = |i: usize| unsafe { record.piece(part(shape.pending_window(i).start)) };
            let new = |i: usize| &x.row(rows.start + i)[columns.clone()];
            if accepted > 0 {
                // SAFETY: as above, and nobody holds a part of the window.
                unsafe { advance(record, kept, window, accepted, |i| pending(i)) };
            }
            let (mut history, mut weights) = ([&[][..]; MAX_KERNEL], [&[][..]; MAX_KERNEL]);
            for (j, weights) in weights.iter_mut().enumerate().take(kept + 1) {
                *weights = &taps[j * channels..][columns.clone()];
            }
            for (i, row) in rows.clone().enumerate() {
                if i + 1 < rows.len() {
                    (exec.kernels.fetch)(new(i + 1));
                }
                for (j, history) in history.iter_mut().enumerate().take(kept + 1) {
                    *history = match (i + j).checked_sub(kept) {
                        Some(row) => new(row),
                        // SAFETY: nobody writes the window now.
                        None => unsafe { record.shared(window(i + j)) },
                    };
                }
                // SAFETY: each piece of a row is in one task.
                let to = unsafe { out.piece(row, columns.clone()) };
                (exec.kernels.conv_silu)(&history[..=kept], &weights[..=kept], i == 0, to);
            }
            if segment.speculative {
                for i in 0..rows.len() {
                    pending(i).copy_from_slice(new(i));
                }
            } else {
                // SAFETY: as above.
                unsafe { advance(record, kept, window, rows.len(), new) };
            }
        });
        frame.cache.pending[index].0 = if segment.speculative { segment.rows.len() } else { 0 };
    }
    Ok(())
}

/// Moves a window of `kept` rows on by some rows, which follow it.
///
/// # Safety
/// Nobody else may hold a row of the window.
unsafe fn advance<'a>(
    record: Disjoint<'a, f32>,
    kept: usize,
    window: impl Fn(usize) -> Range<usize>,
    rows: usize,
    row: impl Fn(usize) -> &'a [f32],
) {
    for j in 0..kept {
        // SAFETY: the caller's promise; this one holds one row to write and another to read.
        let (to, from) = unsafe {
            let from = match (j + rows).checked_sub(kept) {
                Some(new) => row(new),
                None => record.shared(window(j + rows)),
            };
            (record.piece(window(j)), from)
        };
        to.copy_from_slice(from);
    }
}

/// The operands of `Op::GatedDelta`.
#[derive(Clone, Copy)]
pub(crate) struct Delta {
    pub q: View,
    pub k: View,
    pub v: View,
    pub log_decay: View,
    pub beta: View,
    pub map: HeadMap,
    pub eps: f32,
    pub layer: usize,
    pub out: Tensor,
}

/// Scratch bytes of the delta rule: (shared, each worker's).
pub(crate) fn delta_scratch(max_rows: usize, k: View) -> (usize, usize) {
    (2 * carved_bytes::<f32>(max_rows * k.cols()), carved_bytes::<f32>(slab_len(k.dim)))
}

/// Heads that one task works on in turn, so that it can fetch each one's state while it works on the one before: a few
/// tasks for each thread, or one if there are not so many heads.
fn heads_of_task(heads: usize, threads: usize) -> usize {
    let rounds = (heads / threads / 4).clamp(1, 4);
    heads.div_ceil(threads * rounds)
}

pub(crate) fn gated_delta(frame: &mut Frame<'_>, op: Delta) -> Result<(), OpError> {
    let rows = frame.inputs.tokens.len();
    let [q, k, v] = [op.q, op.k, op.v].map(|view| frame.read(view));
    let (log_decay, beta, out) = (frame.read(op.log_decay), frame.read(op.beta), frame.write(op.out));
    let exec = frame.exec;
    let (heads, key_heads, key_dim, value_dim) = (op.v.heads, op.k.heads, op.k.dim, op.v.dim);
    let mut carve = Carve::new(frame.scratch);
    let (queries, keys) =
        (carve.take::<f32>(rows * key_heads * key_dim), carve.take::<f32>(rows * key_heads * key_dim));
    let tiles = [&mut *queries, &mut *keys].map(|s| Tiles::new(s, key_dim));
    exec.each(rows, 4 * key_heads * key_dim, &|r, _| {
        exec.fetch(&q, r);
        exec.fetch(&k, r);
        for h in 0..key_heads {
            // SAFETY: each row is one task.
            let to = tiles.each_ref().map(|t| unsafe { t.piece(r * key_heads + h) });
            let [query, key] = to;
            (exec.kernels.l2_norm)(q.head(r, h), op.eps, (key_dim as f32).powf(-0.5), query);
            (exec.kernels.l2_norm)(k.head(r, h), op.eps, 1.0, key);
        }
    });
    let row_head = |all: &'_ [f32], r: usize, h: usize| (r * key_heads + h) * key_dim..all.len();
    let worker_scratch = PerWorker::new(frame.worker_scratch, exec.pool.threads());
    for segment in &frame.inputs.segments {
        let (shape, index, range) = frame.cache.record(segment.slot, op.layer)?;
        let keep = segment.accepted.min(frame.cache.pending[index].1);
        let record = &mut frame.cache.slots.floats_mut()[range];
        let (state, pending) = record.split_at_mut(shape.delta().end);
        let pending_row = |i: usize| {
            let base = shape.delta().end;
            shape.pending_delta(i).map(|r| &pending[r.start - base..r.end - base])
        };
        let matrices = Disjoint::new(&mut *state);
        let size = key_dim * value_dim;
        let run = heads_of_task(heads, exec.pool.threads());
        exec.each(heads.div_ceil(run), run * size * 4 * (segment.rows.len() + keep), &|task, worker| {
            // SAFETY: this task runs on this worker.
            let mut carve = Carve::new(unsafe { worker_scratch.piece(worker) });
            let slab = carve.take(slab_len(key_dim));
            let task = task * run..heads.min((task + 1) * run);
            for h in task.clone() {
                let key_head = match op.map {
                    HeadMap::Grouped => h / (heads / key_heads),
                    HeadMap::Tiled => h % key_heads,
                };
                let held = (0..keep).map(|i| {
                    let [keys, values, decay, beta] = pending_row(i);
                    Token {
                        key: &keys[key_head * key_dim..][..key_dim],
                        value: &values[h * value_dim..][..value_dim],
                        decay: decay[h].exp(),
                        beta: beta[h],
                        query: &[],
                    }
                });
                let new = segment.rows.clone().map(|r| Token {
                    key: &keys[row_head(keys, r, key_head)][..key_dim],
                    value: v.head(r, h),
                    decay: log_decay.row(r)[h].exp(),
                    beta: beta.row(r)[h],
                    query: &queries[row_head(queries, r, key_head)][..key_dim],
                });
                let tokens: Vec<Token<'_>> = held.chain(new).collect();
                let columns = h * value_dim..(h + 1) * value_dim;
                // SAFETY: each head is in one task.
                let outs = segment.rows.clone().map(|r| unsafe { out.piece(r, columns.clone()) });
                let mut outs: Vec<&mut [f32]> = outs.collect();
                let next = if h + 1 < task.end { (h + 1) * size..(h + 2) * size } else { 0..0 };
                (exec.kernels.delta_head)(&mut Head {
                    // SAFETY: each head is in one task.
                    state: unsafe { matrices.piece(h * size..(h + 1) * size) },
                    key_dim,
                    value_dim,
                    keep: if segment.speculative { keep } else { tokens.len() },
                    tokens: &tokens,
                    outs: &mut outs,
                    slab: &mut *slab,
                    cold: h == task.start,
                    // SAFETY: as above, and this task does not write it yet.
                    next: unsafe { matrices.shared(next) },
                });
            }
        });
        if segment.speculative {
            for (i, r) in segment.rows.clone().enumerate() {
                let [key_to, value_to, decay_to, beta_to] = shape.pending_delta(i);
                let width = key_heads * key_dim;
                record[key_to][..width].copy_from_slice(&keys[r * width..(r + 1) * width]);
                for h in 0..heads {
                    record[value_to.clone()][h * value_dim..][..value_dim].copy_from_slice(v.head(r, h));
                }
                record[decay_to].copy_from_slice(log_decay.row(r));
                record[beta_to].copy_from_slice(beta.row(r));
            }
        }
        frame.cache.pending[index].1 = if segment.speculative { segment.rows.len() } else { 0 };
    }
    Ok(())
}

/// A convolution's weight `(channels, kernel)` as `[kernel][channels]`.
pub(crate) fn transposed_taps(weight: &Vector, kernel: usize) -> Result<Vec<f32>, OpError> {
    let taps = vector(weight)?;
    let channels = taps.len() / kernel;
    Ok((0..kernel).flat_map(|j| (0..channels).map(move |c| taps[c * kernel + j])).collect())
}
