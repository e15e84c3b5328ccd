//! One plan, many steps: changed tokens, changed row counts, and fifty equal runs.

use crate::bound::linear::linear;
use crate::check::Suite;
use crate::rows;
use crate::session::{Twin, bucket, first, stateless};
use crate::weights::{self, Bias, affine};

const ROWS: usize = 40;
const COLS: usize = 256;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for kind in suite.activations() {
        let name = kind.to_string();
        let mut rng = suite.rng(&name);
        let w = weights::matrix(&mut rng, affine(1, 128), Bias::Symmetric, ROWS, COLS);
        let x = rows::activations(&mut rng, 32, COLS);
        let twin = Twin::new(suite, &name, (bucket(16, 16), stateless()), |b| {
            let x = b.rows(&weights::dense(&x));
            let w = b.weight(&[&w]);
            let y = b.rec.linear(x, &w, kind);
            b.rec.output(y, "y");
        });
        for (i, m) in [16, 3, 16, 1, 7, 15].into_iter().enumerate() {
            let tokens: Vec<usize> = (0..m).map(|_| rng.below(32)).collect();
            let chosen: Vec<Vec<f32>> = tokens.iter().map(|t| x[*t].clone()).collect();
            let (got, want) = twin.y(&first(&tokens));
            suite.near(&format!("{name} replay {i}"), &got, &want, &linear(&[&w], &chosen, 0.0, kind));
        }
        let inputs = first(&[5, 1, 30, 17, 2]);
        let once = twin.got.y(&inputs);
        let first_different = (1..50).find(|_| twin.got.y(&inputs) != once);
        suite.require(&format!("{name} repeats"), first_different.is_none(), || {
            format!("run {first_different:?} of 50 equal ones differs from the first")
        });
    }
}
