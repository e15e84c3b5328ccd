//! The network that is run once a step: FLUX.2's diffusion transformer.
//!
//! ```text
//! image = x_embedder(latents)                     text = context_embedder(prompt)
//! t     = linear_2(silu(linear_1(sinusoids)))     m = linear(silu(t)): shifts, scales and gates
//!
//! double block, for each of image and text:
//!   q, k, v of modulate(x); both streams joined [text, image]; attention of rotated RMS-normed q and k; split again
//!   x += gate out(attention)                      x += gate linear_out(swiglu(linear_in(modulate(x))))
//! single block, over [text, image]:
//!   q, k, v, a, b = to_qkv_mlp_proj(modulate(z))  z += gate to_out([attention(q, k, v), silu(a) b])
//!
//! flow  = proj_out(modulate(image rows of z))
//! ```
//!
//! A modulation is shared by all blocks of a kind. Formula: `Flux2Transformer2DModel` of diffusers. Weights stay packed for
//! every number of rows.

use super::facts::{ImageFacts, ImageSize};
use super::names::Named;
use super::part_loader;
use crate::config::show;
use crate::loader::{Loader, PartKind, Target};
use crate::{LoadOptions, ModelError, Outline, Progress};
use onebit_ops::{Activations, Backend, Bucket, Meta, Norm, Program, Recorder, Seen, View, Weight, WeightSource};

/// Inputs and outputs of the programs.
pub mod names {
    /// Input of the context program: `(text rows, text width)`.
    pub const PROMPT: &str = "prompt";
    /// Its output and an input of the step: `(text rows, hidden)`.
    pub const TEXT: &str = "text";
    /// `(latent pixels, channels)`.
    pub const LATENTS: &str = "latents";
    /// `(1, time channels)`: see [`super::sinusoids`].
    pub const TIME: &str = "time";
    /// `(text rows + latent pixels, head dimension)`: see [`super::Transformer::angles`].
    pub const ANGLES: &str = "angles";
    /// Output of the step: `(latent pixels, channels)`.
    pub const FLOW: &str = "flow";
}

/// A transformer on a device.
pub struct Transformer {
    sizes: Sizes,
    /// The last modulation is a shift before a scale.
    shift_first: bool,
    x_embedder: Weight,
    context_embedder: Weight,
    time: [Weight; 2],
    double_image: Weight,
    double_text: Weight,
    single: Weight,
    norm_out: Weight,
    proj_out: Weight,
    double_blocks: Vec<DoubleBlock>,
    single_blocks: Vec<SingleBlock>,
}

#[derive(Debug, Clone)]
struct Sizes {
    hidden: usize,
    heads: usize,
    dim: usize,
    channels: usize,
    text_width: usize,
    time_channels: usize,
    eps: f32,
    theta: f64,
    /// Rotary dimensions of each axis: time, row, column, text position.
    axes: [usize; 4],
}

struct DoubleBlock {
    image: Stream,
    text: Stream,
}

/// One stream of a double block.
struct Stream {
    /// `(3 hidden, hidden)`.
    qkv: Weight,
    q_norm: Norm,
    k_norm: Norm,
    out: Weight,
    /// `(2 inner, hidden)`, gate first.
    linear_in: Weight,
    linear_out: Weight,
}

struct SingleBlock {
    /// `(3 hidden, hidden)`.
    qkv: Weight,
    /// `(2 inner, hidden)`, gate first.
    mlp: Weight,
    q_norm: Norm,
    k_norm: Norm,
    /// `(hidden, hidden + inner)`.
    out: Weight,
}

/// Shift, scale and gate, a row each.
#[derive(Clone, Copy)]
struct Modulation {
    shift: View,
    scale: View,
    gate: View,
}

impl Transformer {
    /// Reads the weights onto a device.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn load(
        source: &dyn WeightSource,
        backend: &dyn Backend,
        options: LoadOptions<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Transformer, ModelError> {
        let total = outline(source)?.1.bytes();
        let named = Named::transformer(source)?;
        let mut loader = Loader::bare(&named, Target::Device { backend, options, progress, total });
        part_loader(read(&mut loader, &named)?.1)
    }

