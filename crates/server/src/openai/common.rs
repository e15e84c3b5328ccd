//! Fields that OpenAI's chat and completions share, in requests and in answers.

use crate::ask::{Sampling, Wish};
use crate::choice::{Logprob, logprobs_json};
use crate::error::ApiError;
use crate::fields::{self, Refusal, kind};
use crate::generation::{Finish, Totals};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Fields that say how tokens are chosen and when to end: OpenAI's, and those of vLLM and llama.cpp beside them.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    logit_bias: Option<Map<String, Value>>,
    seed: Option<i64>,
    n: Option<i64>,
    stop: Option<Value>,
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    truncation: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// Fields of other servers that would change the answer and are not supported by this one.
pub(crate) const REFUSED: [Refusal; 9] = [
    Refusal { field: "best_of", harmless: one_at_most, why: "ask for `n` answers and choose among them" },
    Refusal { field: "use_beam_search", harmless: fields::empty, why: "leave it out" },
    Refusal { field: "min_tokens", harmless: fields::empty, why: "use `ignore_eos` with `max_tokens`" },
    Refusal { field: "bad_words", harmless: fields::empty, why: "use `logit_bias`" },
    Refusal { field: "allowed_token_ids", harmless: fields::empty, why: "use a grammar or `logit_bias`" },
    Refusal { field: "prompt_logprobs", harmless: fields::never, why: "`onebit logits` writes those of given tokens" },
    Refusal {
        field: "include_stop_str_in_output",
        harmless: fields::empty,
        why: "a stop string is never part of the answer",
    },
    Refusal { field: "mirostat", harmless: fields::empty, why: "use temperature, top_k, top_p and min_p" },
    Refusal { field: "lora", harmless: fields::empty, why: "adapters cannot be loaded" },
];

fn one_at_most(value: &Value) -> bool {
    value.as_i64().is_some_and(|n| n <= 1)
}

impl Common {
    pub(crate) fn sampling(&self) -> Result<Sampling, ApiError> {
        Ok(Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty.or(self.repeat_penalty),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.repeat_last_n,
            logit_bias: logit_bias(self.logit_bias.as_ref())?,
            seed: self.seed,
        })
    }

    pub(crate) fn choices(&self) -> Result<usize, ApiError> {
        match self.n {
            None => Ok(1),
            Some(n @ 1..=128) => Ok(n as usize),
            Some(n) => Err(ApiError::field("n", format!("must be from 1 to 128, got {n}"))),
        }
    }

    pub(crate) fn stop(&self) -> Result<Vec<String>, ApiError> {
        fields::stops(fields::texts(self.stop.as_ref(), "stop")?, "stop")
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream == Some(true)
    }

    pub(crate) fn wants_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage == Some(true))
    }

    pub(crate) fn truncates(&self) -> Result<bool, ApiError> {
        truncation(self.truncation.as_deref())
    }
}

/// `auto` drops the beginning of a prompt that is too long.
pub(crate) fn truncation(word: Option<&str>) -> Result<bool, ApiError> {
    match word {
        None | Some("disabled") => Ok(false),
        Some("auto") => Ok(true),
        Some(other) => Err(ApiError::field("truncation", format!("must be auto or disabled, got `{other}`"))),
    }
}

fn logit_bias(map: Option<&Map<String, Value>>) -> Result<Vec<(u32, f32)>, ApiError> {
    let one = |(token, bias): (&String, &Value)| {
        let id = token.trim().parse().ok();
        let id: u32 = id.ok_or_else(|| ApiError::field("logit_bias", format!("`{token}` is no token id")))?;
        let number = bias.as_f64().map(|bias| bias as f32);
        let bias = number.ok_or_else(|| {
            ApiError::field("logit_bias", format!("expected a number for token {id}, got {}", kind(bias)))
        })?;
        Ok((id, bias))
    };
    map.into_iter().flatten().map(one).collect()
}

