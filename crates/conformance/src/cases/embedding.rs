//! Rows of a table in every stored format, of a table in two parts, and of one that is only looked up.

use crate::bound::UNIT;
use crate::check::Suite;
use crate::session::{Twin, bucket, first, stateless};
use crate::weights;
use onebit_quant::{Format, Packed};

const COLS: usize = 256;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for format in suite.supported(weights::all_formats()) {
        for &bias in weights::biases(format) {
            let name = format!("{format} {bias:?}");
            let mut rng = suite.rng(&name);
            let table = weights::matrix(&mut rng, format, bias, 67, COLS);
            lookup(suite, &name, &[&table], &[0, 66, 33, 0, 31, 32, 65]);
            look_up_only(suite, &name, &table, &[66, 0, 33]);
        }
    }
    for formats in [[Format::Q1_0, Format::Q8_0], [Format::BF16, weights::affine(2, 128)]] {
        if suite.supported(formats.to_vec()).len() == 2 {
            let name = format!("{} then {}", formats[0], formats[1]);
            let mut rng = suite.rng(&name);
            let parts = formats.map(|f| weights::matrix(&mut rng, f, weights::biases(f)[0], 40, COLS));
            lookup(suite, &name, &[&parts[0], &parts[1]], &[79, 40, 39, 0]);
        }
    }
}

fn lookup(suite: &mut Suite<'_>, name: &str, parts: &[&Packed], tokens: &[usize]) {
    let twin = Twin::new(suite, name, (bucket(8, 8), stateless()), |b| {
        let table = b.weight(parts);
        let x = b.rec.embed(&table);
        b.rec.output(x, "y");
    });
    let (got, want) = twin.y(&first(tokens));
    let sizes: Vec<Vec<f64>> = tokens.iter().map(|t| magnitudes(parts, *t)).collect();
    // A product and a sum, each rounded or fused.
    suite.within(name, COLS, &got, &want, |i| 3.0 * UNIT * sizes[i / COLS][i % COLS]);
}

/// A table that no product is made with.
fn look_up_only(suite: &mut Suite<'_>, name: &str, table: &Packed, tokens: &[usize]) {
    let name = format!("{name}, looked up only");
    let twin = Twin::new(suite, &name, (bucket(8, 8), stateless()), |b| {
        let table = b.table(table);
        let x = b.rec.embed(&table);
        b.rec.output(x, "y");
    });
    let (got, want) = twin.y(&first(tokens));
    let sizes: Vec<Vec<f64>> = tokens.iter().map(|t| magnitudes(&[table], *t)).collect();
    suite.within(&name, COLS, &got, &want, |i| 3.0 * UNIT * sizes[i / COLS][i % COLS]);
}

/// `|scale code| + |bias|` of each value of a row; zero where decoding is exact.
fn magnitudes(parts: &[&Packed], mut row: usize) -> Vec<f64> {
    let mut parts = parts.iter();
    let mut part = parts.next();
    while let Some(p) = part.filter(|p| row >= p.rows) {
        row -= p.rows;
        part = parts.next();
    }
    let matrix = part.map(|p| p.as_matrix()).unwrap_or_else(|| panic!("a token outside the table"));
    if !matches!(matrix.format, Format::Affine { .. } | Format::Q4_1) {
        return vec![0.0; matrix.cols];
    }
    let mut codes = vec![0u8; matrix.format.group()];
    (0..matrix.groups_per_row())
        .flat_map(|g| {
            let group = matrix.group(row, g, &mut codes);
            let size = |c: &u8| (f64::from(group.scale) * f64::from(*c)).abs() + f64::from(group.bias).abs();
            codes.iter().map(size).collect::<Vec<_>>()
        })
        .collect()
}
