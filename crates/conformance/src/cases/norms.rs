//! RMS norm of whole rows and of heads, and the gated norm.

use crate::bound::{self, UNIT, function};
use crate::check::Suite;
use crate::session::{Twin, bucket, first, stateless};
use crate::{rows, weights};

pub(crate) fn run(suite: &mut Suite<'_>) {
    for (heads, dim) in [(1, 5), (1, 256), (1, 5120), (3, 64), (16, 128), (2, 256), (5, 33)] {
        for eps in [1e-6, 1e-5] {
            norms(suite, heads, dim, eps);
        }
    }
}

fn norms(suite: &mut Suite<'_>, heads: usize, dim: usize, eps: f32) {
    let name = format!("{heads} heads of {dim}, eps {eps:e}");
    let mut rng = suite.rng(&name);
    // Each row: a gap of three, then heads of [x, z] pairs.
    let width = heads * dim * 2;
    let mut table: Vec<Vec<f32>> = rows::activations(&mut rng, 34, width);
    table[1].iter_mut().for_each(|v| *v *= 1e12);
    table[5].iter_mut().for_each(|v| *v *= 30.0);
    let padded: Vec<Vec<f32>> = table.iter().map(|row| [&[f32::NAN; 3], row.as_slice()].concat()).collect();
    let gain = rng.normals(dim);
    let twin = Twin::new(suite, &name, (bucket(34, 34), stateless()), |b| {
        let gain = b.vector(&gain);
        let pairs = b.rows(&weights::dense(&padded)).columns(3..3 + width).split(heads);
        let (x, z) = (pairs.within(0..dim), pairs.within(dim..2 * dim));
        let normed = b.rec.rms_norm(x, &gain, eps);
        assert_eq!((normed.heads, normed.dim), (heads, dim), "a norm keeps the blocks");
        b.rec.output(normed, "norm");
        let gated = b.rec.gated_norm(x, z, &gain, eps);
        b.rec.output(gated, "gated");
    });
    for m in [1, 34] {
        let inputs = first(&(0..m).collect::<Vec<_>>());
        let (got, want) = (twin.got.step(&inputs), twin.want.step(&inputs));
        let cols = heads * dim;
        let relative = bound::rms_norm(dim);
        suite.relative(&format!("{name} M={m}"), cols, &got.values["norm"], &want.values["norm"], relative);
        let case = format!("{name} gated M={m}");
        let gate = |i: usize| f64::from(table[i / cols][(i % cols) / dim * 2 * dim + dim + i % dim]);
        let want = &want.values["gated"];
        suite.within(&case, cols, &got.values["gated"], want, |i| {
            let size = f64::from(want[i]).abs();
            2.0 * ((relative + function(gate(i).min(88.0)) + 2.0 * UNIT) * size + bound::TINY * gate(i).abs().max(1e3))
        });
    }
}
