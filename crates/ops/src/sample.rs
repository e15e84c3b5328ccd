//! Choosing a token inside a step: what the host asks for, and what comes back.

use crate::{OpError, StepInputs, View};
use std::sync::Arc;

/// How one logit row becomes a token.
///
/// 1. Raw logits: a row with a NaN or +∞ gives [`Sampled::NOT_FINITE`]; −∞ counts as the smallest finite number.
/// 2. Every [`Adjust`], then the mask: a token whose bit is clear is out.
/// 3. `temperature == 0`: the largest logit, the lowest id among equals.
/// 4. Otherwise, ranked by (logit descending, id ascending): the first `top_k`; each has the weight
///    `exp((logit - best) / temperature)`; of those the fewest whose weights reach `top_p` times the sum of all their
///    weights; of those the ones whose weight is at least `min_p`.
/// 5. The survivors in ascending id: the first whose cumulative weight exceeds `uniform` times their sum.
///
/// The order of the steps is that of `transformers`, on which model cards base their numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// Divides the logits, at least 0; 0 takes the largest.
    pub temperature: f32,
    /// Keeps this many most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest most probable tokens whose weights reach this share, above 0 to 1.
    pub top_p: f32,
    /// Drops tokens less probable than this share of the most probable one, 0 to 1.
    pub min_p: f32,
    /// The random number, in `[0, 1)`.
    pub uniform: f64,
    /// Changes to single logits; each token at most once.
    pub adjust: Vec<Adjust>,
    /// Bit `t % 32` of word `t / 32` set: token `t` is allowed. One word for each 32 logits, the last one padded.
    pub mask: Option<Arc<[u32]>>,
}

impl Draw {
    /// The largest logit, untouched.
    pub fn greedy() -> Self {
        let adjust = Vec::new();
        Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, uniform: 0.0, adjust, mask: None }
    }

    /// What every backend relies on, for logits of `vocab` tokens.
    fn check(&self, vocab: usize) -> Result<(), String> {
        let ranges = [
            ("temperature", self.temperature, 0.0, f32::MAX),
            ("top_p", self.top_p, f32::MIN_POSITIVE, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
        ];
        for (name, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return Err(format!("{name} {value} is outside {low}..={high}"));
            }
        }
        if !(0.0..1.0).contains(&self.uniform) {
            return Err(format!("uniform {} is outside 0..1", self.uniform));
        }
        let mut tokens: Vec<u32> = self.adjust.iter().map(|a| a.token).collect();
        tokens.sort_unstable();
        if let Some(twice) = tokens.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("token {} is adjusted twice", twice[0]));
        }
        if let Some(last) = tokens.last().filter(|t| **t as usize >= vocab) {
            return Err(format!("adjusted token {last} is outside the vocabulary of {vocab}"));
        }
        let usable =
            |a: &Adjust| a.bias.is_finite() && a.subtract.is_finite() && a.divide.is_normal() && a.divide > 0.0;
        if let Some(bad) = self.adjust.iter().find(|a| !usable(a)) {
            return Err(format!("{bad:?} is not usable"));
        }
        let Some(mask) = &self.mask else { return Ok(()) };
        if mask.len() != vocab.div_ceil(32) {
            return Err(format!("a mask of {} words for {vocab} tokens", mask.len()));
        }
        if !(0..vocab).any(|t| allows(mask, t)) {
            return Err("the mask allows no token".to_owned());
        }
        Ok(())
    }
}

/// Whether a mask of [`Draw`] has the bit of a token.
pub fn allows(mask: &[u32], token: usize) -> bool {
    mask[token / 32] >> (token % 32) & 1 == 1
}

/// A change to one logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adjust {
    /// The token.
    pub token: u32,
    /// Added first.
    pub bias: f32,
    /// Then divides a positive logit and multiplies another; above 0.
    pub divide: f32,
    /// Subtracted last.
    pub subtract: f32,
}

impl Adjust {
    /// The changed logit: each step rounded to f32, the result within the finite numbers.
    pub fn apply(&self, logit: f32) -> f32 {
        let biased = logit + self.bias;
        let scaled = if biased > 0.0 { biased / self.divide } else { biased * self.divide };
        (scaled - self.subtract).clamp(f32::MIN, f32::MAX)
    }
}

