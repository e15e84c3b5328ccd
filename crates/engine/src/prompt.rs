//! Reading given tokens for their logits and hidden rows: parity checks, embeddings.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::reader::{Chunk, Reader};
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
        mut on_chunk: impl FnMut(PromptChunk) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let facts = self.model.facts();
        if let Some(tap) = outputs.taps.iter().find(|tap| **tap > facts.layers) {
            return Err(EngineError::parameter("taps", format!("from 0 to {}", facts.layers), tap));
        }
        let most = self.prefill_rows.min(CHUNK_LOGITS / facts.vocab).max(1).min(tokens.len().max(1));
        let mut reader = Reader::new(self, outputs, most)?;
        reader.begin(tokens, 0)?;
        while let Some(Chunk { first, rows, values, .. }) = reader.next()? {
            if on_chunk(PromptChunk { first, rows, values }).is_break() {
                break;
            }
        }
        Ok(())
    }
}
