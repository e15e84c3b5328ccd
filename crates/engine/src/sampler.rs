//! What the device is asked for: one draw for each token of an answer.

use crate::random::Random;
use crate::sampling::SamplingParams;
use onebit_ops::{Adjust, Draw};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Makes the draws of one answer.
#[derive(Debug, Clone)]
pub(crate) struct Sampler {
    params: SamplingParams,
    random: Random,
}

impl Sampler {
    /// `params` have been validated.
    pub(crate) fn new(params: SamplingParams, seed: u64, choice: usize) -> Self {
        Sampler { params, random: Random::new(seed, choice) }
    }

    /// The draw of the `n`-th token of the answer. `tokens` are prompt and answer as far as they are known, the first
    /// `prompt` of them given; penalties need all of them.
    pub(crate) fn draw(&self, n: usize, tokens: &[u32], prompt: usize, mask: Option<Arc<[u32]>>) -> Draw {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let uniform = if temperature > 0.0 { self.random.unit(n) } else { 0.0 };
        let top_k = u32::try_from(top_k).unwrap_or(0);
        Draw { temperature, top_k, top_p, min_p, uniform, adjust: self.adjustments(tokens, prompt), mask }
    }

    fn adjustments(&self, tokens: &[u32], prompt: usize) -> Vec<Adjust> {
        let params = &self.params;
        let mut found: BTreeMap<u32, Adjust> = BTreeMap::new();
        let mut of = |token: u32, change: &mut dyn FnMut(&mut Adjust)| {
            change(found.entry(token).or_insert(Adjust { token, bias: 0.0, divide: 1.0, subtract: 0.0 }));
        };
        for (token, bias) in &params.logit_bias {
            of(*token, &mut |a| a.bias = *bias);
        }
        if params.has_penalties() {
            let start = tokens.len() - params.penalty_window.unwrap_or(tokens.len()).min(tokens.len());
            // Every token of the window, and how often the answer holds it.
            let mut seen: HashMap<u32, usize> = HashMap::new();
            for (at, token) in tokens.iter().enumerate().skip(start) {
                *seen.entry(*token).or_default() += usize::from(at >= prompt);
            }
            for (token, generated) in seen {
                of(token, &mut |a| {
                    a.divide = params.repetition_penalty;
                    if generated > 0 {
                        a.subtract = params.presence_penalty + params.frequency_penalty * generated as f32;
                    }
                });
            }
        }
        found.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits_after(params: SamplingParams, tokens: &[u32], prompt: usize) -> Vec<f32> {
        let mut logits = vec![2.0, -2.0, 1.0, 0.5];
        let draw = Sampler::new(params, 1, 0).draw(0, tokens, prompt, None);
        draw.adjust.iter().for_each(|a| logits[a.token as usize] = a.apply(logits[a.token as usize]));
        logits
    }

    #[test]
    fn penalties_by_definition() {
        let params = SamplingParams::default;
        // Tokens 0 and 1 are the prompt, 2 2 3 the answer.
        let text = [0, 1, 2, 2, 3];
        let repetition = SamplingParams { repetition_penalty: 2.0, ..params() };
        assert_eq!(logits_after(repetition.clone(), &text, 2), [1.0, -4.0, 0.5, 0.25]);
        let window = SamplingParams { penalty_window: Some(2), ..repetition };
        assert_eq!(logits_after(window, &text, 2), [2.0, -2.0, 0.5, 0.25]);
        let presence = SamplingParams { presence_penalty: 0.5, ..params() };
        assert_eq!(logits_after(presence.clone(), &text, 2), [2.0, -2.0, 0.5, 0.0]);
        let frequency = SamplingParams { frequency_penalty: 0.5, ..params() };
        assert_eq!(logits_after(frequency, &text, 2), [2.0, -2.0, 0.0, 0.0]);
        // The bias comes first: 1 + 4 is halved by nothing and then reduced.
        let both = SamplingParams { logit_bias: vec![(2, 4.0), (0, -3.0)], ..presence };
        assert_eq!(logits_after(both, &text, 2), [-1.0, -2.0, 4.5, 0.0]);
    }

    #[test]
    fn the_draw_of_a_place_is_always_the_same() {
        let draw = |n, choice| Sampler::new(SamplingParams::default(), 42, choice).draw(n, &[], 0, None).uniform;
        assert_eq!(draw(5, 0), draw(5, 0));
        assert!(draw(5, 0) != draw(6, 0) && draw(5, 0) != draw(5, 1));
        assert_eq!(Sampler::new(SamplingParams::greedy(), 1, 0).draw(3, &[], 0, None), Draw::greedy());
    }
}
