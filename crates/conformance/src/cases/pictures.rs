//! Group norm and convolution of pictures: kernels, borders, doubled pixels, norms, residuals, widths that do not fill a block.

use super::latents::{runs, values};
use crate::bound::{self, Near};
use crate::check::Suite;
use crate::session::{Twin, bucket, stateless};
use crate::weights;
use onebit_ops::{ChannelNorm, Conv2d, Grid, View};
use onebit_quant::{Format, quantize};

pub(crate) fn run(suite: &mut Suite<'_>) {
    if !runs(suite) {
        return;
    }
    for (rows, cols, groups) in [(1, 4, 2), (9, 6, 3), (1100, 32, 32), (130, 128, 32), (2500, 8, 1)] {
        group_norm(suite, rows, cols, groups);
    }
    let plain = Case { height: 4, width: 5, channels: 7, outputs: 3, kernel: 3, ..Case::default() };
    for case in [
        plain,
        Case { kernel: 1, ..plain },
        Case { height: 1, width: 1, ..plain },
        Case { height: 2, width: 101, ..plain },
        Case { channels: 32, outputs: 33, norm: Some(true), ..plain },
        Case { channels: 32, outputs: 70, norm: Some(false), kernel: 1, residual: true, ..plain },
        Case { channels: 24, outputs: 32, norm: Some(true), residual: true, ..plain },
        Case { upsample: true, ..plain },
        Case { height: 1, width: 30, upsample: true, norm: Some(true), residual: true, ..plain },
        Case { height: 3, width: 3, channels: 130, outputs: 8, norm: Some(true), ..plain },
        Case { height: 9, width: 18, channels: 32, outputs: 130, norm: Some(true), residual: true, ..plain },
        Case { height: 5, width: 9, channels: 48, outputs: 33, upsample: true, ..plain },
        Case {
            height: 10,
            width: 17,
            channels: 64,
            outputs: 40,
            norm: Some(false),
            kernel: 1,
            residual: true,
            ..plain
        },
        Case { height: 3, width: 5, channels: 32, outputs: 8, kernel: 1, upsample: true, ..plain },
    ] {
        for format in suite.supported(vec![Format::F32, Format::BF16]) {
            convolution(suite, case, format);
        }
    }
}

fn group_norm(suite: &mut Suite<'_>, rows: usize, cols: usize, groups: usize) {
    let name = format!("{rows} rows of {cols} in {groups} groups");
    let mut rng = suite.rng(&name);
    let eps = 1e-6;
    let mut x: Vec<Vec<f32>> = (0..rows).map(|_| rng.normals(cols)).collect();
    // The first group has a mean far from zero, the last is constant.
    let size = cols / groups;
    for row in &mut x {
        row[..size].iter_mut().for_each(|v| *v += 50.0);
        if groups > 1 {
            row[cols - size..].fill(0.25);
        }
    }
    let (gain, bias) = (rng.normals(cols), rng.normals(cols));
    let twin = Twin::new(suite, &name, (bucket(0, 0), stateless()), |b| {
        let (gain, bias) = (b.vector(&gain), b.vector(&bias));
        let x = b.rec.input("x", rows, cols);
        let y = b.rec.group_norm(x, groups, &gain, &bias, eps);
        b.rec.output(y, "y");
    });
    let (got, want) = twin.y(&values([("x", &x)]));
    let mut exact = vec![Near { value: 0.0, error: 0.0 }; 2 * cols];
    for g in 0..groups {
        let columns = g * size..(g + 1) * size;
        let all: Vec<f32> = x.iter().flat_map(|row| &row[columns.clone()]).copied().collect();
        let of = bound::image::group(&all, eps);
        for c in columns {
            [exact[c], exact[cols + c]] = of(gain[c], bias[c]);
        }
    }
    suite.near(&name, &got, &want, &[exact]);
}

#[derive(Debug, Clone, Copy, Default)]
struct Case {
    height: usize,
    width: usize,
    channels: usize,
    outputs: usize,
    kernel: usize,
    upsample: bool,
    norm: Option<bool>,
    residual: bool,
}

fn convolution(suite: &mut Suite<'_>, case: Case, format: Format) {
    let name = format!("{case:?} {format}");
    let mut rng = suite.rng(&name);
    let Case { height, width, channels, outputs, kernel, upsample, norm, residual } = case;
    let times = if upsample { 2 } else { 1 };
    let (tall, wide) = (height * times, width * times);
    let cols = kernel * kernel * channels;
    let scaled: Vec<f32> = rng.normals(outputs * cols).iter().map(|v| v * 0.3).collect();
    let packed = quantize(format, outputs, cols, &scaled).unwrap_or_else(|e| panic!("{name}: {e}"));
    let x: Vec<Vec<f32>> = (0..height * width).map(|_| rng.normals(channels)).collect();
    let added: Vec<Vec<f32>> = (0..tall * wide).map(|_| rng.normals(outputs)).collect();
    let affine = vec![rng.normals(2 * channels)];
    let bias = rng.normals(outputs);
    let twin = Twin::new(suite, &name, (bucket(0, 0), stateless()), |b| {
        let (weight, bias) = (b.weight(&[&packed]), b.vector(&bias));
        let x = b.rec.input("x", height * width, channels);
        let affine = b.rec.input("affine", 1, 2 * channels);
        let added: View = b.rec.input("added", tall * wide, outputs);
        let y = b.rec.conv2d(Conv2d {
            x,
            grid: Grid { height, width },
            norm: norm.map(|silu| ChannelNorm { affine, silu }),
            upsample,
            weight,
            bias,
            kernel,
            residual: residual.then_some(added),
        });
        b.rec.output(y, "y");
    });
    let (got, want) = twin.y(&values([("x", &x), ("affine", &affine), ("added", &added)]));
    let mut taps = vec![0.0; cols];
    let rows: Vec<Vec<f32>> = (0..outputs)
        .map(|r| {
            weights::dequantised(&packed).as_matrix().decode_row(r, &mut taps);
            taps.clone()
        })
        .collect();
    // Two numbers of bf16 have 17 bits and the sign of the second.
    let pieces = if format == Format::BF16 { 2f64.powi(-18) } else { 0.0 };
    let input = |pixel: &[f32], c: usize| {
        let near = match norm {
            Some(silu) => bound::image::normed(pixel[c], affine[0][c], affine[0][channels + c], silu),
            None => Near { value: f64::from(pixel[c]), error: 0.0 },
        };
        Near { error: near.error + pieces * near.value.abs(), ..near }
    };
    let reach = kernel / 2;
    let of = |pixel: usize, r: usize| {
        let (y, column) = (pixel / wide, pixel % wide);
        let mut pairs = Vec::with_capacity(cols);
        for tap in 0..kernel * kernel {
            let (dy, dx) = (y + tap / kernel, column + tap % kernel);
            if (reach..tall + reach).contains(&dy) && (reach..wide + reach).contains(&dx) {
                let from = &x[(dy - reach) / times * width + (dx - reach) / times];
                pairs.extend((0..channels).map(|c| (input(from, c), rows[r][tap * channels + c])));
            }
        }
        let mut beside = vec![bias[r]];
        beside.extend(residual.then(|| added[pixel][r]));
        bound::image::products(&pairs, &beside)
    };
    let exact: Vec<Vec<Near>> = (0..tall * wide).map(|pixel| (0..outputs).map(|r| of(pixel, r)).collect()).collect();
    suite.near(&name, &got, &want, &exact);
}
