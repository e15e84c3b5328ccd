//! Random weights of the published image model, for speed and memory measurements without a download.
//!
//! Codes and values are drawn once and shared by all tensors of a kind: speed and memory are real, the picture is noise.

use anyhow::{Result, bail};
use onebit_models::image::ImagePart;
use onebit_models::image::text_encoder::LAYERS;
use onebit_ops::{DenseTensor, Meta, SourceError, WeightSource};
use onebit_quant::{Format, Matrix, ParamType};
use std::collections::BTreeMap;

/// Names of the shapes.
pub const NAMES: [&str; 2] = ["bonsai-image-4b", "ternary-image-4b"];

/// Columns of the transformer's stream.
const WIDTH: usize = 3072;
const HEAD_DIM: usize = 128;
const DOUBLE_BLOCKS: usize = 5;
const SINGLE_BLOCKS: usize = 20;
/// Columns inside a feed-forward.
const INNER: usize = 9216;
const CHANNELS: usize = 128;
/// The text encoder: Qwen3-4B.
const TEXT: usize = 2560;
const TEXT_INNER: usize = 9728;
const TEXT_HEADS: usize = 32;
const TEXT_KV_HEADS: usize = 8;
const VOCAB: usize = 151_936;
/// Channels of the decoder's blocks from the picture inwards, as in FLUX.2's own VAE; the published pack's may be narrower.
const VAE_WIDTHS: [usize; 4] = [128, 256, 512, 512];
const VAE_RESNETS: usize = 3;
const VAE_GROUPS: usize = 32;

/// The weights of one part, made up.
pub struct ImageShape {
    meta: BTreeMap<String, Meta>,
    matrices: BTreeMap<String, (Format, usize, usize)>,
    tensors: BTreeMap<String, (Vec<usize>, Fill)>,
    bytes: BTreeMap<Kind, [Vec<u8>; 3]>,
}

/// Values of a float tensor.
#[derive(Clone, Copy)]
enum Fill {
    Same(f32),
    /// Uniform with a variance of one over this.
    Random(usize),
}

/// Matrices that share their bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Packed,
    Dense,
}

fn kind(format: Format) -> Kind {
    if format.is_packed() { Kind::Packed } else { Kind::Dense }
}

impl ImageShape {
    /// One part of a shape.
    ///
    /// # Errors
    /// An unknown name.
    pub fn new(name: &str, part: ImagePart) -> Result<ImageShape> {
        let bits = match NAMES.iter().position(|known| name.eq_ignore_ascii_case(known)) {
            Some(at) => at as u8 + 1,
            None => bail!("unknown image shape `{name}`; known: {}", NAMES.join(", ")),
        };
        let mut shape = ImageShape {
            meta: BTreeMap::new(),
            matrices: BTreeMap::new(),
            tensors: BTreeMap::new(),
            bytes: BTreeMap::new(),
        };
        let affine = |bits, group| Format::Affine { bits, group, scale: ParamType::BF16, bias: ParamType::BF16 };
        match part {
            ImagePart::TextEncoder => shape.text_encoder(affine(4, 64)),
            ImagePart::Transformer => shape.transformer(affine(bits, 128)),
            ImagePart::Vae => shape.vae(),
        }
        shape.fill();
        Ok(shape)
    }

    fn set(&mut self, key: &str, value: Meta) {
        self.meta.insert(key.to_owned(), value);
    }

    fn count(&mut self, key: &str, value: usize) {
        self.set(key, Meta::Int(value as i64));
    }

    fn matrix(&mut self, name: String, format: Format, rows: usize, cols: usize) {
        self.matrices.insert(name, (format, rows, cols));
    }

    fn tensor(&mut self, name: String, shape: Vec<usize>, fill: Fill) {
        self.tensors.insert(name, (shape, fill));
    }

    fn gain(&mut self, name: String, len: usize) {
        self.tensor(format!("{name}.weight"), vec![len], Fill::Same(1.0));
    }

    fn text_encoder(&mut self, format: Format) {
        self.set("model_type", Meta::Text("qwen3".to_owned()));
        self.count("num_hidden_layers", 36);
        self.count("num_attention_heads", TEXT_HEADS);
        self.count("num_key_value_heads", TEXT_KV_HEADS);
        self.count("head_dim", HEAD_DIM);
        self.set("rms_norm_eps", Meta::Float(1e-6));
        self.count("max_position_embeddings", 40_960);
        self.set("rope_theta", Meta::Float(1e6));
        self.matrix("model.embed_tokens".to_owned(), format, VOCAB, TEXT);
        for i in 0..LAYERS {
            let name = |leaf: &str| format!("model.layers.{i}.{leaf}");
            self.gain(name("input_layernorm"), TEXT);
            self.gain(name("post_attention_layernorm"), TEXT);
            self.gain(name("self_attn.q_norm"), HEAD_DIM);
            self.gain(name("self_attn.k_norm"), HEAD_DIM);
            self.matrix(name("self_attn.q_proj"), format, TEXT_HEADS * HEAD_DIM, TEXT);
            self.matrix(name("self_attn.k_proj"), format, TEXT_KV_HEADS * HEAD_DIM, TEXT);
            self.matrix(name("self_attn.v_proj"), format, TEXT_KV_HEADS * HEAD_DIM, TEXT);
            self.matrix(name("self_attn.o_proj"), format, TEXT, TEXT_HEADS * HEAD_DIM);
            self.matrix(name("mlp.gate_proj"), format, TEXT_INNER, TEXT);
            self.matrix(name("mlp.up_proj"), format, TEXT_INNER, TEXT);
            self.matrix(name("mlp.down_proj"), format, TEXT, TEXT_INNER);
        }
    }

