//! Qwen3.5, the base of Bonsai 27B: three gated delta rule layers, then one gated full-attention layer, and so on.
//!
//! ```text
//! h = x + mixer(rms x)                       y = h + down(silu(gate(rms h)) * up(rms h))
//! attention: q, gate, k, v = qkv(u)          o(attention(rope(norm q), rope(norm k), v) * sigmoid(gate))
//! delta:     mixed, z, b, a = in_proj(u)     q, k, v = silu(conv(mixed))
//!            out(rms(delta_rule(q, k, v, decay(a), sigmoid(b))) * silu(z))
//! ```
//!
//! Formula: the reference implementation in `transformers` (`modeling_qwen3_5.py`). Value heads keep the order of the
//! file: grouped in Hugging Face and MLX files, tiled in GGUF ([`HeadMap`]).

use crate::ModelError;
use crate::config::{CONTEXT, Config, HEAD_DIM, HEADS, KV_HEADS, Key, LAYERS};
use crate::layers::{self, Ends, INPUT_NORM, K, K_NORM, Mlp, O, Q, Q_NORM, V, norm, tap, tied};
use crate::llm::qwen3::parameters;
use crate::loader::{Leaf, Loader, PartKind};
use crate::model::{Architecture, Facts, Forward, KvShape, StateShape};
use crate::registry::Loaded;
use onebit_ops::{HeadMap, Meta, Norm, Recorder, RopeTable, Vector, View, Weight};
use std::sync::Arc;

const KEY_HEADS: Key = ("linear_num_key_heads", "ssm.group_count");
const VALUE_HEADS: Key = ("linear_num_value_heads", "ssm.time_step_rank");
const KEY_DIM: Key = ("linear_key_head_dim", "ssm.state_size");
const KERNEL: Key = ("linear_conv_kernel_dim", "ssm.conv_kernel");

const MLP_NORM: Leaf = ("post_attention_layernorm", "post_attention_norm");
const IN_QKV: Leaf = ("linear_attn.in_proj_qkv", "attn_qkv");
const IN_Z: Leaf = ("linear_attn.in_proj_z", "attn_gate");
const IN_B: Leaf = ("linear_attn.in_proj_b", "ssm_beta");
const IN_A: Leaf = ("linear_attn.in_proj_a", "ssm_alpha");
const CONV: Leaf = ("linear_attn.conv1d.weight", "ssm_conv1d.weight");
const DECAY: Leaf = ("linear_attn.A_log", "ssm_a");
const DT_BIAS: Leaf = ("linear_attn.dt_bias", "ssm_dt.bias");
const DELTA_NORM: Leaf = ("linear_attn.norm", "ssm_norm");
const OUT: Leaf = ("linear_attn.out_proj", "ssm_out");

/// Added to the sum of squares of queries and keys before the root.
const L2_EPS: f32 = 1e-6;

struct Qwen35 {
    ends: Ends,
    layers: Vec<Layer>,
    sizes: Sizes,
    rope: Arc<RopeTable>,
    map: HeadMap,
}

#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    kernel: usize,
}

struct Layer {
    /// Gain `[hidden]`.
    norm: Norm,
    mixer: Mixer,
    mlp: Mlp,
}

enum Mixer {
    Attention(Attention),
    Delta(Box<Delta>),
}

struct Attention {
    /// Index among the attention layers.
    index: usize,
    /// `(2 heads * dim + 2 kv_heads * dim, hidden)`; in each query head the query's rows come before the gate's.
    qkv: Weight,
    q_norm: Norm,
    k_norm: Norm,
    /// `(hidden, heads * dim)`.
    o: Weight,
}

struct Delta {
    /// Index among the delta-rule layers.
    index: usize,
    /// `(channels + value_heads * value_dim + 2 value_heads, hidden)`: mixed, z, b, a.
    input: Weight,
    /// `(channels, kernel)`.
    conv: Vector,
    /// `-exp(A_log)` `[value_heads]`.
    decay_rate: Vector,
    /// `[value_heads]`.
    dt_bias: Vector,
    /// Gain `[value_dim]`.
    norm: Norm,
    /// `(hidden, value_heads * value_dim)`.
    out: Weight,
}

