//! Qwen3, the base of Bonsai 1.7B, 4B and 8B: pre-norm decoder, grouped-query attention with an RMS norm on every query
//! and key head, rotary embedding (YaRN in the Bonsai packs), SiLU-gated feed-forward.
//!
//! ```text
//! h = x + o(attention(rope(norm q), rope(norm k), v))      q, k, v = qkv(rms x)
//! y = h + down(silu(gate(rms h)) * up(rms h))
//! ```

use crate::config::{CONTEXT, Config, HEAD_DIM, HEADS, KV_HEADS, LAYERS};
use crate::layers::{self, Ends, INPUT_NORM, K, K_NORM, Mlp, O, Q, Q_NORM, V, norm, tap, tied};
use crate::loader::{Leaf, Loader, PartKind};
use crate::model::{Architecture, Facts, Forward, KvShape};
use crate::registry::Loaded;
use crate::{ModelError, Outline};
use onebit_ops::{Meta, Norm, Recorder, RopeTable, Seen, View, Weight};
use std::sync::Arc;

const MLP_NORM: Leaf = ("post_attention_layernorm", "ffn_norm");

struct Qwen3 {
    ends: Ends,
    stack: Stack,
}

/// Decoder layers without embedding and head.
pub(crate) struct Stack {
    layers: Vec<Layer>,
    sizes: StackSizes,
    rope: Arc<RopeTable>,
}

/// Sizes of a stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StackSizes {
    /// As the file says; a stack may have fewer.
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) context: usize,
    pub(crate) eps: f32,
}

/// What tokens attend to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Attending {
    /// What their sequence has in the cache, themselves included.
    Cache,
    /// The other tokens of the step.
    Step(Seen),
}

struct Layer {
    /// Gain `[hidden]`.
    norm: Norm,
    /// `((heads + 2 kv_heads) * dim, hidden)`.
    qkv: Weight,
    /// Gains `[dim]`.
    q_norm: Norm,
    k_norm: Norm,
    /// `(hidden, heads * dim)`.
    o: Weight,
    mlp: Mlp,
}

impl StackSizes {
    /// Reads and checks the configuration.
    pub(crate) fn read(config: &Config<'_>) -> Result<StackSizes, ModelError> {
        config.require(("hidden_act", "hidden_act"), &[Meta::Text("silu".to_owned())])?;
        config.require(("attention_bias", "attention_bias"), &[Meta::Bool(false)])?;
        config.require(("use_sliding_window", "use_sliding_window"), &[Meta::Bool(false)])?;
        let (layers, heads, kv_heads) = (config.count(LAYERS)?, config.count(HEADS)?, config.count(KV_HEADS)?);
        let (dim, context) = (config.count(HEAD_DIM)?, config.count(CONTEXT)?);
        if !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::UnsupportedValue {
                key: KV_HEADS.0.to_owned(),
                found: kv_heads.to_string(),
                wanted: format!("a divisor of {heads} attention heads"),
            });
        }
        Ok(StackSizes { layers, heads, kv_heads, dim, context, eps: config.eps()? })
    }
}

