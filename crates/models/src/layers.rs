//! Leaves that several architectures share: the ends of the network and the gated feed-forward block.

use crate::loader::{Leaf, Loader, PartKind};
use crate::{Forward, ModelError};
use onebit_ops::{Meta, Norm, Recorder, Vector, View, Weight};

pub(crate) const EMBED: Leaf = ("embed_tokens", "token_embd");
pub(crate) const FINAL_NORM: Leaf = ("norm", "output_norm");
pub(crate) const Q: Leaf = ("self_attn.q_proj", "attn_q");
pub(crate) const K: Leaf = ("self_attn.k_proj", "attn_k");
pub(crate) const V: Leaf = ("self_attn.v_proj", "attn_v");
pub(crate) const O: Leaf = ("self_attn.o_proj", "attn_output");
pub(crate) const Q_NORM: Leaf = ("self_attn.q_norm", "attn_q_norm");
pub(crate) const K_NORM: Leaf = ("self_attn.k_norm", "attn_k_norm");
pub(crate) const GATE: Leaf = ("mlp.gate_proj", "ffn_gate");
pub(crate) const UP: Leaf = ("mlp.up_proj", "ffn_up");
pub(crate) const DOWN: Leaf = ("mlp.down_proj", "ffn_down");
pub(crate) const INPUT_NORM: Leaf = ("input_layernorm", "attn_norm");

/// A vector with the epsilon of its norm, if there is a device.
pub(crate) fn norm(gain: Option<Vector>, eps: f32) -> Option<Norm> {
    gain.map(|gain| Norm { gain, eps })
}

/// Embedding and head.
pub(crate) struct Ends {
    pub(crate) embed: Weight,
    pub(crate) norm: Norm,
    pub(crate) head: Weight,
}

impl Ends {
    /// Loads the embedding; the head is the embedding when tied. Returns `(vocab, hidden)` beside.
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        tied: Option<bool>,
        eps: f32,
        offset: f32,
    ) -> Result<((usize, usize), Option<Ends>), ModelError> {
        let name = loader.global(EMBED);
        let table = loader.matrix(&name)?;
        let (vocab, hidden) = (table.rows, table.cols);
        let head_name = loader.head_name();
        let tied = match tied {
            Some(tied) => tied,
            None => loader.source.matrix(&head_name)?.is_none(),
        };
        // A tied table is read in full by the head, and only there: reports call it by that use.
        let embed = if tied {
            loader.weight(PartKind::Embedding, "head (tied)", &[(name, [vocab, hidden])])?
        } else {
            loader.table(PartKind::Embedding, "embed", (name, [vocab, hidden]))?
        };
        let head = if tied {
            embed.clone()
        } else {
            loader.weight(PartKind::Head, "head", &[(head_name, [vocab, hidden])])?
        };
        let gain = loader.gain(&loader.global(FINAL_NORM), hidden, offset)?;
        let ends = match (embed, norm(gain, eps), head) {
            (Some(embed), Some(norm), Some(head)) => Some(Ends { embed, norm, head }),
            _ => None,
        };
        Ok(((vocab, hidden), ends))
    }

    /// Embedding of the step's tokens.
    pub(crate) fn embed(&self, rec: &mut Recorder, forward: &Forward) -> View {
        let x = rec.embed(&self.embed);
        tap(rec, forward, x, 0);
        x
    }

    /// Logits of the wanted rows, and the tokens chosen from them.
    pub(crate) fn logits(&self, rec: &mut Recorder, forward: &Forward, x: View) {
        if forward.final_norm {
            let normed = rec.rms_norm(x, &self.norm.gain, self.norm.eps);
            rec.output(normed, "final_norm");
        }
        let rows = rec.select_rows(x);
        let logits = rec.norm_linear(rows, &self.norm, &self.head, forward.activations);
        if forward.logits {
            rec.output(logits, "logits");
        }
        if forward.sample {
            rec.sample(logits);
        }
    }

    /// Embedding, and the head when it is a weight of its own.
    pub(crate) fn is_tied(&self) -> bool {
        std::ptr::eq(self.embed.info(), self.head.info())
    }
}

/// Hands out the residual stream where it was asked for.
pub(crate) fn tap(rec: &mut Recorder, forward: &Forward, x: View, at: usize) {
    if forward.taps.contains(&at) {
        rec.output(x, &format!("hidden.{at}"));
    }
}

/// `x + down(silu(gate(norm x)) * up(norm x))`.
pub(crate) struct Mlp {
    norm: Norm,
    gate_up: Weight,
    down: Weight,
}

impl Mlp {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        layer: usize,
        norm_leaf: Leaf,
        hidden: usize,
        eps: f32,
        offset: f32,
    ) -> Result<Option<Mlp>, ModelError> {
        let gain = loader.gain(&loader.layer(layer, norm_leaf), hidden, offset)?;
        let (gate, up, down) = (loader.layer(layer, GATE), loader.layer(layer, UP), loader.layer(layer, DOWN));
        let width = loader.matrix(&gate)?.rows;
        let members = [(gate, [width, hidden]), (up, [width, hidden])];
        let gate_up = loader.weight(PartKind::Mlp, &format!("layers.{layer}.mlp.gate_up"), &members)?;
        let down = loader.weight(PartKind::Mlp, &format!("layers.{layer}.mlp.down"), &[(down, [hidden, width])])?;
        Ok(match (norm(gain, eps), gate_up, down) {
            (Some(norm), Some(gate_up), Some(down)) => Some(Mlp { norm, gate_up, down }),
            _ => None,
        })
    }

    pub(crate) fn record(&self, rec: &mut Recorder, forward: &Forward, x: View) -> View {
        let inner = rec.norm_linear_swiglu(x, &self.norm, &self.gate_up, forward.activations);
        rec.linear_add(inner, &self.down, forward.activations, x)
    }

    pub(crate) fn weights(&self) -> [&Weight; 2] {
        [&self.gate_up, &self.down]
    }
}

/// `tie_word_embeddings`, from the text section or the top; GGUF says it by leaving the head out.
pub(crate) fn tied(loader: &Loader<'_>) -> Option<bool> {
    if loader.source.is_gguf() {
        return None;
    }
    let found =
        loader.source.meta("text_config.tie_word_embeddings").or_else(|| loader.source.meta("tie_word_embeddings"));
    Some(found.as_ref().and_then(Meta::as_bool).unwrap_or(false))
}

/// Embedding first, then the layers' weights, then the head unless it is the embedding again.
pub(crate) fn with_ends<'a>(ends: &'a Ends, layers: impl Iterator<Item = &'a Weight>) -> Vec<&'a Weight> {
    let head = if ends.is_tied() { None } else { Some(&ends.head) };
    std::iter::once(&ends.embed).chain(layers).chain(head).collect()
}
