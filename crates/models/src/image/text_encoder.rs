//! What reads the prompt: a Qwen3 language model up to its layer 27. The streams after layers 9, 18 and 27, side by side and
//! without a last norm, are what the transformer sees of the text.
//!
//! Rows behind the prompt are padding. They are run as all others and the transformer reads them too, but no row attends to
//! them here. Formula: `Flux2KleinPipeline` of diffusers.

use super::{ImageFacts, part_loader};
use crate::config::Config;
use crate::layers::EMBED;
use crate::llm::qwen3::{Attending, Stack, StackSizes};
use crate::loader::{Loader, PartKind, Target};
use crate::{Forward, LoadOptions, ModelError, Outline, Progress};
use onebit_ops::{Activations, Backend, Bucket, Meta, Program, Recorder, Seen, Weight, WeightSource};

/// Layers whose streams the transformer reads, counted from 1.
pub const TAPS: [usize; 3] = [9, 18, 27];

/// Layers that are run.
pub const LAYERS: usize = TAPS[TAPS.len() - 1];

/// The output of a program.
pub const OUTPUT: &str = "prompt";

/// A text encoder on a device.
pub struct TextEncoder {
    embed: Weight,
    stack: Stack,
}

/// Sizes of a text encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextFacts {
    /// Width of the stream; the transformer sees three times as much.
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Positions that it was made for.
    pub context: usize,
}

impl TextEncoder {
    /// Reads the weights onto a device.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn load(
        source: &dyn WeightSource,
        backend: &dyn Backend,
        options: LoadOptions<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<TextEncoder, ModelError> {
        let total = outline(source)?.1.bytes();
        let mut loader = Loader::new(source, Target::Device { backend, options, progress, total })?;
        part_loader(read(&mut loader)?.1)
    }

    /// The forward pass of `rows` tokens of which the first `keys` are the prompt. Output [`OUTPUT`]: `(rows, 3 hidden)`.
    pub fn program(&self, rows: usize, keys: usize, activations: Activations) -> Program {
        let mut rec = Recorder::new(Bucket { rows, logits: 0, context: rows });
        let forward = Forward { logits: false, ..Forward::new(activations) };
        let x = rec.embed(&self.embed);
        let streams = self.stack.record(&mut rec, &forward, x, Attending::Step(Seen::Causal { keys }));
        let seen = rec.join_columns(&TAPS.map(|layer| streams[layer - 1]));
        rec.output(seen, OUTPUT);
        rec.finish()
    }

    /// The embedding, of which only rows are looked up.
    pub fn table(&self) -> &Weight {
        &self.embed
    }

    /// Every weight but the embedding, in forward order.
    pub fn weights(&self) -> Vec<&Weight> {
        self.stack.weights().collect()
    }
}

/// Sizes and matrices, without reading weights.
///
/// # Errors
/// [`ModelError`] for names, shapes and metadata.
pub fn outline(source: &dyn WeightSource) -> Result<(TextFacts, Outline), ModelError> {
    let mut loader = Loader::new(source, Target::Outline)?;
    let (facts, _) = read(&mut loader)?;
    Ok((facts, loader.into_outline()))
}

/// A text encoder that can be recorded and not run.
///
/// # Errors
/// As [`outline`].
pub fn sketch(source: &dyn WeightSource) -> Result<TextEncoder, ModelError> {
    part_loader(read(&mut Loader::new(source, Target::Sketch)?)?.1)
}

fn read(loader: &mut Loader<'_>) -> Result<(TextFacts, Option<TextEncoder>), ModelError> {
    let config = Config::new(loader.source);
    let key = "model_type";
    match loader.source.meta(key) {
        Some(Meta::Text(kind)) if kind == "qwen3" => {}
        found => {
            let found = found.as_ref().and_then(Meta::as_str).unwrap_or("not there").to_owned();
            return Err(ModelError::UnsupportedValue { key: key.to_owned(), found, wanted: "`qwen3`".to_owned() });
        }
    }
    let sizes = StackSizes::read(&config)?;
    if sizes.layers < LAYERS {
        return Err(ModelError::UnsupportedValue {
            key: "num_hidden_layers".to_owned(),
            found: sizes.layers.to_string(),
            wanted: format!("{LAYERS} or more: the transformer reads the stream after layer {LAYERS}"),
        });
    }
    let name = loader.global(EMBED);
    let table = loader.matrix(&name)?;
    let (vocab, hidden) = (table.rows, table.cols);
    config.agrees(("hidden_size", "embedding_length"), hidden)?;
    let embed = loader.table(PartKind::Embedding, "embed", (name, [vocab, hidden]))?;
    let stack = Stack::load(loader, sizes, hidden, LAYERS)?;
    let facts = TextFacts { hidden, vocab, context: sizes.context };
    Ok((facts, embed.zip(stack).map(|(embed, stack)| TextEncoder { embed, stack })))
}

/// Whether a transformer was made for this encoder.
pub(super) fn agrees(text: &TextFacts, facts: &ImageFacts) -> Result<(), ModelError> {
    let width = TAPS.len() * text.hidden;
    if width == facts.text_width {
        return Ok(());
    }
    Err(ModelError::UnsupportedValue {
        key: "hidden_size of the text encoder".to_owned(),
        found: text.hidden.to_string(),
        wanted: format!("{}, a third of what this transformer reads", facts.text_width / TAPS.len()),
    })
}
