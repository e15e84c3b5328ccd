//! How likely the model finds given tokens: perplexity, agreement with another model.

use crate::distribution::Distribution;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::prompt::PromptOutputs;
use crate::reader::Reader;

/// Logit values of one chunk at most: 64 MiB as f32. A chunk then has 67 rows for a vocabulary of 248,000, so that the
/// weights are still read seldom, and its logits fit twice into the memory that a plan may take.
const CHUNK_LOGITS: usize = 16 << 20;

/// Scores one sequence after another with one plan, in prefill chunks over the engine's own cache: the formats of
/// activations, keys and values show in the result.
pub struct Scorer<'e> {
    reader: Reader<'e>,
    vocab: usize,
}

/// The logits of consecutive positions.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredRows {
    first: usize,
    vocab: usize,
    logits: Vec<f32>,
}

impl Engine {
    /// Most rows of one chunk of a [`Scorer`].
    pub fn scorer_rows(&self) -> usize {
        self.prefill_rows.min(CHUNK_LOGITS / self.model().facts().vocab).max(1)
    }

    /// A scorer whose chunks have at most `rows` rows; more than [`Engine::scorer_rows`] are cut to those. Two models
    /// whose chunks have the same size can be compared row by row.
    ///
    /// # Errors
    /// [`EngineError::Parameter`] for no rows, [`EngineError::Busy`] while requests are under way, and faults of the
    /// device.
    pub fn scorer(&mut self, rows: usize) -> Result<Scorer<'_>, EngineError> {
        if rows == 0 {
            return Err(EngineError::parameter("rows", "at least 1", rows));
        }
        let (rows, vocab) = (rows.min(self.scorer_rows()), self.model().facts().vocab);
        Ok(Scorer { reader: Reader::new(self, &PromptOutputs::default(), rows)?, vocab })
    }
}

impl Scorer<'_> {
    /// Starts on a sequence from an empty context. Positions before `from` are context only: they give no rows.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::TooManyTokens`], [`EngineError::UnknownToken`], and faults of the
    /// device.
    pub fn begin(&mut self, tokens: &[u32], from: usize) -> Result<(), EngineError> {
        self.reader.begin(tokens, from)
    }

    /// Reads the next chunk; `None` at the end of the sequence. A chunk of context only has no rows.
    ///
    /// # Errors
    /// [`EngineError::NonFinite`] with the first position whose logits are not all finite, and faults of the device.
    pub fn next_rows(&mut self) -> Result<Option<ScoredRows>, EngineError> {
        let Some(mut chunk) = self.reader.next()? else { return Ok(None) };
        let logits = chunk.values.remove("logits").unwrap_or_default();
        let rows = ScoredRows { first: chunk.first_logits, vocab: self.vocab, logits };
        if let Some(at) = rows.logits.iter().position(|l| !l.is_finite()) {
            return Err(EngineError::NonFinite { step: chunk.step, position: rows.first + at / self.vocab });
        }
        Ok(Some(rows))
    }
}

impl ScoredRows {
    /// Each position with the distribution over the token after it.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Distribution<'_>)> {
        let rows = self.logits.chunks_exact(self.vocab).map(Distribution::of);
        rows.enumerate().map(|(i, row)| (self.first + i, row))
    }
}
