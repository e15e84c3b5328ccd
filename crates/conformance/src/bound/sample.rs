//! Whether a token may be the one that a draw chooses.
//!
//! The logits are exact, so only the evaluation of the rule has errors. With `u = 2^-24`:
//!
//! * an adjusted logit deviates by `e <= u (f |l + b| + |f (l + b)| + |result|)`, where `f` scales by the divisor; without
//!   an adjustment `e = 0`;
//! * a weight `exp(a)`, `a = (l - best) / T`, by the relative `r = (e + e_best + u |l - best|) / T + 2 u |a|` of its
//!   argument and `function(a)` of the exponential;
//! * a sum of n weights by the sum of `r w` and `gamma(n)` times their sum.
//!
//! A decision (a rank, a border of top-p or min-p, the end of the walk) that these errors cannot turn must be as in exact
//! arithmetic; one that they can turn may go either way.

use super::{Near, TINY, UNIT, function, gamma};
use onebit_ops::{Draw, allows};

/// A token that the draw may leave in.
struct Candidate {
    token: usize,
    logit: Near,
    weight: f64,
    /// Relative error of the weight.
    relative: f64,
    /// It is in whatever the errors do.
    certain: bool,
}

/// Explains why `got` cannot be the token of this row, if it cannot.
pub(crate) fn refute(raw: &[f32], draw: &Draw, got: u32) -> Result<(), String> {
    let got = got as usize;
    let allowed = |t: usize| draw.mask.as_ref().is_none_or(|mask| allows(mask, t));
    if got >= raw.len() || !allowed(got) {
        return Err(format!("token {got} is not allowed"));
    }
    let mut logits: Vec<Near> = raw.iter().map(|l| exact(f64::from(l.max(f32::MIN)))).collect();
    for adjust in &draw.adjust {
        let logit = &mut logits[adjust.token as usize];
        *logit = adjusted(logit.value, adjust);
    }
    let mut ranked: Vec<(usize, Near)> = logits.into_iter().enumerate().filter(|(t, _)| allowed(*t)).collect();
    ranked.sort_by(|(a, x), (b, y)| y.value.total_cmp(&x.value).then(a.cmp(b)));
    if draw.temperature == 0.0 {
        let high = ranked.iter().find(|(t, _)| *t == got).map_or(0.0, |(_, l)| l.value + l.error);
        let beats = |t: usize, l: &Near| l.value - l.error > high || l.value - l.error == high && t < got;
        return match ranked.iter().find(|(t, l)| beats(*t, l)) {
            None => Ok(()),
            Some((t, l)) => Err(format!("token {got} reaches {high:e}, token {t} has {:e}", l.value)),
        };
    }
    let mut candidates = weigh(ranked, draw);
    cut_rank(&mut candidates, draw.top_k as usize);
    cut_share(&mut candidates, f64::from(draw.top_p));
    let least = f64::from(draw.min_p);
    candidates.retain(|c| c.weight * (1.0 + c.relative) >= least);
    candidates.iter_mut().for_each(|c| c.certain &= c.weight * (1.0 - c.relative) >= least);
    walk(&candidates, draw.uniform, got)
}

fn exact(value: f64) -> Near {
    Near { value: if value == 0.0 { 0.0 } else { value }, error: 0.0 }
}

fn adjusted(logit: f64, adjust: &onebit_ops::Adjust) -> Near {
    let (bias, divide, subtract) = (f64::from(adjust.bias), f64::from(adjust.divide), f64::from(adjust.subtract));
    let biased = logit + bias;
    let factor = if biased > 0.0 { 1.0 / divide } else { divide };
    let scaled = biased * factor;
    let value = scaled - subtract;
    let error = UNIT * (factor * biased.abs() + scaled.abs() + value.abs());
    Near { value: value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)), error }
}

fn weigh(ranked: Vec<(usize, Near)>, draw: &Draw) -> Vec<Candidate> {
    let (best, temperature) = (ranked[0].1, f64::from(draw.temperature));
    let floor = best.value - best.error;
    let near_best = ranked.iter().filter(|(_, l)| l.value + l.error >= floor).map(|(_, l)| l.error);
    let best_error = near_best.fold(0.0, f64::max);
    let of = |(token, logit): (usize, Near)| {
        let below = best.value - logit.value;
        let (a, turned) = (-below / temperature, (logit.error + best_error + UNIT * below) / temperature);
        let relative = (turned + 2.0 * UNIT * a.abs()).exp_m1() + function(a);
        Candidate { token, logit, weight: a.exp(), relative: relative.min(1.0), certain: true }
    };
    ranked.into_iter().map(of).collect()
}

