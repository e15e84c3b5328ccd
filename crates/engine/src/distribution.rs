//! The distribution over the next token that a row of logits stands for.

/// Log-probabilities of the next token, in nats. Sums are taken in f64, so that a large vocabulary loses nothing.
#[derive(Debug, Clone, Copy)]
pub struct Distribution<'a> {
    logits: &'a [f32],
    best: usize,
    /// The largest logit. It is taken off first, because beside a huge one a logarithm would be lost.
    top: f64,
    /// Logarithm of the sum of `exp(logit - top)`.
    log_sum: f64,
}

impl<'a> Distribution<'a> {
    /// The softmax of `logits`, which are finite and at least one.
    pub fn of(logits: &'a [f32]) -> Self {
        let best = (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        let top = f64::from(logits[best]);
        // The largest term is 1, so the sum is neither 0 nor infinite.
        let sum: f64 = logits.iter().map(|l| (f64::from(*l) - top).exp()).sum();
        Distribution { logits, best, top, log_sum: sum.ln() }
    }

    /// Natural logarithm of the token's probability.
    pub fn log_prob(&self, token: u32) -> f64 {
        self.log_prob_of(self.logits[token as usize])
    }

    fn log_prob_of(&self, logit: f32) -> f64 {
        f64::from(logit) - self.top - self.log_sum
    }

    /// The likeliest token, the lowest id among equals.
    pub fn best(&self) -> u32 {
        self.best as u32
    }

    /// The `count` likeliest tokens with their log-probabilities, likeliest first, equals in the order of their ids.
    pub fn top(&self, count: usize) -> Vec<(u32, f64)> {
        let by_rank =
            |a: &u32, b: &u32| self.logits[*b as usize].total_cmp(&self.logits[*a as usize]).then_with(|| a.cmp(b));
        let mut order: Vec<u32> = (0..self.logits.len() as u32).collect();
        let count = count.min(order.len());
        if count < order.len() {
            order.select_nth_unstable_by(count, by_rank);
        }
        order.truncate(count);
        order.sort_unstable_by(by_rank);
        order.into_iter().map(|token| (token, self.log_prob(token))).collect()
    }

    /// `KL(self || other)`: the nats that are lost when `other` stands in for `self`. Both have the same tokens.
    pub fn divergence(&self, other: &Distribution<'_>) -> f64 {
        let terms = self.logits.iter().zip(other.logits).map(|(p, q)| {
            let (log_p, log_q) = (self.log_prob_of(*p), other.log_prob_of(*q));
            log_p.exp() * (log_p - log_q)
        });
        // It is never negative; rounding may leave a crumb below zero.
        terms.sum::<f64>().max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, wanted: f64) {
        // Logits of f32 carry 24 bits: a relative 6e-8 of numbers below 4.
        assert!((got - wanted).abs() < 1e-6, "{got} for {wanted}");
    }

    #[test]
    fn probabilities_of_known_odds() {
        let logits = [0.25f32, 0.5, 0.125, 0.125].map(|p| p.ln() + 3.0);
        let distribution = Distribution::of(&logits);
        assert_eq!(distribution.best(), 1);
        near(distribution.log_prob(0), 0.25f64.ln());
        near(distribution.log_prob(3), 0.125f64.ln());
        let top = distribution.top(3);
        assert_eq!(top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 0, 2]);
        near(top[2].1, 0.125f64.ln());
        assert_eq!((distribution.top(9).len(), distribution.top(0).len()), (4, 0));
    }

    #[test]
    fn the_divergence_is_the_sum_of_its_definition() {
        let (p, q) = ([0.5f32, 0.25, 0.25], [0.25f32, 0.5, 0.25]);
        let logits = |odds: [f32; 3]| odds.map(f32::ln);
        let (a, b) = (logits(p), logits(q));
        let (p, q) = (Distribution::of(&a), Distribution::of(&b));
        near(p.divergence(&q), 0.25 * 2f64.ln());
        assert_eq!(p.divergence(&p), 0.0);
    }

    #[test]
    fn logits_at_the_ends_of_the_range() {
        let logits = [f32::MAX, f32::MIN, f32::MAX];
        let distribution = Distribution::of(&logits);
        near(distribution.log_prob(0), 0.5f64.ln());
        assert!(distribution.log_prob(1).is_finite());
    }
}