    /// What the text becomes before all steps: input [`names::PROMPT`], output [`names::TEXT`].
    pub fn context_program(&self, text_rows: usize) -> Program {
        let mut rec = Recorder::new(Bucket { rows: 0, logits: 0, context: 0 });
        let prompt = rec.input(names::PROMPT, text_rows, self.sizes.text_width);
        let text = rec.linear(prompt, &self.context_embedder, Activations::F32);
        rec.output(text, names::TEXT);
        rec.finish()
    }

    /// One step: inputs [`names::TEXT`], [`names::LATENTS`], [`names::TIME`] and [`names::ANGLES`], output
    /// [`names::FLOW`]. With `hidden`, also `temb`, `double.I.image`, `double.I.text` and `single.I`.
    pub fn program(&self, size: ImageSize, text_rows: usize, activations: Activations, hidden: bool) -> Program {
        let mut rec = Recorder::new(Bucket { rows: 0, logits: 0, context: 0 });
        let s = &self.sizes;
        let rows = size.tokens();
        let mut text = rec.input(names::TEXT, text_rows, s.hidden);
        let latents = rec.input(names::LATENTS, rows, s.channels);
        let time = rec.input(names::TIME, 1, s.time_channels);
        let angles = rec.input(names::ANGLES, text_rows + rows, s.dim);
        let mut image = rec.linear(latents, &self.x_embedder, Activations::F32);

        let inner = rec.linear(time, &self.time[0], Activations::F32);
        let inner = rec.sigmoid_mul(inner, inner);
        let temb = rec.linear(inner, &self.time[1], Activations::F32);
        let active = rec.sigmoid_mul(temb, temb);
        let of_image = self.modulations(&mut rec, active, &self.double_image);
        let of_text = self.modulations(&mut rec, active, &self.double_text);
        let of_single = self.modulations(&mut rec, active, &self.single);
        let last = rec.linear(active, &self.norm_out, Activations::F32);
        if hidden {
            rec.output(temb, "temb");
        }

        for (i, block) in self.double_blocks.iter().enumerate() {
            let [qi, ki, vi] = self.qkv(&mut rec, image, &block.image, of_image[0], activations);
            let [qt, kt, vt] = self.qkv(&mut rec, text, &block.text, of_text[0], activations);
            let (q, k) = (rec.join_rows(&[qt, qi]), rec.join_rows(&[kt, ki]));
            let v = rec.join_rows(&[vt, vi]);
            let mixed = self.attention(&mut rec, [q, k, v], angles);
            let of = rec.take_rows(mixed, text_rows..text_rows + rows);
            image = block.image.finish(&mut rec, (image, of), of_image, s.eps, activations);
            let of = rec.take_rows(mixed, 0..text_rows);
            text = block.text.finish(&mut rec, (text, of), of_text, s.eps, activations);
            if hidden {
                rec.output(text, &format!("double.{i}.text"));
                rec.output(image, &format!("double.{i}.image"));
            }
        }
        let mut z = rec.join_rows(&[text, image]);
        for (i, block) in self.single_blocks.iter().enumerate() {
            let m = of_single[0];
            let x = rec.modulate(z, m.scale, m.shift, s.eps);
            let qkv = rec.linear(x, &block.qkv, activations);
            let inner = rec.linear_swiglu(x, &block.mlp, activations);
            let [q, k, v] = [0, 1, 2].map(|i| qkv.columns(i * s.hidden..(i + 1) * s.hidden).split(s.heads));
            let q = rec.rms_norm(q, &block.q_norm.gain, block.q_norm.eps);
            let k = rec.rms_norm(k, &block.k_norm.gain, block.k_norm.eps);
            let mixed = self.attention(&mut rec, [q, k, v], angles);
            let both = rec.join_columns(&[mixed, inner]);
            let y = rec.linear(both, &block.out, activations);
            z = rec.gated_add(z, m.gate, y);
            if hidden {
                rec.output(z, &format!("single.{i}"));
            }
        }
        let image = rec.take_rows(z, text_rows..text_rows + rows);
        let (first, second) = (last.columns(0..s.hidden), last.columns(s.hidden..2 * s.hidden));
        let (scale, shift) = if self.shift_first { (second, first) } else { (first, second) };
        let image = rec.modulate(image, scale, shift, s.eps);
        let flow = rec.linear(image, &self.proj_out, Activations::F32);
        rec.output(flow, names::FLOW);
        rec.finish()
    }

