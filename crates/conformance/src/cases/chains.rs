//! Operations behind one another in one plan, each of which reads what the one in front of it has just written, at places where
//! others have read something else shortly before. A device may begin an operation before the one in front of it has ended, and
//! it has caches: the results are, bit for bit, those of plans with one operation each.

use super::latents::values;
use crate::check::Suite;
use crate::prng::Rng;
use crate::rows;
use crate::session::{Build, Session, bucket, first, stateless};
use crate::weights::{self, Bias, affine};
use onebit_ops::{Activations, ChannelNorm, Conv2d, Grid, View};
use onebit_quant::{Format, Packed, quantize};

/// How often a chain runs: what depends on the moment differs from one run to the next.
const RUNS: usize = 3;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for kind in suite.activations() {
        // Rows of a single token, of a few, of a batch and of prompts, as kernels know them.
        for count in [1, 5, 40, 130] {
            products(suite, kind, count);
        }
    }
    if !suite.backend.caps().images {
        return;
    }
    let formats = suite.supported(vec![Format::F32, Format::BF16]);
    for format in &formats {
        pictures(suite, Grid { height: 16, width: 16 }, 32, 8, *format);
        pictures(suite, Grid { height: 32, width: 48 }, 32, 4, *format);
    }
    // So large that every multiprocessor of a device has a part of each picture.
    if let Some(format) = formats.last() {
        pictures(suite, Grid { height: 96, width: 192 }, 16, 3, *format);
    }
}

/// Runs the chain, and compares each run with `wanted`.
fn compare(suite: &mut Suite<'_>, name: &str, cols: usize, wanted: &[f32], run: impl Fn() -> Vec<f32>) {
    for i in 0..RUNS {
        suite.identical(&format!("{name} run {i}"), cols, &run(), wanted);
    }
}

fn products(suite: &mut Suite<'_>, kind: Activations, count: usize) {
    const COLS: usize = 256;
    let name = format!("{count} rows {kind}");
    let mut rng = suite.rng(&name);
    let chain: Vec<Packed> =
        (0..6).map(|_| weights::matrix(&mut rng, affine(1, 128), Bias::Symmetric, COLS, COLS)).collect();
    let x = rows::activations(&mut rng, count, COLS);
    let inputs = first(&(0..count).collect::<Vec<_>>());
    let session = |x: &[Vec<f32>], chain: &[Packed]| {
        Session::new(suite.backend, &name, (bucket(count, count), stateless()), |b| {
            let mut y = b.rows(&weights::dense(x));
            for w in chain {
                let w = b.weight(&[w]);
                y = b.rec.linear(y, &w, kind);
            }
            b.rec.output(y, "y");
        })
    };
    let alone = chain.chunks(1).fold(x.clone(), |x, w| split(&session(&x, w).y(&inputs), COLS));
    let together = session(&x, &chain);
    compare(suite, &name, COLS, &alone.concat(), || together.y(&inputs));
}

fn split(values: &[f32], cols: usize) -> Vec<Vec<f32>> {
    values.chunks(cols).map(<[f32]>::to_vec).collect()
}

/// A norm and the convolution behind it.
struct Layer {
    gain: Vec<f32>,
    offset: Vec<f32>,
    weight: Packed,
    bias: Vec<f32>,
}

impl Layer {
    /// A layer whose results are of another size than its inputs, so that no two norms of a chain are alike.
    fn new(rng: &mut Rng, channels: usize, format: Format, name: &str) -> Layer {
        const KERNEL: usize = 3;
        let taps = KERNEL * KERNEL * channels;
        let scaled: Vec<f32> = rng.normals(channels * taps).iter().map(|v| v * 0.3).collect();
        let weight = quantize(format, channels, taps, &scaled).unwrap_or_else(|e| panic!("{name}: {e}"));
        Layer { gain: rng.normals(channels), offset: rng.normals(channels), weight, bias: rng.normals(channels) }
    }

    fn record(&self, b: &mut Build<'_>, x: View, grid: Grid) -> View {
        let (gain, offset) = (b.vector(&self.gain), b.vector(&self.offset));
        let (weight, bias) = (b.weight(&[&self.weight]), b.vector(&self.bias));
        // Two channels a group.
        let affine = b.rec.group_norm(x, self.bias.len() / 2, &gain, &offset, 1e-6);
        let norm = Some(ChannelNorm { affine, silu: true });
        b.rec.conv2d(Conv2d { x, grid, norm, upsample: false, weight, bias, kernel: 3, residual: None })
    }
}

fn pictures(suite: &mut Suite<'_>, grid: Grid, channels: usize, layers: usize, format: Format) {
    let Grid { height, width } = grid;
    let name = format!("{layers} layers of {height} x {width} with {channels} channels {format}");
    let mut rng = suite.rng(&name);
    let chain: Vec<Layer> = (0..layers).map(|_| Layer::new(&mut rng, channels, format, &name)).collect();
    let x: Vec<Vec<f32>> = (0..height * width).map(|_| rng.normals(channels)).collect();
    let session = |chain: &[Layer]| {
        Session::new(suite.backend, &name, (bucket(0, 0), stateless()), |b| {
            let x = b.rec.input("x", height * width, channels);
            let y = chain.iter().fold(x, |x, layer| layer.record(b, x, grid));
            b.rec.output(y, "y");
        })
    };
    let alone = chain.chunks(1).fold(x.clone(), |x, layer| split(&session(layer).y(&values([("x", &x)])), channels));
    let together = session(&chain);
    let inputs = values([("x", &x)]);
    compare(suite, &name, channels, &alone.concat(), || together.y(&inputs));
}
