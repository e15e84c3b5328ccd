//! Random weights of the published sizes, for speed measurements without a download.
//!
//! One buffer of random bytes serves as the codes of every matrix: speed is real, text is noise.

use anyhow::{Result, bail};
use half::f16;
use onebit_ops::{DenseTensor, Meta, SourceError, WeightSource};
use onebit_quant::{Format, Matrix, ParamType};
use std::collections::BTreeMap;

/// A published size.
struct Size {
    name: &'static str,
    hybrid: bool,
    layers: usize,
    hidden: usize,
    ffn: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    vocab: usize,
    tied: bool,
    theta: f64,
    /// Context before YaRN x4; 0 for no YaRN.
    original_context: usize,
}

/// The sizes of Bonsai 1.7B, 4B, 8B (Qwen3) and 27B (Qwen3.5), as in their files.
const SIZES: [Size; 4] = [
    Size {
        name: "1.7b",
        hybrid: false,
        layers: 28,
        hidden: 2048,
        ffn: 6144,
        heads: 16,
        kv_heads: 8,
        dim: 128,
        vocab: 151_669,
        tied: true,
        theta: 1e6,
        original_context: 8192,
    },
    Size {
        name: "4b",
        hybrid: false,
        layers: 36,
        hidden: 2560,
        ffn: 9728,
        heads: 32,
        kv_heads: 8,
        dim: 128,
        vocab: 151_669,
        tied: true,
        theta: 5e6,
        original_context: 8192,
    },
    Size {
        name: "8b",
        hybrid: false,
        layers: 36,
        hidden: 4096,
        ffn: 12_288,
        heads: 32,
        kv_heads: 8,
        dim: 128,
        vocab: 151_669,
        tied: false,
        theta: 1e6,
        original_context: 16_384,
    },
    Size {
        name: "27b",
        hybrid: true,
        layers: 64,
        hidden: 5120,
        ffn: 17_408,
        heads: 24,
        kv_heads: 4,
        dim: 256,
        vocab: 248_320,
        tied: false,
        theta: 1e7,
        original_context: 0,
    },
];

/// Sizes of the delta-rule layers of the 27B.
const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 48;
const DELTA_DIM: usize = 128;
const KERNEL: usize = 4;

