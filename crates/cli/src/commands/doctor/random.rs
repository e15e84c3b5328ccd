//! Numbers, matrices and small networks made up from a seed, the same on every machine.

use onebit_ops::{DenseTensor, Meta, SourceError, WeightSource};
use onebit_quant::{Format, Matrix, Packed, ParamType, pack};
use std::collections::BTreeMap;

/// A stream of random numbers (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1.
    pub(super) fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Close to a normal distribution of variance 1: the sum of twelve uniform numbers.
    pub(super) fn normal(&mut self) -> f32 {
        // Uniform on -1..1 has variance 1/3; three of them make 1.
        (0..12).map(|_| self.signed()).sum::<f32>() * 0.5
    }
}

/// A dense f32 matrix of normal numbers.
pub(super) fn dense(rows: usize, cols: usize, random: &mut Random) -> Packed {
    let codes = (0..rows * cols).flat_map(|_| random.normal().to_le_bytes()).collect();
    Packed { format: Format::F32, rows, cols, codes, scales: Vec::new(), biases: Vec::new() }
}

/// An MLX matrix with F16 scales and symmetric offsets; `affine` gives every group an offset of its own.
pub(super) fn affine(rows: usize, cols: usize, bits: u8, group: u16, affine: bool, random: &mut Random) -> Packed {
    let format = Format::Affine { bits, group, scale: ParamType::F16, bias: ParamType::F16 };
    let most = if bits == 2 { 3 } else { 1u64 << bits };
    let codes: Vec<u8> = (0..rows * cols).map(|_| (random.next() % most) as u8).collect();
    let groups = rows * cols / usize::from(group);
    let middle = (most - 1) as f32 / 2.0;
    let unit = 0.05 / middle;
    // Scales on a coarse grid, so that scale and half scale are binary16 numbers.
    let scales: Vec<f32> =
        (0..groups).map(|_| ParamType::F16.round(unit * (1.0 + (random.next() % 64) as f32 / 64.0))).collect();
    let offset = |scale: f32, random: &mut Random| {
        let own = if affine { 0.2 * scale * random.signed() } else { 0.0 };
        ParamType::F16.round(own - middle * scale)
    };
    let biases: Vec<f32> = scales.iter().map(|s| offset(*s, random)).collect();
    match pack(format, rows, cols, &codes, &scales, &biases) {
        Ok(packed) => packed,
        // Codes, scales and lengths are right by construction.
        Err(why) => unreachable!("{why}"),
    }
}

/// A small network with random weights.
pub(super) struct Network {
    meta: BTreeMap<&'static str, Meta>,
    matrices: BTreeMap<String, Packed>,
    vectors: BTreeMap<String, DenseTensor>,
}

/// Sizes of the small networks.
pub(super) const VOCAB: usize = 320;
const HIDDEN: usize = 256;
const FFN: usize = 384;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 6;
const DELTA_DIM: usize = 128;

impl Network {
    /// A dense Qwen3 with YaRN and a tied head, or a hybrid Qwen3.5 with a head of its own.
    pub(super) fn new(hybrid: bool, bits: u8) -> Network {
        let mut random = Random::new(if hybrid { 35 } else { 3 } + u64::from(bits));
        let mut net = Network { meta: BTreeMap::new(), matrices: BTreeMap::new(), vectors: BTreeMap::new() };
        let int = |v: usize| Meta::Int(v as i64);
        net.meta.extend([
            ("model_type", Meta::Text(if hybrid { "qwen3_5" } else { "qwen3" }.to_owned())),
            ("num_hidden_layers", int(if hybrid { 4 } else { 2 })),
            ("num_attention_heads", int(HEADS)),
            ("num_key_value_heads", int(KV_HEADS)),
            ("head_dim", int(DIM)),
            ("rms_norm_eps", Meta::Float(1e-6)),
            ("max_position_embeddings", int(4096)),
            ("tie_word_embeddings", Meta::Bool(!hybrid)),
            ("rope_theta", Meta::Float(if hybrid { 1e7 } else { 1e6 })),
        ]);
        if hybrid {
            net.meta.extend([
                ("linear_num_key_heads", int(KEY_HEADS)),
                ("linear_num_value_heads", int(VALUE_HEADS)),
                ("linear_key_head_dim", int(DELTA_DIM)),
                ("linear_value_head_dim", int(DELTA_DIM)),
                ("linear_conv_kernel_dim", int(4)),
                ("rope_parameters.partial_rotary_factor", Meta::Float(0.25)),
                ("rope_parameters.mrope_section", Meta::List([3, 3, 2].map(Meta::Int).to_vec())),
            ]);
        } else {
            net.meta.extend([
                ("rope_scaling.rope_type", Meta::Text("yarn".to_owned())),
                ("rope_scaling.factor", Meta::Float(4.0)),
                ("rope_scaling.original_max_position_embeddings", int(1024)),
            ]);
        }
        net.fill(hybrid, bits, &mut random);
        net
    }

