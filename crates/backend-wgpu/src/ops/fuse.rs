//! Neighbouring ops that run as fewer kernels: gates and norms in front of a product, which its preparation does; norms and
//! rotations in front of attention. What lies between them is then never written, so only results that nothing else reads
//! are left out. The results have the same bits as those of the ops one by one.

use super::attention::{self, Heads};
use super::linear::{self, Behind, Fused, Input, Joined};
use super::recurrent::{self, Delta, Gates};
use super::{Call, Frame, Steps, are_apart, calls};
use crate::layout::GROUP;
use onebit_ops::{Epilogue, Op, OpError, Program, Tensor, View};

/// The calls of every op, in order; none for an op that a later one does with its own.
///
/// # Errors
/// Foreign handles and shapes that no kernel runs.
pub(crate) fn all_calls(program: &Program, frame: &Frame<'_>) -> Result<Vec<Vec<Call>>, OpError> {
    let readers = readers(program);
    let mut all: Vec<Vec<Call>> = Vec::with_capacity(program.ops.len());
    // A product whose input is prepared by what makes it, and the steps for which it is not.
    let mut prepared: Option<(usize, Steps)> = None;
    for (at, op) in program.ops.iter().enumerate() {
        let before = &program.ops[..at];
        let (left_out, calls) = match op {
            Op::Linear { x, norm, weight, activations, epilogue, out } => {
                let made = input(frame, &readers, before, op);
                let left_out = usize::from(made.is_some());
                let input = made.unwrap_or(Input::of(*x, norm.as_ref()));
                let joined = joined(frame, &readers, before, &input).map(|(attention, joined)| {
                    // Its last kernel is the one that joins splits.
                    all[attention].pop();
                    joined
                });
                let conv = program.ops.get(at + 1).and_then(|next| behind(frame, op, next));
                let unprepared = prepared.filter(|(product, _)| *product == at).map(|(_, others)| others);
                let fused = Fused { joined, conv, unprepared };
                (left_out, linear::calls(frame, &input, weight, fused, *activations, *epilogue, *out)?)
            }
            Op::ConvSilu { x, weight, kernel, layer, out } => {
                let done = before.last().and_then(|product| behind(frame, product, op)).is_some();
                let steps: Steps = if done { |counts| !linear::convolves(counts) } else { |_| true };
                (0, recurrent::conv(frame, steps, *x, weight, *kernel, *layer, *out)?)
            }
            Op::Attention { layer, scale, out, .. } => match heads(frame, &readers, before, op) {
                Some(heads) => {
                    let does_heads = attention::does_heads(frame, &heads);
                    let round = round(frame, &readers, program, at).filter(|_| does_heads);
                    if let Some((product, _)) = &round {
                        prepared = Some((*product, attention::leaves_rounding));
                    }
                    let round = round.as_ref().map(|(_, round)| round);
                    (4, attention::with_heads(frame, &heads, *layer, *scale, round, *out)?)
                }
                None => (0, calls(op, frame)?),
            },
            Op::GatedDelta { .. } => match delta(frame, &readers, before, op) {
                Some(mut delta) => {
                    delta.behind = norm_behind(frame, &readers, program, at);
                    if delta.behind.is_some() {
                        prepared = Some((at + 2, recurrent::leaves_rounding));
                    }
                    (1, recurrent::delta(frame, &delta)?)
                }
                None => (0, calls(op, frame)?),
            },
            _ => (0, calls(op, frame)?),
        };
        all[at - left_out..].iter_mut().for_each(Vec::clear);
        all.push(calls);
    }
    Ok(all)
}

/// Whether a view is the whole of a result that nothing else reads.
fn is_all_of(frame: &Frame<'_>, readers: &[usize], view: View, result: Tensor) -> bool {
    let whole = view.tensor == result && view.offset == 0 && view.is_contiguous();
    whole && view.cols() == frame.info(result).cols && readers[result.0 as usize] == 1
}

/// A delta rule that can make its gates itself.
fn delta<'a>(frame: &Frame<'_>, readers: &[usize], before: &'a [Op], op: &Op) -> Option<Delta<'a>> {
    let (
        Op::GatedDelta { q, k, v, log_decay: read_decay, beta: read_beta, map, eps, layer, out },
        Some(Op::DeltaGates { a, b, decay_rate, dt_bias, log_decay, beta }),
    ) = (op, before.last())
    else {
        return None;
    };
    let right = is_all_of(frame, readers, *read_decay, *log_decay)
        && is_all_of(frame, readers, *read_beta, *beta)
        && [*a, *b].into_iter().all(|read| are_apart(frame, read, *out));
    let gates = Gates::Made { a: *a, b: *b, decay_rate, dt_bias };
    let (map, eps, layer, out) = (*map, *eps, *layer, *out);
    right.then_some(Delta { qkv: [*q, *k, *v], gates, map, eps, layer, out, behind: None })
}

/// What stands between a delta rule and the product behind it, where the rule can do that too.
fn norm_behind<'a>(
    frame: &Frame<'_>,
    readers: &[usize],
    program: &'a Program,
    at: usize,
) -> Option<recurrent::Behind<'a>> {
    let [
        Op::GatedDelta { k, v, out: read, .. },
        Op::GatedNorm { x, z, norm, out: normed },
        Op::Linear { x: input, norm: None, weight, activations, out, .. },
        ..,
    ] = &program.ops[at..]
    else {
        return None;
    };
    let right = is_all_of(frame, readers, *x, *read) && is_all_of(frame, readers, *input, *normed);
    let right = right && v.dim == GROUP && x.dim == GROUP && k.dim.is_multiple_of(4);
    let target = linear::target(frame, weight, *activations, 0, *out)?;
    right.then_some(recurrent::Behind { gate: *z, norm, target })
}

