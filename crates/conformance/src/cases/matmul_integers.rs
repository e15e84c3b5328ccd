//! Integer activations, bit for bit: scales of 1 and whole activations whose groups reach the limit, so that the result is
//! the integer sum itself and any wrong group, sign or tail changes it.

use crate::check::Suite;
use crate::session::{Twin, bucket, first, stateless};
use crate::{rows, weights};
use onebit_ops::Activations;

const ROWS: usize = 67;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for kind in suite.activations() {
        let Some(limit) = kind.limit() else { continue };
        for format in suite.supported(weights::typical_formats()) {
            if format.is_packed() {
                for cols in [128, 384, 640] {
                    whole(suite, format, kind, limit, cols);
                }
            }
        }
    }
}

fn whole(suite: &mut Suite<'_>, format: onebit_quant::Format, kind: Activations, limit: i16, cols: usize) {
    let case = format!("{format} {kind} K={cols}");
    let mut rng = suite.rng(&case);
    let w = weights::whole_numbers(&mut rng, format, ROWS, cols);
    let mut x = rows::whole_numbers(&mut rng, 10, cols, limit);
    // All at the limit: the largest sums that a group can have.
    x[3].fill(f32::from(limit));
    x[4].fill(f32::from(-limit));
    let twin = Twin::new(suite, &case, (bucket(10, 10), stateless()), |b| {
        let x = b.rows(&weights::dense(&x));
        let w = b.weight(&[&w]);
        let y = b.rec.linear(x, &w, kind);
        b.rec.output(y, "y");
    });
    let all = first(&(0..10).collect::<Vec<_>>());
    let (got, want) = twin.y(&all);
    let expected = products(&w, &x);
    suite.identical(&format!("{case} reference"), ROWS, &want, &expected);
    suite.identical(&case, ROWS, &got, &expected);
}

/// The whole-number products, exact in f64 and in f32.
fn products(w: &onebit_quant::Packed, x: &[Vec<f32>]) -> Vec<f32> {
    let plain = weights::dequantised(w);
    let plain = plain.as_matrix();
    let mut row = vec![0.0; plain.cols];
    let mut out = vec![0.0; x.len() * plain.rows];
    for r in 0..plain.rows {
        plain.decode_row(r, &mut row);
        for (i, x) in x.iter().enumerate() {
            let sum: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            // Plus zero, so that an empty sum has no sign.
            out[i * plain.rows + r] = (sum + 0.0) as f32;
        }
    }
    out
}