    /// Shift, scale and gate of attention, and of the feed-forward where there are six.
    fn modulations(&self, rec: &mut Recorder, active: View, weight: &Weight) -> [Modulation; 2] {
        let all = rec.linear(active, weight, Activations::F32);
        let n = self.sizes.hidden;
        let column = |i: usize| all.columns(i * n..(i + 1) * n);
        let three = |i: usize| Modulation { shift: column(i), scale: column(i + 1), gate: column(i + 2) };
        [three(0), three(if all.cols() > 3 * n { 3 } else { 0 })]
    }

    fn qkv(&self, rec: &mut Recorder, x: View, of: &Stream, m: Modulation, activations: Activations) -> [View; 3] {
        let x = rec.modulate(x, m.scale, m.shift, self.sizes.eps);
        let qkv = rec.linear(x, &of.qkv, activations);
        let [q, k, v] = [0, 1, 2].map(|i| qkv.columns(of.qkv.part(i)).split(self.sizes.heads));
        let q = rec.rms_norm(q, &of.q_norm.gain, of.q_norm.eps);
        let k = rec.rms_norm(k, &of.k_norm.gain, of.k_norm.eps);
        [q, k, v]
    }

    fn attention(&self, rec: &mut Recorder, [q, k, v]: [View; 3], angles: View) -> View {
        let heads = self.sizes.heads;
        let split = |x: View| if x.heads == heads { x } else { x.split(heads) };
        let (q, k) = (rec.rotate_pairs(split(q), angles), rec.rotate_pairs(split(k), angles));
        rec.full_attention(q, k, split(v), (self.sizes.dim as f32).powf(-0.5), Seen::All)
    }

    /// Cosines and sines of every row, text first: axis `a` turns its pairs by `position[a] theta^(-2i / dim_a)`. A text row
    /// has the position (0, 0, 0, index), a latent pixel (0, row, column, 0).
    pub fn angles(&self, size: ImageSize, text_rows: usize) -> Vec<f32> {
        let s = &self.sizes;
        let mut all = Vec::with_capacity((text_rows + size.tokens()) * s.dim);
        let text = (0..text_rows).map(|i| [0, 0, 0, i]);
        let pixels = (0..size.tokens()).map(|i| [0, i / size.columns(), i % size.columns(), 0]);
        let mut row = Vec::with_capacity(s.dim / 2);
        for position in text.chain(pixels) {
            row.clear();
            for (p, dim) in position.iter().zip(s.axes) {
                row.extend((0..dim / 2).map(|i| *p as f64 * s.theta.powf(-2.0 * i as f64 / dim as f64)));
            }
            all.extend(row.iter().map(|a: &f64| a.cos() as f32));
            all.extend(row.iter().map(|a: &f64| a.sin() as f32));
        }
        all
    }

    /// The time input at a noise level.
    pub fn time(&self, sigma: f32) -> Vec<f32> {
        sinusoids(sigma, self.sizes.time_channels)
    }

    /// Every weight, in forward order.
    pub fn weights(&self) -> Vec<&Weight> {
        let ends = [&self.x_embedder, &self.context_embedder, &self.time[0], &self.time[1]];
        let modulation = [&self.double_image, &self.double_text, &self.single];
        let double = self.double_blocks.iter().flat_map(|b| [&b.image, &b.text]);
        let double = double.flat_map(|s| [&s.qkv, &s.out, &s.linear_in, &s.linear_out]);
        let single = self.single_blocks.iter().flat_map(|b| [&b.qkv, &b.mlp, &b.out]);
        let all = ends.into_iter().chain(modulation).chain(double).chain(single);
        all.chain([&self.norm_out, &self.proj_out]).collect()
    }
}