/// Top-k. Without adjustments ranks are exact.
fn cut_rank(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    let error = candidates.iter().map(|c| c.logit.error).fold(0.0, f64::max);
    if error > 0.0 {
        let (last, next) = (candidates[k - 1].logit.value, candidates[k].logit.value);
        for (rank, c) in candidates.iter_mut().enumerate() {
            let near = if rank < k { c.logit.value - c.logit.error <= next + error } else { true };
            c.certain &= !near;
        }
        let mut rank = 0;
        candidates.retain(|c| {
            rank += 1;
            rank <= k || c.logit.value + c.logit.error >= last - error
        });
    } else {
        candidates.truncate(k);
    }
}

/// Top-p: a token is in as long as those before it do not reach the share.
fn cut_share(candidates: &mut Vec<Candidate>, share: f64) {
    let total: f64 = candidates.iter().map(|c| c.weight).sum();
    let own: f64 = candidates.iter().map(|c| c.weight * c.relative).sum();
    let error = (1.0 + share) * (own + (gamma(candidates.len()) + 2.0 * UNIT) * total) + TINY;
    let mut before = 0.0;
    candidates.retain_mut(|c| {
        c.certain &= before + error < share * total;
        let possible = before - error < share * total;
        before += c.weight;
        possible
    });
}

/// The walk in ascending id ends at `got` when `before <= uniform * total < before + weight`, that is
/// `(1 - uniform) before - uniform (weight + after) <= 0 < (1 - uniform) (before + weight) - uniform after`.
fn walk(candidates: &[Candidate], uniform: f64, got: usize) -> Result<(), String> {
    let Some(this) = candidates.iter().find(|c| c.token == got) else {
        return Err(format!("token {got} is cut off"));
    };
    let span = |side: &dyn Fn(usize) -> bool| {
        candidates.iter().filter(|c| side(c.token)).fold((0.0, 0.0), |(low, high), c| {
            let least = if c.certain { c.weight * (1.0 - c.relative) } else { 0.0 };
            (low + least, high + c.weight * (1.0 + c.relative))
        })
    };
    let (before, after) = (span(&|t| t < got), span(&|t| t > got));
    let weight = this.weight * (1.0 + this.relative);
    let error = (gamma(candidates.len()) + 4.0 * UNIT) * (before.1 + weight + after.1) + TINY;
    let low = (1.0 - uniform) * before.0 - uniform * (weight + after.1);
    let high = (1.0 - uniform) * (before.1 + weight) - uniform * after.0;
    if low <= error && high > -error {
        return Ok(());
    }
    Err(format!("token {got} has the weight {weight:e} between {:e} and {:e}, at {uniform}", before.1, after.1))
}

/// The log-probability of a token in the softmax of a row that is finite but for −∞.
///
/// `l - top` is rounded once, each exponential has its own error and that of its argument, the sum `gamma(n)` and some
/// rescalings, the logarithm 8 units, and the difference is rounded.
pub(crate) fn log_probability(raw: &[f32], token: usize) -> Near {
    let logits: Vec<f64> = raw.iter().map(|l| f64::from(l.max(f32::MIN))).collect();
    let top = logits.iter().copied().fold(f64::MIN, f64::max);
    let (mut sum, mut own) = (0.0, 0.0);
    for below in logits.iter().map(|l| l - top) {
        sum += below.exp();
        own += below.exp() * (function(below) + UNIT * below.abs());
    }
    let below = logits[token] - top;
    let value = below - sum.ln();
    let relative = own / sum + gamma(raw.len()) + 64.0 * UNIT;
    Near { value, error: relative + UNIT * (8.0 * sum.ln() + below.abs() + 2.0 * value.abs()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(uniform: f64) -> Draw {
        Draw { temperature: 1.0, uniform, ..Draw::greedy() }
    }

    #[test]
    fn only_a_border_has_two_answers() {
        let logits = [0.5f32, 0.25, 0.25].map(f32::ln);
        let possible = |draw: &Draw| (0..3).filter(|t| refute(&logits, draw, *t).is_ok()).collect::<Vec<_>>();
        assert_eq!(possible(&draw(0.49)), [0]);
        assert_eq!(possible(&draw(0.5)), [0, 1]);
        assert_eq!(possible(&draw(0.501)), [1]);
        assert_eq!(possible(&Draw { top_p: 0.75, ..draw(0.9) }), [1, 2]);
        assert_eq!(possible(&Draw { top_p: 0.76, ..draw(0.9) }), [2]);
        assert_eq!(possible(&Draw { top_k: 2, ..draw(0.9) }), [1]);
        assert_eq!(possible(&Draw::greedy()), [0]);
        assert!(refute(&[1.0, 1.0], &Draw::greedy(), 1).is_err());
    }
}
