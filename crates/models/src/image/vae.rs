//! The decoder of FLUX.2's autoencoder: latents to pixels.
//!
//! ```text
//! z    = latents * sqrt(running_var + eps) + running_mean, each latent pixel unfolded to 2 x 2
//! x    = conv_in(post_quant_conv(z));  x = resnet(x);  x = x + attention(norm x);  x = resnet(x)
//! x    = upsample(resnets(x)) for each up block, the last without upsample
//! rgb  = conv_out(silu(norm x)) / 2 + 1/2
//!
//! resnet(x) = shortcut(x) + conv2(silu(norm2 conv1(silu(norm1 x))))
//! ```
//!
//! Formula: `AutoencoderKLFlux2` of diffusers. Every width comes from the tensors. Temporaries are f32: half precision
//! overflows in the last blocks. Norms are given to the convolutions as one factor and offset a channel, so that no normed copy
//! of a full-size picture exists.

pub mod stripes;

use super::names::Named;
use super::{ImageFacts, ImageSize, PATCH, part_loader};
use crate::loader::{Loader, Target};
use crate::{LoadOptions, ModelError, Outline, Progress};
use onebit_ops::{
    Backend, Bucket, ChannelNorm, Conv2d, Grid, Meta, Program, Recorder, Seen, Vector, View, Weight, WeightSource,
};
use std::collections::BTreeMap;

/// Input of a program: `(grid pixels, latent channels)`.
pub const LATENTS: &str = "latents";
/// Its output: `(64 grid pixels, 3)`, about -1 to 1.
pub const PIXELS: &str = "pixels";

/// Latent pixels that a latent of the transformer unfolds to, in each direction.
const FOLD: usize = 2;

/// Pixels of a latent pixel of the decoder, in each direction.
pub const SCALE: usize = PATCH / FOLD;

/// Epsilon of the group norms.
const EPS: f32 = 1e-6;

/// Sizes of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VaeFacts {
    /// Values of a latent of the transformer.
    pub channels: usize,
    /// Groups of its norms.
    pub groups: usize,
    /// Channels of the last block.
    pub last_width: usize,
    /// Pixels of a side of the pictures that it was made for, where the configuration tells.
    pub side: Option<usize>,
}

impl VaeFacts {
    /// The size of a picture where nobody names one: [`ImageSize::USUAL`], or what the decoder was made for if that is smaller.
    pub fn usual_size(&self) -> ImageSize {
        let side = self.side.map_or(ImageSize::USUAL.width(), |side| side / PATCH * PATCH);
        ImageSize::new(side, side).filter(|own| own.tokens() <= ImageSize::USUAL.tokens()).unwrap_or(ImageSize::USUAL)
    }
}

/// A decoder on a device.
pub struct Vae {
    facts: VaeFacts,
    mean: Vec<f32>,
    deviation: Vec<f32>,
    post_quant: Option<Conv>,
    conv_in: Conv,
    mid: [Resnet; 2],
    attention: Option<Attention>,
    up: Vec<UpBlock>,
    norm_out: GroupNorm,
    conv_out: Conv,
    /// By width.
    plain: BTreeMap<usize, stripes::Plain>,
}

struct Conv {
    /// `(channels out, kernel * kernel * channels in)`.
    weight: Weight,
    bias: Vector,
    kernel: usize,
}

struct GroupNorm {
    gain: Vector,
    bias: Vector,
    /// Both once more, here.
    values: [Vec<f32>; 2],
}

struct Resnet {
    norms: [GroupNorm; 2],
    convs: [Conv; 2],
    /// Where the width changes.
    shortcut: Option<Conv>,
}

struct Attention {
    norm: GroupNorm,
    q: Conv,
    k: Conv,
    v: Conv,
    out: Conv,
}

struct UpBlock {
    resnets: Vec<Resnet>,
    upsample: Option<Conv>,
}

/// A picture that is being recorded.
#[derive(Clone, Copy)]
struct Picture {
    x: View,
    grid: Grid,
}

