//! Every stored format with every kind of bias and every activation kind, against the dense product as well.

use crate::bound::linear::linear;
use crate::check::Suite;
use crate::session::{Session, Twin, bucket, first, stateless};
use crate::{rows, weights};
use onebit_ops::Activations;

const ROWS: usize = 37;
const COLS: usize = 384;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for format in suite.supported(weights::all_formats()) {
        for &bias in weights::biases(format) {
            let name = format!("{format} {bias:?}");
            let mut rng = suite.rng(&name);
            let w = weights::matrix(&mut rng, format, bias, ROWS, COLS);
            let plain = weights::dequantised(&w);
            let x = rows::activations(&mut rng, 3, COLS);
            let inputs = first(&[0, 1, 2]);
            for kind in suite.activations() {
                if kind != Activations::F32 && !format.is_packed() {
                    continue;
                }
                let case = format!("{name} {kind}");
                let sizes = (bucket(3, 3), stateless());
                let twin = Twin::new(suite, &case, sizes, |b| {
                    let x = b.rows(&weights::dense(&x));
                    let w = b.weight(&[&w]);
                    let y = b.rec.linear(x, &w, kind);
                    b.rec.output(y, "y");
                });
                let (got, want) = twin.y(&inputs);
                suite.near(&case, &got, &want, &linear(&[&w], &x, 0.0, kind));
                if kind != Activations::F32 || !format.is_packed() {
                    continue;
                }
                // The backend against itself: packed weights, and the same weights as dense f32.
                let dense = Session::new(suite.backend, &case, sizes, |b| {
                    let x = b.rows(&weights::dense(&x));
                    let w = b.weight(&[&plain]);
                    let y = b.rec.linear(x, &w, kind);
                    b.rec.output(y, "y");
                });
                let case = format!("{case} against dense");
                suite.near(&case, &got, &dense.y(&inputs), &linear(&[&w], &x, crate::bound::UNIT, kind));
            }
        }
    }
}