impl Stream {
    /// What follows the attention in one stream of a double block.
    fn finish(
        &self,
        rec: &mut Recorder,
        (x, mixed): (View, View),
        [first, second]: [Modulation; 2],
        eps: f32,
        activations: Activations,
    ) -> View {
        let y = rec.linear(mixed, &self.out, activations);
        let x = rec.gated_add(x, first.gate, y);
        let inner = rec.modulate(x, second.scale, second.shift, eps);
        let inner = rec.linear_swiglu(inner, &self.linear_in, activations);
        let y = rec.linear(inner, &self.linear_out, activations);
        rec.gated_add(x, second.gate, y)
    }
}

/// Cosines, then sines, of `1000 sigma / 10000^(i / half)` for i in 0..half. Formed in f32 as the reference forms them: at a
/// thousand radians one unit of a frequency moves the angle by 4e-5.
pub fn sinusoids(sigma: f32, channels: usize) -> Vec<f32> {
    let half = channels / 2;
    let time = sigma * 1000.0;
    let angle = |i: usize| {
        let exponent = -(10_000f64.ln() as f32) * i as f32 / half as f32;
        f64::from(time * f64::from(exponent).exp() as f32)
    };
    let cosines = (0..half).map(|i| angle(i).cos() as f32);
    cosines.chain((0..half).map(|i| angle(i).sin() as f32)).collect()
}

/// Sizes and matrices, without reading weights.
///
/// # Errors
/// [`ModelError`] for names, shapes and metadata.
pub fn outline(source: &dyn WeightSource) -> Result<(ImageFacts, Outline), ModelError> {
    let named = Named::transformer(source)?;
    let mut loader = Loader::bare(&named, Target::Outline);
    let (facts, _) = read(&mut loader, &named)?;
    Ok((facts, loader.into_outline()))
}

/// A transformer that can be recorded and not run.
///
/// # Errors
/// As [`outline`].
pub fn sketch(source: &dyn WeightSource) -> Result<Transformer, ModelError> {
    let named = Named::transformer(source)?;
    part_loader(read(&mut Loader::bare(&named, Target::Sketch), &named)?.1)
}

fn unsupported(key: &str, found: impl std::fmt::Display, wanted: &str) -> ModelError {
    ModelError::UnsupportedValue { key: key.to_owned(), found: found.to_string(), wanted: wanted.to_owned() }
}

fn count(source: &dyn WeightSource, key: &str) -> Result<usize, ModelError> {
    let meta = source.meta(key).ok_or_else(|| ModelError::MissingKey(key.to_owned()))?;
    let fits = |n: &usize| *n > 0 && *n < 1 << 24;
    meta.as_usize().filter(fits).ok_or_else(|| unsupported(key, show(&meta), "a count from 1 to 16777215"))
}

/// A number, or what the reference takes where there is none.
fn number(source: &dyn WeightSource, key: &str, default: f64) -> Result<f64, ModelError> {
    match source.meta(key) {
        None => Ok(default),
        Some(meta) => meta
            .as_f64()
            .filter(|v| v.is_finite() && *v > 0.0)
            .ok_or_else(|| unsupported(key, show(&meta), "a positive number")),
    }
}

fn sizes(source: &dyn WeightSource) -> Result<Sizes, ModelError> {
    let (heads, dim) = (count(source, "num_attention_heads")?, count(source, "attention_head_dim")?);
    if source.meta("guidance_embeds").and_then(|m| m.as_bool()) == Some(true) {
        return Err(unsupported("guidance_embeds", "true", "false, as in the klein models"));
    }
    let patch = number(source, "patch_size", 1.0)?;
    if patch != 1.0 {
        return Err(unsupported("patch_size", patch, "1"));
    }
    let axes = source.meta("axes_dims_rope").ok_or_else(|| ModelError::MissingKey("axes_dims_rope".to_owned()))?;
    let axes: Vec<usize> = axes.as_list().unwrap_or_default().iter().filter_map(Meta::as_usize).collect();
    let four: Result<[usize; 4], _> = axes.clone().try_into();
    let fits = |axes: &[usize; 4]| axes.iter().sum::<usize>() == dim && axes.iter().all(|n| n.is_multiple_of(2));
    let axes = four.ok().filter(fits).ok_or_else(|| {
        unsupported(
            "axes_dims_rope",
            format!("{axes:?}"),
            &format!("four even numbers that sum to the {dim} of a head"),
        )
    })?;
    let eps = number(source, "eps", 1e-6)?;
    Ok(Sizes {
        hidden: heads * dim,
        heads,
        dim,
        channels: count(source, "in_channels")?,
        text_width: count(source, "joint_attention_dim")?,
        time_channels: match source.meta("timestep_guidance_channels") {
            Some(_) => count(source, "timestep_guidance_channels")?,
            None => 256,
        },
        eps: eps as f32,
        theta: number(source, "rope_theta", 2000.0)?,
        axes,
    })
}