impl Vae {
    /// Reads the weights onto a device.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn load(
        source: &dyn WeightSource,
        backend: &dyn Backend,
        options: LoadOptions<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vae, ModelError> {
        let total = outline(source)?.1.bytes();
        let named = Named::vae(source);
        let mut loader = Loader::bare(&named, Target::Device { backend, options, progress, total });
        part_loader(read(&mut loader)?.1)
    }

    /// The decoder's input of a whole picture, `(4 size.tokens(), channels / 4)`: channel `4 c + 2 dy + dx` of a latent is
    /// channel c of pixel `(2 y + dy, 2 x + dx)`.
    pub fn unfold(&self, latents: &[f32], size: ImageSize) -> Vec<f32> {
        let (channels, narrow) = (self.facts.channels, self.facts.channels / (FOLD * FOLD));
        let grid = whole(size);
        let mut all = vec![0.0; grid.pixels() * narrow];
        for (token, row) in latents.chunks_exact(channels).enumerate() {
            let (y, x) = (token / size.columns(), token % size.columns());
            for (i, value) in row.iter().enumerate() {
                let (c, dy, dx) = (i / 4, i / 2 % 2, i % 2);
                let pixel = (FOLD * y + dy) * grid.width + FOLD * x + dx;
                all[pixel * narrow + c] = value * self.deviation[i] + self.mean[i];
            }
        }
        all
    }

    /// Decodes `grid` latent pixels: input [`LATENTS`], output [`PIXELS`].
    pub fn program(&self, grid: Grid) -> Program {
        let mut recorder = Recorder::new(Bucket { rows: 0, logits: 0, context: 0 });
        let rec = &mut recorder;
        let mut p = self.begin(rec, grid);
        for block in &self.up {
            for resnet in &block.resnets {
                p = self.resnet(rec, resnet, p);
            }
            if let Some(conv) = &block.upsample {
                p = conv.upsample(rec, p);
            }
        }
        let norm = self.norm(rec, &self.norm_out, p.x, true);
        p = self.conv_out.record(rec, p, Some(norm), None);
        rec.output(p.x, PIXELS);
        recorder.finish()
    }

    /// The layers before the up blocks.
    fn begin(&self, rec: &mut Recorder, grid: Grid) -> Picture {
        let x = rec.input(LATENTS, grid.pixels(), self.facts.channels / (FOLD * FOLD));
        let mut p = Picture { x, grid };
        if let Some(conv) = &self.post_quant {
            p = conv.record(rec, p, None, None);
        }
        p = self.conv_in.record(rec, p, None, None);
        p = self.resnet(rec, &self.mid[0], p);
        if let Some(attention) = &self.attention {
            p = self.attention(rec, attention, p);
        }
        self.resnet(rec, &self.mid[1], p)
    }

    fn norm(&self, rec: &mut Recorder, norm: &GroupNorm, x: View, silu: bool) -> ChannelNorm {
        ChannelNorm { affine: rec.group_norm(x, self.facts.groups, &norm.gain, &norm.bias, EPS), silu }
    }

    fn resnet(&self, rec: &mut Recorder, resnet: &Resnet, p: Picture) -> Picture {
        let [first, second] = &resnet.norms;
        let norm = self.norm(rec, first, p.x, true);
        let h = resnet.convs[0].record(rec, p, Some(norm), None);
        let kept = resnet.shortcut.as_ref().map_or(p, |conv| conv.record(rec, p, None, None));
        let norm = self.norm(rec, second, h.x, true);
        resnet.convs[1].record(rec, h, Some(norm), Some(kept.x))
    }

    fn attention(&self, rec: &mut Recorder, of: &Attention, p: Picture) -> Picture {
        let norm = Some(self.norm(rec, &of.norm, p.x, false));
        let [q, k, v] = [&of.q, &of.k, &of.v].map(|conv| conv.record(rec, p, norm, None).x);
        let mixed = rec.full_attention(q, k, v, (q.cols() as f32).powf(-0.5), Seen::All);
        of.out.record(rec, Picture { x: mixed, ..p }, None, Some(p.x))
    }