impl Stack {
    /// The first `count` layers over a stream of `hidden` columns.
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        sizes: StackSizes,
        hidden: usize,
        count: usize,
    ) -> Result<Option<Stack>, ModelError> {
        let StackSizes { heads, kv_heads, dim, eps, .. } = sizes;
        let rope = Arc::new(Config::new(loader.source).rope(dim)?);
        let mut layers = Vec::new();
        for i in 0..count {
            let gain = loader.gain(&loader.layer(i, INPUT_NORM), hidden, 0.0)?;
            let members = [
                (loader.layer(i, Q), [heads * dim, hidden]),
                (loader.layer(i, K), [kv_heads * dim, hidden]),
                (loader.layer(i, V), [kv_heads * dim, hidden]),
            ];
            let qkv = loader.weight(PartKind::Attention, &format!("layers.{i}.attention.qkv"), &members)?;
            let q_norm = norm(loader.gain(&loader.layer(i, Q_NORM), dim, 0.0)?, eps);
            let k_norm = norm(loader.gain(&loader.layer(i, K_NORM), dim, 0.0)?, eps);
            let o = [(loader.layer(i, O), [hidden, heads * dim])];
            let o = loader.weight(PartKind::Attention, &format!("layers.{i}.attention.o"), &o)?;
            let mlp = Mlp::load(loader, i, MLP_NORM, hidden, eps, 0.0)?;
            if let (Some(norm), Some(qkv), Some(q_norm), Some(k_norm), Some(o), Some(mlp)) =
                (norm(gain, eps), qkv, q_norm, k_norm, o, mlp)
            {
                layers.push(Layer { norm, qkv, q_norm, k_norm, o, mlp });
            }
        }
        Ok((layers.len() == count).then_some(Stack { layers, sizes, rope }))
    }

    /// The stream after every layer.
    pub(crate) fn record(&self, rec: &mut Recorder, forward: &Forward, x: View, attending: Attending) -> Vec<View> {
        let StackSizes { heads, kv_heads, dim, .. } = self.sizes;
        let scale = (dim as f32).powf(-0.5);
        let mut x = x;
        let mut streams = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            let qkv = rec.norm_linear(x, &layer.norm, &layer.qkv, forward.activations);
            let q = qkv.columns(layer.qkv.part(0)).split(heads);
            let k = qkv.columns(layer.qkv.part(1)).split(kv_heads);
            let v = qkv.columns(layer.qkv.part(2)).split(kv_heads);
            let q = rec.rms_norm(q, &layer.q_norm.gain, layer.q_norm.eps);
            let k = rec.rms_norm(k, &layer.k_norm.gain, layer.k_norm.eps);
            let (q, k) = (rec.rope(q, &self.rope), rec.rope(k, &self.rope));
            let mixed = match attending {
                Attending::Cache => rec.attention(q, k, v, i, scale),
                Attending::Step(seen) => rec.full_attention(q, k, v, scale, seen),
            };
            let h = rec.linear_add(mixed, &layer.o, forward.activations, x);
            x = layer.mlp.record(rec, forward, h);
            tap(rec, forward, x, i + 1);
            streams.push(x);
        }
        streams
    }

    /// Every weight, in forward order.
    pub(crate) fn weights(&self) -> impl Iterator<Item = &Weight> {
        self.layers.iter().flat_map(|l| [&l.qkv, &l.o].into_iter().chain(l.mlp.weights()))
    }
}

pub(crate) fn load(loader: &mut Loader<'_>) -> Result<Loaded, ModelError> {
    let config = Config::new(loader.source);
    let sizes = StackSizes::read(&config)?;
    let ((vocab, hidden), ends) = Ends::load(loader, tied(loader), sizes.eps, 0.0)?;
    config.agrees(("hidden_size", "embedding_length"), hidden)?;
    let stack = Stack::load(loader, sizes, hidden, sizes.layers)?;
    let facts = Facts {
        architecture: "qwen3",
        layers: sizes.layers,
        hidden,
        vocab,
        context: sizes.context,
        kv: KvShape { layers: sizes.layers, heads: sizes.kv_heads, dim: sizes.dim },
        state: None,
        parameters: parameters(loader.outline()),
    };
    let model = ends.zip(stack).map(|(ends, stack)| Box::new(Qwen3 { ends, stack }) as Box<dyn Architecture>);
    Ok((facts, model))
}

/// Matrix elements; a tied embedding counts once.
pub(crate) fn parameters(outline: &Outline) -> u64 {
    outline.parts.iter().map(|p| p.rows as u64 * p.cols as u64).sum()
}

impl Architecture for Qwen3 {
    fn record(&self, rec: &mut Recorder, forward: &Forward) {
        let x = self.ends.embed(rec, forward);
        let streams = self.stack.record(rec, forward, x, Attending::Cache);
        self.ends.logits(rec, forward, streams.last().copied().unwrap_or(x));
    }

    fn weights(&self) -> Vec<&Weight> {
        layers::with_ends(&self.ends, self.stack.weights())
    }
}
