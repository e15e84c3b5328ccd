//! Packed matrices on every backend against the scalar reference, at the shapes of real layers: a kernel may be wrong
//! only at a size that no small test has.
//!
//! The backend computes all rows; the reference computes a sample of them, which is independent of the others.

use super::Findings;
use super::random::{self, Random};
use crate::args::{ActivationsName, RunOptions};
use crate::backends::Candidate;
use crate::source::Source;
use anyhow::{Result, anyhow};
use onebit_models::outline;
use onebit_ops::reference::Reference;
use onebit_ops::{
    Activations, Backend, Bucket, CacheSpec, FormatSupport, KvFormat, KvSpec, OpError, PlanOptions, Recorder, Segment,
    StepInputs, UploadOptions, WeightSource, wait,
};
use onebit_quant::{Matrix, Packed};

/// Rows of the input: one for decoding, and numbers below and above the usual block sizes.
const BATCHES: [usize; 3] = [1, 4, 9];
/// Rows of each matrix that the reference computes.
const SAMPLE: usize = 24;
/// Largest error, as a share of the sum of all magnitudes of the products of one result: the rounding of a long f32 sum.
const BOUND: f64 = 8.0 / (1u64 << 24) as f64;

/// How one backend did on some matrices.
enum Verdict {
    /// Largest error over its bound.
    Error(f64),
    /// The backend has no kernel; the advice.
    Unsupported(String),
    /// It failed.
    Failed(OpError),
}

/// Matrices from a seed, at shapes like those of the 27B and with odd row counts.
pub(super) fn random_weights(
    candidates: &[Candidate],
    options: &RunOptions,
    bits: &[u8],
    group: u16,
    findings: &mut Findings,
) -> Result<()> {
    const SHAPES: [(usize, usize); 4] = [(1000, 5120), (517, 17_408), (48, 5120), (10_240, 640)];
    for &bits in bits {
        for offsets in [false, true] {
            let mut random = Random::new(u64::from(bits));
            let mut verdicts: Vec<Verdict> = candidates.iter().map(|_| Verdict::Error(0.0)).collect();
            for (rows, cols) in SHAPES {
                let matrix = random::affine(rows, cols, bits, group, offsets, &mut random);
                let new = compare(candidates, options, &[matrix.as_matrix()])?;
                verdicts = verdicts.into_iter().zip(new).map(|(old, new)| old.and(new)).collect();
            }
            let offsets = if offsets { "offsets of their own" } else { "symmetric" };
            let title = format!("{bits}-bit weights in groups of {group}, {offsets}, {} shapes", SHAPES.len());
            report(candidates, &title, verdicts, findings);
        }
    }
    Ok(())
}

/// One weight of every shape and format that a model has, fused as the model fuses it.
pub(super) fn model_weights(
    candidates: &[Candidate],
    options: &RunOptions,
    source: &Source,
    findings: &mut Findings,
) -> Result<()> {
    let (_, outline) = outline(source)?;
    let mut seen: Vec<Vec<(usize, usize, String)>> = Vec::new();
    let mut at = 0;
    while at < outline.parts.len() {
        let weight = &outline.parts[at].weight;
        let members: Vec<_> = outline.parts[at..].iter().take_while(|p| p.weight == *weight).collect();
        at += members.len();
        let signature: Vec<_> = members.iter().map(|p| (p.rows, p.cols, p.format.to_string())).collect();
        if seen.contains(&signature) {
            continue;
        }
        let mut parts = Vec::new();
        for member in &members {
            let found = source.matrix(&member.tensor)?;
            parts.push(found.ok_or_else(|| anyhow!("tensor `{}` has vanished", member.tensor))?);
        }
        let rows: usize = members.iter().map(|p| p.rows).sum();
        let mut formats: Vec<&str> = signature.iter().map(|(_, _, format)| format.as_str()).collect();
        formats.dedup();
        let title = format!("{weight}, {rows} x {}, {}", members[0].cols, formats.join(" + "));
        report(candidates, &title, compare(candidates, options, &parts)?, findings);
        members.iter().for_each(|m| source.release(&m.tensor));
        seen.push(signature);
    }
    Ok(())
}

impl Verdict {
    /// The worse of two.
    fn and(self, other: Verdict) -> Verdict {
        match (self, other) {
            (Verdict::Error(a), Verdict::Error(b)) => Verdict::Error(a.max(b)),
            (Verdict::Error(_), worse) | (worse, _) => worse,
        }
    }
}

/// One line for each backend but the reference.
fn report(candidates: &[Candidate], title: &str, verdicts: Vec<Verdict>, findings: &mut Findings) {
    for (candidate, verdict) in candidates.iter().zip(verdicts).filter(|(c, _)| c.name != "reference") {
        let label = format!("{}: {title}", candidate.name);
        match verdict {
            Verdict::Error(worst) => {
                findings.check(worst <= 1.0, &label, format!("largest error {worst:.2} of the bound"));
            }
            Verdict::Unsupported(advice) => findings.skip(format!("{label}: {advice}")),
            Verdict::Failed(error) => findings.fail(format!("{label}: {error}")),
        }
    }
}