    /// Every weight, in forward order.
    pub fn weights(&self) -> Vec<&Weight> {
        let mut all = Vec::new();
        all.extend(self.post_quant.iter().map(|c| &c.weight));
        all.push(&self.conv_in.weight);
        for r in &self.mid {
            all.extend(r.convs.iter().chain(&r.shortcut).map(|c| &c.weight));
        }
        if let Some(a) = &self.attention {
            all.extend([&a.q, &a.k, &a.v, &a.out].map(|c| &c.weight));
        }
        for block in &self.up {
            for r in &block.resnets {
                all.extend(r.convs.iter().chain(&r.shortcut).map(|c| &c.weight));
            }
            all.extend(block.upsample.iter().map(|c| &c.weight));
        }
        all.push(&self.conv_out.weight);
        all
    }
}

impl Conv {
    fn record(&self, rec: &mut Recorder, p: Picture, norm: Option<ChannelNorm>, residual: Option<View>) -> Picture {
        let (weight, bias, kernel) = (self.weight.clone(), self.bias.clone(), self.kernel);
        let x = rec.conv2d(Conv2d { x: p.x, grid: p.grid, norm, upsample: false, weight, bias, kernel, residual });
        Picture { x, grid: p.grid }
    }

    fn upsample(&self, rec: &mut Recorder, p: Picture) -> Picture {
        let (weight, bias, kernel) = (self.weight.clone(), self.bias.clone(), self.kernel);
        let (norm, residual) = (None, None);
        let x = rec.conv2d(Conv2d { x: p.x, grid: p.grid, norm, upsample: true, weight, bias, kernel, residual });
        Picture { x, grid: Grid { height: 2 * p.grid.height, width: 2 * p.grid.width } }
    }
}

/// The decoder's input of a whole picture.
pub fn whole(size: ImageSize) -> Grid {
    Grid { height: FOLD * size.rows(), width: FOLD * size.columns() }
}

/// Sizes and matrices, without reading weights.
///
/// # Errors
/// [`ModelError`] for names, shapes and metadata.
pub fn outline(source: &dyn WeightSource) -> Result<(VaeFacts, Outline), ModelError> {
    let named = Named::vae(source);
    let mut loader = Loader::bare(&named, Target::Outline);
    let (facts, _) = read(&mut loader)?;
    Ok((facts, loader.into_outline()))
}

/// A decoder that can be recorded and not run.
///
/// # Errors
/// As [`outline`].
pub fn sketch(source: &dyn WeightSource) -> Result<Vae, ModelError> {
    part_loader(read(&mut Loader::bare(&Named::vae(source), Target::Sketch))?.1)
}

/// Whether a transformer was made for this decoder.
pub(super) fn agrees(vae: &VaeFacts, facts: &ImageFacts) -> Result<(), ModelError> {
    if vae.channels == facts.channels {
        return Ok(());
    }
    Err(ModelError::UnsupportedValue {
        key: "latent channels of the VAE".to_owned(),
        found: vae.channels.to_string(),
        wanted: format!("the {} of the transformer", facts.channels),
    })
}

/// Shapes of the tensors, by name.
struct Shapes(std::collections::HashMap<String, Vec<usize>>);

impl Shapes {
    fn of(&self, name: &str) -> Result<&[usize], ModelError> {
        let found = self.0.get(name).map(Vec::as_slice);
        found.ok_or_else(|| ModelError::MissingTensor(name.to_owned()))
    }
    fn has(&self, module: &str) -> bool {
        self.0.contains_key(&format!("{module}.weight"))
    }
}

/// A loader with the shapes of its tensors.
struct Reader<'a, 'b> {
    loader: &'a mut Loader<'b>,
    shapes: Shapes,
    groups: usize,
    plain: BTreeMap<usize, stripes::Plain>,
}