/// A weight source that makes its tensors up.
pub struct Shape {
    format: Format,
    meta: BTreeMap<String, Meta>,
    matrices: BTreeMap<String, (usize, usize)>,
    vectors: BTreeMap<String, (Vec<usize>, f32)>,
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl Shape {
    /// `bonsai-1.7b|4b|8b|27b` (binary) or `ternary-...` (2 bits), groups of 128.
    ///
    /// # Errors
    /// An unknown name, with the known ones.
    pub fn new(name: &str) -> Result<Shape> {
        let lower = name.to_ascii_lowercase();
        let (kind, size) = lower.split_once('-').unwrap_or(("", ""));
        let format = match kind {
            "bonsai" | "binary" => Format::Affine { bits: 1, group: 128, scale: ParamType::F16, bias: ParamType::F16 },
            "ternary" => Format::Affine { bits: 2, group: 128, scale: ParamType::F16, bias: ParamType::F16 },
            _ => bail!("unknown shape `{name}`; known: {}", names()),
        };
        let Some(size) = SIZES.iter().find(|s| s.name == size) else {
            bail!("unknown shape `{name}`; known: {}", names())
        };
        let mut shape = Shape {
            format,
            meta: BTreeMap::new(),
            matrices: BTreeMap::new(),
            vectors: BTreeMap::new(),
            codes: Vec::new(),
            scales: Vec::new(),
            biases: Vec::new(),
        };
        shape.describe(size);
        shape.fill();
        Ok(shape)
    }

    fn describe(&mut self, s: &Size) {
        let int = |v: usize| Meta::Int(v as i64);
        let meta = [
            ("model_type", Meta::Text(if s.hybrid { "qwen3_5" } else { "qwen3" }.to_owned())),
            ("num_hidden_layers", int(s.layers)),
            ("num_attention_heads", int(s.heads)),
            ("num_key_value_heads", int(s.kv_heads)),
            ("head_dim", int(s.dim)),
            ("rms_norm_eps", Meta::Float(1e-6)),
            ("max_position_embeddings", int(if s.hybrid { 262_144 } else { 4 * s.original_context })),
            ("tie_word_embeddings", Meta::Bool(s.tied)),
            ("rope_theta", Meta::Float(s.theta)),
        ];
        self.meta.extend(meta.map(|(k, v)| (k.to_owned(), v)));
        if s.hybrid {
            let meta = [
                ("linear_num_key_heads", int(KEY_HEADS)),
                ("linear_num_value_heads", int(VALUE_HEADS)),
                ("linear_key_head_dim", int(DELTA_DIM)),
                ("linear_value_head_dim", int(DELTA_DIM)),
                ("linear_conv_kernel_dim", int(KERNEL)),
                ("rope_parameters.partial_rotary_factor", Meta::Float(0.25)),
                ("rope_parameters.mrope_section", Meta::List([11, 11, 10].map(Meta::Int).to_vec())),
            ];
            self.meta.extend(meta.map(|(k, v)| (k.to_owned(), v)));
        } else {
            let meta = [
                ("rope_scaling.rope_type", Meta::Text("yarn".to_owned())),
                ("rope_scaling.factor", Meta::Float(4.0)),
                ("rope_scaling.original_max_position_embeddings", int(s.original_context)),
            ];
            self.meta.extend(meta.map(|(k, v)| (k.to_owned(), v)));
        }
        let prefix = if s.hybrid { "language_model.model." } else { "model." };
        self.matrix(format!("{prefix}embed_tokens"), s.vocab, s.hidden);
        if !s.tied {
            self.matrix(if s.hybrid { "language_model.lm_head" } else { "lm_head" }.to_owned(), s.vocab, s.hidden);
        }
        self.vector(format!("{prefix}norm.weight"), vec![s.hidden], 1.0);
        for i in 0..s.layers {
            let name = |leaf: &str| format!("{prefix}layers.{i}.{leaf}");
            self.vector(name("input_layernorm.weight"), vec![s.hidden], 1.0);
            self.vector(name("post_attention_layernorm.weight"), vec![s.hidden], 1.0);
            self.matrix(name("mlp.gate_proj"), s.ffn, s.hidden);
            self.matrix(name("mlp.up_proj"), s.ffn, s.hidden);
            self.matrix(name("mlp.down_proj"), s.hidden, s.ffn);
            if s.hybrid && i % 4 != 3 {
                let (keys, values) = (KEY_HEADS * DELTA_DIM, VALUE_HEADS * DELTA_DIM);
                self.matrix(name("linear_attn.in_proj_qkv"), 2 * keys + values, s.hidden);
                self.matrix(name("linear_attn.in_proj_z"), values, s.hidden);
                self.matrix(name("linear_attn.in_proj_b"), VALUE_HEADS, s.hidden);
                self.matrix(name("linear_attn.in_proj_a"), VALUE_HEADS, s.hidden);
                self.matrix(name("linear_attn.out_proj"), s.hidden, values);
                self.vector(name("linear_attn.conv1d.weight"), vec![2 * keys + values, KERNEL, 1], 0.25);
                self.vector(name("linear_attn.A_log"), vec![VALUE_HEADS], 0.0);
                self.vector(name("linear_attn.dt_bias"), vec![VALUE_HEADS], -2.0);
                self.vector(name("linear_attn.norm.weight"), vec![DELTA_DIM], 1.0);
            } else {
                let queries = s.heads * s.dim;
                self.matrix(name("self_attn.q_proj"), if s.hybrid { 2 * queries } else { queries }, s.hidden);
                self.matrix(name("self_attn.k_proj"), s.kv_heads * s.dim, s.hidden);
                self.matrix(name("self_attn.v_proj"), s.kv_heads * s.dim, s.hidden);
                self.matrix(name("self_attn.o_proj"), s.hidden, queries);
                self.vector(name("self_attn.q_norm.weight"), vec![s.dim], 1.0);
                self.vector(name("self_attn.k_norm.weight"), vec![s.dim], 1.0);
            }
        }
    }

    fn matrix(&mut self, name: String, rows: usize, cols: usize) {
        self.matrices.insert(name, (rows, cols));
    }

    fn vector(&mut self, name: String, shape: Vec<usize>, value: f32) {
        self.vectors.insert(name, (shape, value));
    }

    /// Random codes and scales for the largest matrix; smaller ones use their beginning.
    fn fill(&mut self) {
        let bits = self.format.bits();
        let elements = self.matrices.values().map(|(r, c)| r * c).max().unwrap_or(0);
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        self.codes = (0..(elements * bits / 8).div_ceil(8)).flat_map(|_| random().to_le_bytes()).collect();
        if bits == 2 {
            // Clear the high bit where the low one is set: codes 0, 1, 2 only.
            self.codes.iter_mut().for_each(|b| *b &= !((*b & 0x55) << 1));
        }
        // Scales small enough that 64 random layers stay finite.
        self.scales = (0..elements / 128)
            .flat_map(|_| f16::from_f32(0.01 + (random() % 64) as f32 * 1e-4).to_le_bytes())
            .collect();
        // `bias = -scale / 2` (binary) or `-scale` (ternary), exact in f16.
        let factor = if bits == 1 { -0.5 } else { -1.0 };
        self.biases = self
            .scales
            .chunks_exact(2)
            .flat_map(|b| f16::from_f32(f16::from_le_bytes([b[0], b[1]]).to_f32() * factor).to_le_bytes())
            .collect();
    }
}

impl WeightSource for Shape {
    fn is_gguf(&self) -> bool {
        false
    }

    fn meta(&self, key: &str) -> Option<Meta> {
        self.meta.get(key).cloned()
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let matrices = self
            .matrices
            .iter()
            .map(|(name, (rows, cols))| (format!("{name}.weight"), vec![*rows, cols * self.format.bits() / 32]));
        matrices.chain(self.vectors.iter().map(|(name, (shape, _))| (name.clone(), shape.clone()))).collect()
    }

    fn matrix(&self, base: &str) -> Result<Option<Matrix<'_>>, SourceError> {
        let Some(&(rows, cols)) = self.matrices.get(base) else { return Ok(None) };
        let (codes, params) = (rows * cols * self.format.bits() / 8, rows * cols / 128 * 2);
        let matrix =
            Matrix::new(self.format, rows, cols, &self.codes[..codes], &self.scales[..params], &self.biases[..params]);
        matrix.map(Some).map_err(|e| SourceError(e.to_string()))
    }

    fn dense(&self, name: &str) -> Result<Option<DenseTensor>, SourceError> {
        Ok(self
            .vectors
            .get(name)
            .map(|(shape, value)| DenseTensor { shape: shape.clone(), values: vec![*value; shape.iter().product()] }))
    }

    fn release(&self, _: &str) {}
}

fn names() -> String {
    let each = |kind: &str| SIZES.map(|s| format!("{kind}-{}", s.name)).join(", ");
    format!("{}, {}", each("bonsai"), each("ternary"))
}
