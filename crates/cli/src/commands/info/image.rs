//! What an image model is and what a picture takes.

use super::text::parameters;
use crate::args::RunOptions;
use crate::image_model;
use crate::terminal::{BOLD, bytes, count, stdout_colours, styled};
use anyhow::Result;
use onebit_engine::image::{ImagePlan, ImageSettings, Residency};
use onebit_models::image::ImageSize;
use onebit_models::image::text_encoder::LAYERS;
use onebit_ops::Backend;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// Sides of the pictures that are planned, beside the model's own.
const SIDES: [usize; 3] = [512, 1024, 1536];

/// An image model, described.
#[derive(Debug, Serialize)]
pub(super) struct ImageFacts {
    pub(super) architecture: &'static str,
    pub(super) format: String,
    pub(super) parameters: u64,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) double_blocks: usize,
    pub(super) single_blocks: usize,
    pub(super) text_layers: usize,
    pub(super) text_hidden: usize,
    pub(super) text_tokens: usize,
    /// Bytes of each part's weights in memory.
    pub(super) parts: Vec<PartBytes>,
    pub(super) pictures: Vec<PictureRow>,
    pub(super) free: u64,
}

/// A part.
#[derive(Debug, Serialize)]
pub(super) struct PartBytes {
    pub(super) part: String,
    pub(super) weights: u64,
}

/// What a picture of a size takes.
#[derive(Debug, Serialize)]
pub(super) struct PictureRow {
    pub(super) size: String,
    /// Multiply-adds, four steps.
    pub(super) operations: u64,
    /// With all parts in memory.
    pub(super) peak: u64,
    /// With one at a time.
    pub(super) low_memory_peak: u64,
    pub(super) tiles: usize,
}

/// Describes the image model of a folder from its headers.
///
/// # Errors
/// A part that is missing or that this program does not run.
pub(super) fn describe(path: &Path, options: &RunOptions, backend: Arc<dyn Backend>) -> Result<ImageFacts> {
    let free = crate::backends::free_memory(&*backend)?;
    let model = image_model::open(path, options, backend)?;
    let facts = model.facts();
    let tokens = model.settings(model.usual_size()).text_tokens;
    let mut pictures = Vec::new();
    let mut parts = Vec::new();
    let own = model.usual_size();
    let others = SIDES.into_iter().filter_map(|side| ImageSize::new(side, side)).filter(|size| *size != own);
    for size in std::iter::once(own).chain(others) {
        let plan =
            |residency| -> Result<ImagePlan> { Ok(model.plan(&ImageSettings { residency, ..model.settings(size) })?) };
        let (all, one) = (plan(Residency::All)?, plan(Residency::OneByOne)?);
        pictures.push(PictureRow {
            size: size.to_string(),
            operations: all.operations(),
            peak: all.peak,
            low_memory_peak: one.peak,
            tiles: all.tiles,
        });
        parts = all.parts.iter().map(|p| PartBytes { part: p.part.to_string(), weights: p.weights }).collect();
    }
    let t = &facts.transformer;
    Ok(ImageFacts {
        architecture: t.architecture,
        format: t.format.clone(),
        parameters: t.parameters,
        hidden: t.hidden,
        heads: t.heads,
        double_blocks: t.double_blocks,
        single_blocks: t.single_blocks,
        text_layers: LAYERS,
        text_hidden: facts.text.hidden,
        text_tokens: tokens,
        parts,
        pictures,
        free,
    })
}

/// `28.3 T`, `5.7 G`.
fn operations(n: u64) -> String {
    if n >= 1_000_000_000_000 { format!("{:.1} T", n as f64 / 1e12) } else { format!("{:.1} G", n as f64 / 1e9) }
}

/// It on a terminal.
pub(super) fn render(f: &ImageFacts) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: String| {
        let label = styled(&format!("{label:<13}"), BOLD, stdout_colours());
        let _ = writeln!(out, "{label}{text}");
    };
    line(
        "architecture",
        format!(
            "{}: {} double and {} single blocks, width {}, {} heads",
            f.architecture,
            f.double_blocks,
            f.single_blocks,
            count(f.hidden as u64),
            f.heads
        ),
    );
    line("weights", format!("{} parameters, {}", parameters(f.parameters), f.format));
    line(
        "text",
        format!(
            "{} layers of width {}, prompts of up to {} tokens",
            f.text_layers,
            count(f.text_hidden as u64),
            f.text_tokens
        ),
    );
    for part in &f.parts {
        line("", format!("{:<14}{:>10} in memory", part.part, bytes(part.weights)));
    }
    for p in &f.pictures {
        let tiles = if p.tiles > 1 { format!(", decoded in {} tiles", p.tiles) } else { String::new() };
        line(
            "picture",
            format!(
                "{:<10}{:>10} with all parts in memory, {:>9} with --low-memory, {} multiply-adds in 4 steps{tiles}",
                p.size,
                bytes(p.peak),
                bytes(p.low_memory_peak),
                operations(p.operations)
            ),
        );
    }
    line("memory", format!("{} are free", bytes(f.free)));
    out
}
