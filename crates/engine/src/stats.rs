//! What an engine has done, and what it holds: for metrics.

/// Memory of one kind, in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pool {
    /// Units made.
    pub total: usize,
    /// Held by running sequences.
    pub running: usize,
    /// Left by earlier requests for later ones; given up when room is needed.
    pub cached: usize,
}

impl Pool {
    /// Units that a new sequence could get.
    pub fn unused(&self) -> usize {
        self.total - self.running
    }
}

/// Counts since the engine was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Steps run.
    pub steps: u64,
    /// Prompt tokens of the requests that have begun.
    pub prompt_tokens: u64,
    /// Those of them that were not read again.
    pub cached_tokens: u64,
    /// Tokens of answers.
    pub generated_tokens: u64,
    /// Answers that ended by themselves.
    pub finished: u64,
    /// Requests that could not be served.
    pub failed: u64,
    /// Answers that were cancelled.
    pub cancelled: u64,
    /// Times that a sequence gave its memory to another and began again.
    pub preempted: u64,
}

/// The engine at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Answers that have not begun.
    pub waiting: usize,
    /// Answers at work.
    pub running: usize,
    /// Pages of [`PAGE_ROWS`](onebit_ops::PAGE_ROWS) tokens of keys and values.
    pub pages: Pool,
    /// Slots of recurrent state; none for models without.
    pub slots: Pool,
    /// Counts since the engine was made.
    pub counters: Counters,
}
