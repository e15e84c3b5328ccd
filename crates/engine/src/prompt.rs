//! Reading given tokens for their logits and hidden rows: parity checks, perplexity, embeddings.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::store::Holding;
use onebit_models::Forward;
use onebit_ops::{Bucket, PlanOptions, Segment, StepInputs, StepOutput, wait};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Logit values of one chunk at most: 32 MiB as f32, whatever the vocabulary.
const CHUNK_LOGITS: usize = 8 << 20;

/// What is wanted beside the logits of every row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PromptOutputs {
    /// Points of the residual stream: 0 is the embedding, i the stream after layer i. Named `hidden.<i>`.
    pub taps: Vec<usize>,
    /// The rows after the last norm, named `final_norm`.
    pub final_norm: bool,
}

/// Some rows of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptChunk {
    /// Position of the first row.
    pub first: usize,
    /// Rows.
    pub rows: usize,
    /// `logits` and what else was asked for, each `(rows, width)` row-major.
    pub values: BTreeMap<String, Vec<f32>>,
}

impl Engine {
    /// Runs tokens from an empty context and hands out every row, chunk by chunk, so that memory stays bounded for any
    /// length. Breaking ends it early.
    ///
    /// # Errors
    /// [`EngineError::Busy`] while requests are under way, [`EngineError::EmptyPrompt`],
    /// [`EngineError::TooManyTokens`], [`EngineError::UnknownToken`], [`EngineError::Parameter`] for a tap beyond the
    /// last layer, and faults of the device.
    pub fn read_prompt(
        &mut self,
        tokens: &[u32],
        outputs: &PromptOutputs,
        on_chunk: impl FnMut(PromptChunk) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.require_idle()?;
        let facts = self.model.facts();
        let (vocab, layers, context) = (facts.vocab, facts.layers, self.options().context);
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens.len() > context {
            return Err(EngineError::TooManyTokens { tokens: tokens.len(), context });
        }
        if let Some(token) = tokens.iter().copied().find(|t| *t as usize >= vocab) {
            return Err(EngineError::UnknownToken { name: "tokens", token, vocab });
        }
        if let Some(tap) = outputs.taps.iter().find(|tap| **tap > layers) {
            return Err(EngineError::parameter("taps", format!("from 0 to {layers}"), tap));
        }
        // A kept sequence is of no use here: the rows before its end are wanted too.
        self.store.forget();
        let mut holding = self
            .store
            .claim(&tokens[..1], tokens.len())?
            .ok_or_else(|| EngineError::Integrity("an idle cache has no room".to_owned()))?;
        let read = self.read_chunks(&mut holding, tokens, outputs, on_chunk);
        self.store.release(holding);
        read
    }

    fn read_chunks(
        &mut self,
        holding: &mut Holding,
        tokens: &[u32],
        outputs: &PromptOutputs,
        mut on_chunk: impl FnMut(PromptChunk) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let facts = self.model.facts();
        let most = self.prefill_rows.min(CHUNK_LOGITS / facts.vocab).max(1).min(tokens.len());
        let forward =
            Forward { activations: self.activations, taps: outputs.taps.clone(), final_norm: outputs.final_norm };
        let bucket = Bucket { rows: most, logits: most, context: self.options().context };
        let program = self.model.program(bucket, &forward);
        let plan = self.backend.compile(program, self.store.cache(), PlanOptions::default())?;
        for (i, chunk) in tokens.chunks(most).enumerate() {
            let (first, rows) = (i * most, chunk.len());
            self.store.grow(holding, first + rows)?;
            let segment = Segment {
                rows: 0..rows,
                slot: holding.slot,
                pages: holding.pages.clone(),
                past: first,
                accepted: 0,
                speculative: false,
            };
            let inputs = StepInputs {
                tokens: chunk.to_vec(),
                positions: (first..first + rows).map(|p| [p as u32; 3]).collect(),
                segments: vec![segment],
                logit_rows: (0..rows).collect(),
            };
            let ticket = self.backend.run(&plan, inputs)?;
            let StepOutput { values, .. } = wait(&*self.backend, ticket)?;
            if on_chunk(PromptChunk { first, rows, values }).is_break() {
                break;
            }
        }
        Ok(())
    }
}
