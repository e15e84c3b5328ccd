//! Running given tokens through the model, chunk by chunk, over the same cache and kernels as a prompt.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::prompt::PromptOutputs;
use crate::store::Holding;
use crate::tree::Space;
use onebit_models::Forward;
use onebit_ops::{Bucket, Plan, PlanOptions, Segment, StepInputs, StepOutput, wait};
use std::collections::BTreeMap;

/// Reads one sequence of tokens after another with one plan. It has the engine for itself, and gives back what a
/// sequence holds when the next one begins or the reader goes.
pub(crate) struct Reader<'e> {
    engine: &'e mut Engine,
    plan: Plan,
    chunk: usize,
    sequence: Option<Sequence>,
}

struct Sequence {
    tokens: Vec<u32>,
    /// Rows before this one give no logits.
    first_logits: usize,
    done: usize,
    holding: Holding,
}

/// Some rows of a sequence.
pub(crate) struct Chunk {
    /// Position of the first row.
    pub(crate) first: usize,
    /// Rows.
    pub(crate) rows: usize,
    /// Position of the first row with logits; `first + rows` when there is none.
    pub(crate) first_logits: usize,
    /// `logits`, and what else was asked for.
    pub(crate) values: BTreeMap<String, Vec<f32>>,
    /// The engine's count of steps.
    pub(crate) step: u64,
}

impl<'e> Reader<'e> {
    /// Compiles a plan for chunks of `chunk` rows.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while requests are under way, and faults of the device.
    pub(crate) fn new(engine: &'e mut Engine, outputs: &PromptOutputs, chunk: usize) -> Result<Self, EngineError> {
        engine.require_idle()?;
        let (taps, final_norm) = (outputs.taps.clone(), outputs.final_norm);
        let forward = Forward { taps, final_norm, ..Forward::new(engine.activations) };
        let bucket = Bucket { rows: chunk, logits: chunk, context: engine.options().context };
        let program = engine.model.program(bucket, &forward);
        let plan = engine.backend.compile(program, engine.store.cache(), PlanOptions::default())?;
        Ok(Reader { engine, plan, chunk, sequence: None })
    }

    /// Starts on a sequence. Rows before `first_logits` are read for their keys, values and state only.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::TooManyTokens`], [`EngineError::UnknownToken`], and faults of the
    /// device.
    pub(crate) fn begin(&mut self, tokens: &[u32], first_logits: usize) -> Result<(), EngineError> {
        let (vocab, context) = (self.engine.model.facts().vocab, self.engine.options().context);
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens.len() > context {
            return Err(EngineError::TooManyTokens { tokens: tokens.len(), context });
        }
        if let Some(token) = tokens.iter().copied().find(|t| *t as usize >= vocab) {
            return Err(EngineError::UnknownToken { name: "tokens", token, vocab });
        }
        self.end();
        // What earlier requests have read is of no use here: every row is wanted. Nor does anything stay.
        let claim = self.engine.store.claim(Space::MAX, &tokens[..1], tokens.len())?;
        let claim = claim.ok_or_else(|| EngineError::Integrity("an idle cache has no room".to_owned()))?;
        let holding = claim.holding;
        self.sequence = Some(Sequence { tokens: tokens.to_vec(), first_logits, done: 0, holding });
        Ok(())
    }

    /// The next rows; `None` when the sequence is at its end.
    ///
    /// # Errors
    /// Faults of the device.
    pub(crate) fn next(&mut self) -> Result<Option<Chunk>, EngineError> {
        let Some(sequence) = self.sequence.as_mut().filter(|s| s.done < s.tokens.len()) else { return Ok(None) };
        let engine = &mut *self.engine;
        let first = sequence.done;
        let rows = self.chunk.min(sequence.tokens.len() - first);
        engine.store.grow(&mut sequence.holding, first + rows)?;
        let first_logits = sequence.first_logits.clamp(first, first + rows);
        let segment = Segment {
            rows: 0..rows,
            slot: sequence.holding.slot(),
            pages: sequence.holding.pages.clone(),
            past: first,
            accepted: 0,
            speculative: false,
        };
        let inputs = StepInputs {
            tokens: sequence.tokens[first..first + rows].to_vec(),
            positions: (first..first + rows).map(|p| [p as u32; 3]).collect(),
            segments: vec![segment],
            logit_rows: (first_logits - first..rows).collect(),
            ..StepInputs::default()
        };
        engine.counters.steps += 1;
        let ticket = engine.backend.run(&self.plan, inputs)?;
        let StepOutput { values, .. } = wait(&*engine.backend, ticket)?;
        sequence.done += rows;
        Ok(Some(Chunk { first, rows, first_logits, values, step: engine.counters.steps }))
    }

    fn end(&mut self) {
        if let Some(sequence) = self.sequence.take() {
            self.engine.store.release(sequence.holding, false);
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