/// The product behind attention, right behind it or its gate, for which attention can round: which op it is, and how.
fn round(frame: &Frame<'_>, readers: &[usize], program: &Program, at: usize) -> Option<(usize, attention::Round)> {
    let Op::Attention { q, out: read, .. } = &program.ops[at] else { return None };
    let (gate, made, product) = match program.ops.get(at + 1)? {
        Op::SigmoidMul { x, gate, out } if is_all_of(frame, readers, *x, *read) => (Some(*gate), *out, at + 2),
        _ => (None, *read, at + 1),
    };
    let Op::Linear { x, norm: None, weight, activations, out, .. } = program.ops.get(product)? else { return None };
    let right = is_all_of(frame, readers, *x, made) && q.dim.is_multiple_of(GROUP);
    let front = attention::scratch(frame.bucket, *q);
    let target = linear::target(frame, weight, *activations, front, *out)?;
    right.then_some((product, attention::Round { gate, target }))
}

/// Queries and keys that are normed and turned before attention: one kernel does it and fills the pages.
fn heads<'a>(frame: &Frame<'_>, readers: &[usize], before: &'a [Op], op: &Op) -> Option<Heads<'a>> {
    let [
        ..,
        Op::RmsNorm { x: q_raw, norm: q_norm, out: q_normed },
        Op::RmsNorm { x: k_raw, norm: k_norm, out: k_normed },
        Op::Rope { x: q_in, table, out: q_out },
        Op::Rope { x: k_in, table: k_table, out: k_out },
    ] = before
    else {
        return None;
    };
    let Op::Attention { q, k, v, out, .. } = op else { return None };
    let follows = |view: View, result: Tensor, raw: View| {
        is_all_of(frame, readers, view, result) && view.heads == raw.heads && view.dim == raw.dim
    };
    let right = follows(*q_in, *q_normed, *q_raw)
        && follows(*k_in, *k_normed, *k_raw)
        && follows(*q, *q_out, *q_raw)
        && follows(*k, *k_out, *k_raw)
        && table == k_table
        && [*q_raw, *k_raw, *v].into_iter().all(|read| are_apart(frame, read, *q_out));
    let raw = [*q_raw, *k_raw, *v];
    let in_one = raw.into_iter().all(|read| are_apart(frame, read, *out));
    right.then_some(Heads { raw, norms: [q_norm, k_norm], table, q: *q, in_one })
}

/// A convolution right behind a product, over some of its results, that the product does itself where a step allows it.
fn behind<'a>(frame: &Frame<'_>, product: &Op, conv: &'a Op) -> Option<Behind<'a>> {
    let Op::Linear { weight, epilogue: Epilogue::Store, out: made, .. } = product else { return None };
    let Op::ConvSilu { x, weight: taps, kernel: 4, layer, out } = conv else { return None };
    let right = x.tensor == *made && x.is_contiguous() && linear::can_convolve(frame, weight);
    right.then_some(Behind { first_row: x.offset, channels: x.cols(), taps, layer: *layer, out: *out })
}

/// Attention right before a product or its gate, whose splits the preparation joins; and which op it is.
fn joined(frame: &Frame<'_>, readers: &[usize], before: &[Op], input: &Input<'_>) -> Option<(usize, Joined)> {
    let (x, skipped) = match input {
        Input::Plain(x) => (*x, 1),
        Input::Sigmoid { x, .. } => (*x, 2),
        _ => return None,
    };
    let at = before.len().checked_sub(skipped)?;
    let Op::Attention { q, out, .. } = &before[at] else { return None };
    let right = attention::is_split(frame.bucket) && is_all_of(frame, readers, x, *out);
    let splits = frame.bucket.context.div_ceil(attention::SPLIT_TOKENS);
    let words = attention::scratch(frame.bucket, *q);
    right.then_some((at, Joined { dim: q.dim, splits, words }))
}

/// How many ops read each temporary.
fn readers(program: &Program) -> Vec<usize> {
    let mut readers = vec![0; program.tensors.len()];
    for view in program.ops.iter().flat_map(Op::inputs) {
        readers[view.tensor.0 as usize] += 1;
    }
    readers
}

/// What the preparation of a product can do itself of the op before it.
fn input<'a>(frame: &Frame<'_>, readers: &[usize], before: &'a [Op], op: &'a Op) -> Option<Input<'a>> {
    let Op::Linear { x, norm, .. } = op else { return None };
    let made_of = |result: Tensor| is_all_of(frame, readers, *x, result);
    if let Some(norm) = norm {
        return match before.last()? {
            Op::SelectRows { x: of, out } if made_of(*out) => Some(Input::Norm { x: *of, norm, selected: true }),
            _ => None,
        };
    }
    match before.last()? {
        Op::SigmoidMul { x: value, gate, out } if made_of(*out) => Some(Input::Sigmoid { x: *value, gate: *gate }),
        Op::SwiGlu { gate, up, out } if made_of(*out) => Some(Input::SwiGlu { up: *up, gate: *gate }),
        // A group of the preparation is a block of the norm.
        Op::GatedNorm { x: blocks, z, norm, out } if blocks.dim == GROUP && made_of(*out) => {
            Some(Input::GatedNorm { x: *blocks, gate: *z, norm })
        }
        _ => None,
    }
}
