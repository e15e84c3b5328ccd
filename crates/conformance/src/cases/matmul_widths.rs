//! Input widths: one to three groups, the widths of the published models, and dense widths that are no multiple of
//! anything.

use crate::bound::linear::linear;
use crate::check::Suite;
use crate::rows;
use crate::session::{Twin, bucket, first, stateless};
use crate::weights::{self, Bias, affine};
use onebit_ops::Activations;
use onebit_quant::Format;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for format in suite.supported(weights::typical_formats()) {
        if format.is_packed() {
            for groups in 1..=3 {
                width(suite, format, 5, format.group() * groups, 2);
            }
        } else {
            for cols in [1, 3, 7, 31, 33, 65, 127, 129, 1000] {
                width(suite, format, 5, cols, 2);
            }
        }
    }
    for group in [32, 64, 128] {
        for bits in [1, 2, 4, 8] {
            for format in suite.supported(vec![affine(bits, group)]) {
                for groups in 1..=3 {
                    width(suite, format, 33, usize::from(group) * groups, 3);
                }
            }
        }
    }
    // Real layer widths, thin slices of the rows.
    for format in suite.supported(vec![affine(1, 128), affine(2, 128), Format::Q1_0, Format::Q2_0G64]) {
        for (cols, m) in [(1024, 2), (2048, 1), (2560, 3), (4096, 1), (5120, 5), (6144, 1), (12288, 2), (17408, 3)] {
            width(suite, format, 33, cols, m);
        }
    }
    for format in suite.supported(vec![Format::BF16]) {
        width(suite, format, 33, 1024, 2);
    }
}

fn width(suite: &mut Suite<'_>, format: Format, rows: usize, cols: usize, m: usize) {
    for &bias in weights::biases(format).iter().filter(|b| **b != Bias::Rounding) {
        for kind in suite.activations() {
            if kind != Activations::F32 && !format.is_packed() {
                continue;
            }
            let case = format!("{format} {bias:?} {kind} [{rows}, {cols}] M={m}");
            let mut rng = suite.rng(&case);
            let w = weights::matrix(&mut rng, format, bias, rows, cols);
            let x = rows::activations(&mut rng, m, cols);
            let twin = Twin::new(suite, &case, (bucket(m, m), stateless()), |b| {
                let x = b.rows(&weights::dense(&x));
                let w = b.weight(&[&w]);
                let y = b.rec.linear(x, &w, kind);
                b.rec.output(y, "y");
            });
            let (got, want) = twin.y(&first(&(0..m).collect::<Vec<_>>()));
            suite.near(&case, &got, &want, &linear(&[&w], &x, 0.0, kind));
        }
    }
}