    fn fill(&mut self, hybrid: bool, bits: u8, random: &mut Random) {
        let prefix = if hybrid { "language_model.model." } else { "model." };
        self.matrix(format!("{prefix}embed_tokens"), VOCAB, HIDDEN, bits, random);
        self.vector(format!("{prefix}norm.weight"), vec![HIDDEN], 1.0, 0.1, random);
        if hybrid {
            self.matrix("language_model.lm_head".to_owned(), VOCAB, HIDDEN, bits, random);
        }
        let layers = if hybrid { 4 } else { 2 };
        for i in 0..layers {
            let name = |leaf: &str| format!("{prefix}layers.{i}.{leaf}");
            self.vector(name("input_layernorm.weight"), vec![HIDDEN], 1.0, 0.1, random);
            self.vector(name("post_attention_layernorm.weight"), vec![HIDDEN], 1.0, 0.1, random);
            self.matrix(name("mlp.gate_proj"), FFN, HIDDEN, bits, random);
            self.matrix(name("mlp.up_proj"), FFN, HIDDEN, bits, random);
            self.matrix(name("mlp.down_proj"), HIDDEN, FFN, bits, random);
            if hybrid && i % 4 != 3 {
                let (keys, values) = (KEY_HEADS * DELTA_DIM, VALUE_HEADS * DELTA_DIM);
                self.matrix(name("linear_attn.in_proj_qkv"), 2 * keys + values, HIDDEN, bits, random);
                self.matrix(name("linear_attn.in_proj_z"), values, HIDDEN, bits, random);
                self.matrix(name("linear_attn.in_proj_b"), VALUE_HEADS, HIDDEN, bits, random);
                self.matrix(name("linear_attn.in_proj_a"), VALUE_HEADS, HIDDEN, bits, random);
                self.matrix(name("linear_attn.out_proj"), HIDDEN, values, bits, random);
                self.vector(name("linear_attn.conv1d.weight"), vec![2 * keys + values, 4, 1], 0.3, 0.3, random);
                self.vector(name("linear_attn.A_log"), vec![VALUE_HEADS], 0.5, 0.5, random);
                self.vector(name("linear_attn.dt_bias"), vec![VALUE_HEADS], -2.0, 0.5, random);
                self.vector(name("linear_attn.norm.weight"), vec![DELTA_DIM], 1.0, 0.1, random);
            } else {
                let queries = HEADS * DIM;
                self.matrix(name("self_attn.q_proj"), if hybrid { 2 * queries } else { queries }, HIDDEN, bits, random);
                self.matrix(name("self_attn.k_proj"), KV_HEADS * DIM, HIDDEN, bits, random);
                self.matrix(name("self_attn.v_proj"), KV_HEADS * DIM, HIDDEN, bits, random);
                self.matrix(name("self_attn.o_proj"), HIDDEN, queries, bits, random);
                self.vector(name("self_attn.q_norm.weight"), vec![DIM], 1.0, 0.1, random);
                self.vector(name("self_attn.k_norm.weight"), vec![DIM], 1.0, 0.1, random);
            }
        }
    }

    fn matrix(&mut self, name: String, rows: usize, cols: usize, bits: u8, random: &mut Random) {
        self.matrices.insert(name, affine(rows, cols, bits, 128, false, random));
    }

    fn vector(&mut self, name: String, shape: Vec<usize>, mean: f32, spread: f32, random: &mut Random) {
        let values = (0..shape.iter().product()).map(|_| mean + spread * random.signed()).collect();
        self.vectors.insert(name, DenseTensor { shape, values });
    }
}

impl WeightSource for Network {
    fn is_gguf(&self) -> bool {
        false
    }

    fn meta(&self, key: &str) -> Option<Meta> {
        self.meta.get(key).cloned()
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let matrices = self.matrices.iter().map(|(name, m)| (format!("{name}.weight"), vec![m.rows, m.cols]));
        matrices.chain(self.vectors.iter().map(|(name, v)| (name.clone(), v.shape.clone()))).collect()
    }

    fn matrix(&self, base: &str) -> Result<Option<Matrix<'_>>, SourceError> {
        Ok(self.matrices.get(base).map(Packed::as_matrix))
    }

    fn dense(&self, name: &str) -> Result<Option<DenseTensor>, SourceError> {
        Ok(self.vectors.get(name).cloned())
    }

    fn release(&self, _: &str) {}
}
