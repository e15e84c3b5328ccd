//! Why a request or the engine failed. Every variant is one sentence.

use onebit_ops::OpError;
use onebit_text::StopError;

/// A request was refused, a request failed on its way, or the engine cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// A parameter outside its range.
    #[error("`{name}` must be {wanted}, got {got}")]
    Parameter {
        /// The parameter as users spell it.
        name: &'static str,
        /// Its range in words.
        wanted: String,
        /// What came.
        got: String,
    },
    /// Nothing to continue.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// A prompt that leaves no room for an answer.
    #[error(
        "the prompt has {tokens} tokens, but the context of {context} tokens leaves room for at most {}; shorten the prompt or raise the context",
        context - 1
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that a sequence may hold, prompt and answer together.
        context: usize,
    },
    /// A sequence of tokens that is only to be read, and does not fit.
    #[error("{tokens} tokens do not fit the context of {context}; raise the context")]
    TooManyTokens {
        /// Tokens that came.
        tokens: usize,
        /// Tokens that a sequence may hold.
        context: usize,
    },
    /// A token id that the model does not have.
    #[error("`{name}` holds token {token}, but the model's vocabulary ends at {}", vocab - 1)]
    UnknownToken {
        /// The parameter that holds it.
        name: &'static str,
        /// The token id.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// The numbers broke down.
    #[error(
        "step {step}: the logits after position {position} hold NaN or infinity; the weights are damaged or a kernel is wrong (`onebit doctor MODEL` tells which)"
    )]
    NonFinite {
        /// Engine step, counted from 1.
        step: u64,
        /// Position of the last token read.
        position: usize,
    },
    /// A constraint that cannot be kept.
    #[error("the constraint cannot be kept: {0}")]
    Constraint(String),
    /// An unusable stop string.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] OpError),
    /// A call that needs the engine for itself.
    #[error("the engine is at work on {running} other requests; finish or cancel them first")]
    Busy {
        /// Requests waiting or running.
        running: usize,
    },
    /// Pages or state slots were lost or doubled: a fault of the engine.
    #[error("cache bookkeeping is wrong ({0}); please report this")]
    Integrity(String),
    /// An id that `submit` never gave, or whose end was already published.
    #[error("request {0} is not under way")]
    UnknownRequest(u64),
}

impl EngineError {
    pub(crate) fn parameter(name: &'static str, wanted: impl Into<String>, got: impl std::fmt::Display) -> Self {
        EngineError::Parameter { name, wanted: wanted.into(), got: got.to_string() }
    }
}