/// Every spelling of the wish about reasoning.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Reasoning {
    reasoning_effort: Option<String>,
    /// OpenRouter's object.
    reasoning: Option<ReasoningObject>,
    /// The object of several vendors: `{"type": "enabled" | "disabled", "budget_tokens": N}`.
    thinking: Option<ThinkingObject>,
    enable_thinking: Option<bool>,
    thinking_budget: Option<i64>,
    thinking_token_budget: Option<i64>,
    thinking_budget_tokens: Option<i64>,
    chat_template_kwargs: Option<Map<String, Value>>,
    include_reasoning: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct ReasoningObject {
    effort: Option<String>,
    max_tokens: Option<i64>,
    enabled: Option<bool>,
    exclude: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct ThinkingObject {
    r#type: Option<String>,
    budget_tokens: Option<i64>,
}

impl Reasoning {
    /// One wish. Budgets go before switches, switches before efforts, and the template's own variable is last.
    pub(crate) fn wish(&self) -> Result<Wish, ApiError> {
        let object = self.reasoning.as_ref();
        let thinking = self.thinking.as_ref();
        let switch = match thinking.and_then(|t| t.r#type.as_deref()) {
            None => None,
            Some("enabled" | "adaptive") => Some(true),
            Some("disabled") => Some(false),
            Some(other) => {
                let message = format!("must be enabled, disabled or adaptive, got `{other}`");
                return Err(ApiError::field("thinking.type", message));
            }
        };
        let of_template = self.template_wish()?;
        let parts = [
            Wish::tokens(self.thinking_budget, "thinking_budget")?,
            Wish::tokens(self.thinking_token_budget, "thinking_token_budget")?,
            Wish::tokens(self.thinking_budget_tokens, "thinking_budget_tokens")?,
            Wish::tokens(
                thinking.and_then(|t| t.budget_tokens).filter(|_| switch != Some(false)),
                "thinking.budget_tokens",
            )?,
            Wish::tokens(object.and_then(|o| o.max_tokens), "reasoning.max_tokens")?,
            Wish::switch(switch),
            Wish::switch(self.enable_thinking),
            Wish::switch(object.and_then(|o| o.enabled)),
            Wish::effort(self.reasoning_effort.as_deref(), "reasoning_effort")?,
            Wish::effort(object.and_then(|o| o.effort.as_deref()), "reasoning.effort")?,
            of_template,
        ];
        Ok(parts.into_iter().fold(Wish::default(), Wish::or))
    }

    /// The wish in the template's own variables.
    fn template_wish(&self) -> Result<Wish, ApiError> {
        const ON: &str = "chat_template_kwargs.enable_thinking";
        const BUDGET: &str = "chat_template_kwargs.thinking_budget";
        let given =
            |key: &str| self.chat_template_kwargs.as_ref().and_then(|map| map.get(key)).filter(|v| !v.is_null());
        let wrong = |field: &str, wanted: &str, v: &Value| {
            ApiError::field(field, format!("expected {wanted}, got {}", kind(v)))
        };
        let on =
            given("enable_thinking").map(|v| v.as_bool().ok_or_else(|| wrong(ON, "true or false", v))).transpose()?;
        let budget = given("thinking_budget").map(|v| v.as_i64().ok_or_else(|| wrong(BUDGET, "a whole number", v)));
        Ok(Wish::switch(on).or(Wish::tokens(budget.transpose()?, BUDGET)?))
    }

    /// More variables for the template.
    pub(crate) fn variables(&self) -> Map<String, Value> {
        let mut map = self.chat_template_kwargs.clone().unwrap_or_default();
        // These have an effect of their own.
        map.retain(|key, _| key != "enable_thinking" && key != "thinking_budget");
        map
    }

    /// The client does not want to see the reasoning.
    pub(crate) fn is_hidden(&self) -> bool {
        self.include_reasoning == Some(false) || self.reasoning.as_ref().is_some_and(|o| o.exclude == Some(true))
    }
}

/// What a request used.
pub(crate) fn usage(totals: &Totals) -> Value {
    json!({
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "total_tokens": totals.prompt_tokens + totals.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": totals.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": totals.reasoning_tokens},
    })
}

/// Times, with llama.cpp's names.
pub(crate) fn timings(totals: &Totals) -> Value {
    json!({
        "cache_n": totals.cached_tokens,
        "prompt_n": totals.prompt_tokens - totals.cached_tokens.min(totals.prompt_tokens),
        "prompt_ms": milliseconds(totals.prefill),
        "prompt_per_second": totals.prefill_rate(),
        "predicted_n": totals.completion_tokens,
        "predicted_ms": milliseconds(totals.decode),
        "predicted_per_second": totals.decode_rate(),
        "queued_ms": milliseconds(totals.queued),
    })
}

fn milliseconds(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Why an answer is over.
pub(crate) fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::StopString(_) => "stop",
        Finish::Length | Finish::ContextFull => "length",
        Finish::Calls => "tool_calls",
    }
}

/// Log-probabilities of a chat.
pub(crate) fn chat_logprobs(logprobs: &[Logprob]) -> Value {
    json!({"content": logprobs_json(logprobs), "refusal": null})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(json: Value) -> Result<Wish, ApiError> {
        fields::read::<Reasoning>(&json, &[])?.wish()
    }

    #[test]
    fn every_spelling_of_off() {
        for off in [
            json!({"reasoning_effort": "none"}),
            json!({"enable_thinking": false}),
            json!({"chat_template_kwargs": {"enable_thinking": false}}),
            json!({"reasoning": {"enabled": false}}),
            json!({"reasoning": {"effort": "none"}}),
            json!({"thinking": {"type": "disabled"}}),
            json!({"thinking_budget": 0}),
            json!({"thinking_token_budget": 0, "reasoning_effort": "high"}),
        ] {
            assert_eq!(wish(off.clone()), Ok(Wish::OFF), "{off}");
        }
    }

    #[test]
    fn budgets_go_before_efforts() {
        let both = wish(json!({"reasoning_effort": "low", "thinking_budget": 50}));
        assert_eq!(both, Ok(Wish { on: Some(true), budget: Some(50) }));
        assert_eq!(wish(json!({"enable_thinking": null, "reasoning": null})), Ok(Wish::default()));
        assert!(wish(json!({"reasoning_effort": "lots"})).is_err());
    }
}
