//! The reasoning block: which tokens are in it, and how it ends when its budget is spent.

use crate::error::EngineError;

/// How a model marks its reasoning, and how much of it is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thinking {
    /// Token that opens the block when it is the first of the answer, for models that open it themselves.
    pub start: Option<u32>,
    /// Token that closes the block.
    pub end: u32,
    /// The prompt ends inside an open block.
    pub open: bool,
    /// Most tokens of reasoning in the whole answer; the block is then closed and the answer follows. 0 closes it before
    /// the first token; `None` never closes it.
    pub budget: Option<usize>,
    /// What closes the block at the budget: a run of tokens that holds `end`.
    pub closing: Vec<u32>,
}

impl Thinking {
    pub(crate) fn validate(&self, vocab: usize) -> Result<(), EngineError> {
        let tokens = self.closing.iter().chain(&self.start).chain([&self.end]);
        if let Some(token) = tokens.copied().find(|t| *t as usize >= vocab) {
            return Err(EngineError::UnknownToken { name: "thinking", token, vocab });
        }
        if self.budget.is_some() && !self.closing.contains(&self.end) {
            let wanted = format!("a run of tokens with the end marker {}", self.end);
            return Err(EngineError::parameter("thinking.closing", wanted, format!("{:?}", self.closing)));
        }
        Ok(())
    }
}

/// Where a sequence stands. A block is open from the prompt on or opens with the first token of the answer, and once it
/// has closed there is no other: later markers are text that the model writes about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThinkingState {
    phase: Phase,
    used: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Start,
    Open,
    Over,
}

impl ThinkingState {
    pub(crate) fn new(thinking: &Thinking) -> Self {
        ThinkingState { phase: if thinking.open { Phase::Open } else { Phase::Start }, used: 0 }
    }

    /// The next token lies inside the block.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// The next token may open the block.
    pub(crate) fn may_open(&self) -> bool {
        self.phase == Phase::Start
    }

    /// The block is open and may not grow.
    pub(crate) fn is_spent(&self, thinking: &Thinking) -> bool {
        self.phase == Phase::Open && thinking.budget.is_some_and(|budget| self.used >= budget)
    }

    /// Takes the next token of the answer. Forced tokens close the block and cost nothing.
    pub(crate) fn push(&mut self, thinking: &Thinking, token: u32, forced: bool) -> Place {
        match self.phase {
            Phase::Open if token == thinking.end => {
                self.phase = Phase::Over;
                Place::Marker
            }
            Phase::Open if forced => Place::Marker,
            Phase::Open => {
                self.used += 1;
                Place::Inside
            }
            Phase::Start if thinking.start == Some(token) => {
                self.phase = Phase::Open;
                Place::Marker
            }
            Phase::Start | Phase::Over => {
                self.phase = Phase::Over;
                Place::Answer
            }
        }
    }
}

/// What a token belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Reasoning.
    Inside,
    /// Opens or closes the block.
    Marker,
    /// The answer.
    Answer,
}