pub(crate) fn load(loader: &mut Loader<'_>) -> Result<Loaded, ModelError> {
    let config = Config::new(loader.source);
    config.require(("hidden_act", "hidden_act"), &[Meta::Text("silu".to_owned())])?;
    config.require(("attention_bias", "attention_bias"), &[Meta::Bool(false)])?;
    config.require(("attn_output_gate", "attn_output_gate"), &[Meta::Bool(true)])?;
    let layers = config.count(LAYERS)?;
    // Blocks after the decoder's own belong to the multi-token-prediction head in GGUF.
    let layers = match config.get(("", "nextn_predict_layers")).and_then(|m| m.as_usize()) {
        Some(extra) if loader.source.is_gguf() => layers.saturating_sub(extra),
        _ => layers,
    };
    let (value_heads, key_dim) = (config.count(VALUE_HEADS)?, config.count(KEY_DIM)?);
    let value_dim = if loader.source.is_gguf() {
        config.count(("", "ssm.inner_size"))? / value_heads
    } else {
        config.count(("linear_value_head_dim", ""))?
    };
    let sizes = Sizes {
        heads: config.count(HEADS)?,
        kv_heads: config.count(KV_HEADS)?,
        dim: config.count(HEAD_DIM)?,
        key_heads: config.count(KEY_HEADS)?,
        value_heads,
        key_dim,
        value_dim,
        kernel: config.count(KERNEL)?,
    };
    for (key, count, of, what) in [
        (KV_HEADS, sizes.kv_heads, sizes.heads, "attention heads"),
        (KEY_HEADS, sizes.key_heads, sizes.value_heads, "value heads"),
    ] {
        if !of.is_multiple_of(count) {
            let wanted = format!("a divisor of {of} {what}");
            return Err(ModelError::UnsupportedValue { key: key.0.to_owned(), found: count.to_string(), wanted });
        }
    }
    let context = config.count(CONTEXT)?;
    let eps = config.eps()?;
    let rope = Arc::new(rope(&config, sizes.dim)?);
    let map = if loader.source.is_gguf() { HeadMap::Tiled } else { HeadMap::Grouped };
    let offset = norm_offset(loader);

    let ((vocab, hidden), ends) = Ends::load(loader, tied(loader), eps, offset)?;
    config.agrees(("hidden_size", "embedding_length"), hidden)?;
    let (mut attention_layers, mut delta_layers) = (0, 0);
    let mut loaded = Vec::new();
    for i in 0..layers {
        let gain = loader.gain(&loader.layer(i, INPUT_NORM), hidden, offset)?;
        // The tensors say which kind of layer it is; the two lists of the configuration may be absent.
        let mixer = if loader.source.matrix(&loader.layer(i, Q))?.is_some() {
            attention_layers += 1;
            load_attention(loader, i, attention_layers - 1, &sizes, hidden, eps, offset)?.map(Mixer::Attention)
        } else {
            delta_layers += 1;
            load_delta(loader, i, delta_layers - 1, &sizes, hidden, eps)?.map(|d| Mixer::Delta(Box::new(d)))
        };
        let mlp = Mlp::load(loader, i, MLP_NORM, hidden, eps, offset)?;
        if let (Some(norm), Some(mixer), Some(mlp)) = (norm(gain, eps), mixer, mlp) {
            loaded.push(Layer { norm, mixer, mlp });
        }
    }
    let state = StateShape {
        layers: delta_layers,
        channels: channels(&sizes),
        kernel: sizes.kernel,
        heads: sizes.value_heads,
        key_dim: sizes.key_dim,
        value_dim: sizes.value_dim,
    };
    let facts = Facts {
        architecture: "qwen35",
        layers,
        hidden,
        vocab,
        context,
        kv: KvShape { layers: attention_layers, heads: sizes.kv_heads, dim: sizes.dim },
        state: Some(state),
        parameters: parameters(loader.outline()),
    };
    let model = ends.map(|ends| Box::new(Qwen35 { ends, layers: loaded, sizes, rope, map }) as Box<dyn Architecture>);
    Ok((facts, model))
}