/// The token of one logit row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The token, or [`Sampled::NOT_FINITE`].
    pub token: u32,
    /// Natural logarithm of its probability in the softmax of the raw logits; NaN without a token.
    pub logprob: f32,
}

impl Sampled {
    /// In place of a token: the row's logits held NaN or +∞.
    pub const NOT_FINITE: u32 = u32::MAX;

    /// A row that gave no token.
    pub fn none() -> Self {
        Sampled { token: Self::NOT_FINITE, logprob: f32::NAN }
    }
}

/// A row whose token is the one sampled in the step just before on the same cache, without the host having seen it.
/// Where that was [`Sampled::NOT_FINITE`], the row's embedding is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// Row of this step; its entry in [`StepInputs::tokens`] is ignored.
    pub row: usize,
    /// Logit row of the step before.
    pub from: usize,
}

impl StepInputs {
    /// Checks draws against the logits that the program samples, if it does.
    pub(crate) fn check_draws(&self, logits: Option<View>) -> Result<(), OpError> {
        let wanted = if logits.is_some() { self.logit_rows.len() } else { 0 };
        if self.draws.len() != wanted {
            return Err(OpError::Inputs(format!("{} draws, the plan takes {wanted}", self.draws.len())));
        }
        let vocab = logits.map_or(0, |l| l.cols());
        for (row, draw) in self.draws.iter().enumerate() {
            draw.check(vocab).map_err(|why| OpError::Inputs(format!("draw of logit row {row}: {why}")))?;
        }
        Ok(())
    }

    /// Checks carried tokens against the number of tokens that the step before sampled on this cache. Only a backend
    /// knows it.
    ///
    /// # Errors
    /// [`OpError::Inputs`] for a logit row that was not there.
    pub fn check_carried(&self, sampled: usize) -> Result<(), OpError> {
        match self.carried.iter().find(|c| c.from >= sampled) {
            None => Ok(()),
            Some(Carried { row, from }) => Err(OpError::Inputs(format!(
                "row {row} takes the token of logit row {from}, but the step before sampled {sampled}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_an_adjustment_is_bias_then_scale_then_subtraction() {
        let adjust = Adjust { token: 0, bias: 3.0, divide: 2.0, subtract: 1.0 };
        assert_eq!(adjust.apply(1.0), 1.0);
        assert_eq!(adjust.apply(-7.0), -9.0);
        assert_eq!(adjust.apply(f32::NEG_INFINITY), f32::MIN);
        assert_eq!(Adjust { divide: 0.01, ..adjust }.apply(f32::MAX), f32::MAX);
    }

    #[test]
    fn draws_outside_their_ranges_are_refused_by_name() {
        let mask = |words: &[u32]| Some(Arc::from(words));
        let adjust = Adjust { token: 1, bias: 0.0, divide: 1.0, subtract: 0.0 };
        let greedy = Draw::greedy;
        let cases = [
            (Draw { temperature: -1.0, ..greedy() }, "temperature"),
            (Draw { temperature: f32::NAN, ..greedy() }, "temperature"),
            (Draw { top_p: 0.0, ..greedy() }, "top_p"),
            (Draw { min_p: 1.5, ..greedy() }, "min_p"),
            (Draw { uniform: 1.0, ..greedy() }, "uniform"),
            (Draw { adjust: vec![adjust, adjust], ..greedy() }, "token 1 is adjusted twice"),
            (Draw { adjust: vec![Adjust { token: 40, ..adjust }], ..greedy() }, "outside the vocabulary of 40"),
            (Draw { adjust: vec![Adjust { divide: 0.0, ..adjust }], ..greedy() }, "not usable"),
            (Draw { mask: mask(&[1]), ..greedy() }, "a mask of 1 words for 40 tokens"),
            // The only bit lies beyond the vocabulary.
            (Draw { mask: mask(&[0, 1 << 8]), ..greedy() }, "allows no token"),
        ];
        for (draw, words) in cases {
            let error = draw.check(40).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(Draw { mask: mask(&[0, 1 << 7]), ..greedy() }.check(40), Ok(()));
    }
}
