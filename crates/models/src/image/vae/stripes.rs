//! The end of the decoder over some rows of the picture at a time, with the numbers of the whole.
//!
//! What hinders is the group norms: their statistics are of all pixels. So the layers behind a point are cut into stages, each
//! with one or two norms, and a stage runs over all stripes once for each of its norms, to gather that one's statistics, and
//! once more for its output. What lies between two stages is kept for the whole picture. A stripe is read with [`HALO`] rows
//! more on either side, which convolutions at its borders spoil and nobody sees.

use super::{Conv, EPS, GroupNorm, Picture, Resnet, Vae};
use onebit_ops::{Bucket, ChannelNorm, Grid, Program, Recorder, Vector, View};

/// What lies between two stages: `(grid pixels, channels)`.
pub const HIDDEN: &str = "hidden";

/// Output of a program that gathers: one row, for every channel `rsqrt(var + eps)` of its group, then as many
/// `-mean rsqrt(var + eps)`.
pub const STATISTICS: &str = "statistics";

/// Rows beside a stripe that its output depends on: one for each convolution in a row, of which a stage has two; an
/// upsampling's own row is half a row of its input, and two rows of input are four.
pub const HALO: usize = 2;

/// Some rows of a stage's input, with those beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripe {
    /// Rows before that are there and not wanted.
    pub before: usize,
    /// Rows whose output is wanted.
    pub rows: usize,
    /// Rows behind that are there and not wanted.
    pub after: usize,
    /// Pixels of a row.
    pub width: usize,
}

impl Stripe {
    /// Pixels that are read.
    pub fn pixels(&self) -> usize {
        (self.before + self.rows + self.after) * self.width
    }
}

/// A few layers of the decoder.
pub struct Stage<'a> {
    vae: &'a Vae,
    upsample: Option<&'a Conv>,
    body: Body<'a>,
}

enum Body<'a> {
    Resnet(&'a Resnet),
    /// The last norm and convolution.
    Last,
}

impl Vae {
    /// Up blocks, each of which may be where stages begin.
    pub fn blocks(&self) -> usize {
        self.up.len()
    }

    /// The layers before an up block, over the whole picture: input [`LATENTS`](super::LATENTS), output [`HIDDEN`].
    pub fn head(&self, grid: Grid, block: usize) -> Program {
        let mut recorder = Recorder::new(Bucket { rows: 0, logits: 0, context: 0 });
        let rec = &mut recorder;
        let mut p = self.begin(rec, grid);
        for (i, block) in self.up[..block].iter().enumerate() {
            if let Some(conv) = self.up[..i].last().and_then(|before| before.upsample.as_ref()) {
                p = conv.upsample(rec, p);
            }
            for resnet in &block.resnets {
                p = self.resnet(rec, resnet, p);
            }
        }
        rec.output(p.x, HIDDEN);
        recorder.finish()
    }

    /// The pixels of its output.
    pub fn head_grid(&self, grid: Grid, block: usize) -> Grid {
        let before = &self.up[..block.saturating_sub(1)];
        let times = 1 << before.iter().filter(|block| block.upsample.is_some()).count();
        Grid { height: times * grid.height, width: times * grid.width }
    }

    /// The layers from an up block on, beginning with the upsampling before it.
    pub fn stages(&self, block: usize) -> Vec<Stage<'_>> {
        let mut upsample = self.up[..block].last().and_then(|before| before.upsample.as_ref());
        let mut stages = Vec::new();
        for block in &self.up[block..] {
            let resnets = block.resnets.iter();
            stages.extend(resnets.map(|r| Stage { vae: self, upsample: upsample.take(), body: Body::Resnet(r) }));
            upsample = block.upsample.as_ref();
        }
        stages.push(Stage { vae: self, upsample, body: Body::Last });
        stages
    }
}