/// Format that holds most bytes of the blocks, in words.
fn format_words(outline: &Outline) -> String {
    let mut bytes: Vec<(String, u64)> = Vec::new();
    for part in outline.parts.iter().filter(|p| p.tensor.contains("transformer_blocks.")) {
        let words = if part.format.is_packed() {
            format!("{}-bit, groups of {}", part.format.bits(), part.format.group())
        } else {
            part.format.name().to_owned()
        };
        match bytes.iter_mut().find(|(known, _)| *known == words) {
            Some((_, sum)) => *sum += part.bytes,
            None => bytes.push((words, part.bytes)),
        }
    }
    bytes.into_iter().max_by_key(|(_, sum)| *sum).map_or_else(String::new, |(words, _)| words)
}

fn read(loader: &mut Loader<'_>, named: &Named<'_>) -> Result<(ImageFacts, Option<Transformer>), ModelError> {
    let s = sizes(named)?;
    let (doubles, singles) = (count(named, "num_layers")?, count(named, "num_single_layers")?);
    let n = s.hidden;
    let one = |loader: &mut Loader<'_>, kind: PartKind, name: &str, shape: [usize; 2]| {
        loader.weight(kind, name, &[(name.to_owned(), shape)])
    };
    let x_embedder = one(loader, PartKind::Embedding, "x_embedder", [n, s.channels])?;
    let context_embedder = one(loader, PartKind::Embedding, "context_embedder", [n, s.text_width])?;
    let time = "time_guidance_embed.timestep_embedder.linear";
    let first = one(loader, PartKind::Modulation, &format!("{time}_1"), [n, s.time_channels])?;
    let second = one(loader, PartKind::Modulation, &format!("{time}_2"), [n, n])?;
    let of = |stream: &str| format!("double_stream_modulation_{stream}.linear");
    let double_image = one(loader, PartKind::Modulation, &of("img"), [6 * n, n])?;
    let double_text = one(loader, PartKind::Modulation, &of("txt"), [6 * n, n])?;
    let single = one(loader, PartKind::Modulation, "single_stream_modulation.linear", [3 * n, n])?;
    let mut double_blocks = Vec::new();
    for i in 0..doubles {
        let image = stream(loader, &s, i, &IMAGE)?;
        let text = stream(loader, &s, i, &TEXT)?;
        double_blocks.extend(image.zip(text).map(|(image, text)| DoubleBlock { image, text }));
    }
    let mut single_blocks = Vec::new();
    for i in 0..singles {
        single_blocks.extend(single_block(loader, &s, i)?);
    }
    let norm_out = one(loader, PartKind::Modulation, "norm_out.linear", [2 * n, n])?;
    let proj_out = one(loader, PartKind::Head, "proj_out", [s.channels, n])?;
    let outline = loader.outline();
    let facts = ImageFacts {
        architecture: "flux2",
        hidden: n,
        heads: s.heads,
        double_blocks: doubles,
        single_blocks: singles,
        channels: s.channels,
        text_width: s.text_width,
        parameters: outline.parts.iter().map(|p| p.rows as u64 * p.cols as u64).sum(),
        bytes: outline.bytes(),
        format: format_words(outline),
    };
    let built = (|| {
        Some(Transformer {
            sizes: s,
            shift_first: named.is_original(),
            x_embedder: x_embedder?,
            context_embedder: context_embedder?,
            time: [first?, second?],
            double_image: double_image?,
            double_text: double_text?,
            single: single?,
            norm_out: norm_out?,
            proj_out: proj_out?,
            double_blocks,
            single_blocks,
        })
    })();
    Ok((facts, built))
}

