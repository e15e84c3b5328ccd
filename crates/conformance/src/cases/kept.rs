//! A weight that was kept between runs is the weight that was uploaded, bit for bit; one that cannot be is refused.

use crate::check::Suite;
use crate::session::{Session, bucket, first, must, stateless};
use crate::{rows, weights};
use onebit_ops::{Activations, Backend, OpError, PIECE_ALIGN, Resident, SharedBytes, UploadOptions, Weight};
use onebit_quant::{Format, Matrix, Packed};
use std::sync::Arc;

const COLS: usize = 256;

pub(crate) fn run(suite: &mut Suite<'_>) {
    if suite.backend.layout().is_none() {
        return;
    }
    for format in suite.supported(weights::typical_formats()) {
        for &bias in weights::biases(format) {
            let case = format!("{format} {bias:?}");
            let parts = [35, 3].map(|rows| weights::matrix(&mut suite.rng(&case), format, bias, rows, COLS));
            round_trip(suite, &case, &parts);
        }
    }
    let mut rng = suite.rng("members");
    let mut part = |format: Format| weights::matrix(&mut rng, format, weights::biases(format)[0], 33, COLS);
    let parts = [Format::Q1_0, weights::affine(1, 128), Format::F32].map(&mut part);
    if suite.supported(parts.iter().map(|p| p.format).collect()).len() == parts.len() {
        round_trip(suite, "members of several layouts", &parts);
    }
}

fn round_trip(suite: &mut Suite<'_>, case: &str, parts: &[Packed]) {
    let matrices: Vec<Matrix<'_>> = parts.iter().map(Packed::as_matrix).collect();
    let new = must(case, suite.backend.upload("w", &matrices, UploadOptions::default()));
    let Some(resident) = suite.backend.resident(&new) else {
        return suite.require(case, false, || "a weight cannot be kept".to_owned());
    };
    let Resident { symmetry, data } = resident;
    let kept = stored(&data);
    let short = kept.slice(0..kept.len() - PIECE_ALIGN);
    let old = suite.backend.restore("w", &matrices, Resident { symmetry: symmetry.clone(), data: kept });
    let old = must(case, old);
    suite.require(case, old.info() == new.info(), || format!("{:?} became {:?}", new.info(), old.info()));
    for kind in suite.activations() {
        let x = rows::activations(&mut suite.rng(case), 3, COLS);
        let (got, want) = (product(suite.backend, case, &old, &x, kind), product(suite.backend, case, &new, &x, kind));
        suite.require(&format!("{case} {kind}"), got == want, || "other products than before".to_owned());
    }
    let refused = |result: Result<Weight, OpError>| matches!(result, Err(OpError::Kept { .. }));
    let fewer = Resident { symmetry: symmetry[1..].to_vec(), data: stored(&data) };
    let fewer = refused(suite.backend.restore("w", &matrices, fewer));
    suite.require(case, fewer, || "one part less is not refused".to_owned());
    if let Some(data) = short {
        let short = refused(suite.backend.restore("w", &matrices, Resident { symmetry, data }));
        suite.require(case, short, || "bytes that end too early are not refused".to_owned());
    }
}

/// Pieces one after another, as a file has them.
fn stored(pieces: &[&[u8]]) -> SharedBytes {
    let mut bytes = vec![0; PIECE_ALIGN];
    // The whole is as long as it will get before its place is looked at.
    bytes.reserve_exact(pieces.iter().map(|p| p.len() + PIECE_ALIGN).sum());
    let start = bytes.as_ptr().align_offset(PIECE_ALIGN);
    bytes.truncate(start);
    for piece in pieces {
        bytes.extend_from_slice(piece);
        bytes.resize(start + (bytes.len() - start).next_multiple_of(PIECE_ALIGN), 0);
    }
    let end = bytes.len();
    SharedBytes::new(Arc::new(bytes), start..end)
}

fn product(backend: &dyn Backend, case: &str, w: &Weight, x: &[Vec<f32>], kind: Activations) -> Vec<u32> {
    let session = Session::new(backend, case, (bucket(3, 3), stateless()), |b| {
        let x = b.rows(&weights::dense(x));
        let y = b.rec.linear(x, w, kind);
        b.rec.output(y, "y");
    });
    session.y(&first(&[0, 1, 2])).iter().map(|v| v.to_bits()).collect()
}
