//! One answer: asked for, streamed, measured.

use crate::Usage as BadUsage;
use crate::prompt::Prepared;
use crate::session::Session;
use anyhow::{Result, anyhow};
use onebit_engine::{EngineError, FinishReason, Request, SamplingParams, TextCompletion, TextEvent};
use serde_json::{Value as Json, json};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// When to say that thinking can be turned off.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How an answer is to be drawn.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// Tokens are chosen by these.
    pub sampling: &'a SamplingParams,
    /// Most tokens to generate.
    pub max_tokens: Option<usize>,
    /// Texts that end it.
    pub stop: &'a [String],
    /// Begin with what earlier prompts have left, and leave the cache to later ones.
    pub cache: bool,
    /// How long to wait for the answer before [`Sink::long_wait`] is told; [`PATIENCE`] for people.
    pub patience: Duration,
}

/// An answer with its times.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Text, reason and token counts.
    pub completion: TextCompletion,
    /// Time to read the prompt.
    pub read: Duration,
    /// Time to write the answer.
    pub wrote: Duration,
}

/// Where the pieces of an answer go.
pub trait Sink {
    /// Thinking, or answer, as it comes. Breaking ends the answer.
    fn piece(&mut self, event: &TextEvent) -> ControlFlow<()>;
    /// Called once when the model has thought for [`Ask::patience`] and answered nothing.
    fn long_wait(&mut self);
}

/// Asks for one answer and streams it.
///
/// # Errors
/// Bad parameters as [`BadUsage`], and what makes the engine fail.
pub fn ask(session: &mut Session, prepared: Prepared, ask: &Ask<'_>, sink: &mut dyn Sink) -> Result<Answer> {
    let thinks = prepared.thinking.is_some();
    let request = Request {
        sampling: ask.sampling.clone(),
        max_tokens: ask.max_tokens,
        eos: session.text.eos.clone(),
        thinking: prepared.thinking,
        cache: ask.cache,
        checkpoints: if ask.cache { prepared.branches } else { Vec::new() },
        ..Request::new(prepared.tokens)
    };
    let started = Instant::now();
    let (mut read_at, mut answered, mut warned) = (None, false, false);
    let completion = session.engine.generate_text(&session.text.tokenizer, request, ask.stop, |event| {
        match event {
            TextEvent::Prefill { done, total } if done == total => read_at = Some(Instant::now()),
            TextEvent::Prefill { .. } => {}
            TextEvent::Answer(text) => answered |= !text.trim().is_empty(),
            TextEvent::Reasoning(_) => {
                if thinks && !answered && !warned && started.elapsed() >= ask.patience {
                    warned = true;
                    sink.long_wait();
                }
            }
        }
        sink.piece(event)
    });
    let ended = Instant::now();
    let completion = completion.map_err(|error| match error {
        EngineError::Parameter { .. } | EngineError::Stop(_) | EngineError::EmptyPrompt => {
            anyhow!(BadUsage(error.to_string()))
        }
        other => other.into(),
    })?;
    let read_at = read_at.unwrap_or(ended);
    Ok(Answer { completion, read: read_at - started, wrote: ended - read_at })
}

impl Answer {
    /// Prompt tokens read per second; those from the cache do not count.
    #[must_use]
    pub fn read_rate(&self) -> f64 {
        let usage = &self.completion.usage;
        rate(usage.prompt_tokens - usage.cached_tokens, self.read)
    }

    /// Tokens written per second. The first comes with the reading of the prompt.
    #[must_use]
    pub fn write_rate(&self) -> f64 {
        rate(self.completion.usage.completion_tokens.saturating_sub(1), self.wrote)
    }

    /// One line: tokens, speeds, why it ended.
    #[must_use]
    pub fn summary(&self) -> String {
        let usage = &self.completion.usage;
        let cached = if usage.cached_tokens > 0 { format!(" ({} cached)", usage.cached_tokens) } else { String::new() };
        let thinking =
            if usage.reasoning_tokens > 0 { format!(" ({} thinking)", usage.reasoning_tokens) } else { String::new() };
        format!(
            "{} prompt tokens{cached} at {:.1}/s, {} answer tokens{thinking} at {:.1}/s{}",
            usage.prompt_tokens,
            self.read_rate(),
            usage.completion_tokens,
            self.write_rate(),
            match self.completion.reason {
                FinishReason::Stop(_) | FinishReason::Complete => "",
                FinishReason::StopString => ", ended by --stop",
                FinishReason::Length => ", ended by --max-tokens",
                FinishReason::ContextFull => ", ended because the context is full (--ctx sets it)",
                FinishReason::Cancelled => ", stopped",
            }
        )
    }

    /// Advice when thinking ate the whole answer.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        let cut = matches!(self.completion.reason, FinishReason::Length | FinishReason::ContextFull);
        let empty = self.completion.answer.trim().is_empty();
        (cut && empty && self.completion.usage.reasoning_tokens > 0).then_some(
            "thinking took all tokens and nothing was answered; use --think off, --think N, or more --max-tokens",
        )
    }

    /// As one JSON object, without the model's name.
    #[must_use]
    pub fn to_json(&self, sampling: &SamplingParams) -> Json {
        let TextCompletion { reasoning, answer, reason, usage, stopped_by } = &self.completion;
        let reason = match reason {
            FinishReason::Stop(_) | FinishReason::StopString | FinishReason::Complete => "stop",
            FinishReason::Length | FinishReason::ContextFull => "length",
            FinishReason::Cancelled => "cancelled",
        };
        json!({
            "answer": answer,
            "thinking": reasoning,
            "finish_reason": reason,
            "stop_index": stopped_by,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
                "reasoning_tokens": usage.reasoning_tokens,
            },
            "sampling": {
                "temperature": number(sampling.temperature),
                "top_k": sampling.top_k,
                "top_p": number(sampling.top_p),
                "min_p": number(sampling.min_p),
                "repeat_penalty": number(sampling.repetition_penalty),
                "presence_penalty": number(sampling.presence_penalty),
                "frequency_penalty": number(sampling.frequency_penalty),
                "seed": sampling.seed,
            },
            "timings": {
                "prompt_s": self.read.as_secs_f64(),
                "answer_s": self.wrote.as_secs_f64(),
                "prompt_tok_s": self.read_rate(),
                "answer_tok_s": self.write_rate(),
            },
        })
    }
}

/// An f32 as the decimal that a person wrote.
pub(crate) fn number(value: f32) -> Json {
    value.to_string().parse::<f64>().map_or(Json::Null, |v| json!(v))
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
