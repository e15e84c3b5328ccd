//! An image model: its parts, its scales and codes, and whether backends agree on a small picture of it.

use super::Findings;
use super::codes::Counts;
use crate::args::{ActivationsName, DoctorArgs};
use crate::backends::Candidate;
use crate::{image_model, load};
use anyhow::Result;
use onebit_engine::image::{ImageRequest, ImageSettings, Residency};
use onebit_models::image::{ImagePart, ImageSize, Named, transformer};
use onebit_ops::WeightSource;
use onebit_quant::Symmetry;
use std::ops::ControlFlow;
use std::path::Path;

/// Packed matrices of the published transformer, and their weights.
const MATRICES: usize = 100;
const PACKED: u64 = 3_680_501_760;
/// Width of the published transformer.
const WIDTH: usize = 3072;

/// Most that two pictures may differ in, in levels, with float activations: each lies within one of the exact picture.
const LEVELS: u8 = 2;

/// Checks the model in a folder.
pub(super) fn check(path: &Path, args: &DoctorArgs, candidates: &[Candidate], findings: &mut Findings) -> Result<()> {
    let folders = image_model::folders(path)?;
    let source = load::open_any(&folders.transformer, &args.run.files())?;
    let (facts, outline) = transformer::outline(&source)?;
    let named = Named::transformer(&source)?;
    let packed: Vec<_> = outline.parts.iter().filter(|p| p.format.is_packed()).collect();
    let weights: u64 = packed.iter().map(|p| p.rows as u64 * p.cols as u64).sum();
    findings.note(&format!("{}: {} packed matrices with {weights} weights", facts.format, packed.len()));
    if facts.hidden == WIDTH && !packed.is_empty() {
        findings.check(packed.len() == MATRICES, "packed matrices", packed.len());
        findings.check(weights == PACKED, "packed weights", weights);
    }
    let (mut affine, mut fourth) = (0, 0u64);
    for part in &packed {
        named.fetch(&part.tensor);
        if let Some(matrix) = named.matrix(&part.tensor)? {
            affine += usize::from(matrix.symmetry() == Symmetry::Affine);
            if part.format.bits() == 2 {
                let mut counts = Counts::default();
                counts.add(&matrix);
                fourth += counts.0[3];
            }
        }
        named.release(&part.tensor);
    }
    if !packed.is_empty() {
        findings.check(affine == 0, "scales and offsets of symmetric weights", format!("{affine} matrices are not"));
        findings.check(fourth == 0, "code 3, which ternary weights do not use", format!("found {fourth} times"));
    }
    pictures(path, args, candidates, findings)
}

/// The smallest picture in one step on every backend that runs image models, against the first that does.
fn pictures(path: &Path, args: &DoctorArgs, candidates: &[Candidate], findings: &mut Findings) -> Result<()> {
    let Some(size) = ImageSize::new(64, 64) else { return Ok(()) };
    let mut first: Option<(String, Vec<u8>)> = None;
    for candidate in candidates {
        // Scalar loops would take hours on a model of the published size.
        if candidate.name == "reference" && candidates.len() > 1 {
            continue;
        }
        if !candidate.backend.caps().images {
            findings.skip(format!("{}: it runs no image models; --backend cpu does", candidate.name));
            continue;
        }
        let mut options = args.run.clone();
        options.activations = ActivationsName::F32;
        let mut model = image_model::open(path, &options, candidate.backend.clone())?;
        let channels = model.facts().transformer.channels;
        let settings =
            ImageSettings { steps: 1, text_tokens: 64, residency: Residency::OneByOne, ..ImageSettings::new(size) };
        // Any numbers do; these have about the size of noise.
        let noise = (0..size.tokens() * channels).map(|i| 1.4 * (i as f32 * 1.7).sin()).collect();
        let request = ImageRequest { prompt: "a small tree".to_owned(), settings, noise };
        let picture = match model.generate(&request, &mut |_| ControlFlow::Continue(())) {
            Ok(picture) => picture,
            Err(error) => {
                findings.fail(format!("{}: {error}", candidate.name));
                continue;
            }
        };
        match &first {
            None => {
                findings.pass(format!("{}: a picture of {size} in {} parts", candidate.name, ImagePart::ALL.len()));
                first = Some((candidate.name.clone(), picture.rgb));
            }
            Some((name, rgb)) => {
                let worst = rgb.iter().zip(&picture.rgb).map(|(a, b)| a.abs_diff(*b)).max().unwrap_or(0);
                let found = format!("at most {worst} levels from {name}");
                findings.check(worst <= LEVELS, &format!("{}: the same picture", candidate.name), found);
            }
        }
    }
    Ok(())
}
