//! The rows whose logits are wanted, and a product on them.

use crate::bound::linear::linear;
use crate::check::Suite;
use crate::session::{Twin, first, stateless};
use crate::weights::{self, Bias, affine};
use onebit_ops::{Activations, Bucket};

pub(crate) fn run(suite: &mut Suite<'_>) {
    const COLS: usize = 128;
    let mut rng = suite.rng("select");
    let rows: Vec<Vec<f32>> = (0..20).map(|_| rng.normals(COLS + 2)).collect();
    let w = weights::matrix(&mut rng, affine(1, 128), Bias::Symmetric, 50, COLS);
    let sizes = (Bucket { rows: 20, logits: 4, context: 20 }, stateless());
    let twin = Twin::new(suite, "select", sizes, |b| {
        let x = b.rows(&weights::dense(&rows)).columns(1..1 + COLS);
        let chosen = b.rec.select_rows(x);
        b.rec.output(chosen, "rows");
        let w = b.weight(&[&w]);
        let y = b.rec.linear(chosen, &w, Activations::F32);
        b.rec.output(y, "y");
    });
    let sets: [(usize, &[usize]); 6] =
        [(20, &[19]), (20, &[0, 7, 8, 19]), (20, &[]), (1, &[0]), (5, &[1, 4]), (20, &[3, 4, 5])];
    for (m, logit_rows) in sets {
        let case = format!("{logit_rows:?} of {m}");
        let mut inputs = first(&(0..m).collect::<Vec<_>>());
        inputs.logit_rows = logit_rows.to_vec();
        let (got, want) = (twin.got.step(&inputs), twin.want.step(&inputs));
        suite.identical(&case, COLS, &got.values["rows"], &want.values["rows"]);
        let chosen: Vec<Vec<f32>> = logit_rows.iter().map(|r| rows[*r][1..1 + COLS].to_vec()).collect();
        let exact = linear(&[&w], &chosen, 0.0, Activations::F32);
        suite.near(&format!("{case} product"), &got.values["y"], &want.values["y"], &exact);
    }
}