impl Reader<'_, '_> {
    /// A convolution, or a linear layer as one over single pixels. Returns its widths `[out, in]` beside.
    fn conv(&mut self, module: &str) -> Result<([usize; 2], Option<Conv>), ModelError> {
        let name = format!("{module}.weight");
        let shape = self.shapes.of(&name)?;
        let (rows, channels, kernel) = match *shape {
            [out, channels] => (out, channels, 1),
            [out, channels, height, width] if height == width && (height == 1 || height == 3) => {
                (out, channels, height)
            }
            _ => {
                return Err(ModelError::TensorShape {
                    tensor: name,
                    wanted: "[out, in], [out, in, 1, 1] or [out, in, 3, 3]".to_owned(),
                    got: format!("{shape:?}"),
                });
            }
        };
        let weight = self.loader.convolution(module, [rows, channels, kernel])?;
        let bias = self.loader.values(&format!("{module}.bias"), rows)?;
        let bias = self.loader.vector(&bias)?;
        let conv = weight.zip(bias).map(|(weight, bias)| Conv { weight, bias, kernel });
        Ok(([rows, channels], conv))
    }

    fn norm(&mut self, module: &str, channels: usize) -> Result<Option<GroupNorm>, ModelError> {
        if !channels.is_multiple_of(self.groups) {
            return Err(ModelError::UnsupportedValue {
                key: "norm_num_groups".to_owned(),
                found: self.groups.to_string(),
                wanted: format!("a divisor of the {channels} channels of `{module}`"),
            });
        }
        let gain = self.loader.values(&format!("{module}.weight"), channels)?;
        let bias = self.loader.values(&format!("{module}.bias"), channels)?;
        let values = [gain, bias];
        let (gain, bias) = (self.loader.vector(&values[0])?, self.loader.vector(&values[1])?);
        if !self.plain.contains_key(&channels) {
            let (ones, zeros) = (self.loader.vector(&vec![1.0; channels])?, self.loader.vector(&vec![0.0; channels])?);
            self.plain.extend(ones.zip(zeros).map(|(ones, zeros)| (channels, [ones, zeros])));
        }
        Ok(gain.zip(bias).map(|(gain, bias)| GroupNorm { gain, bias, values }))
    }

    /// A block whose input has so many channels; returns how many come out.
    fn resnet(&mut self, module: &str, channels: usize) -> Result<(usize, Option<Resnet>), ModelError> {
        let norm1 = self.norm(&format!("{module}.norm1"), channels)?;
        let ([width, wanted], conv1) = self.conv(&format!("{module}.conv1"))?;
        same(module, channels, wanted)?;
        let norm2 = self.norm(&format!("{module}.norm2"), width)?;
        let ([out, wanted], conv2) = self.conv(&format!("{module}.conv2"))?;
        same(module, width, wanted)?;
        let shortcut = format!("{module}.conv_shortcut");
        let shortcut = if self.shapes.has(&shortcut) {
            let (found, conv) = self.conv(&shortcut)?;
            same(module, channels, found[1])?;
            same(module, out, found[0])?;
            Some(conv)
        } else {
            same(module, channels, out)?;
            None
        };
        let built =
            (|| Some(Resnet { norms: [norm1?, norm2?], convs: [conv1?, conv2?], shortcut: optional(shortcut)? }))();
        Ok((out, built))
    }

    fn attention(&mut self, module: &str, channels: usize) -> Result<Option<Attention>, ModelError> {
        let norm = self.norm(&format!("{module}.group_norm"), channels)?;
        let mut convs = Vec::new();
        for leaf in ["to_q", "to_k", "to_v", "to_out.0"] {
            let (found, conv) = self.conv(&format!("{module}.{leaf}"))?;
            same(module, channels, found[0])?;
            same(module, channels, found[1])?;
            convs.extend(conv);
        }
        let Ok([q, k, v, out]) = <[Conv; 4]>::try_from(convs) else { return Ok(None) };
        Ok(norm.map(|norm| Attention { norm, q, k, v, out }))
    }
}

/// A part that this decoder may lack: `None` where it has one and a device is missing.
fn optional<T>(part: Option<Option<T>>) -> Option<Option<T>> {
    match part {
        Some(built) => built.map(Some),
        None => Some(None),
    }
}

fn same(module: &str, wanted: usize, got: usize) -> Result<(), ModelError> {
    if wanted == got {
        return Ok(());
    }
    Err(ModelError::TensorShape {
        tensor: module.to_owned(),
        wanted: format!("{wanted} channels"),
        got: format!("{got}"),
    })
}

