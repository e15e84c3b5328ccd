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
use onebit_ops::{Meta, Norm, Recorder, RopeTable, Weight};
use std::sync::Arc;

const MLP_NORM: Leaf = ("post_attention_layernorm", "ffn_norm");

struct Qwen3 {
    ends: Ends,
    layers: Vec<Layer>,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    rope: Arc<RopeTable>,
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

pub(crate) fn load(loader: &mut Loader<'_>) -> Result<Loaded, ModelError> {
    let config = Config::new(loader.source);
    config.require(("hidden_act", "hidden_act"), &[Meta::Text("silu".to_owned())])?;
    config.require(("attention_bias", "attention_bias"), &[Meta::Bool(false)])?;
    config.require(("use_sliding_window", "use_sliding_window"), &[Meta::Bool(false)])?;
    let (layers, heads, kv_heads) = (config.count(LAYERS)?, config.count(HEADS)?, config.count(KV_HEADS)?);
    let (dim, context) = (config.count(HEAD_DIM)?, config.count(CONTEXT)?);
    let eps = config.eps()?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(ModelError::UnsupportedValue {
            key: KV_HEADS.0.to_owned(),
            found: kv_heads.to_string(),
            wanted: format!("a divisor of {heads} attention heads"),
        });
    }
    let rope = Arc::new(config.rope(dim)?);

    let ((vocab, hidden), ends) = Ends::load(loader, tied(loader), eps, 0.0)?;
    config.agrees(("hidden_size", "embedding_length"), hidden)?;
    let mut loaded = Vec::new();
    for i in 0..layers {
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
            loaded.push(Layer { norm, qkv, q_norm, k_norm, o, mlp });
        }
    }
    let facts = Facts {
        architecture: "qwen3",
        layers,
        hidden,
        vocab,
        context,
        kv: KvShape { layers, heads: kv_heads, dim },
        state: None,
        parameters: parameters(loader.outline()),
    };
    let model =
        ends.map(|ends| Box::new(Qwen3 { ends, layers: loaded, heads, kv_heads, dim, rope }) as Box<dyn Architecture>);
    Ok((facts, model))
}

/// Matrix elements; a tied embedding counts once.
pub(crate) fn parameters(outline: &Outline) -> u64 {
    outline.parts.iter().map(|p| p.rows as u64 * p.cols as u64).sum()
}

impl Architecture for Qwen3 {
    fn record(&self, rec: &mut Recorder, forward: &Forward) {
        let scale = (self.dim as f32).powf(-0.5);
        let mut x = self.ends.embed(rec, forward);
        for (i, layer) in self.layers.iter().enumerate() {
            let qkv = rec.norm_linear(x, &layer.norm, &layer.qkv, forward.activations);
            let q = qkv.columns(layer.qkv.part(0)).split(self.heads);
            let k = qkv.columns(layer.qkv.part(1)).split(self.kv_heads);
            let v = qkv.columns(layer.qkv.part(2)).split(self.kv_heads);
            let q = rec.rms_norm(q, &layer.q_norm.gain, layer.q_norm.eps);
            let k = rec.rms_norm(k, &layer.k_norm.gain, layer.k_norm.eps);
            let (q, k) = (rec.rope(q, &self.rope), rec.rope(k, &self.rope));
            let mixed = rec.attention(q, k, v, i, scale);
            let h = rec.linear_add(mixed, &layer.o, forward.activations, x);
            x = layer.mlp.record(rec, forward, h);
            tap(rec, forward, x, i + 1);
        }
        self.ends.logits(rec, forward, x);
    }

    fn weights(&self) -> Vec<&Weight> {
        let layers = self.layers.iter().flat_map(|l| [&l.qkv, &l.o].into_iter().chain(l.mlp.weights()));
        layers::with_ends(&self.ends, layers)
    }
}
