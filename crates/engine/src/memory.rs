//! What a model needs in memory, and which context fits.
//!
//! One formula: `weights + KV + state + 300 MB`. The last term covers the plans' temporaries, the logits and the host
//! side; see [`OVERHEAD`].

use crate::options::EngineOptions;
use onebit_models::Facts;
use onebit_ops::PAGE_ROWS;

/// Everything beside weights, pages and state: arena, logits, tables, the program itself.
pub const OVERHEAD: u64 = 300_000_000;

/// The largest context that is chosen without being asked for. Enough for a coding agent's prompt; the time to read a
/// longer one is a decision for the user.
pub const DEFAULT_CONTEXT: usize = 32_768;

/// The smallest context that is chosen without being asked for.
const LEAST_CONTEXT: usize = 1_024;

/// A model's memory, term by term, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Tokens that one sequence may hold.
    pub context: usize,
    /// Packed weights.
    pub weights: u64,
    /// Keys and values of all pages; full-attention layers only.
    pub kv: u64,
    /// State slots of running sequences and saved checkpoints.
    pub state: u64,
    /// The rest: [`OVERHEAD`].
    pub overhead: u64,
}

/// A plan that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No useful context fits.
    #[error(
        "the model needs {} with a context of {context} tokens, and {} are free; close other programs, take a smaller model, or use --kv-quant q8",
        gib(*needed), gib(*free)
    )]
    DoesNotFit {
        /// The smallest context considered.
        context: usize,
        /// Bytes that it would need.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The context asked for does not fit.
    #[error(
        "a context of {context} tokens needs {}, and {} are free; at most {largest} tokens fit",
        gib(*needed), gib(*free)
    )]
    ContextDoesNotFit {
        /// Asked for.
        context: usize,
        /// Bytes that it would need.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// The largest context that fits.
        largest: usize,
    },
    /// The model's positions end before the context asked for.
    #[error("a context of {context} tokens was asked for, but the model was made for at most {trained}")]
    BeyondTraining {
        /// Asked for.
        context: usize,
        /// The model's own.
        trained: usize,
    },
    /// No context at all was asked for.
    #[error("a context of {0} tokens was asked for; it takes at least 2, one of the prompt and one of the answer")]
    TooSmall(usize),
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

impl MemoryPlan {
    /// The memory of a model with these options, whether it fits or not. `options.context` is taken as it is.
    pub fn of(facts: &Facts, weights: u64, options: &EngineOptions) -> MemoryPlan {
        let spec = options.cache_spec(facts);
        let kv = spec.kv.bytes();
        MemoryPlan { context: options.context, weights, kv, state: spec.bytes() - kv, overhead: OVERHEAD }
    }