/// Partial rotary embedding with interleaved time, height and width sections.
fn rope(config: &Config<'_>, dim: usize) -> Result<RopeTable, ModelError> {
    let rotary = match config.get(("", "rope.dimension_count")).and_then(|m| m.as_usize()) {
        Some(rotary) => rotary,
        None => {
            let nested = config.get(("rope_parameters.partial_rotary_factor", ""));
            let factor = nested.or_else(|| config.get(("partial_rotary_factor", ""))).and_then(|m| m.as_f64());
            (dim as f64 * factor.unwrap_or(0.25)) as usize
        }
    };
    if rotary == 0 || rotary > dim || !rotary.is_multiple_of(2) {
        return Err(ModelError::UnsupportedValue {
            key: "partial_rotary_factor".to_owned(),
            found: format!("{rotary} dimensions"),
            wanted: format!("an even number of dimensions up to {dim}"),
        });
    }
    let sections = config.get(("rope_parameters.mrope_section", "rope.dimension_sections"));
    let sections: Vec<usize> =
        sections.as_ref().and_then(Meta::as_list).unwrap_or_default().iter().filter_map(Meta::as_usize).collect();
    let table = config.rope(rotary)?;
    Ok(match sections[..] {
        [t, h, w, ..] => table.with_interleaved_sections([t, h, w]),
        _ => table,
    })
}

/// Hugging Face files store these gains as `w` and apply `1 + w`; converted files store `1 + w`. A convolution weight of
/// shape `[channels, 1, kernel]` marks the former.
fn norm_offset(loader: &Loader<'_>) -> f32 {
    if loader.source.is_gguf() {
        return 0.0;
    }
    let unconverted = loader
        .source
        .tensors()
        .iter()
        .any(|(name, shape)| name.ends_with(CONV.0) && matches!(shape[..], [_, 1, kernel] if kernel != 1));
    if unconverted { 1.0 } else { 0.0 }
}

fn channels(sizes: &Sizes) -> usize {
    2 * sizes.key_heads * sizes.key_dim + sizes.value_heads * sizes.value_dim
}

fn load_attention(
    loader: &mut Loader<'_>,
    i: usize,
    index: usize,
    sizes: &Sizes,
    hidden: usize,
    eps: f32,
    offset: f32,
) -> Result<Option<Attention>, ModelError> {
    let Sizes { heads, kv_heads, dim, .. } = *sizes;
    let members = [
        (loader.layer(i, Q), [2 * heads * dim, hidden]),
        (loader.layer(i, K), [kv_heads * dim, hidden]),
        (loader.layer(i, V), [kv_heads * dim, hidden]),
    ];
    let qkv = loader.weight(PartKind::Attention, &format!("layers.{i}.attention.qkv"), &members)?;
    let q_norm = norm(loader.gain(&loader.layer(i, Q_NORM), dim, offset)?, eps);
    let k_norm = norm(loader.gain(&loader.layer(i, K_NORM), dim, offset)?, eps);
    let o = [(loader.layer(i, O), [hidden, heads * dim])];
    let o = loader.weight(PartKind::Attention, &format!("layers.{i}.attention.o"), &o)?;
    Ok(match (qkv, q_norm, k_norm, o) {
        (Some(qkv), Some(q_norm), Some(k_norm), Some(o)) => Some(Attention { index, qkv, q_norm, k_norm, o }),
        _ => None,
    })
}

fn load_delta(
    loader: &mut Loader<'_>,
    i: usize,
    index: usize,
    sizes: &Sizes,
    hidden: usize,
    eps: f32,
) -> Result<Option<Delta>, ModelError> {
    let (values, channels) = (sizes.value_heads * sizes.value_dim, channels(sizes));
    let members = [
        (loader.layer(i, IN_QKV), [channels, hidden]),
        (loader.layer(i, IN_Z), [values, hidden]),
        (loader.layer(i, IN_B), [sizes.value_heads, hidden]),
        (loader.layer(i, IN_A), [sizes.value_heads, hidden]),
    ];
    let input = loader.weight(PartKind::Delta, &format!("layers.{i}.delta.input"), &members)?;
    let conv = loader.vector(&loader.values(&loader.layer(i, CONV), channels * sizes.kernel)?)?;
    let mut decay = loader.values(&loader.layer(i, DECAY), sizes.value_heads)?;
    if !loader.source.is_gguf() {
        decay.iter_mut().for_each(|v| *v = -f64::from(*v).exp() as f32);
    }
    let decay_rate = loader.vector(&decay)?;
    let dt_bias = loader.vector(&loader.values(&loader.layer(i, DT_BIAS), sizes.value_heads)?)?;
    // This gain is plain in every container.
    let gated = norm(loader.gain(&loader.layer(i, DELTA_NORM), sizes.value_dim, 0.0)?, eps);
    let out = [(loader.layer(i, OUT), [hidden, values])];
    let out = loader.weight(PartKind::Delta, &format!("layers.{i}.delta.out"), &out)?;
    Ok(match (input, conv, decay_rate, dt_bias, gated, out) {
        (Some(input), Some(conv), Some(decay_rate), Some(dt_bias), Some(norm), Some(out)) => {
            Some(Delta { index, input, conv, decay_rate, dt_bias, norm, out })
        }
        _ => None,
    })
}