/// Names of a stream's tensors.
struct StreamNames {
    word: &'static str,
    qkv: [&'static str; 3],
    norms: [&'static str; 2],
    out: &'static str,
    ff: &'static str,
}

const IMAGE: StreamNames = StreamNames {
    word: "image",
    qkv: ["to_q", "to_k", "to_v"],
    norms: ["norm_q", "norm_k"],
    out: "to_out.0",
    ff: "ff",
};

const TEXT: StreamNames = StreamNames {
    word: "text",
    qkv: ["add_q_proj", "add_k_proj", "add_v_proj"],
    norms: ["norm_added_q", "norm_added_k"],
    out: "to_add_out",
    ff: "ff_context",
};

fn gain(loader: &Loader<'_>, s: &Sizes, module: &str) -> Result<Option<Norm>, ModelError> {
    Ok(loader.gain(module, s.dim, 0.0)?.map(|gain| Norm { gain, eps: s.eps }))
}

fn stream(loader: &mut Loader<'_>, s: &Sizes, i: usize, names: &StreamNames) -> Result<Option<Stream>, ModelError> {
    let (n, word) = (s.hidden, names.word);
    let attn = |leaf: &str| format!("transformer_blocks.{i}.attn.{leaf}");
    let label = |leaf: &str| format!("double.{i}.{word}.{leaf}");
    let members = names.qkv.map(|leaf| (attn(leaf), [n, n]));
    let qkv = loader.weight(PartKind::Attention, &label("qkv"), &members)?;
    let q_norm = gain(loader, s, &attn(names.norms[0]))?;
    let k_norm = gain(loader, s, &attn(names.norms[1]))?;
    let out = loader.weight(PartKind::Attention, &label("out"), &[(attn(names.out), [n, n])])?;
    let ff = |leaf: &str| format!("transformer_blocks.{i}.{}.{leaf}", names.ff);
    let wide = loader.matrix(&ff("linear_in"))?.rows;
    let linear_in = loader.weight(PartKind::Mlp, &label("linear_in"), &[(ff("linear_in"), [wide / 2 * 2, n])])?;
    let linear_out = loader.weight(PartKind::Mlp, &label("linear_out"), &[(ff("linear_out"), [n, wide / 2])])?;
    Ok((|| {
        Some(Stream {
            qkv: qkv?,
            q_norm: q_norm?,
            k_norm: k_norm?,
            out: out?,
            linear_in: linear_in?,
            linear_out: linear_out?,
        })
    })())
}

fn single_block(loader: &mut Loader<'_>, s: &Sizes, i: usize) -> Result<Option<SingleBlock>, ModelError> {
    let n = s.hidden;
    let attn = |leaf: &str| format!("single_transformer_blocks.{i}.attn.{leaf}");
    let (fused, out) = (attn("to_qkv_mlp_proj"), attn("to_out"));
    let inner = loader.matrix(&out)?.cols.saturating_sub(n);
    let cuts = [(format!("single.{i}.qkv"), 0..3 * n), (format!("single.{i}.mlp"), 3 * n..3 * n + 2 * inner)];
    let both = loader.cut(PartKind::Joint, (fused, [3 * n + 2 * inner, n]), &cuts)?;
    let q_norm = gain(loader, s, &attn("norm_q"))?;
    let k_norm = gain(loader, s, &attn("norm_k"))?;
    let out = loader.weight(PartKind::Joint, &format!("single.{i}.out"), &[(out, [n, n + inner])])?;
    let Some(Ok([qkv, mlp])) = both.map(<[Weight; 2]>::try_from) else { return Ok(None) };
    Ok((|| Some(SingleBlock { qkv, mlp, q_norm: q_norm?, k_norm: k_norm?, out: out? }))())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines_come_first_and_time_zero_is_known() {
        let at_zero = sinusoids(0.0, 6);
        assert_eq!(at_zero, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        // The first frequency is 1: cos and sin of 1000.
        let at_one = sinusoids(1.0, 256);
        assert!((at_one[0] - 1000f32.cos()).abs() < 1e-6 && (at_one[128] - 1000f32.sin()).abs() < 1e-6);
    }
}
