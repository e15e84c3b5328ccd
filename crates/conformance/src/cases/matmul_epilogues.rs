//! Norm in front, residual and `silu(gate) * up` behind a product, fused or not.

use crate::bound::linear::linear;
use crate::bound::{self, Near, UNIT, product, silu};
use crate::check::Suite;
use crate::rows;
use crate::session::{Twin, bucket, first, stateless};
use crate::weights::{self, Bias, affine};
use onebit_ops::{Activations, Norm};
use onebit_quant::Format;

const EPS: f32 = 1e-6;

pub(crate) fn run(suite: &mut Suite<'_>) {
    let formats = vec![affine(1, 128), affine(2, 128), affine(4, 64), Format::Q1_0, Format::Ptq1_0, Format::BF16];
    for format in suite.supported(formats) {
        for kind in suite.activations() {
            if kind == Activations::F32 || format.is_packed() {
                for cols in [128, 640] {
                    all_epilogues(suite, format, kind, cols, &[1, 4, 13]);
                }
                // Devices have kernels of their own for many rows.
                all_epilogues(suite, format, kind, 640, &[150]);
            }
        }
    }
}

fn all_epilogues(suite: &mut Suite<'_>, format: Format, kind: Activations, cols: usize, counts: &[usize]) {
    const OUT: usize = 70;
    let name = format!("{format} {kind} K={cols} up to {counts:?}");
    let mut rng = suite.rng(&name);
    let bias = weights::biases(format)[0];
    // Gate and up have the same kind, as a layer's have, or differ.
    let gate = weights::matrix(&mut rng, format, bias, OUT / 2, cols);
    let other = if matches!(format, Format::Affine { .. }) { Bias::Affine } else { bias };
    let up = weights::matrix(&mut rng, format, other, OUT / 2, cols);
    let w = weights::matrix(&mut rng, format, bias, OUT, cols);
    let m = counts[counts.len() - 1];
    let x = rows::activations(&mut rng, m, cols);
    let gain = rng.normals(cols);
    // Each row: x, then a residual.
    let table: Vec<Vec<f32>> = x.iter().map(|row| [row.as_slice(), &rng.normals(OUT)].concat()).collect();
    let twin = Twin::new(suite, &name, (bucket(m, m), stateless()), |b| {
        let all = b.rows(&weights::dense(&table));
        let (x, residual) = (all.columns(0..cols), all.columns(cols..cols + OUT));
        let norm = Norm { gain: b.vector(&gain), eps: EPS };
        let w = b.weight(&[&w]);
        let pair = b.weight(&[&gate, &up]);
        for (name, y) in [
            ("norm", b.rec.norm_linear(x, &norm, &w, kind)),
            ("residual", b.rec.linear_add(x, &w, kind, residual)),
            ("swiglu", b.rec.norm_linear_swiglu(x, &norm, &pair, kind)),
        ] {
            b.rec.output(y, name);
        }
    });
    let normed: Vec<Vec<f32>> = x.iter().map(|row| rms_norm(row, &gain)).collect();
    let error = bound::rms_norm(cols) + UNIT;
    let plain = linear(&[&w], &x, 0.0, kind);
    let residual = plain
        .iter()
        .zip(&table)
        .map(|(row, table)| row.iter().zip(&table[cols..]).map(|(y, r)| added(*y, *r)).collect());
    let paired = linear(&[&gate, &up], &normed, error, kind);
    let gated = paired.iter().map(|row| (0..OUT / 2).map(|c| product(silu(row[c]), row[c + OUT / 2])).collect());
    let exact: [(&str, Vec<Vec<Near>>); 3] =
        [("norm", linear(&[&w], &normed, error, kind)), ("residual", residual.collect()), ("swiglu", gated.collect())];
    for &m in counts {
        let inputs = first(&(0..m).collect::<Vec<_>>());
        let (got, want) = (twin.got.step(&inputs), twin.want.step(&inputs));
        for (output, exact) in &exact {
            suite.near(&format!("{name} {output} M={m}"), &got.values[*output], &want.values[*output], exact);
        }
    }
}

/// One more rounding, of the sum.
fn added(y: Near, residual: f32) -> Near {
    let value = y.value + f64::from(residual);
    Near { value, error: y.error + UNIT * (value.abs() + y.error) }
}

/// In f64, rounded once.
fn rms_norm(x: &[f32], gain: &[f32]) -> Vec<f32> {
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (mean + f64::from(EPS)).sqrt();
    x.iter().zip(gain).map(|(v, g)| (f64::from(*v) * inverse * f64::from(*g)) as f32).collect()
}
