//! Row by row operations of image models, on values that come with the step.

use crate::bound;
use crate::check::Suite;
use crate::prng::Rng;
use crate::rows;
use crate::session::{Twin, bucket, must, stateless};
use onebit_ops::{Backend, OpError, PlanOptions, Recorder, StepInputs};

/// A step of named values alone.
pub(super) fn values<const N: usize>(named: [(&str, &[Vec<f32>]); N]) -> StepInputs {
    StepInputs { values: named.map(|(name, rows)| (name.to_owned(), rows.concat())).into(), ..StepInputs::default() }
}

/// Whether the backend runs these operations. One that does not must refuse a plan with them.
pub(super) fn runs(suite: &mut Suite<'_>) -> bool {
    if suite.backend.caps().images {
        return true;
    }
    let refused = refuses(suite.backend);
    suite.require("a plan of an image model", refused, || "neither run nor refused".to_owned());
    false
}

fn refuses(backend: &dyn Backend) -> bool {
    let mut rec = Recorder::new(bucket(0, 0));
    let x = rec.input("x", 1, 4);
    rec.output(x, "y");
    let cache = must("latents", backend.cache(stateless()));
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default());
    matches!(plan, Err(OpError::UnsupportedOp { .. }))
}

pub(crate) fn run(suite: &mut Suite<'_>) {
    if !runs(suite) {
        return;
    }
    for (count, cols) in [(1, 5), (3, 128), (70, 33), (130, 3072)] {
        modulation(suite, count, cols);
    }
    for (count, heads, dim) in [(1, 1, 2), (9, 3, 6), (65, 4, 32), (33, 24, 128)] {
        rotation(suite, count, heads, dim);
    }
    joins(suite);
    wrong_values(suite);
}

fn modulation(suite: &mut Suite<'_>, count: usize, cols: usize) {
    let name = format!("modulation of {count} rows of {cols}");
    let mut rng = suite.rng(&name);
    let eps = 1e-6;
    let mut x = rows::activations(&mut rng, count, cols);
    // A mean far from zero: a variance of squares alone would lose its digits.
    x[0].iter_mut().for_each(|v| *v += 300.0);
    let y = rows::activations(&mut rng, count, cols);
    // Shift, scale and gate side by side, as a linear layer gives them.
    let all = vec![rng.normals(3 * cols)];
    let twin = Twin::new(suite, &name, (bucket(0, 0), stateless()), |b| {
        let (x, y) = (b.rec.input("x", count, cols), b.rec.input("y", count, cols));
        let all = b.rec.input("all", 1, 3 * cols);
        let [shift, scale, gate] = [0, 1, 2].map(|i| all.columns(i * cols..(i + 1) * cols));
        let modulated = b.rec.modulate(x, scale, shift, eps);
        let gated = b.rec.gated_add(x, gate, y);
        b.rec.output(modulated, "modulated");
        b.rec.output(gated, "gated");
    });
    let inputs = values([("x", &x), ("y", &y), ("all", &all)]);
    let (got, want) = (twin.got.step(&inputs), twin.want.step(&inputs));
    let (shift, rest) = all[0].split_at(cols);
    let (scale, gate) = rest.split_at(cols);
    let exact: Vec<_> = x.iter().map(|row| bound::image::modulate(row, scale, shift, eps)).collect();
    suite.near(&name, &got.values["modulated"], &want.values["modulated"], &exact);
    let exact: Vec<Vec<_>> = x
        .iter()
        .zip(&y)
        .map(|(x, y)| (0..cols).map(|c| bound::image::gated_add(x[c], gate[c], y[c])).collect())
        .collect();
    suite.near(&format!("{name}, gated"), &got.values["gated"], &want.values["gated"], &exact);
}

