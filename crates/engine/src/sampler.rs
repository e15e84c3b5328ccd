//! From logits to one token.

use crate::core::SamplingParams;
use crate::random::Random;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Chooses the tokens of one request.
#[derive(Debug, Clone)]
pub(crate) struct Sampler {
    params: SamplingParams,
    random: Random,
}

impl Sampler {
    /// `params` have been validated.
    pub(crate) fn new(params: &SamplingParams) -> Self {
        let seed = params.seed.unwrap_or_else(Random::fresh_seed);
        Sampler { params: params.clone(), random: Random::new(seed) }
    }

    /// Chooses the token after `tokens`, of which the first `prompt` were given. Changes the logits, which are finite.
    pub(crate) fn choose(&mut self, logits: &mut [f32], tokens: &[u32], prompt: usize) -> u32 {
        for (token, bias) in &self.params.logit_bias {
            logits[*token as usize] += bias;
        }
        self.penalise(logits, tokens, prompt);
        if self.params.temperature == 0.0 {
            return argmax(logits) as u32;
        }
        self.draw(logits)
    }

    fn penalise(&self, logits: &mut [f32], tokens: &[u32], prompt: usize) {
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, penalty_window, .. } =
            self.params;
        if repetition_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0 {
            return;
        }
        let start = tokens.len() - penalty_window.unwrap_or(tokens.len()).min(tokens.len());
        // Every token of the window, and how often the answer holds it.
        let mut seen: HashMap<u32, usize> = HashMap::new();
        for (at, token) in tokens.iter().enumerate().skip(start) {
            *seen.entry(*token).or_default() += usize::from(at >= prompt);
        }
        for (token, generated) in seen {
            let logit = &mut logits[token as usize];
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            if generated > 0 {
                *logit -= presence_penalty + frequency_penalty * generated as f32;
            }
            // Logits near the end of the f32 range must not leave it.
            *logit = logit.clamp(f32::MIN, f32::MAX);
        }
    }

    /// Draws from what temperature, top-k, top-p and min-p leave.
    fn draw(&mut self, logits: &[f32]) -> u32 {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let best = logits[argmax(logits)];
        // Probability relative to the most probable token.
        let weight = |token: u32| (f64::from(logits[token as usize] - best) / f64::from(temperature)).exp();
        let mut candidates = Candidates::new(logits);
        let limit = if top_k == 0 { logits.len() } else { top_k.min(logits.len()) };
        if limit < logits.len() {
            candidates.sort_to(limit);
        }
        let mut kept = limit;
        if top_p < 1.0 {
            let total: f64 = candidates.order[..limit].iter().map(|t| weight(*t)).sum();
            let mut sum = 0.0;
            kept = 0;
            while kept < limit && sum < f64::from(top_p) * total {
                if kept == candidates.sorted {
                    candidates.sort_to((4 * kept).max(64).min(limit));
                }
                sum += weight(candidates.order[kept]);
                kept += 1;
            }
        }
        let survivors: Vec<(u32, f64)> = candidates.order[..kept]
            .iter()
            .map(|token| (*token, weight(*token)))
            .filter(|(_, weight)| *weight >= f64::from(min_p))
            .collect();
        let total: f64 = survivors.iter().map(|(_, weight)| weight).sum();
        let mut rest = self.random.unit() * total;
        for (token, weight) in &survivors {
            rest -= weight;
            if rest < 0.0 {
                return *token;
            }
        }
        // Rounding can leave a crumb; it belongs to the last survivor, and the most probable token always survives.
        survivors.last().map_or_else(|| argmax(logits) as u32, |(token, _)| *token)
    }
}

/// Token ids, the first `sorted` of which are the most probable in order.
struct Candidates<'a> {
    logits: &'a [f32],
    order: Vec<u32>,
    sorted: usize,
}

impl<'a> Candidates<'a> {
    fn new(logits: &'a [f32]) -> Self {
        Candidates { logits, order: (0..logits.len() as u32).collect(), sorted: 0 }
    }

    /// Brings the most probable `count` tokens to the front, in order. Linear in the vocabulary; only the front is
    /// sorted.
    fn sort_to(&mut self, count: usize) {
        let logits = self.logits;
        let by_rank = |a: &u32, b: &u32| -> Ordering {
            logits[*b as usize].total_cmp(&logits[*a as usize]).then_with(|| a.cmp(b))
        };
        let rest = &mut self.order[self.sorted..];
        let new = count - self.sorted;
        if new < rest.len() {
            rest.select_nth_unstable_by(new, by_rank);
        }
        rest[..new].sort_unstable_by(by_rank);
        self.sorted = count;
    }
}