impl Stage<'_> {
    /// Pixels of an output row or column for one of the input.
    pub fn scale(&self) -> usize {
        if self.upsample.is_some() { 2 } else { 1 }
    }

    /// Channels that it reads.
    pub fn channels(&self) -> usize {
        self.upsample.map_or(self.norms()[0].gain.len(), |conv| conv.weight.cols() / (conv.kernel * conv.kernel))
    }

    /// Channels that it gives.
    pub fn width(&self) -> usize {
        match self.body {
            Body::Resnet(resnet) => resnet.convs[1].weight.rows(),
            Body::Last => self.vae.conv_out.weight.rows(),
        }
    }

    fn norms(&self) -> &[GroupNorm] {
        match self.body {
            Body::Resnet(resnet) => &resnet.norms,
            Body::Last => std::slice::from_ref(&self.vae.norm_out),
        }
    }

    /// Norms whose statistics are gathered, one after the other.
    pub fn gathered(&self) -> usize {
        self.norms().len()
    }

    /// Input of a program for what [`Stage::affine`] gives.
    pub fn affine_name(norm: usize) -> &'static str {
        ["affine.0", "affine.1"][norm]
    }

    /// Reads [`HIDDEN`] and the first `known` affines. While a norm is not known: output [`STATISTICS`] of the next one over
    /// the stripe's own rows. Otherwise: output [`HIDDEN`] of these rows.
    pub fn program(&self, stripe: Stripe, known: usize) -> Program {
        let mut recorder = Recorder::new(Bucket { rows: 0, logits: 0, context: 0 });
        let rec = &mut recorder;
        let grid = Grid { height: stripe.before + stripe.rows + stripe.after, width: stripe.width };
        let x = rec.input(HIDDEN, grid.pixels(), self.channels());
        let affines: Vec<View> =
            (0..known).map(|norm| rec.input(Self::affine_name(norm), 1, 2 * self.norms()[norm].gain.len())).collect();
        let mut p = Picture { x, grid };
        if let Some(conv) = self.upsample {
            p = conv.upsample(rec, p);
        }
        let norm = |norm: usize| Some(ChannelNorm { affine: affines[norm], silu: true });
        if known == 0 {
            self.gather(rec, stripe, p);
            return recorder.finish();
        }
        let out = match self.body {
            Body::Last => self.vae.conv_out.record(rec, p, norm(0), None),
            Body::Resnet(resnet) => {
                let h = resnet.convs[0].record(rec, p, norm(0), None);
                if known == 1 {
                    self.gather(rec, stripe, h);
                    return recorder.finish();
                }
                let kept = resnet.shortcut.as_ref().map_or(p, |conv| conv.record(rec, p, None, None));
                resnet.convs[1].record(rec, h, norm(1), Some(kept.x))
            }
        };
        let own = self.own(rec, stripe, out);
        rec.output(own, HIDDEN);
        recorder.finish()
    }

    fn gather(&self, rec: &mut Recorder, stripe: Stripe, p: Picture) {
        let own = self.own(rec, stripe, p);
        if let Some([ones, zeros]) = self.vae.plain.get(&own.cols()) {
            let statistics = rec.group_norm(own, self.vae.facts.groups, ones, zeros, EPS);
            rec.output(statistics, STATISTICS);
        }
    }

    /// The rows of a stripe that are wanted.
    fn own(&self, rec: &mut Recorder, stripe: Stripe, p: Picture) -> View {
        let pixels = self.scale() * p.grid.width;
        match stripe.before + stripe.after {
            0 => p.x,
            _ => rec.take_rows(p.x, stripe.before * pixels..(stripe.before + stripe.rows) * pixels),
        }
    }

    /// Factors and offsets of a norm from the statistics of all stripes, each with its rows.
    pub fn affine(&self, norm: usize, stripes: &[(usize, Vec<f32>)]) -> Vec<f32> {
        let norm = &self.norms()[norm];
        let channels = norm.gain.len();
        let (mut factors, mut offsets) = (Vec::with_capacity(2 * channels), Vec::with_capacity(channels));
        for c in 0..channels {
            // Moments of the channel's group: those of the stripes, weighed by their rows.
            let (mut first, mut second, mut all) = (0.0, 0.0, 0.0);
            for (rows, statistics) in stripes {
                let (inverse, offset) = (f64::from(statistics[c]), f64::from(statistics[channels + c]));
                let (mean, rows) = (-offset / inverse, *rows as f64);
                let variance = (1.0 / (inverse * inverse) - f64::from(EPS)).max(0.0);
                first += rows * mean;
                second += rows * (variance + mean * mean);
                all += rows;
            }
            let mean = first / all;
            let variance = (second / all - mean * mean).max(0.0);
            let factor = f64::from(norm.values[0][c]) / (variance + f64::from(EPS)).sqrt();
            factors.push(factor as f32);
            offsets.push((f64::from(norm.values[1][c]) - mean * factor) as f32);
        }
        factors.extend(offsets);
        factors
    }
}

/// Gain and bias that leave a norm as it is, for one width.
pub(super) type Plain = [Vector; 2];
