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

/// What has been seen of a token within the penalty window.
#[derive(Default)]
struct Seen {
    generated: usize,
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
        let mut seen: HashMap<u32, Seen> = HashMap::new();
        for (at, token) in tokens.iter().enumerate().skip(start) {
            seen.entry(*token).or_default().generated += usize::from(at >= prompt);
        }
        for (token, Seen { generated }) in seen {
            let logit = &mut logits[token as usize];
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            if generated > 0 {
                *logit -= presence_penalty + frequency_penalty * generated as f32;
            }
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
