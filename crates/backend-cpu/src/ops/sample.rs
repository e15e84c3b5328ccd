//! The choice of a token from a row of logits, without sorting the vocabulary.

use super::{Frame, PerWorker};
use crate::generic::Kernels;
use crate::generic::softmax::Survey;
use crate::memory::{Carve, Disjoint, carved_bytes};
use onebit_ops::{Draw, Sampled, View};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bytes of scratch memory that each worker needs: logits after the adjustments, and weights.
pub(crate) fn scratch(logits: View) -> usize {
    2 * carved_bytes::<f32>(logits.cols())
}

/// One token for each logit row.
pub(crate) fn run(frame: &mut Frame<'_>, logits: View) -> Vec<Sampled> {
    let rows = frame.inputs.logit_rows.len();
    let mut tokens = vec![Sampled::none(); rows];
    let (input, draws, kernels) = (frame.read(logits), &frame.inputs.draws, frame.exec.kernels);
    let scratch = PerWorker::new(frame.worker_scratch, frame.exec.pool.threads());
    let out = Disjoint::new(&mut tokens);
    frame.exec.each(rows, logits.cols(), &|r, worker| {
        // SAFETY: each worker has a piece of its own, and each row is one task.
        let (space, token) = unsafe { (scratch.piece(worker), &mut out.piece(r..r + 1)[0]) };
        let mut space = Carve::new(space);
        let (changed, weights) = (space.take(logits.cols()), space.take(logits.cols()));
        *token = choose(kernels, input.row(r), &draws[r], changed, weights);
    });
    tokens
}

/// The token of one row; [`Draw`] has the rule.
fn choose(kernels: &Kernels, raw: &[f32], draw: &Draw, changed: &mut [f32], weights: &mut [f32]) -> Sampled {
    let survey = |x: &[f32]| {
        let mut found = Survey { top: 0.0, usable: false };
        (kernels.survey)(x, &mut found);
        found
    };
    let found = survey(raw);
    if !found.usable {
        return Sampled::none();
    }
    (kernels.soft_weights)(raw, found.top, 1.0, weights);
    let log_sum = sum(weights).ln();
    let untouched = draw.adjust.is_empty() && draw.mask.is_none() && found.top > f32::MIN;
    let (logits, best) = if untouched {
        (raw, found.top)
    } else {
        adjust(raw, draw, changed);
        (&*changed, survey(changed).top)
    };
    let token = if draw.temperature == 0.0 {
        // The first among equals; the two zeros are equal.
        logits.iter().position(|l| *l == best).unwrap_or(0)
    } else {
        (kernels.soft_weights)(logits, best, draw.temperature, weights);
        pick(logits, weights, draw)
    };
    let logprob = f64::from(raw[token].max(f32::MIN)) - f64::from(found.top) - log_sum;
    Sampled { token: token as u32, logprob: logprob as f32 }
}

/// The logits after adjustments and mask; what is masked out is −∞, and nothing else is.
fn adjust(raw: &[f32], draw: &Draw, changed: &mut [f32]) {
    changed.iter_mut().zip(raw).for_each(|(to, from)| *to = from.max(f32::MIN));
    for adjust in &draw.adjust {
        let logit = &mut changed[adjust.token as usize];
        *logit = adjust.apply(*logit);
    }
    if let Some(mask) = &draw.mask {
        for (word, logits) in mask.iter().zip(changed.chunks_mut(32)) {
            if *word != u32::MAX {
                let outside = logits.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                outside.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
        }
    }
}

/// Draws by weight from what the cuts leave.
fn pick(logits: &[f32], weights: &mut [f32], draw: &Draw) -> usize {
    // A weight of 0 may be that of a masked token.
    let masked = draw.mask.is_some();
    if masked {
        weights.iter_mut().zip(logits).filter(|(_, l)| **l == f32::NEG_INFINITY).for_each(|(w, _)| *w = 0.0);
    }
    let limited = draw.top_k > 0 && (draw.top_k as usize) < logits.len();
    let is_kept = |weight: f32| weight >= draw.min_p && weight > 0.0;
    if !limited && draw.top_p >= 1.0 {
        return walk(weights.iter().enumerate().filter(|(_, w)| is_kept(**w)).map(|(t, w)| (t, *w)), draw.uniform);
    }
    let mut ranked = if limited { largest(logits, draw.top_k as usize) } else { nucleus(logits, weights, draw.top_p) };
    let total: f64 = if limited { ranked.iter().map(|t| f64::from(weights[*t])).sum() } else { sum(weights) };
    let (mut reached, goal) = (0.0, f64::from(draw.top_p) * total);
    let enough = ranked.iter().position(|t| {
        reached += f64::from(weights[*t]);
        reached >= goal
    });
    ranked.truncate(enough.map_or(ranked.len(), |last| last + 1));
    ranked.retain(|t| is_kept(weights[*t]));
    ranked.sort_unstable();
    walk(ranked.iter().map(|t| (*t, weights[*t])), draw.uniform)
}

/// Orders tokens by logit, then by falling id: the largest rank is the most probable.
fn rank(logit: f32, token: usize) -> u64 {
    // The sum makes the two zeros one; flipped bits of negative numbers sort as the numbers do.
    let bits = (logit + 0.0).to_bits();
    let order = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(order) << 32 | u64::from(!(token as u32))
}

/// The `count` most probable tokens, in order.
fn largest(logits: &[f32], count: usize) -> Vec<usize> {
    let mut kept: BinaryHeap<Reverse<u64>> = BinaryHeap::with_capacity(count + 1);
    let mut least = 0;
    for (token, logit) in logits.iter().enumerate() {
        let rank = rank(*logit, token);
        if kept.len() < count || rank > least {
            kept.push(Reverse(rank));
            if kept.len() > count {
                kept.pop();
            }
            least = kept.peek().map_or(0, |Reverse(rank)| *rank);
        }
    }
    kept.into_sorted_vec().into_iter().map(|Reverse(rank)| !(rank as u32) as usize).collect()
}

/// Tokens among which the nucleus lies, most probable first. Those below `(1 - top_p) / vocabulary` of the whole weight
/// have less than `1 - top_p` of it together, so the others reach `top_p`; half of that leaves room for rounding.
fn nucleus(logits: &[f32], weights: &[f32], top_p: f32) -> Vec<usize> {
    let floor = 0.5 * (1.0 - f64::from(top_p)) * sum(weights) / weights.len() as f64;
    let mut ranked: Vec<usize> = (0..weights.len()).filter(|t| f64::from(weights[*t]) >= floor).collect();
    ranked.sort_unstable_by_key(|t| Reverse(rank(logits[*t], *t)));
    ranked
}

/// The first token whose cumulative weight exceeds the share `uniform` of all.
fn walk(survivors: impl Iterator<Item = (usize, f32)> + Clone, uniform: f64) -> usize {
    let goal = uniform * survivors.clone().map(|(_, w)| f64::from(w)).sum::<f64>();
    let (mut reached, mut last) = (0.0, 0);
    for (token, weight) in survivors {
        reached += f64::from(weight);
        if reached > goal {
            return token;
        }
        last = token;
    }
    last
}

/// In eight chains, so that the sum does not wait for itself.
fn sum(values: &[f32]) -> f64 {
    let (full, rest) = values.as_chunks::<8>();
    let mut chains = [0.0f64; 8];
    for values in full {
        chains.iter_mut().zip(values).for_each(|(chain, v)| *chain += f64::from(*v));
    }
    chains.into_iter().chain(rest.iter().map(|v| f64::from(*v))).sum()
}
