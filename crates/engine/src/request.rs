//! What a caller asks for.

use crate::constraint::{Allowed, Constraint, allowed};
use crate::error::EngineError;
use crate::sampling::SamplingParams;
use crate::thinking::Thinking;

/// Most answers to one prompt.
pub const MAX_CHOICES: usize = 128;

/// Most alternatives that are listed with a token.
pub const MAX_LOGPROBS: usize = 20;

/// Names a request from [`submit`](crate::Engine::submit) to its last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Tokens to continue, how, and when to end.
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Answers wanted, 1 to [`MAX_CHOICES`]. The prompt is read once; each answer draws numbers of its own, and the first
    /// is the one that would come alone.
    pub choices: usize,
    /// Most tokens to generate in each answer; `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer. They are not published.
    pub eos: Vec<u32>,
    /// The model's reasoning block, when it has one.
    pub thinking: Option<Thinking>,
    /// List with every token its log-probability and so many of the likeliest, at most [`MAX_LOGPROBS`].
    pub logprobs: Option<usize>,
    /// The form of the answer. A reasoning block before it is free.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Requests of a higher one begin first; equals in the order in which they came.
    pub priority: i32,
    /// Begin with what earlier requests have read, and leave what this one reads to later ones.
    pub cache: bool,
    /// Prompt positions where a later prompt may branch off, ascending: the state of a recurrent model is saved there.
    /// A chat marks the end of the system prompt and where the text of the next answer would begin, because templates
    /// drop the reasoning of earlier turns.
    pub checkpoints: Vec<usize>,
}

impl Request {
    /// Continues `tokens` by the model's own distribution to the end of the context.
    pub fn new(tokens: Vec<u32>) -> Self {
        Request {
            tokens,
            sampling: SamplingParams::default(),
            choices: 1,
            max_tokens: None,
            eos: Vec::new(),
            thinking: None,
            logprobs: None,
            constraint: None,
            priority: 0,
            cache: true,
            checkpoints: Vec::new(),
        }
    }

    /// Checks the request against a model's vocabulary and an engine's context.
    pub(crate) fn validate(&mut self, vocab: usize, context: usize) -> Result<(), EngineError> {
        self.sampling.validate()?;
        let tokens = self.tokens.len();
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens >= context {
            return Err(EngineError::PromptTooLong { tokens, context });
        }
        if self.max_tokens == Some(0) {
            return Err(EngineError::parameter("max_tokens", "at least 1", 0));
        }
        if !(1..=MAX_CHOICES).contains(&self.choices) {
            return Err(EngineError::parameter("choices", format!("from 1 to {MAX_CHOICES}"), self.choices));
        }
        if let Some(n) = self.logprobs.filter(|n| *n > MAX_LOGPROBS) {
            return Err(EngineError::parameter("logprobs", format!("at most {MAX_LOGPROBS}"), n));
        }
        let biased: Vec<u32> = self.sampling.logit_bias.iter().map(|(token, _)| *token).collect();
        for (name, list) in [("prompt", &self.tokens), ("logit_bias", &biased)] {
            if let Some(token) = list.iter().find(|t| **t as usize >= vocab) {
                return Err(EngineError::UnknownToken { name, token: *token, vocab });
            }
        }
        if let Some(thinking) = &self.thinking {
            thinking.validate(vocab)?;
        }
        let ascending = self.checkpoints.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || self.checkpoints.iter().any(|at| *at == 0 || *at > tokens) {
            let wanted = format!("ascending positions from 1 to {tokens}");
            return Err(EngineError::parameter("checkpoints", wanted, format!("{:?}", self.checkpoints)));
        }
        if let Some(constraint) = &mut self.constraint {
            match allowed(&mut **constraint, vocab, &self.eos) {
                Ok(Allowed::Mask(_)) => {}
                Ok(Allowed::Nothing) => return Err(EngineError::Constraint("it allows no answer but none".to_owned())),
                Err(why) => return Err(EngineError::Constraint(why)),
            }
        }
        Ok(())
    }
}

impl Clone for Request {
    fn clone(&self) -> Self {
        Request {
            tokens: self.tokens.clone(),
            sampling: self.sampling.clone(),
            eos: self.eos.clone(),
            thinking: self.thinking.clone(),
            constraint: self.constraint.as_ref().map(|c| c.fork()),
            checkpoints: self.checkpoints.clone(),
            ..*self
        }
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("tokens", &self.tokens.len())
            .field("choices", &self.choices)
            .field("max_tokens", &self.max_tokens)
            .field("constrained", &self.constraint.is_some())
            .finish_non_exhaustive()
    }
}
