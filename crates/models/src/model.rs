//! A loaded model, whatever its architecture.

use crate::loader::{Loader, Target};
use crate::{LoadOptions, ModelError, Outline, Progress, registry};
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, KvFormat, KvSpec, PAGE_ROWS, Program, Recorder, StateSpec, Weight,
    WeightSource,
};

/// Sizes that the engine and the reports need.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// `qwen3`, `qwen35`.
    pub architecture: &'static str,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding matrix.
    pub vocab: usize,
    /// Tokens that the positions were made for.
    pub context: usize,
    /// Full-attention layers, key/value heads and head dimension.
    pub kv: KvShape,
    /// Delta-rule layers, for hybrids.
    pub state: Option<StateShape>,
    /// Weights, counted as matrix elements.
    pub parameters: u64,
}

/// What attention layers keep per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Full-attention layers.
    pub layers: usize,
    /// Key/value heads.
    pub heads: usize,
    /// Head dimension.
    pub dim: usize,
}

/// What delta-rule layers keep per sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShape {
    /// Delta-rule layers.
    pub layers: usize,
    /// Convolution channels.
    pub channels: usize,
    /// Convolution kernel.
    pub kernel: usize,
    /// Value heads.
    pub heads: usize,
    /// Key dimension.
    pub key_dim: usize,
    /// Value dimension.
    pub value_dim: usize,
}

/// What a forward pass is recorded with.
#[derive(Debug, Clone)]
pub struct Forward {
    /// How matmul inputs are rounded.
    pub activations: Activations,
    /// Points of the residual stream to hand out as `hidden.<i>`: 0 is the embedding, i the stream after layer i.
    pub taps: Vec<usize>,
    /// Hand out every row after the last norm as `final_norm`.
    pub final_norm: bool,
    /// Hand out the logits of the wanted rows as `logits`.
    pub logits: bool,
    /// Choose a token for each wanted row.
    pub sample: bool,
}

impl Forward {
    /// Logits only.
    pub fn new(activations: Activations) -> Self {
        Forward { activations, taps: Vec::new(), final_norm: false, logits: true, sample: false }
    }
}

/// A forward pass that can be recorded.
pub trait Architecture: Send + Sync {
    /// Appends the forward pass; its outputs are what `forward` asks for.
    fn record(&self, rec: &mut Recorder, forward: &Forward);
    /// Every uploaded weight, in forward order.
    fn weights(&self) -> Vec<&Weight>;
}

/// A model on a device.
pub struct Model {
    facts: Facts,
    outline: Outline,
    architecture: Box<dyn Architecture>,
}

/// Rows of a speculative step that a state slot can hold pending.
const MAX_PENDING: usize = 8;

impl Facts {
    /// The cache for `tokens` cached tokens in all and `slots` sequences (or saved states).
    pub fn cache_spec(&self, tokens: usize, slots: usize, format: KvFormat) -> CacheSpec {
        let kv = KvSpec {
            layers: self.kv.layers,
            heads: self.kv.heads,
            dim: self.kv.dim,
            pages: tokens.div_ceil(PAGE_ROWS),
            format,
        };
        let state = self.state.map(|s| StateSpec {
            layers: s.layers,
            slots,
            channels: s.channels,
            kernel: s.kernel,
            heads: s.heads,
            key_dim: s.key_dim,
            value_dim: s.value_dim,
            max_pending: MAX_PENDING,
        });
        CacheSpec { kv, state }
    }
}

impl Model {
    /// Reads a checkpoint onto a device.
    ///
    /// # Errors
    /// [`ModelError`], before any large upload where the metadata already tell.
    pub fn load(
        source: &dyn WeightSource,
        backend: &dyn Backend,
        options: LoadOptions<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, ModelError> {
        let entry = registry::find(source)?;
        let total = outline(source)?.1.bytes();
        let mut loader = Loader::new(source, Target::Device { backend, options, progress, total })?;
        let (facts, architecture) = (entry.load)(&mut loader)?;
        loader.refuse_leftovers(facts.layers)?;
        let architecture = architecture.ok_or_else(|| ModelError::MissingKey("architecture".to_owned()))?;
        Ok(Model { facts, outline: loader.into_outline(), architecture })
    }

    /// Sizes.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The checkpoint's matrices.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }

    /// Every uploaded weight, in forward order.
    pub fn weights(&self) -> Vec<&Weight> {
        self.architecture.weights()
    }

    /// Records the forward pass for these sizes.
    pub fn program(&self, bucket: Bucket, forward: &Forward) -> Program {
        let mut recorder = Recorder::new(bucket);
        self.architecture.record(&mut recorder, forward);
        recorder.finish()
    }
}

/// Sizes and matrices of a checkpoint, without reading its weights.
///
/// # Errors
/// The same as [`Model::load`] would give for names, shapes and metadata.
pub fn outline(source: &dyn WeightSource) -> Result<(Facts, Outline), ModelError> {
    let entry = registry::find(source)?;
    let mut loader = Loader::new(source, Target::Outline)?;
    let (facts, _) = (entry.load)(&mut loader)?;
    loader.refuse_leftovers(facts.layers)?;
    Ok((facts, loader.into_outline()))
}
