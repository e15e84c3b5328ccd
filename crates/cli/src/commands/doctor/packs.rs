//! Which published pack a model is, and what must hold for it.

use super::Findings;
use super::codes::Counts;
use crate::source::Source;
use crate::terminal;
use anyhow::Result;
use onebit_checkpoint::{Checkpoint, Container, StoredType};
use onebit_hub::packs::{Alphabet, PACKS, Pack, Support};
use onebit_models::{Facts, outline};
use onebit_ops::WeightSource;
use onebit_quant::{Format, ParamType, Symmetry};

/// What the tensor list of a published file holds.
struct Counted {
    short: &'static [&'static str],
    layers: usize,
    hidden: usize,
    /// Matrices of the language model.
    matrices: usize,
    /// Tensors of the MLX pack, without the vision tower.
    mlx: usize,
    gguf: usize,
}

const COUNTED: [Counted; 4] = [
    Counted { short: &["bonsai-1.7b", "ternary-1.7b"], layers: 28, hidden: 2048, matrices: 197, mlx: 704, gguf: 310 },
    Counted { short: &["bonsai-4b", "ternary-4b"], layers: 36, hidden: 2560, matrices: 253, mlx: 904, gguf: 398 },
    Counted { short: &["bonsai-8b", "ternary-8b"], layers: 36, hidden: 4096, matrices: 254, mlx: 907, gguf: 399 },
    // 48 blocks of 30 tensors, 16 of 25, embedding and head of 3, and the last norm.
    Counted { short: &["bonsai-27b", "ternary-27b"], layers: 64, hidden: 5120, matrices: 498, mlx: 1847, gguf: 851 },
];

/// Tensors of the vision tower in the 27B MLX packs.
const VISION_TENSORS: usize = 333;
/// F32 tensors of the 27B GGUF files.
const GGUF_F32: usize = 353;
/// Share of zeros among the codes of the ternary 27B.
const ZERO_SHARE: f64 = 0.297;
/// One step of a subnormal binary16: the most by which a 1-bit pack's offsets were rounded.
const ROUNDING: f32 = 6e-8;

/// The pack that these sizes belong to.
pub(super) fn recognise(facts: &Facts, bits: usize) -> Option<&'static Pack> {
    let counted = COUNTED.iter().find(|c| (c.layers, c.hidden) == (facts.layers, facts.hidden))?;
    PACKS.iter().find(|p| counted.short.contains(&p.short) && p.bits as usize == bits && p.support == Support::Text)
}

/// Checks the model's contents; returns the pack if it is a published one.
pub(super) fn check(source: &Source, findings: &mut Findings) -> Result<Option<&'static Pack>> {
    let (facts, parts) = outline(source)?;
    let checkpoint = source.checkpoint();
    let most = parts.parts.iter().max_by_key(|p| p.rows * p.cols);
    let bits = most.map_or(0, |p| p.format.bits());
    let codes = scales(source, &parts.parts, bits, findings)?;
    let Some(pack) = recognise(&facts, bits) else {
        findings.skip("no published Bonsai pack has these sizes, so there are no known answers");
        return Ok(None);
    };
    findings.note(&format!("its sizes are those of {}", pack.title));
    let Some(counted) = COUNTED.iter().find(|c| c.short.contains(&pack.short)) else { return Ok(None) };
    let equal = |findings: &mut Findings, name: &str, got: u64, wanted: u64| {
        findings.check(got == wanted, name, format!("{got}, {wanted} in the published pack"));
    };
    equal(findings, "matrices", parts.parts.len() as u64, counted.matrices as u64);
    let vision = checkpoint.tensors().filter(|t| t.name.starts_with("vision_tower.")).count();
    let all = checkpoint.tensors().len();
    let bytes: u64 = checkpoint.tensors().map(|t| t.bytes).sum();
    match checkpoint.container() {
        Container::Safetensors => {
            equal(findings, "tensors of the language model", (all - vision) as u64, counted.mlx as u64);
            if pack.arch == "qwen35" {
                equal(findings, "tensors of the vision tower", vision as u64, VISION_TENSORS as u64);
            }
            pack.mlx_bytes.into_iter().for_each(|wanted| equal(findings, "bytes of all tensors", bytes, wanted));
        }
        Container::Gguf => {
            equal(findings, "tensors", all as u64, counted.gguf as u64);
            if let Some((kind, wanted)) = pack.gguf
                && most.is_some_and(|p| matches_type(p.format, kind))
            {
                equal(findings, "bytes of all tensors", bytes, wanted);
            }
        }
    }
    if pack.arch == "qwen35" {
        hybrid(checkpoint, findings)?;
        if pack.alphabet == Alphabet::Ternary {
            let zeros = codes.share(1);
            let found = format!("{:.1}%, {:.1}% in the published pack", 100.0 * zeros, 100.0 * ZERO_SHARE);
            findings.check((zeros - ZERO_SHARE).abs() < 0.01, "zero weights", found);
        }
    }
    Ok(Some(pack))
}

fn matches_type(format: Format, kind: &str) -> bool {
    match kind {
        "Q1_0" => format == Format::Q1_0,
        // The released files are of the older kind under this name.
        "Q2_0" => format == Format::Q2_0G128,
        _ => false,
    }
}

