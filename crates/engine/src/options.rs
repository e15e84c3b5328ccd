//! How an engine is laid out.

use onebit_models::Facts;
use onebit_ops::{Activations, CacheSpec, KvFormat, PAGE_ROWS};

/// How an engine is laid out. See [`MemoryPlan`](crate::MemoryPlan) for a context that fits the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOptions {
    /// Tokens that one sequence may hold, prompt and answer together.
    pub context: usize,
    /// Sequences that run at once; more wait.
    pub sequences: usize,
    /// Cached tokens of all sequences together, those kept for later prompts included; `None` for
    /// `sequences * context`.
    pub cached_tokens: Option<usize>,
    /// States of recurrent models that can be saved for later prompts, beside the running ones.
    pub checkpoints: usize,
    /// How keys and values are stored.
    pub kv: KvFormat,
    /// How matmul inputs are rounded; `None` for the backend's own choice.
    pub activations: Option<Activations>,
    /// Prompt tokens that one step reads; `None` for the backend's own choice.
    pub prefill_rows: Option<usize>,
    /// Start a step before the tokens of the one before are known; `None` where the backend works beside the host. The
    /// tokens are the same. An answer's end then costs a row of one surplus step.
    pub run_ahead: Option<bool>,
}

/// Bytes of saved states at most.
const SAVED_BYTES: u64 = 2 << 30;

impl EngineOptions {
    /// One sequence of up to `context` tokens, keys and values in half precision.
    pub fn new(context: usize) -> Self {
        EngineOptions {
            context,
            sequences: 1,
            cached_tokens: None,
            checkpoints: 1,
            kv: KvFormat::F16,
            activations: None,
            prefill_rows: None,
            run_ahead: None,
        }
    }

    /// The cache that these options lay out for a model.
    pub fn cache_spec(&self, facts: &Facts) -> CacheSpec {
        let own = self.sequences.saturating_mul(self.context.next_multiple_of(PAGE_ROWS));
        facts.cache_spec(self.cached_tokens.unwrap_or(own), self.sequences + self.checkpoints, self.kv)
    }

    /// Saved states that suit a server with `free` bytes of memory: what 2 GiB or a tenth of it hold, whichever is less,
    /// and at least 2. None for models without recurrent state.
    pub fn fitting_checkpoints(facts: &Facts, free: u64) -> usize {
        let one = facts.cache_spec(0, 1, KvFormat::F16).bytes();
        SAVED_BYTES.min(free / 10).checked_div(one).map_or(0, |n| n.clamp(2, 1024) as usize)
    }
}

pub(crate) fn list<T: ToString>(known: &[T]) -> String {
    format!("one of {}", known.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}