    fn transformer(&mut self, format: Format) {
        self.count("num_attention_heads", WIDTH / HEAD_DIM);
        self.count("attention_head_dim", HEAD_DIM);
        self.count("num_layers", DOUBLE_BLOCKS);
        self.count("num_single_layers", SINGLE_BLOCKS);
        self.count("in_channels", CHANNELS);
        self.count("joint_attention_dim", 3 * TEXT);
        self.count("timestep_guidance_channels", 256);
        self.set("axes_dims_rope", Meta::List([32; 4].map(Meta::Int).to_vec()));
        let dense = Format::BF16;
        self.matrix("x_embedder".to_owned(), dense, WIDTH, CHANNELS);
        self.matrix("context_embedder".to_owned(), dense, WIDTH, 3 * TEXT);
        self.matrix("time_guidance_embed.timestep_embedder.linear_1".to_owned(), dense, WIDTH, 256);
        self.matrix("time_guidance_embed.timestep_embedder.linear_2".to_owned(), dense, WIDTH, WIDTH);
        for stream in ["img", "txt"] {
            self.matrix(format!("double_stream_modulation_{stream}.linear"), dense, 6 * WIDTH, WIDTH);
        }
        self.matrix("single_stream_modulation.linear".to_owned(), dense, 3 * WIDTH, WIDTH);
        self.matrix("norm_out.linear".to_owned(), dense, 2 * WIDTH, WIDTH);
        self.matrix("proj_out".to_owned(), dense, CHANNELS, WIDTH);
        for i in 0..DOUBLE_BLOCKS {
            let attn = |leaf: &str| format!("transformer_blocks.{i}.attn.{leaf}");
            let square = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"];
            for leaf in square {
                self.matrix(attn(leaf), format, WIDTH, WIDTH);
            }
            for leaf in ["norm_q", "norm_k", "norm_added_q", "norm_added_k"] {
                self.gain(attn(leaf), HEAD_DIM);
            }
            for ff in ["ff", "ff_context"] {
                self.matrix(format!("transformer_blocks.{i}.{ff}.linear_in"), format, 2 * INNER, WIDTH);
                self.matrix(format!("transformer_blocks.{i}.{ff}.linear_out"), format, WIDTH, INNER);
            }
        }
        for i in 0..SINGLE_BLOCKS {
            let attn = |leaf: &str| format!("single_transformer_blocks.{i}.attn.{leaf}");
            self.matrix(attn("to_qkv_mlp_proj"), format, 3 * WIDTH + 2 * INNER, WIDTH);
            self.matrix(attn("to_out"), format, WIDTH, WIDTH + INNER);
            self.gain(attn("norm_q"), HEAD_DIM);
            self.gain(attn("norm_k"), HEAD_DIM);
        }
    }

    fn vae(&mut self) {
        self.count("norm_num_groups", VAE_GROUPS);
        self.tensor("bn.running_mean".to_owned(), vec![CHANNELS], Fill::Same(0.0));
        self.tensor("bn.running_var".to_owned(), vec![CHANNELS], Fill::Same(1.0));
        let latent = CHANNELS / 4;
        let mut width = VAE_WIDTHS[3];
        self.conv("post_quant_conv", latent, latent, 1);
        self.conv("decoder.conv_in", width, latent, 3);
        for i in 0..2 {
            self.resnet(&format!("decoder.mid_block.resnets.{i}"), width, width);
        }
        let attention = "decoder.mid_block.attentions.0";
        self.group_norm(&format!("{attention}.group_norm"), width);
        for leaf in ["to_q", "to_k", "to_v", "to_out.0"] {
            self.tensor(format!("{attention}.{leaf}.weight"), vec![width, width], Fill::Random(width));
            self.tensor(format!("{attention}.{leaf}.bias"), vec![width], Fill::Same(0.0));
        }
        for (i, next) in VAE_WIDTHS.iter().rev().enumerate() {
            for j in 0..VAE_RESNETS {
                self.resnet(&format!("decoder.up_blocks.{i}.resnets.{j}"), *next, width);
                width = *next;
            }
            if i + 1 < VAE_WIDTHS.len() {
                self.conv(&format!("decoder.up_blocks.{i}.upsamplers.0.conv"), width, width, 3);
            }
        }
        self.group_norm("decoder.conv_norm_out", width);
        self.conv("decoder.conv_out", 3, width, 3);
    }