/// Runs one weight everywhere, with the activations that were asked for, or with f32 and with each backend's own.
/// One verdict for each candidate.
fn compare(candidates: &[Candidate], options: &RunOptions, parts: &[Matrix<'_>]) -> Result<Vec<Verdict>> {
    let (slices, places) = sample(parts);
    let most = BATCHES[BATCHES.len() - 1];
    let input = random::dense(most, parts[0].cols, &mut Random::new(parts[0].cols as u64));
    let reference = Reference::new();
    let mut wanted: Vec<(Activations, Vec<f32>)> = Vec::new();
    let mut verdicts = Vec::new();
    for Candidate { name, backend } in candidates {
        let refusal = parts.iter().find_map(|p| match backend.format_support(p.format) {
            FormatSupport::Unsupported(advice) => Some(advice),
            FormatSupport::Kernel(_) => None,
        });
        if let Some(advice) = refusal {
            verdicts.push(Verdict::Unsupported(advice));
            continue;
        }
        let kinds = match options.activations {
            // The reference is not compared with itself.
            _ if name == "reference" => vec![],
            ActivationsName::Auto => vec![Activations::F32, backend.caps().default_activations],
            asked => vec![asked.resolve(Activations::F32)],
        };
        let upload = UploadOptions { keep_biases: options.keep_biases };
        let mut verdict = Verdict::Error(0.0);
        for kind in kinds {
            if !wanted.iter().any(|(k, _)| *k == kind) {
                wanted.push((kind, product(&reference, &slices, &input, most, kind, UploadOptions::default())?));
            }
            let Some((_, wanted)) = wanted.iter().find(|(k, _)| *k == kind) else { continue };
            let worst = worst(&**backend, parts, &input, (kind, upload), (&slices, &places, wanted));
            verdict = verdict.and(worst.map_or_else(Verdict::Failed, Verdict::Error));
        }
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

/// Some rows of each part, as matrices of one row, with their places in the fused result.
fn sample<'a>(parts: &[Matrix<'a>]) -> (Vec<Matrix<'a>>, Vec<usize>) {
    let (mut slices, mut places, mut first) = (Vec::new(), Vec::new(), 0);
    for part in parts {
        let count = SAMPLE.min(part.rows);
        for i in 0..count {
            // Both ends, and rows evenly between them.
            let row = if count == 1 { 0 } else { i * (part.rows - 1) / (count - 1) };
            slices.push(part.slice_rows(row..row + 1));
            places.push(first + row);
        }
        first += part.rows;
    }
    (slices, places)
}

/// The largest error over all batch sizes, in units of its bound.
fn worst(
    backend: &dyn Backend,
    parts: &[Matrix<'_>],
    input: &Packed,
    (kind, upload): (Activations, UploadOptions),
    (slices, places, wanted): (&[Matrix<'_>], &[usize], &[f32]),
) -> Result<f64, OpError> {
    let rows: usize = parts.iter().map(|p| p.rows).sum();
    let magnitudes = magnitudes(slices, input);
    let mut worst = 0.0f64;
    for batch in BATCHES {
        let got = product(backend, parts, input, batch, kind, upload)?;
        for b in 0..batch {
            for (s, place) in places.iter().enumerate() {
                let at = b * places.len() + s;
                let error = f64::from(got[b * rows + place]) - f64::from(wanted[at]);
                let share = error.abs() / (BOUND * magnitudes[at]).max(f64::MIN_POSITIVE);
                worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
            }
        }
    }
    Ok(worst)
}

/// Sum of the magnitudes of the products of every sampled result.
fn magnitudes(slices: &[Matrix<'_>], input: &Packed) -> Vec<f64> {
    let (x, cols) = (input.as_matrix(), input.cols);
    let mut weights = vec![vec![0.0f32; cols]; slices.len()];
    slices.iter().zip(&mut weights).for_each(|(slice, row)| slice.decode_row(0, row));
    let mut inputs = vec![0.0f32; cols];
    let mut out = Vec::with_capacity(input.rows * slices.len());
    for b in 0..input.rows {
        x.decode_row(b, &mut inputs);
        let sum = |w: &Vec<f32>| w.iter().zip(&inputs).map(|(w, x)| f64::from((w * x).abs())).sum::<f64>();
        out.extend(weights.iter().map(sum));
    }
    out
}

/// `x W^T` for the first `batch` rows of the input.
fn product(
    backend: &dyn Backend,
    parts: &[Matrix<'_>],
    input: &Packed,
    batch: usize,
    kind: Activations,
    upload: UploadOptions,
) -> Result<Vec<f32>, OpError> {
    let weight = backend.upload("probe", parts, upload)?;
    let table = backend.upload("input", &[input.as_matrix()], UploadOptions::default())?;
    let bucket = Bucket { rows: batch, logits: batch, context: batch };
    let mut recorder = Recorder::new(bucket);
    let x = recorder.embed(&table);
    let y = recorder.linear(x, &weight, kind);
    recorder.output(y, "y");
    let kv = KvSpec { layers: 0, heads: 0, dim: 0, pages: 0, format: KvFormat::F32 };
    let cache = backend.cache(CacheSpec { kv, state: None })?;
    let plan = backend.compile(recorder.finish(), &cache, PlanOptions::default())?;
    let segment = Segment { rows: 0..batch, slot: 0, pages: Vec::new(), past: 0, accepted: 0, speculative: false };
    let inputs = StepInputs {
        tokens: (0..batch as u32).collect(),
        positions: (0..batch as u32).map(|p| [p; 3]).collect(),
        segments: vec![segment],
        ..StepInputs::default()
    };
    let mut output = wait(backend, backend.run(&plan, inputs)?)?;
    Ok(output.values.remove("y").unwrap_or_default())
}