/// What must hold for every 1-bit and 2-bit model: finite scales, offsets that follow, no fourth code.
fn scales(source: &Source, parts: &[onebit_models::Part], bits: usize, findings: &mut Findings) -> Result<Counts> {
    let bar = terminal::count_bar("reading weights", parts.len() as u64);
    let (mut counts, mut bad, mut affine, mut largest) = (Counts::default(), 0u64, 0usize, 0.0f32);
    for part in parts {
        let Some(matrix) = source.matrix(&part.tensor)? else { continue };
        bad += not_finite(&matrix);
        match (part.format.bits(), matrix.symmetry()) {
            (1, Symmetry::Rounding(residuals)) => {
                largest = residuals.iter().fold(largest, |m, r| m.max(r.value.abs()));
            }
            (1 | 2, Symmetry::Affine) => affine += 1,
            _ => {}
        }
        if part.format.bits() == 2 {
            counts.add(&matrix);
        }
        source.release(&part.tensor);
        bar.inc(1);
    }
    bar.finish_and_clear();
    findings.check(bad == 0, "scales and offsets that are no finite number", bad);
    let note = |affine: usize| format!("{affine} of {} matrices", parts.len());
    if bits == 1 || bits == 2 {
        // Not a fault by itself: packs of other makers may be affine. The Bonsai packs are not.
        findings.note(&format!("offsets that do not follow from the scales: {}", note(affine)));
    }
    if bits == 1 && largest > 0.0 {
        findings.check(
            largest <= ROUNDING,
            "largest rounding of an offset",
            format!("{largest:.1e}, at most {ROUNDING:.0e} in the published packs"),
        );
    }
    if bits == 2 {
        let three = counts.0[3];
        findings.check(three == 0, "uses of the fourth code", format!("{three}, none in a ternary pack"));
    }
    Ok(counts)
}

/// Scales, offsets or dense values that are no finite number.
fn not_finite(matrix: &onebit_quant::Matrix<'_>) -> u64 {
    let count = |kind: ParamType, data: &[u8]| {
        let mut values = vec![0.0; data.len() / kind.bytes()];
        kind.read_all(data, &mut values);
        values.iter().filter(|v| !v.is_finite()).count() as u64
    };
    match matrix.format {
        Format::Affine { scale, bias, .. } => count(scale, matrix.scales) + count(bias, matrix.biases),
        format => match format.dense() {
            Some(kind) => count(kind, matrix.codes),
            None => {
                let mut codes = [0u8; onebit_quant::MAX_GROUP];
                let groups = (0..matrix.rows).flat_map(|r| (0..matrix.groups_per_row()).map(move |g| (r, g)));
                groups.filter(|&(r, g)| !matrix.group(r, g, &mut codes).scale.is_finite()).count() as u64
            }
        },
    }
}

/// What must hold for the 27B.
fn hybrid(checkpoint: &Checkpoint, findings: &mut Findings) -> Result<()> {
    let gguf = checkpoint.container() == Container::Gguf;
    let (norm, conv, shape) = if gguf {
        ("blk.0.attn_norm.weight", "blk.0.ssm_conv1d.weight", vec![10_240, 4])
    } else {
        (
            "language_model.model.layers.0.input_layernorm.weight",
            "language_model.model.layers.0.linear_attn.conv1d.weight",
            vec![10_240, 4, 1],
        )
    };
    if let Some((_, values)) = checkpoint.dense(norm)? {
        let mean = values.iter().sum::<f32>() / values.len().max(1) as f32;
        findings.check(
            (0.3..3.0).contains(&mean),
            "mean of the first norm gain",
            format!("{mean:.3}, near 1 in a converted pack"),
        );
    }
    if let Some(tensor) = checkpoint.tensor(conv) {
        findings.check(
            tensor.shape == shape,
            "shape of the convolution",
            format!("{:?}, {shape:?} in the published pack", tensor.shape),
        );
    }
    if gguf {
        let f32 = checkpoint.tensors().filter(|t| t.stored == StoredType::Float(ParamType::F32)).count();
        findings.check(f32 == GGUF_F32, "F32 tensors", format!("{f32}, {GGUF_F32} in the published file"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_models::KvShape;

    #[test]
    fn packs_by_their_sizes() {
        let facts = |layers, hidden| Facts {
            architecture: "qwen3",
            layers,
            hidden,
            vocab: 1,
            context: 1,
            kv: KvShape { layers, heads: 1, dim: 1 },
            state: None,
            parameters: 0,
        };
        let name = |layers, hidden, bits| recognise(&facts(layers, hidden), bits).map(|p| p.short);
        assert_eq!(name(28, 2048, 1), Some("bonsai-1.7b"));
        assert_eq!(name(64, 5120, 2), Some("ternary-27b"));
        assert_eq!(name(36, 4096, 4), None);
        assert_eq!(name(3, 256, 1), None);
    }

    #[test]
    fn counts_follow_from_the_layers() {
        for c in COUNTED {
            let tied = c.hidden <= 2560;
            let ends = if tied { 1 } else { 2 };
            if c.layers != 64 {
                assert_eq!(c.matrices, 7 * c.layers + ends);
                assert_eq!(c.mlx, 3 * c.matrices + 4 * c.layers + 1);
                assert_eq!(c.gguf, 11 * c.layers + ends + 1);
            } else {
                assert_eq!(c.matrices, 48 * 8 + 16 * 7 + 2);
                assert_eq!(c.mlx, 48 * 30 + 16 * 25 + 7);
                assert_eq!(c.gguf, 48 * 14 + 16 * 11 + 3);
            }
        }
    }
}
