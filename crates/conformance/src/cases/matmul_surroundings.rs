//! What lies around the operands does not matter: weight bytes at odd addresses inside poison, input columns between
//! columns that are not numbers, neighbouring rows that are not numbers. Nor does it matter whether offsets are kept.

use crate::bound::linear::linear;
use crate::check::Suite;
use crate::session::{bucket, first, must, stateless};
use crate::{rows, weights};
use onebit_ops::{Activations, Backend, OpError, PlanOptions, Recorder, UploadOptions, wait};
use onebit_quant::{Format, Matrix, Packed};

const ROWS: usize = 35;
const BEFORE: usize = 3;
const AFTER: usize = 6;

pub(crate) fn run(suite: &mut Suite<'_>) {
    for format in suite.supported(weights::typical_formats()) {
        let widths: &[usize] = if format.is_packed() { &[128, 384] } else { &[5, 130] };
        for &cols in widths {
            for kind in suite.activations() {
                if kind == Activations::F32 || format.is_packed() {
                    surrounded(suite, format, cols, kind);
                }
            }
        }
    }
}

fn surrounded(suite: &mut Suite<'_>, format: Format, cols: usize, kind: Activations) {
    let case = format!("{format} {kind} K={cols}");
    let mut rng = suite.rng(&case);
    let w = weights::matrix(&mut rng, format, weights::biases(format)[0], ROWS, cols);
    let mut x = rows::activations(&mut rng, 5, cols);
    let exact = linear(&[&w], &x, 0.0, kind);
    x[2].fill(f32::NAN);
    let table: Vec<Vec<f32>> =
        x.iter().map(|row| [&[f32::NAN; BEFORE], row.as_slice(), &[f32::NAN; AFTER]].concat()).collect();
    let want = must(&case, product(suite.reference, &w, &table, kind, UploadOptions::default()));
    for keep_biases in [false, true] {
        let got = must(&case, product(suite.backend, &w, &table, kind, UploadOptions { keep_biases }));
        for row in [0, 1, 3, 4] {
            let at = row * ROWS..(row + 1) * ROWS;
            let case = format!("{case} row {row} keep_biases {keep_biases}");
            suite.near(&case, &got[at.clone()], &want[at], &exact[row..=row]);
        }
    }
}

fn product(
    backend: &dyn Backend,
    w: &Packed,
    table: &[Vec<f32>],
    kind: Activations,
    options: UploadOptions,
) -> Result<Vec<f32>, OpError> {
    let [codes, scales, biases] = [&w.codes, &w.scales, &w.biases].map(|bytes| poisoned(bytes));
    let inner = |bytes: &'_ [u8], len: usize| 1..1 + len.min(bytes.len());
    let matrix = Matrix::new(
        w.format,
        w.rows,
        w.cols,
        &codes[inner(&codes, w.codes.len())],
        &scales[inner(&scales, w.scales.len())],
        &biases[inner(&biases, w.biases.len())],
    )?;
    let weight = backend.upload("surrounded", &[matrix], options)?;
    let table = weights::dense(table);
    let table = backend.upload("table", &[table.as_matrix()], UploadOptions::default())?;
    let mut rec = Recorder::new(bucket(5, 5));
    let x = rec.embed(&table).columns(BEFORE..BEFORE + w.cols);
    let y = rec.linear(x, &weight, kind);
    rec.output(y, "y");
    let cache = backend.cache(stateless())?;
    let plan = backend.compile(rec.finish(), &cache, PlanOptions::default())?;
    let output = wait(backend, backend.run(&plan, first(&[0, 1, 2, 3, 4]))?)?;
    Ok(crate::session::take("surrounded", output, "y"))
}

/// The bytes from index 1 on, all else 0xff: NaN in every float type.
fn poisoned(bytes: &[u8]) -> Vec<u8> {
    [&[0xff], bytes, &[0xff; 256]].concat()
}
