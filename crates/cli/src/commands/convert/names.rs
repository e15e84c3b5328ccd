//! Which tensor of one container is which tensor of the other, and what its content is.

/// The two supported architectures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    Qwen3,
    Qwen35,
}

impl Architecture {
    /// From a `model_type` or `general.architecture`.
    pub(super) fn find(name: &str) -> Option<Architecture> {
        match name {
            "qwen3" => Some(Architecture::Qwen3),
            "qwen3_5" | "qwen3_5_text" | "qwen35" => Some(Architecture::Qwen35),
            _ => None,
        }
    }

    /// Name in GGUF.
    pub(super) fn gguf(self) -> &'static str {
        match self {
            Architecture::Qwen3 => "qwen3",
            Architecture::Qwen35 => "qwen35",
        }
    }

    /// Tensors outside the layers.
    pub(super) fn globals(self) -> &'static [Entry] {
        &GLOBALS
    }

    /// Tensors of a layer; those of the other kind of layer are absent.
    pub(super) fn layer(self) -> Vec<Entry> {
        let own: &[Entry] = match self {
            Architecture::Qwen3 => &QWEN3_LAYER,
            Architecture::Qwen35 => &QWEN35_LAYER,
        };
        LAYER.iter().chain(own).copied().collect()
    }

    /// Where MLX writers put the language model, and the head beside it.
    pub(super) fn mlx_prefix(self) -> (&'static str, &'static str) {
        match self {
            Architecture::Qwen3 => ("model.", ""),
            Architecture::Qwen35 => ("language_model.model.", "language_model."),
        }
    }
}

/// What a tensor holds, as far as the containers differ in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A weight matrix.
    Matrix(ValueHeads),
    /// An RMS norm gain that unconverted files store less 1.
    OffsetNorm,
    /// An RMS norm gain that every file stores plainly.
    Norm,
    /// One number for each value head.
    PerHead,
    /// `A_log` on one side, `-exp(A_log)` on the other, one for each value head.
    Decay,
    /// Convolution taps, `[channels, kernel]` but for a dimension of one.
    Conv,
}

/// Which axis of a matrix is indexed by value heads, whose order differs between the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueHeads {
    /// None.
    None,
    /// Rows, in blocks of the value dimension, after those of queries and keys.
    RowsAfterKeys,
    /// Rows, in blocks of the value dimension.
    Rows,
    /// Rows, one for each head.
    SingleRows,
    /// Columns, in blocks of the value dimension.
    Columns,
}

/// One tensor: its name in Hugging Face and MLX files, its name in GGUF, its content. Names of matrices and norms lack
/// the `.weight` that both containers add.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) hf: &'static str,
    pub(super) gguf: &'static str,
    pub(super) content: Content,
}

const fn matrix(hf: &'static str, gguf: &'static str, heads: ValueHeads) -> Entry {
    Entry { hf, gguf, content: Content::Matrix(heads) }
}

const fn norm(hf: &'static str, gguf: &'static str) -> Entry {
    Entry { hf, gguf, content: Content::OffsetNorm }
}

const GLOBALS: [Entry; 3] = [
    matrix("embed_tokens", "token_embd", ValueHeads::None),
    norm("norm", "output_norm"),
    matrix("lm_head", "output", ValueHeads::None),
];

const LAYER: [Entry; 10] = [
    norm("input_layernorm", "attn_norm"),
    matrix("self_attn.q_proj", "attn_q", ValueHeads::None),
    matrix("self_attn.k_proj", "attn_k", ValueHeads::None),
    matrix("self_attn.v_proj", "attn_v", ValueHeads::None),
    matrix("self_attn.o_proj", "attn_output", ValueHeads::None),
    norm("self_attn.q_norm", "attn_q_norm"),
    norm("self_attn.k_norm", "attn_k_norm"),
    matrix("mlp.gate_proj", "ffn_gate", ValueHeads::None),
    matrix("mlp.up_proj", "ffn_up", ValueHeads::None),
    matrix("mlp.down_proj", "ffn_down", ValueHeads::None),
];

const QWEN3_LAYER: [Entry; 1] = [norm("post_attention_layernorm", "ffn_norm")];

const QWEN35_LAYER: [Entry; 10] = [
    norm("post_attention_layernorm", "post_attention_norm"),
    matrix("linear_attn.in_proj_qkv", "attn_qkv", ValueHeads::RowsAfterKeys),
    matrix("linear_attn.in_proj_z", "attn_gate", ValueHeads::Rows),
    matrix("linear_attn.in_proj_b", "ssm_beta", ValueHeads::SingleRows),
    matrix("linear_attn.in_proj_a", "ssm_alpha", ValueHeads::SingleRows),
    Entry { hf: "linear_attn.conv1d.weight", gguf: "ssm_conv1d.weight", content: Content::Conv },
    Entry { hf: "linear_attn.A_log", gguf: "ssm_a", content: Content::Decay },
    Entry { hf: "linear_attn.dt_bias", gguf: "ssm_dt.bias", content: Content::PerHead },
    Entry { hf: "linear_attn.norm", gguf: "ssm_norm", content: Content::Norm },
    matrix("linear_attn.out_proj", "ssm_out", ValueHeads::Columns),
];

/// One tensor of one model, by its full names without `.weight` where the content has it.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) hf: String,
    pub(super) gguf: String,
    pub(super) content: Content,
}

impl Pair {
    /// Full tensor name in Hugging Face and MLX files.
    pub(super) fn hf_tensor(&self) -> String {
        self.tensor(&self.hf)
    }

    /// Full tensor name in GGUF.
    pub(super) fn gguf_tensor(&self) -> String {
        self.tensor(&self.gguf)
    }

    fn tensor(&self, base: &str) -> String {
        match self.content {
            Content::Matrix(_) | Content::OffsetNorm | Content::Norm => format!("{base}.weight"),
            Content::PerHead | Content::Decay | Content::Conv => base.to_owned(),
        }
    }
}

/// Every tensor that a model of this architecture may have, in forward order. `prefix` and `head` are the two prefixes
/// of the Hugging Face or MLX side.
pub(super) fn pairs(architecture: Architecture, layers: usize, prefix: &str, head: &str) -> Vec<Pair> {
    let mut out: Vec<Pair> = Vec::new();
    for entry in architecture.globals() {
        let prefix = if entry.hf == "lm_head" { head } else { prefix };
        out.push(Pair { hf: format!("{prefix}{}", entry.hf), gguf: entry.gguf.to_owned(), content: entry.content });
    }
    let entries = architecture.layer();
    for i in 0..layers {
        out.extend(entries.iter().map(|entry| Pair {
            hf: format!("{prefix}layers.{i}.{}", entry.hf),
            gguf: format!("blk.{i}.{}", entry.gguf),
            content: entry.content,
        }));
    }
    out
}
