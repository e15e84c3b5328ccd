//! The nouns: what a caller asks for, what the engine works on, what comes back.

use crate::error::EngineError;
use crate::sampler::Sampler;
use crate::store::Holding;
use crate::thinking::{Thinking, ThinkingState};
use onebit_ops::StepInputs;

/// Names a request from [`submit`](crate::Engine::submit) to its last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How the next token is chosen. The default is neutral: the model's own distribution, nothing cut, nothing penalised.
///
/// The order is: logit bias, penalties, temperature, top-k, top-p, min-p, draw (that of `transformers`, on which model
/// cards base their numbers).
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
        for (token, bias) in &self.logit_bias {
            if !(-100.0..=100.0).contains(bias) {
                return Err(EngineError::parameter("logit_bias", "from -100 to 100", format!("{bias} for {token}")));
            }
        }
        Ok(())
    }
}

/// What a caller asks for: tokens to continue, and when to end.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer. They are not published.
    pub eos: Vec<u32>,
    /// The model's reasoning block, when it has one.
    pub thinking: Option<Thinking>,
    /// Keep the sequence's cache when it ends, for a later prompt that begins with the same tokens.
    pub keep: bool,
    /// Prompt positions where a later prompt may branch off, ascending: the state of a recurrent model is saved there.
    /// A chat marks the start of the generation prompt, because templates drop the reasoning of earlier turns.
    pub checkpoints: Vec<usize>,
}

impl Request {
    /// Continues `tokens` by the model's own distribution to the end of the context.
    pub fn new(tokens: Vec<u32>) -> Self {
        Request {
            tokens,
            sampling: SamplingParams::default(),
            max_tokens: None,
            eos: Vec::new(),
            thinking: None,
            keep: false,
            checkpoints: Vec::new(),
        }
    }

    /// Checks the request against a model's vocabulary and an engine's context.
    pub(crate) fn validate(&self, vocab: usize, context: usize) -> Result<(), EngineError> {
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
        Ok(())
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model gave this end token.
    Stop(u32),
    /// A stop string was found in the text.
    StopString,
    /// `max_tokens` were generated.
    Length,
    /// Prompt and answer fill the context.
    ContextFull,
    /// The caller asked for it.
    Cancelled,
}

/// What a request has used.
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
    /// A token of the answer.
    Token {
        /// The request.
        id: RequestId,
        /// The token.
        token: u32,
        /// True inside the reasoning block and for its markers.
        reasoning: bool,
    },
    /// The answer is complete. The last event of a request.
    Finished {
        /// The request.
        id: RequestId,
        /// Why it ended.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// The request could not be served. The last event of a request; the engine goes on with the others.
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
            | Event::Token { id, .. }
            | Event::Finished { id, .. }
            | Event::Failed { id, .. } => *id,
        }
    }
}

/// A request that has not begun.
pub(crate) struct Waiting {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
}

/// A request at work: its tokens so far, and what it holds on the device.
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    /// The request's own prompt has moved to `tokens`.
    pub(crate) request: Request,
    pub(crate) sampler: Sampler,
    pub(crate) thinking: Option<ThinkingState>,
    /// Prompt and answer.
    pub(crate) tokens: Vec<u32>,
    /// Tokens whose keys, values and state are in the cache.
    pub(crate) computed: usize,
    pub(crate) holding: Holding,
    pub(crate) usage: Usage,
}

impl Sequence {
    /// Starts a request on a holding that already covers `holding.tokens` of its prompt.
    pub(crate) fn new(waiting: Waiting, holding: Holding) -> Self {
        let Waiting { id, mut request } = waiting;
        let tokens = std::mem::take(&mut request.tokens);
        let computed = holding.tokens;
        assert!(computed < tokens.len(), "{computed} cached tokens of a prompt of {}", tokens.len());
        let usage = Usage { prompt_tokens: tokens.len(), cached_tokens: computed, ..Usage::default() };
        let sampler = Sampler::new(&request.sampling);
        let thinking = request.thinking.as_ref().map(ThinkingState::new);
        Sequence { id, request, sampler, thinking, tokens, computed, holding, usage }
    }

    /// Tokens that the next steps must read.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// The next prompt position where the state is to be saved, if it lies ahead.
    pub(crate) fn next_checkpoint(&self) -> Option<usize> {
        self.request.checkpoints.iter().copied().find(|at| *at > self.computed)
    }
}

/// One step's work: rows of several sequences, and what the plan is fed with.
pub(crate) struct Batch {
    pub(crate) items: Vec<BatchItem>,
    pub(crate) inputs: StepInputs,
}

/// The rows of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchItem {
    /// Index into the running sequences.
    pub(crate) sequence: usize,
    /// Rows of the step, all pending tokens or the next chunk of them.
    pub(crate) rows: usize,
    /// Which logit row is its, when the last pending token is among the rows.
    pub(crate) logits: Option<usize>,
}
