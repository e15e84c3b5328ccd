//! Requests in, tokens out: scheduling, the cache, sampling and stopping.
//!
//! * [`Engine`] runs [`Request`]s step by step and publishes [`Event`]s; [`Engine::generate`] runs one to its end.
//! * [`TextGeneration`] turns the tokens of a request into text, split into reasoning and answer, cut at stop strings.
//! * [`Engine::read_prompt`] hands out the logits and hidden rows of given tokens.
//! * [`Engine::scorer`] says how likely the model finds given tokens.
//! * [`image`] makes pictures from prompts.
//! * [`MemoryPlan`] says what a model needs and which context fits.
//!
//! Nothing here knows a file, a wire format or the name of a model or backend.

#![forbid(unsafe_code)]

mod constraint;
mod distribution;
mod engine;
mod error;
mod event;
mod flight;
pub mod image;
mod lifecycle;
mod memory;
mod noise;
mod options;
mod plans;
mod prompt;
mod random;
mod reader;
mod request;
mod sampler;
mod sampling;
mod schedule;
mod score;
mod sequence;
mod stats;
mod store;
mod text;
mod thinking;
mod tree;

pub use constraint::Constraint;
pub use distribution::Distribution;
pub use engine::{Completion, Engine};
pub use error::EngineError;
pub use event::{Event, FinishReason, TokenLogprobs, Usage};
pub use memory::{DEFAULT_CONTEXT, MemoryError, MemoryPlan, OVERHEAD};
pub use noise::{NoiseRng, pack};
pub use options::EngineOptions;
pub use prompt::{PromptChunk, PromptOutputs};
pub use request::{MAX_CHOICES, MAX_LOGPROBS, Request, RequestId};
pub use sampling::SamplingParams;
pub use score::{ScoredRows, Scorer};
pub use stats::{Counters, Pool, Stats};
pub use text::{TextCompletion, TextEvent, TextGeneration};
pub use thinking::Thinking;