/// The largest logit's index, the first among equals.
pub(crate) fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(params: SamplingParams) -> Sampler {
        Sampler::new(&SamplingParams { seed: Some(1), ..params })
    }

    fn logits_of(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln()).collect()
    }

    /// Tokens drawn in many rounds.
    fn drawn(params: SamplingParams, logits: &[f32]) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        let mut sampler = sampler(params);
        for _ in 0..20_000 {
            counts[sampler.choose(&mut logits.to_vec(), &[], 0) as usize] += 1;
        }
        counts
    }

    fn params() -> SamplingParams {
        SamplingParams::default()
    }

    #[test]
    fn draws_follow_the_distribution() {
        let p = [0.1, 0.4, 0.2, 0.3];
        let close = |counts: &[usize], wanted: &[f32]| {
            let fits = counts.iter().zip(wanted).all(|(n, p)| (*n as f32 / 20_000.0 - p).abs() < 0.015);
            assert!(fits, "{counts:?} for {wanted:?}");
        };
        close(&drawn(params(), &logits_of(&p)), &p);
        // Temperature 0.5 squares the probabilities, which sum to 0.3 then.
        let cold = SamplingParams { temperature: 0.5, ..params() };
        close(&drawn(cold, &logits_of(&p)), &[0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3]);
        close(&drawn(SamplingParams { top_k: 2, ..params() }, &logits_of(&p)), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        // 0.4 + 0.3 stay below 0.75, so the third comes in.
        let nucleus = SamplingParams { top_p: 0.75, ..params() };
        close(&drawn(nucleus, &logits_of(&p)), &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0]);
        // Of top-2, renormalised to 4/7 and 3/7, the first reaches 0.5 alone.
        let both = SamplingParams { top_k: 2, top_p: 0.5, ..params() };
        close(&drawn(both, &logits_of(&p)), &[0.0, 1.0, 0.0, 0.0]);
        let floor = SamplingParams { min_p: 0.6, ..params() };
        close(&drawn(floor, &logits_of(&p)), &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
    }

    #[test]
    fn a_wide_nucleus_over_a_flat_distribution_is_found_piece_by_piece() {
        // 1,000 equal tokens: the first 900 by index make 0.9, whatever the order of the selection.
        let counts = drawn(SamplingParams { top_p: 0.8995, ..params() }, &vec![0.25; 1000]);
        assert!(counts[..900].iter().all(|n| *n > 0) && counts[900..].iter().all(|n| *n == 0));
    }

    #[test]
    fn extreme_logits_stay_finite() {
        let mut logits = vec![-3e38, 3e38, 3e38, 0.0];
        let token = sampler(SamplingParams { temperature: 0.01, top_p: 0.9, ..params() }).choose(&mut logits, &[], 0);
        assert!(token == 1 || token == 2);
    }

    #[test]
    fn penalties_by_definition() {
        let apply = |params: SamplingParams, tokens: &[u32], prompt: usize| {
            let mut logits = vec![2.0, -2.0, 1.0, 0.5];
            sampler(params).penalise(&mut logits, tokens, prompt);
            logits
        };
        // Tokens 0 and 1 are the prompt, 2 2 3 the answer.
        let text = [0, 1, 2, 2, 3];
        let repetition = SamplingParams { repetition_penalty: 2.0, ..params() };
        assert_eq!(apply(repetition.clone(), &text, 2), [1.0, -4.0, 0.5, 0.25]);
        let window = SamplingParams { penalty_window: Some(2), ..repetition };
        assert_eq!(apply(window, &text, 2), [2.0, -2.0, 0.5, 0.25]);
        let presence = SamplingParams { presence_penalty: 0.5, ..params() };
        assert_eq!(apply(presence, &text, 2), [2.0, -2.0, 0.5, 0.0]);
        let frequency = SamplingParams { frequency_penalty: 0.5, ..params() };
        assert_eq!(apply(frequency, &text, 2), [2.0, -2.0, 0.0, 0.0]);
    }

    #[test]
    fn bias_comes_before_the_choice() {
        let bias = SamplingParams { logit_bias: vec![(2, 100.0), (0, -100.0)], ..SamplingParams::greedy() };
        assert_eq!(sampler(bias).choose(&mut [50.0, 0.0, 0.0], &[], 0), 2);
    }
}
