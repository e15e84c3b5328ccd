//! What the user asked for, then what the model's makers say, then neutral values.

use crate::Usage;
use crate::args::GenerateOptions;
use crate::side::GenerationDefaults;
use anyhow::{Result, anyhow};
use onebit_engine::SamplingParams;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Merges the three sources. A seed is always set, so that it can be printed.
///
/// # Errors
/// [`Usage`] with the first value outside its range.
pub fn merge(user: &GenerateOptions, model: &GenerationDefaults) -> Result<SamplingParams> {
    let neutral = SamplingParams::default();
    // A model that is not to be sampled from takes the likeliest token, unless the user asks for a temperature.
    let made = if model.do_sample == Some(false) { Some(0.0) } else { model.temperature };
    let params = SamplingParams {
        temperature: user.temperature.or(made).unwrap_or(neutral.temperature),
        top_k: user.top_k.or(model.top_k).unwrap_or(neutral.top_k),
        top_p: user.top_p.or(model.top_p).unwrap_or(neutral.top_p),
        min_p: user.min_p.or(model.min_p).unwrap_or(neutral.min_p),
        repetition_penalty: user.repeat_penalty.or(model.repetition_penalty).unwrap_or(neutral.repetition_penalty),
        presence_penalty: user.presence_penalty.unwrap_or(neutral.presence_penalty),
        frequency_penalty: user.frequency_penalty.unwrap_or(neutral.frequency_penalty),
        penalty_window: user.penalty_window,
        logit_bias: user.logit_bias.clone(),
        seed: Some(user.seed.unwrap_or_else(fresh_seed)),
    };
    params.validate().map_err(|e| anyhow!(Usage(e.to_string())))?;
    Ok(params)
}

/// A seed that differs from call to call and is short enough to type again.
pub(crate) fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() % 1_000_000_000
}

/// `temperature 0.6, top-k 20, top-p 0.95, seed 42`, or `greedy`.
#[must_use]
pub fn describe(params: &SamplingParams) -> String {
    let mut out = Vec::new();
    if params.temperature == 0.0 {
        out.push("greedy".to_owned());
    } else {
        out.push(format!("temperature {}", params.temperature));
        if params.top_k > 0 {
            out.push(format!("top-k {}", params.top_k));
        }
        if params.top_p < 1.0 {
            out.push(format!("top-p {}", params.top_p));
        }
        if params.min_p > 0.0 {
            out.push(format!("min-p {}", params.min_p));
        }
    }
    if params.repetition_penalty != 1.0 {
        out.push(format!("repeat penalty {}", params.repetition_penalty));
    }
    if params.temperature > 0.0 {
        out.extend(params.seed.map(|seed| format!("seed {seed}")));
    }
    out.join(", ")
}