    fn resnet(&mut self, name: &str, out: usize, width: usize) {
        self.group_norm(&format!("{name}.norm1"), width);
        self.conv(&format!("{name}.conv1"), out, width, 3);
        self.group_norm(&format!("{name}.norm2"), out);
        self.conv(&format!("{name}.conv2"), out, out, 3);
        if out != width {
            self.conv(&format!("{name}.conv_shortcut"), out, width, 1);
        }
    }

    fn conv(&mut self, name: &str, out: usize, width: usize, kernel: usize) {
        let shape = vec![out, width, kernel, kernel];
        self.tensor(format!("{name}.weight"), shape, Fill::Random(width * kernel * kernel));
        self.tensor(format!("{name}.bias"), vec![out], Fill::Same(0.0));
    }

    fn group_norm(&mut self, name: &str, width: usize) {
        self.gain(name.to_owned(), width);
        self.tensor(format!("{name}.bias"), vec![width], Fill::Same(0.0));
    }

    /// Bytes for the largest matrix of each kind; smaller ones use their beginning.
    fn fill(&mut self) {
        for (format, rows, cols) in self.matrices.values() {
            let elements = rows * cols;
            let held = self.bytes.entry(kind(*format)).or_default();
            let wanted = elements * format.bits() / 8;
            if held[0].len() >= wanted {
                continue;
            }
            let mut random = Random(0x9E37_79B9_7F4A_7C15);
            let Format::Affine { bits, group, .. } = *format else {
                // Weights of a layer of some thousand inputs keep the size of what they multiply.
                let value = |_| ParamType::BF16.round(random.uniform() * 0.03).to_bits() >> 16;
                held[0] = (0..elements).map(value).flat_map(|v| (v as u16).to_le_bytes()).collect();
                continue;
            };
            held[0] = (0..wanted.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
            if bits == 2 {
                // Clear the high bit where the low one is set: codes 0, 1, 2 only.
                held[0].iter_mut().for_each(|b| *b &= !((*b & 0x55) << 1));
            }
            // The offset is exactly that of a symmetric matrix; for four bits that of code 8.
            let (step, center) = match bits {
                1 => (0.036, 0.5),
                2 => (0.022, 1.0),
                _ => (0.004, 8.0),
            };
            let groups = elements / usize::from(group);
            let scales: Vec<f32> =
                (0..groups).map(|_| ParamType::BF16.round(step * (1.0 + 0.2 * random.uniform()))).collect();
            held[1].clear();
            held[2].clear();
            for scale in scales {
                ParamType::BF16.write(scale, &mut held[1]);
                ParamType::BF16.write(-scale * center, &mut held[2]);
            }
        }
    }
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From -1 to 1.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

impl WeightSource for ImageShape {
    fn is_gguf(&self) -> bool {
        false
    }

    fn meta(&self, key: &str) -> Option<Meta> {
        self.meta.get(key).cloned()
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let matrices =
            self.matrices.iter().map(|(name, (_, rows, cols))| (format!("{name}.weight"), vec![*rows, *cols]));
        matrices.chain(self.tensors.iter().map(|(name, (shape, _))| (name.clone(), shape.clone()))).collect()
    }

    fn matrix(&self, base: &str) -> Result<Option<Matrix<'_>>, SourceError> {
        let Some(&(format, rows, cols)) = self.matrices.get(base) else { return Ok(None) };
        let [codes, scales, biases] = &self.bytes[&kind(format)];
        let params = if format.is_packed() { rows * cols / format.group() * 2 } else { 0 };
        let matrix = Matrix::new(
            format,
            rows,
            cols,
            &codes[..rows * cols * format.bits() / 8],
            &scales[..params],
            &biases[..params],
        );
        matrix.map(Some).map_err(|e| SourceError(e.to_string()))
    }

    fn dense(&self, name: &str) -> Result<Option<DenseTensor>, SourceError> {
        let Some((shape, fill)) = self.tensors.get(name) else { return Ok(None) };
        let len = shape.iter().product();
        let values = match fill {
            Fill::Same(value) => vec![*value; len],
            Fill::Random(inputs) => {
                let (mut random, size) = (Random(len as u64 + 1), (3.0 / *inputs as f32).sqrt());
                (0..len).map(|_| ParamType::BF16.round(random.uniform() * size)).collect()
            }
        };
        Ok(Some(DenseTensor { shape: shape.clone(), values }))
    }

    fn release(&self, _: &str) {}
}