fn read(loader: &mut Loader<'_>) -> Result<(VaeFacts, Option<Vae>), ModelError> {
    let source = loader.source;
    let count = |key: &str| source.meta(key).as_ref().and_then(Meta::as_usize).filter(|n| *n > 0);
    let groups = count("norm_num_groups").unwrap_or(32);
    let eps = source.meta("batch_norm_eps").and_then(|m| m.as_f64()).unwrap_or(1e-4);
    let shapes = Shapes(source.tensors().into_iter().collect());
    let channels = shapes.of("bn.running_mean")?.iter().product::<usize>();
    let mean = loader.values("bn.running_mean", channels)?;
    let variance = loader.values("bn.running_var", channels)?;
    let deviation = variance.iter().map(|v| (f64::from(*v) + eps).sqrt() as f32).collect();
    let mut r = Reader { loader, shapes, groups, plain: BTreeMap::new() };
    let narrow = channels / (FOLD * FOLD);
    let post_quant = match r.shapes.has("post_quant_conv") {
        true => {
            let (found, conv) = r.conv("post_quant_conv")?;
            same("post_quant_conv", narrow, found[1])?;
            Some(conv)
        }
        false => None,
    };
    let ([mut width, found], conv_in) = r.conv("decoder.conv_in")?;
    same("decoder.conv_in", narrow, found)?;
    let (out, first) = r.resnet("decoder.mid_block.resnets.0", width)?;
    same("decoder.mid_block.resnets.0", width, out)?;
    let attention = match r.shapes.has("decoder.mid_block.attentions.0.to_q") {
        true => Some(r.attention("decoder.mid_block.attentions.0", width)?),
        false => None,
    };
    let (out, second) = r.resnet("decoder.mid_block.resnets.1", width)?;
    same("decoder.mid_block.resnets.1", width, out)?;
    let (mut up, mut scale) = (Vec::new(), 1);
    for i in 0.. {
        let block = format!("decoder.up_blocks.{i}");
        if !r.shapes.has(&format!("{block}.resnets.0.conv1")) {
            break;
        }
        let mut resnets = Vec::new();
        for j in 0.. {
            let module = format!("{block}.resnets.{j}");
            if !r.shapes.has(&format!("{module}.conv1")) {
                break;
            }
            let (out, resnet) = r.resnet(&module, width)?;
            width = out;
            resnets.push(resnet);
        }
        let module = format!("{block}.upsamplers.0.conv");
        let upsample = if r.shapes.has(&module) {
            let (found, conv) = r.conv(&module)?;
            same(&module, width, found[1])?;
            (width, scale) = (found[0], 2 * scale);
            Some(conv)
        } else {
            None
        };
        up.push((resnets, upsample));
    }
    if scale != SCALE {
        return Err(ModelError::UnsupportedValue {
            key: "upsamplers of the VAE decoder".to_owned(),
            found: format!("{scale} times the size"),
            wanted: format!("{SCALE} times"),
        });
    }
    let norm_out = r.norm("decoder.conv_norm_out", width)?;
    let ([rgb, found], conv_out) = r.conv("decoder.conv_out")?;
    same("decoder.conv_out", width, found)?;
    same("decoder.conv_out", 3, rgb)?;
    let facts = VaeFacts { channels, groups, last_width: width, side: count("sample_size") };
    let plain = r.plain;
    let built = (|| {
        let up = up.into_iter().map(|(resnets, upsample)| {
            Some(UpBlock { resnets: resnets.into_iter().collect::<Option<_>>()?, upsample: optional(upsample)? })
        });
        Some(Vae {
            facts,
            mean,
            deviation,
            post_quant: optional(post_quant)?,
            conv_in: conv_in?,
            mid: [first?, second?],
            attention: optional(attention)?,
            up: up.collect::<Option<_>>()?,
            norm_out: norm_out?,
            conv_out: conv_out?,
            plain,
        })
    })();
    Ok((facts, built))
}