impl Qwen35 {
    fn attention(&self, rec: &mut Recorder, forward: &Forward, layer: &Layer, mixer: &Attention, x: View) -> View {
        let Sizes { heads, kv_heads, dim, .. } = self.sizes;
        let qkv = rec.norm_linear(x, &layer.norm, &mixer.qkv, forward.activations);
        let pairs = qkv.columns(mixer.qkv.part(0)).split(heads);
        let (q, gate) = (pairs.within(0..dim), pairs.within(dim..2 * dim));
        let k = qkv.columns(mixer.qkv.part(1)).split(kv_heads);
        let v = qkv.columns(mixer.qkv.part(2)).split(kv_heads);
        let q = rec.rms_norm(q, &mixer.q_norm.gain, mixer.q_norm.eps);
        let k = rec.rms_norm(k, &mixer.k_norm.gain, mixer.k_norm.eps);
        let (q, k) = (rec.rope(q, &self.rope), rec.rope(k, &self.rope));
        let mixed = rec.attention(q, k, v, mixer.index, (dim as f32).powf(-0.5));
        let gated = rec.sigmoid_mul(mixed, gate);
        rec.linear_add(gated, &mixer.o, forward.activations, x)
    }

    fn delta(&self, rec: &mut Recorder, forward: &Forward, layer: &Layer, mixer: &Delta, x: View) -> View {
        let Sizes { key_heads, value_heads, key_dim, kernel, .. } = self.sizes;
        let keys = key_heads * key_dim;
        let input = rec.norm_linear(x, &layer.norm, &mixer.input, forward.activations);
        let part = |i| input.columns(mixer.input.part(i));
        let mixed = rec.conv_silu(part(0), &mixer.conv, kernel, mixer.index);
        let q = mixed.columns(0..keys).split(key_heads);
        let k = mixed.columns(keys..2 * keys).split(key_heads);
        let v = mixed.columns(2 * keys..mixed.cols()).split(value_heads);
        let gates = rec.delta_gates(part(3), part(2), &mixer.decay_rate, &mixer.dt_bias);
        let read = rec.gated_delta([q, k, v], gates, self.map, L2_EPS, mixer.index);
        let gated = rec.gated_norm(read, part(1).split(value_heads), &mixer.norm.gain, mixer.norm.eps);
        rec.linear_add(gated, &mixer.out, forward.activations, x)
    }
}

impl Architecture for Qwen35 {
    fn record(&self, rec: &mut Recorder, forward: &Forward) {
        let mut x = self.ends.embed(rec, forward);
        for (i, layer) in self.layers.iter().enumerate() {
            let h = match &layer.mixer {
                Mixer::Attention(mixer) => self.attention(rec, forward, layer, mixer, x),
                Mixer::Delta(mixer) => self.delta(rec, forward, layer, mixer, x),
            };
            x = layer.mlp.record(rec, forward, h);
            tap(rec, forward, x, i + 1);
        }
        self.ends.logits(rec, forward, x);
    }

    fn weights(&self) -> Vec<&Weight> {
        let layers = self.layers.iter().flat_map(|l| {
            let mixer = match &l.mixer {
                Mixer::Attention(a) => [&a.qkv, &a.o],
                Mixer::Delta(d) => [&d.input, &d.out],
            };
            mixer.into_iter().chain(l.mlp.weights())
        });
        layers::with_ends(&self.ends, layers)
    }
}