fn rotation(suite: &mut Suite<'_>, count: usize, heads: usize, dim: usize) {
    let name = format!("{count} rows of {heads} heads of {dim} turned");
    let mut rng = suite.rng(&name);
    // Heads begin after three columns and have a gap of two behind them.
    let (stride, width) = (dim + 2, 3 + heads * (dim + 2));
    let x: Vec<Vec<f32>> = (0..count).map(|_| rng.normals(width)).collect();
    let angles: Vec<Vec<f32>> = (0..count).map(|_| turn(&mut rng, dim / 2)).collect();
    let twin = Twin::new(suite, &name, (bucket(0, 0), stateless()), |b| {
        let (x, angles) = (b.rec.input("x", count, width), b.rec.input("angles", count, dim));
        let x = x.columns(3..width).split(heads).within(0..dim);
        assert_eq!(x.stride, stride);
        let y = b.rec.rotate_pairs(x, angles);
        b.rec.output(y, "y");
    });
    let (got, want) = twin.y(&values([("x", &x), ("angles", &angles)]));
    let exact: Vec<Vec<_>> = x
        .iter()
        .zip(&angles)
        .map(|(x, angles)| {
            let (cos, sin) = angles.split_at(dim / 2);
            let of = |i: usize| {
                let (head, pair) = (i / dim, i % dim / 2);
                let at = 3 + head * stride + 2 * pair;
                match i % 2 {
                    0 => bound::image::rotated(x[at], cos[pair], x[at + 1], -sin[pair]),
                    _ => bound::image::rotated(x[at + 1], cos[pair], x[at], sin[pair]),
                }
            };
            (0..heads * dim).map(of).collect()
        })
        .collect();
    suite.near(&name, &got, &want, &exact);
}

fn turn(rng: &mut Rng, pairs: usize) -> Vec<f32> {
    let angles: Vec<f64> = (0..pairs).map(|_| 100.0 * rng.uniform()).collect();
    angles.iter().map(|a| a.cos() as f32).chain(angles.iter().map(|a| a.sin() as f32)).collect()
}

/// Rows and columns of several temporaries: copies, so bit for bit.
fn joins(suite: &mut Suite<'_>) {
    let mut rng = suite.rng("joins");
    let a: Vec<Vec<f32>> = (0..5).map(|_| rng.normals(24)).collect();
    let b: Vec<Vec<f32>> = (0..70).map(|_| rng.normals(12)).collect();
    let twin = Twin::new(suite, "joins", (bucket(0, 0), stateless()), |build| {
        let (a, b) = (build.rec.input("a", 5, 24), build.rec.input("b", 70, 12));
        // Every other block of four.
        let some = a.split(3).within(0..4);
        let rows = build.rec.join_rows(&[some, b, some]);
        let taken = build.rec.take_rows(rows, 4..76);
        let columns = build.rec.join_columns(&[some, a, some]);
        build.rec.output(rows, "rows");
        build.rec.output(taken, "taken");
        build.rec.output(columns, "columns");
    });
    let inputs = values([("a", &a), ("b", &b)]);
    let (got, want) = (twin.got.step(&inputs), twin.want.step(&inputs));
    let some: Vec<Vec<f32>> = a.iter().map(|row| [&row[0..4], &row[8..12], &row[16..20]].concat()).collect();
    let rows = [some.concat(), b.concat(), some.concat()].concat();
    let columns: Vec<f32> = some.iter().zip(&a).flat_map(|(s, a)| [&s[..], a, s].concat()).collect();
    for (output, exact, cols) in
        [("taken", rows[4 * 12..76 * 12].to_vec(), 12), ("rows", rows, 12), ("columns", columns, 48)]
    {
        suite.identical(output, cols, &got.values[output], &exact);
        suite.identical(&format!("{output} of the reference"), cols, &want.values[output], &exact);
    }
}

fn wrong_values(suite: &mut Suite<'_>) {
    let twin = Twin::new(suite, "inputs", (bucket(0, 0), stateless()), |b| {
        let x = b.rec.input("x", 2, 3);
        b.rec.output(x, "y");
    });
    let rows = |n: usize| vec![vec![1.0; 3]; n];
    for (case, inputs) in [
        ("an input too short", values([("x", &rows(1))])),
        ("an input too long", values([("x", &rows(3))])),
        ("an input of another name", values([("z", &rows(2))])),
        ("an input too many", values([("x", &rows(2)), ("z", &rows(2))])),
        ("no input", StepInputs::default()),
        ("a token", StepInputs { tokens: vec![0], ..values([("x", &rows(2))]) }),
    ] {
        let refused = matches!(twin.got.try_step(&inputs), Err(OpError::Inputs(_)));
        suite.require(case, refused, || "the step is not refused".to_owned());
    }
}
