//! How the next token is chosen, as a caller asks for it.

use crate::error::EngineError;

/// How the next token is chosen. The default is neutral: the model's own distribution, nothing cut, nothing penalised.
///
/// The order is: logit bias, penalties, constraint, temperature, top-k, top-p, min-p, draw (that of `transformers`, on
/// which model cards base their numbers).
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits, 0 to 100. At 0 the largest logit wins, the lowest token id among equals.
    pub temperature: f32,
    /// Keeps this many most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest most probable tokens whose probabilities reach this sum, above 0 to 1.
    pub top_p: f32,
    /// Drops tokens less probable than this share of the most probable one, 0 to 1.
    pub min_p: f32,
    /// Logits of tokens seen in prompt or answer: divided by this when positive, multiplied when negative. From 0.01 to
    /// 100; 1 is neutral. (Keskar et al. 2019; equal in `transformers`, llama.cpp and vLLM.)
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that the answer holds, -2 to 2. (OpenAI's definition: the prompt does not
    /// count.)
    pub presence_penalty: f32,
    /// Subtracted once for every time that the answer holds the token, -2 to 2.
    pub frequency_penalty: f32,
    /// The penalties look at this many last tokens of the sequence; `None` looks at all.
    pub penalty_window: Option<usize>,
    /// Added to the logits of these tokens, -100 to 100 each.
    pub logit_bias: Vec<(u32, f32)>,
    /// Starts the random numbers. Equal seeds give equal draws; `None` takes a fresh one for each request.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: None,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// The largest logit wins.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..Self::default() }
    }

    /// Checks every range. [`Engine::submit`](crate::Engine::submit) does it too; nothing is clamped.
    ///
    /// # Errors
    /// [`EngineError::Parameter`] with the first parameter outside its range.
    pub fn validate(&self) -> Result<(), EngineError> {
        // "Above 0" is written as the smallest normal number; NaN lies in no range.
        let tiny = f32::MIN_POSITIVE;
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0, "from 0 to 100"),
            ("top_p", self.top_p, tiny, 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, 0.0, 1.0, "from 0 to 1"),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0, "from 0.01 to 100"),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0, "from -2 to 2"),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "from -2 to 2"),
        ];
        for (name, value, low, high, wanted) in ranges {
            if !(low..=high).contains(&value) {
                return Err(EngineError::parameter(name, wanted, value));
            }
        }
        if self.penalty_window == Some(0) {
            return Err(EngineError::parameter("penalty_window", "at least 1 token", 0));
        }
        for (at, (token, bias)) in self.logit_bias.iter().enumerate() {
            if !(-100.0..=100.0).contains(bias) {
                return Err(EngineError::parameter("logit_bias", "from -100 to 100", format!("{bias} for {token}")));
            }
            if self.logit_bias[..at].iter().any(|(other, _)| other == token) {
                return Err(EngineError::parameter("logit_bias", "one bias for a token", format!("two for {token}")));
            }
        }
        Ok(())
    }

    /// The choice depends on the tokens before it.
    pub(crate) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}
