//! Every number of rows: M = 1 to 9, 31 to 33 and 200, against the reference; and each row's bits at every M.

use crate::bound::linear::linear;
use crate::check::Suite;
use crate::session::{Twin, bucket, first, segment, stateless, step};
use crate::{rows, weights};
use onebit_ops::Activations;

const ROWS: usize = 70;
/// An odd number of groups of 128: whoever alternates between two places from group to group begins anew in the other.
const COLS: usize = 384;
const MOST: usize = 200;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for format in suite.supported(weights::typical_formats()) {
        for &bias in weights::biases(format) {
            for kind in suite.activations() {
                if kind == Activations::F32 || format.is_packed() {
                    one_weight(suite, format, bias, kind);
                }
            }
        }
    }
}

fn one_weight(suite: &mut Suite<'_>, format: onebit_quant::Format, bias: weights::Bias, kind: Activations) {
    let name = format!("{format} {bias:?} {kind}");
    let mut rng = suite.rng(&name);
    let w = weights::matrix(&mut rng, format, bias, ROWS, COLS);
    let x = rows::activations(&mut rng, MOST, COLS);
    let exact = linear(&[&w], &x, 0.0, kind);
    let twin = Twin::new(suite, &name, (bucket(MOST, MOST), stateless()), |b| {
        let x = b.rows(&weights::dense(&x));
        let w = b.weight(&[&w]);
        let y = b.rec.linear(x, &w, kind);
        b.rec.output(y, "y");
    });
    let all: Vec<usize> = (0..MOST).collect();
    let (full, want) = twin.y(&first(&all));
    suite.near(&format!("{name} M={MOST}"), &full, &want, &exact);
    for m in (1..=9).chain(31..=33) {
        // Other rows at each size, so that a stale row would show.
        let start = m * 5;
        let got = twin.got.y(&first(&all[start..start + m]));
        suite.identical(&format!("{name} M={m} against M={MOST}"), ROWS, &got, &full[start * ROWS..][..m * ROWS]);
    }
    // Leading dimensions [2, 4, K] are eight rows.
    let two = twin.got.y(&step(&all[..8], vec![segment(0..4, 0, 0), segment(4..8, 1, 0)]));
    suite.identical(&format!("{name} [2, 4, K]"), ROWS, &two, &full[..8 * ROWS]);
}
