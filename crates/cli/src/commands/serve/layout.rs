//! How memory is shared between weights, the sequences under way, and what ended ones leave for later prompts.

use anyhow::Result;
use onebit_engine::{EngineOptions, MemoryError, MemoryPlan};
use onebit_models::Facts;

/// Requests that are answered at the same time, where nobody says otherwise.
const SEQUENCES: usize = 8;

/// Saved states of small hybrids: enough for many conversations, and no more memory than they need.
const MOST_STATES: usize = 64;

/// Pages hold this many contexts at most: sequences seldom fill theirs, and what is left keeps earlier prompts.
const MOST_CONTEXTS: usize = 4;

/// A layout that fits `free` bytes, with one sequence's context chosen as everywhere else.
///
/// # Errors
/// [`MemoryError`] when not even one sequence fits, or the context that was asked for does not.
pub(super) fn layout(
    facts: &Facts,
    weights: u64,
    base: &EngineOptions,
    context: Option<usize>,
    parallel: Option<usize>,
    free: u64,
) -> Result<(EngineOptions, MemoryPlan), MemoryError> {
    let one = EngineOptions { sequences: 1, checkpoints: 1, ..base.clone() };
    let plan = MemoryPlan::fit(facts, weights, &one, context, free)?;
    let one = EngineOptions { context: plan.context, ..one };
    let total = |options: &EngineOptions| MemoryPlan::of(facts, weights, options).total();
    let mut chosen = one;
    // Sequences first: each costs a state slot in a hybrid, and its logits.
    let sequences = parallel.unwrap_or(SEQUENCES);
    let cached = Some(plan.context);
    for n in (1..=sequences).rev() {
        let wanted = EngineOptions { sequences: n, cached_tokens: cached, ..chosen.clone() };
        if total(&wanted) <= free || (parallel.is_some() && n == sequences) {
            chosen = wanted;
            break;
        }
    }
    if total(&chosen) > free {
        // A number that was asked for is obeyed or refused, as a context is.
        return Err(MemoryError::DoesNotFit { context: plan.context, needed: total(&chosen), free });
    }
    // Then states for later prompts, where there are any.
    let states = EngineOptions::fitting_checkpoints(facts, free).min(MOST_STATES);
    if let Some(states) =
        (1..=states).rev().find(|n| total(&EngineOptions { checkpoints: *n, ..chosen.clone() }) <= free)
    {
        chosen.checkpoints = states;
    }
    // And pages, out of half of what is then left.
    let left = free.saturating_sub(total(&chosen)) / 2;
    let per_context = MemoryPlan::of(facts, weights, &chosen).kv.max(1);
    let contexts = 1 + usize::try_from(left / per_context).unwrap_or(usize::MAX).min(MOST_CONTEXTS - 1);
    chosen.cached_tokens = Some(plan.context * contexts);
    let plan = MemoryPlan::of(facts, weights, &chosen);
    Ok((chosen, plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_models::{KvShape, StateShape};

    const GB: u64 = 1_000_000_000;

    fn hybrid() -> Facts {
        let kv = KvShape { layers: 16, heads: 4, dim: 256 };
        let state = StateShape { layers: 48, channels: 10_240, kernel: 4, heads: 48, key_dim: 128, value_dim: 128 };
        Facts {
            architecture: "a",
            layers: 64,
            hidden: 1,
            vocab: 248_320,
            context: 262_144,
            kv,
            state: Some(state),
            parameters: 0,
        }
    }

    fn of(facts: &Facts, weights: u64, parallel: Option<usize>, free: u64) -> (usize, usize, usize) {
        let (options, plan) = layout(facts, weights, &EngineOptions::new(64), None, parallel, free).expect("it fits");
        assert!(plan.total() <= free);
        (options.sequences, options.checkpoints, options.cached_tokens.unwrap_or(0) / options.context)
    }

    #[test]
    fn a_hybrid_shares_memory_between_states_and_pages() {
        let (sequences, checkpoints, contexts) = of(&hybrid(), 4_207_377_408, None, 48 * GB);
        assert_eq!((sequences, contexts), (8, 4));
        assert!((8..=14).contains(&checkpoints), "{checkpoints}");
        let (sequences, ..) = of(&hybrid(), 4_207_377_408, None, 6 * GB);
        assert!((1..=8).contains(&sequences));
    }

    #[test]
    fn a_dense_model_needs_no_states() {
        let facts = Facts { state: None, ..hybrid() };
        assert_eq!(of(&facts, GB, None, 24 * GB), (8, 1, 4));
        assert_eq!(of(&facts, GB, Some(3), 24 * GB).0, 3);
        let refused = layout(&hybrid(), 4_207_377_408, &EngineOptions::new(64), None, Some(64), 8 * GB);
        assert!(matches!(refused, Err(MemoryError::DoesNotFit { .. })), "{refused:?}");
    }
}