    /// All terms together.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.state + self.overhead
    }

    /// Chooses or checks the context. `free` is the memory free before the weights are there.
    ///
    /// A context that is asked for is obeyed when it fits and refused with numbers when it does not. Otherwise keys and
    /// values take at most a quarter of the memory left beside weights, state and overhead, and the context is at most
    /// [`DEFAULT_CONTEXT`] and what the model was made for; only where a quarter gives less than 1,024 tokens, those
    /// 1,024 may take all of what is left.
    ///
    /// # Errors
    /// [`MemoryError`] with both numbers.
    pub fn fit(
        facts: &Facts,
        weights: u64,
        options: &EngineOptions,
        asked: Option<usize>,
        free: u64,
    ) -> Result<MemoryPlan, MemoryError> {
        let with = |context: usize| Self::of(facts, weights, &EngineOptions { context, ..options.clone() });
        let page = with(PAGE_ROWS);
        let left = free.saturating_sub(page.total() - page.kv);
        let tokens_in = |bytes: u64| (bytes / page.kv.max(1)).min(u64::from(u32::MAX)) as usize * PAGE_ROWS;
        let trained = facts.context;
        if let Some(context) = asked {
            if context < 2 {
                return Err(MemoryError::TooSmall(context));
            }
            if context > trained {
                return Err(MemoryError::BeyondTraining { context, trained });
            }
            let plan = with(context);
            if plan.total() > free {
                let largest = tokens_in(left).min(trained);
                return Err(MemoryError::ContextDoesNotFit { context, needed: plan.total(), free, largest });
            }
            return Ok(plan);
        }
        let least = LEAST_CONTEXT.min(trained);
        let plan = with(tokens_in(left / 4).max(least).min(DEFAULT_CONTEXT).min(trained));
        if plan.total() > free {
            let plan = with(least);
            return Err(MemoryError::DoesNotFit { context: least, needed: plan.total(), free });
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_models::{KvShape, StateShape};
    use onebit_ops::KvFormat;

    const GB: u64 = 1_000_000_000;

    fn dense(layers: usize, context: usize) -> Facts {
        let kv = KvShape { layers, heads: 8, dim: 128 };
        Facts { architecture: "a", layers, hidden: 1, vocab: 151_669, context, kv, state: None, parameters: 0 }
    }

    fn hybrid() -> Facts {
        let kv = KvShape { layers: 16, heads: 4, dim: 256 };
        let state = StateShape { layers: 48, channels: 10_240, kernel: 4, heads: 48, key_dim: 128, value_dim: 128 };
        Facts { state: Some(state), kv, ..dense(64, 262_144) }
    }

    /// The published 1-bit packs: language data in bytes.
    fn packs() -> [(&'static str, Facts, u64); 4] {
        [
            ("1.7B", dense(28, 32_768), 268_982_848),
            ("4B", dense(36, 32_768), 628_765_392),
            ("8B", dense(36, 65_536), 1_280_028_928),
            ("27B", hybrid(), 4_207_377_408),
        ]
    }

    #[test]
    fn bytes_per_token_count_attention_layers_only() {
        let options = EngineOptions { kv: KvFormat::F16, ..EngineOptions::new(64) };
        let per_token = |facts: &Facts| MemoryPlan::of(facts, 0, &options).kv / 64;
        assert_eq!(packs().map(|(_, f, _)| per_token(&f)), [114_688, 147_456, 147_456, 65_536]);
        let plan = MemoryPlan::of(&hybrid(), 0, &options);
        // One running slot and one checkpoint of 48 layers: 48 matrices of 128 x 128 and 3 rows of 10,240.
        assert_eq!(plan.state, 2 * 48 * (48 * 128 * 128 + 3 * 10_240) * 4);
    }

    #[test]
    fn the_default_fits_every_machine_and_is_never_the_trained_context_of_the_hybrid() {
        let chosen = |ram: u64| {
            packs().map(|(name, facts, weights)| {
                // Three quarters of a machine's memory are free.
                let free = ram * GB / 4 * 3;
                match MemoryPlan::fit(&facts, weights, &EngineOptions::new(64), None, free) {
                    Ok(plan) => {
                        assert!(plan.total() <= free, "{name} on {ram} GB");
                        assert!(plan.context <= DEFAULT_CONTEXT && plan.context.is_multiple_of(64));
                        plan.context
                    }
                    Err(_) => 0,
                }
            })
        };
        assert_eq!(chosen(8), [11_776, 8_576, 7_488, 4_480]);
        assert_eq!(chosen(16), [24_896, 18_752, 17_664, 27_328]);
        assert_eq!(chosen(24), [32_768, 28_928, 27_776, 32_768]);
        assert_eq!(chosen(64), [32_768; 4]);
    }

    #[test]
    fn an_explicit_context_is_obeyed_or_refused_with_numbers() {
        let (_, facts, weights) = packs()[3].clone();
        let options = EngineOptions::new(64);
        let fit = |asked, free| MemoryPlan::fit(&facts, weights, &options, Some(asked), free);
        assert_eq!(fit(262_144, 64 * GB).map(|p| (p.context, p.kv)), Ok((262_144, 262_144 * 65_536)));
        let Err(MemoryError::ContextDoesNotFit { context: 262_144, needed, largest, .. }) = fit(262_144, 8 * GB) else {
            panic!("17 GB of keys and values do not fit 8 GB")
        };
        assert!(needed > 17 * GB && (40_000..60_000).contains(&largest), "{needed} {largest}");
        assert_eq!(fit(largest, 8 * GB).map(|p| p.context), Ok(largest));
        assert!(fit(largest + 64, 8 * GB).is_err());
        assert_eq!(fit(262_145, 640 * GB), Err(MemoryError::BeyondTraining { context: 262_145, trained: 262_144 }));
        assert_eq!(fit(1, GB), Err(MemoryError::TooSmall(1)));
    }

    #[test]
    fn too_little_memory_is_said_with_both_numbers() {
        let (_, facts, weights) = packs()[3].clone();
        let error = MemoryPlan::fit(&facts, weights, &EngineOptions::new(64), None, 4 * GB).expect_err("4 GB");
        let text = error.to_string();
        assert!(text.contains("GiB with a context of 1024 tokens") && text.contains("3.73 GiB are free"), "{text}");
    }

    #[test]
    fn quantised_keys_and_values_make_room() {
        let (_, facts, weights) = packs()[2].clone();
        let context = |kv| {
            let options = EngineOptions { kv, ..EngineOptions::new(64) };
            MemoryPlan::fit(&facts, weights, &options, None, 6 * GB).map_or(0, |p| p.context)
        };
        let (f16, q8, q4) = (context(KvFormat::F16), context(KvFormat::Q8), context(KvFormat::Q4));
        assert!(f16 < q8 && q8 < q4, "{f16:?} {q8:?} {q4:?}");
    }
}
