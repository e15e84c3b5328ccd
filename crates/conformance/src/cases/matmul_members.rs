//! Several matrices as one weight, of equal and of mixed formats: equal to the parts computed one by one.

use crate::bound::linear::linear;
use crate::check::Suite;
use crate::rows;
use crate::session::{Session, Twin, bucket, first, stateless};
use crate::weights::{self, Bias, affine};
use onebit_ops::Activations;
use onebit_quant::{Format, Packed};

const COLS: usize = 384;

/// Format, kind of bias and rows.
type Member = (Format, Bias, usize);

pub(crate) fn run(suite: &mut Suite<'_>) {
    let binary = affine(1, 128);
    let sets: [(&str, Vec<Member>); 7] = [
        ("equal", vec![(binary, Bias::Symmetric, 64), (binary, Bias::Symmetric, 32), (binary, Bias::Symmetric, 32)]),
        ("odd rows", vec![(binary, Bias::Symmetric, 33), (binary, Bias::Symmetric, 1), (binary, Bias::Symmetric, 7)]),
        ("symmetry", vec![(binary, Bias::Symmetric, 40), (binary, Bias::Affine, 40), (binary, Bias::Rounding, 40)]),
        (
            "bits",
            vec![
                (binary, Bias::Symmetric, 34),
                (affine(2, 128), Bias::Symmetric, 35),
                (affine(4, 64), Bias::Affine, 3),
            ],
        ),
        (
            "groups",
            vec![
                (affine(1, 32), Bias::Symmetric, 32),
                (binary, Bias::Symmetric, 32),
                (affine(1, 64), Bias::Affine, 32),
            ],
        ),
        (
            "dense member",
            vec![(binary, Bias::Symmetric, 48), (Format::BF16, Bias::Symmetric, 5), (binary, Bias::Symmetric, 48)],
        ),
        (
            "blocks",
            vec![
                (Format::Q1_0, Bias::Symmetric, 33),
                (Format::Ptq1_0, Bias::Symmetric, 31),
                (Format::Q8_0, Bias::Symmetric, 2),
            ],
        ),
    ];
    for (name, members) in sets {
        let formats = members.iter().map(|m| m.0).collect::<Vec<_>>();
        if suite.supported(formats.clone()).len() < formats.len() {
            continue;
        }
        for kind in suite.activations() {
            for counts in [&[1, 2, 12][..], &[150]] {
                members_as_one(suite, &format!("{name} {kind} up to {counts:?}"), &members, kind, counts);
            }
        }
    }
}

fn members_as_one(suite: &mut Suite<'_>, case: &str, members: &[Member], kind: Activations, counts: &[usize]) {
    let mut rng = suite.rng(case);
    let parts: Vec<Packed> =
        members.iter().map(|(f, b, rows)| weights::matrix(&mut rng, *f, *b, *rows, COLS)).collect();
    let parts: Vec<&Packed> = parts.iter().collect();
    let total: usize = parts.iter().map(|p| p.rows).sum();
    let most = counts[counts.len() - 1];
    let x = rows::activations(&mut rng, most, COLS);
    let sizes = (bucket(most, most), stateless());
    let twin = Twin::new(suite, case, sizes, |b| {
        let x = b.rows(&weights::dense(&x));
        let w = b.weight(&parts);
        let mut start = 0;
        for (i, part) in parts.iter().enumerate() {
            assert_eq!(w.part(i), start..start + part.rows, "{case}: rows of part {i}");
            start += part.rows;
        }
        let y = b.rec.linear(x, &w, kind);
        b.rec.output(y, "y");
    });
    // One by one, on the backend itself.
    let single = Session::new(suite.backend, case, sizes, |b| {
        let x = b.rows(&weights::dense(&x));
        for (i, part) in parts.iter().enumerate() {
            let w = b.weight(&[part]);
            let y = b.rec.linear(x, &w, kind);
            b.rec.output(y, &i.to_string());
        }
    });
    let exact = linear(&parts, &x, 0.0, kind);
    for &m in counts {
        let inputs = first(&(0..m).collect::<Vec<_>>());
        let (got, want) = twin.y(&inputs);
        suite.near(&format!("{case} M={m}"), &got, &want, &exact);
        let separate = single.step(&inputs);
        let joined: Vec<f32> = (0..m)
            .flat_map(|row| {
                parts
                    .iter()
                    .enumerate()
                    .flat_map(move |(i, part)| (0..part.rows).map(move |r| (i, row * part.rows + r)))
            })
            .map(|(i, at)| separate.values[&i.to_string()][at])
            .collect();
        suite.near(&format!("{case} M={m} against one by one"), &got, &joined, &exact);
        suite.require(case, got.len() == m * total, || "a part is missing".to_owned());
    }
}
