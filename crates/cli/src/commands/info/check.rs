//! `--check`: the symmetry of every packed matrix, from its scales and offsets.

use crate::source::{Headers, Source};
use crate::terminal;
use anyhow::Result;
use onebit_models::outline;
use onebit_quant::{Format, Symmetry};
use serde::Serialize;

/// Packed matrices by their symmetry.
#[derive(Debug, Default, Serialize)]
pub(super) struct Check {
    /// Offsets follow from the scales.
    pub(super) symmetric: usize,
    /// At most 1% of the groups deviate, by a rounding.
    pub(super) rounding_only: usize,
    pub(super) rounding_groups: usize,
    /// Offsets are needed as stored.
    pub(super) affine: usize,
    /// Without offsets in the file.
    pub(super) without_offsets: usize,
    /// Bytes of offsets that need not stay in memory.
    pub(super) shed_bytes: u64,
    /// Bytes of offsets in all.
    pub(super) offset_bytes: u64,
    /// Largest deviation from the rule.
    pub(super) largest_residual: f32,
    /// The matrices that deviate.
    pub(super) deviating: Vec<String>,
}

/// Longest list of deviating matrices.
const LISTED: usize = 20;

/// Reads the scales of every packed matrix that a text run loads.
pub(super) fn read(source: &Source) -> Result<Check> {
    let checkpoint = source.checkpoint();
    let (_, outline) = outline(&Headers(checkpoint))?;
    let bar = terminal::count_bar("reading scales", outline.parts.len() as u64);
    let mut check = Check::default();
    for part in outline.parts.iter().filter(|p| p.format.is_packed()) {
        let base = &part.tensor;
        let Some(matrix) = checkpoint.matrix(base)? else { continue };
        let offsets = matrix.biases.len() as u64;
        check.offset_bytes += offsets;
        match matrix.symmetry() {
            Symmetry::Exact if matches!(matrix.format, Format::Affine { .. }) => {
                check.symmetric += 1;
                check.shed_bytes += offsets;
            }
            Symmetry::Exact => check.without_offsets += 1,
            Symmetry::Rounding(residuals) => {
                check.rounding_only += 1;
                check.rounding_groups += residuals.len();
                check.shed_bytes += offsets;
                let largest = residuals.iter().fold(0.0f32, |m, r| m.max(r.value.abs()));
                check.largest_residual = check.largest_residual.max(largest);
                check.note(format!("{base}: {} groups by at most {largest:.1e}", residuals.len()));
            }
            Symmetry::Affine => {
                check.affine += 1;
                check.note(format!("{base}: affine ({})", matrix.format));
            }
        }
        checkpoint.release(&format!("{base}.scales"));
        checkpoint.release(&format!("{base}.biases"));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(check)
}

impl Check {
    fn note(&mut self, line: String) {
        if self.deviating.len() < LISTED {
            self.deviating.push(line);
        }
    }
}
