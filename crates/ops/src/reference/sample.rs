//! The choice of a token: everything sorted, sums in f64.

use crate::{Draw, Sampled, allows};
use std::cmp::Ordering;

/// The token of one row of logits; see [`Draw`] for the rule. The draw fits the row.
pub fn sample(raw: &[f32], draw: &Draw) -> Sampled {
    if raw.iter().any(|l| l.is_nan() || *l == f32::INFINITY) {
        return Sampled::none();
    }
    let raw: Vec<f32> = raw.iter().map(|l| l.max(f32::MIN)).collect();
    let mut logits = raw.clone();
    for adjust in &draw.adjust {
        let logit = &mut logits[adjust.token as usize];
        *logit = adjust.apply(*logit);
    }
    let allowed = |t: &usize| draw.mask.as_ref().is_none_or(|mask| allows(mask, *t));
    let mut ranked: Vec<usize> = (0..logits.len()).filter(allowed).collect();
    // The two zeros are equal; nothing here is NaN.
    ranked.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap_or(Ordering::Equal).then(a.cmp(b)));
    let token = if draw.temperature == 0.0 { ranked[0] } else { pick(&logits, ranked, draw) };
    Sampled { token: token as u32, logprob: log_softmax(&raw, token) as f32 }
}

/// Steps 4 and 5 of the rule.
fn pick(logits: &[f32], mut ranked: Vec<usize>, draw: &Draw) -> usize {
    let best = f64::from(logits[ranked[0]]);
    let weight = |t: usize| ((f64::from(logits[t]) - best) / f64::from(draw.temperature)).exp();
    if draw.top_k > 0 {
        ranked.truncate(draw.top_k as usize);
    }
    let reach = f64::from(draw.top_p) * ranked.iter().map(|t| weight(*t)).sum::<f64>();
    let mut sum = 0.0;
    let enough = ranked.iter().position(|t| {
        sum += weight(*t);
        sum >= reach
    });
    ranked.truncate(enough.map_or(ranked.len(), |last| last + 1));
    ranked.retain(|t| weight(*t) >= f64::from(draw.min_p));
    ranked.sort_unstable();
    let goal = draw.uniform * ranked.iter().map(|t| weight(*t)).sum::<f64>();
    let mut sum = 0.0;
    let found = ranked.iter().copied().find(|t| {
        sum += weight(*t);
        sum > goal
    });
    // `uniform` is below 1, so only rounding can leave nothing; the best always survives.
    found.unwrap_or(ranked[ranked.len() - 1])
}

fn log_softmax(logits: &[f32], token: usize) -> f64 {
    let top = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|l| (f64::from(*l) - top).exp()).sum();
    f64::from(logits[token]) - top - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Adjust;
    use std::sync::Arc;

    /// The token drawn at each of 1,000 evenly spaced uniform numbers, counted.
    fn counts(draw: &Draw, probabilities: &[f32]) -> Vec<usize> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut counts = vec![0; logits.len()];
        for i in 0..1000 {
            let uniform = (f64::from(i) + 0.5) / 1000.0;
            counts[sample(&logits, &Draw { uniform, ..draw.clone() }).token as usize] += 1;
        }
        counts
    }

    fn neutral() -> Draw {
        Draw { temperature: 1.0, ..Draw::greedy() }
    }

    #[test]
    fn draws_follow_the_distribution_that_the_cuts_leave() {
        let p = [0.1, 0.4, 0.2, 0.3];
        assert_eq!(counts(&neutral(), &p), [100, 400, 200, 300]);
        // Temperature 0.5 squares the probabilities, which sum to 0.3 then.
        assert_eq!(counts(&Draw { temperature: 0.5, ..neutral() }, &p), [33, 534, 133, 300]);
        assert_eq!(counts(&Draw { top_k: 2, ..neutral() }, &p), [0, 571, 0, 429]);
        // 0.4 + 0.3 stay below 0.75, so the third comes in.
        assert_eq!(counts(&Draw { top_p: 0.75, ..neutral() }, &p), [0, 444, 223, 333]);
        // Of top-2, renormalised to 4/7 and 3/7, the first reaches 0.5 alone.
        assert_eq!(counts(&Draw { top_k: 2, top_p: 0.5, ..neutral() }, &p), [0, 1000, 0, 0]);
        assert_eq!(counts(&Draw { min_p: 0.6, ..neutral() }, &p), [0, 571, 0, 429]);
        let mask = Some(Arc::from([0b1101u32]));
        assert_eq!(counts(&Draw { mask, ..neutral() }, &p), [167, 0, 333, 500]);
    }

    #[test]
    fn equal_logits_fall_to_the_lowest_ids() {
        assert_eq!(sample(&[1.0, 2.0, 2.0], &Draw::greedy()).token, 1);
        assert_eq!(sample(&[-1.0, -0.0, 0.0], &Draw::greedy()).token, 1);
        let flat = vec![0.25; 1000];
        let last = Draw { top_p: 0.8995, uniform: 0.999_999, ..neutral() };
        assert_eq!(sample(&flat, &last).token, 899);
        assert_eq!(sample(&flat, &Draw { top_k: 7, ..last }).token, 6);
    }

    #[test]
    fn the_probability_is_that_of_the_raw_logits() {
        let logits = [0.25f32, 0.5, 0.25].map(f32::ln);
        let adjust = vec![Adjust { token: 2, bias: 100.0, divide: 1.0, subtract: 0.0 }];
        let got = sample(&logits, &Draw { adjust, ..Draw::greedy() });
        assert_eq!(got.token, 2);
        assert!((got.logprob - 0.25f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn numbers_at_the_ends_of_the_range() {
        for bad in [f32::NAN, f32::INFINITY] {
            let got = sample(&[0.0, bad], &neutral());
            assert!(got.token == Sampled::NOT_FINITE && got.logprob.is_nan());
        }
        let wide = [f32::MIN, f32::MAX, f32::MAX, f32::NEG_INFINITY];
        for uniform in [0.0, 0.4, 0.6, 0.99] {
            let got = sample(&wide, &Draw { temperature: 0.01, uniform, ..neutral() });
            assert_eq!(got.token, if uniform < 0.5 { 1 } else { 2 });
            assert!((got.logprob - 0.5f32.ln()).abs() < 1e-6);
        }
    }
}
