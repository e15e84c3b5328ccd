//! What comes back.

use crate::error::EngineError;
use crate::request::RequestId;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model gave this end token.
    Stop(u32),
    /// A stop string was found in the text.
    StopString,
    /// The constraint has nothing left to say.
    Complete,
    /// `max_tokens` were generated.
    Length,
    /// Prompt and answer fill the context.
    ContextFull,
    /// The caller asked for it.
    Cancelled,
}

/// What an answer has used. Answers to one prompt share the reading of it: its tokens count once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were not read again.
    pub cached_tokens: usize,
    /// Tokens generated; the end token does not count.
    pub completion_tokens: usize,
    /// Those of them inside the reasoning block, its markers not counted.
    pub reasoning_tokens: usize,
}

/// How likely the model found a token: natural logarithms of probabilities in the softmax of its logits, before bias,
/// penalties, constraint and temperature.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// The likeliest tokens, likeliest first, equals in the order of their ids.
    pub top: Vec<(u32, f32)>,
}

/// What happened to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Part of the prompt has been read.
    Prefill {
        /// The request.
        id: RequestId,
        /// Prompt tokens in the cache.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// A diagnosis: a prompt much like this one was read before, but they part early, so that little of it serves.
    /// Something near the beginning changes from request to request: a date, an id, the order of tools.
    Diverged {
        /// The request.
        id: RequestId,
        /// The first position where they differ.
        at: usize,
        /// The earlier prompt's token there.
        cached: u32,
        /// This prompt's token there.
        prompt: u32,
    },
    /// A token of an answer.
    Token {
        /// The request.
        id: RequestId,
        /// Which of its answers.
        choice: usize,
        /// The token.
        token: u32,
        /// True inside the reasoning block and for its markers.
        reasoning: bool,
        /// When they were asked for; a token that the engine has put there to close the reasoning has none.
        logprobs: Option<TokenLogprobs>,
    },
    /// An answer is complete. Its last event; the request is over with that of its last answer.
    Finished {
        /// The request.
        id: RequestId,
        /// Which of its answers.
        choice: usize,
        /// Why it ended.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// The request could not be served. The last event of all its answers; the engine goes on with other requests.
    Failed {
        /// The request.
        id: RequestId,
        /// Why.
        error: EngineError,
    },
}

impl Event {
    /// The request that it is about.
    pub fn id(&self) -> RequestId {
        match self {
            Event::Prefill { id, .. }
            | Event::Diverged { id, .. }
            | Event::Token { id, .. }
            | Event::Finished { id, .. }
            | Event::Failed { id, .. } => *id,
        }
    }
}
