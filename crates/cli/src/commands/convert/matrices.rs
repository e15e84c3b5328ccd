//! The format of a matrix in the other container. Codes keep their width; scales and offsets keep their values.

use anyhow::{Result, anyhow};
use onebit_quant::{Exactness, Format, Matrix, Packed, ParamType, QuantError, reencode};

/// A matrix in its new format.
pub(super) enum Rewritten {
    /// Its bytes are those of the source.
    Same,
    /// New bytes.
    New(Packed),
}

/// Groups whose offset moved by one subnormal step of binary16, counted over a conversion.
pub(super) type Moved = usize;

/// Formats of a GGUF file that may hold a matrix, best first.
fn gguf_formats(format: Format, group: u16) -> Vec<Format> {
    match format {
        Format::Affine { bits: 1, .. } => vec![Format::Q1_0],
        Format::Affine { bits: 2, .. } if group == 128 => vec![Format::Pq2_0],
        Format::Affine { bits: 2, .. } => vec![Format::Q2_0G64],
        Format::Affine { bits: 4, .. } => vec![Format::Q4_0, Format::Q4_1],
        Format::Affine { .. } => vec![Format::Q8_0],
        other => vec![other],
    }
}

/// Formats of an MLX pack that may hold a matrix, best first.
fn mlx_formats(format: Format) -> Vec<Format> {
    let affine = |bits, group| Format::Affine { bits, group, scale: ParamType::F16, bias: ParamType::F16 };
    let f32 = |bits, group| Format::Affine { bits, group, scale: ParamType::F32, bias: ParamType::F32 };
    match format {
        Format::Q1_0 => vec![affine(1, 128)],
        Format::Q2_0G64 => vec![affine(2, 128), affine(2, 64)],
        Format::Q2_0G128 | Format::Pq2_0 | Format::Ptq1_0 => vec![affine(2, 128)],
        Format::Q4_0 | Format::Q4_1 => vec![affine(4, 64), affine(4, 32), f32(4, 32)],
        Format::Q8_0 => vec![affine(8, 64), affine(8, 32), f32(8, 32)],
        other => vec![other],
    }
}

/// The format in GGUF where only one may hold such a matrix, so that nothing has to be tried.
pub(super) fn only_gguf_format(format: Format, group: u16) -> Option<Format> {
    only(&gguf_formats(format, group))
}

/// The format in an MLX pack where only one may hold such a matrix.
pub(super) fn only_mlx_format(format: Format) -> Option<Format> {
    only(&mlx_formats(format))
}

fn only(formats: &[Format]) -> Option<Format> {
    if let [format] = formats { Some(*format) } else { None }
}

/// Rewrites a matrix for GGUF. `group` is the wanted block of 2-bit codes, 64 or 128.
///
/// # Errors
/// Why no format holds it exactly.
pub(super) fn to_gguf(matrix: &Matrix<'_>, group: u16) -> Result<(Rewritten, Moved)> {
    first_exact(matrix, &gguf_formats(matrix.format, group), |why| {
        let advice = match matrix.format {
            Format::Affine { bits: 1, .. } => "GGUF's only 1-bit type has groups of 128 without offsets of their own",
            Format::Affine { bits: 2, .. } if group == 128 => {
                "GGUF's 2-bit type has no offsets of its own; a pack with groups of 64 needs --gguf-group 64"
            }
            Format::Affine { bits: 2, .. } => "GGUF's 2-bit type has groups of 64 without offsets of their own",
            _ => "no GGUF type stores such scales and offsets",
        };
        anyhow!("{} has no lossless form in GGUF: {why} ({advice})", matrix.format)
    })
}

/// Rewrites a matrix for an MLX pack.
///
/// # Errors
/// Why no format holds it exactly.
pub(super) fn to_mlx(matrix: &Matrix<'_>) -> Result<(Rewritten, Moved)> {
    first_exact(matrix, &mlx_formats(matrix.format), |why| {
        anyhow!("{} has no lossless form in an MLX pack: {why}", matrix.format)
    })
}

fn first_exact(
    matrix: &Matrix<'_>,
    formats: &[Format],
    refuse: impl Fn(QuantError) -> anyhow::Error,
) -> Result<(Rewritten, Moved)> {
    let mut last = None;
    for &format in formats {
        if format == matrix.format {
            return Ok((Rewritten::Same, 0));
        }
        match reencode(matrix, format, Exactness::AllowSubnormalStep) {
            Ok(done) => return Ok((Rewritten::New(done.matrix), done.moved)),
            Err(why) => last = Some(why),
        }
    }
    Err(refuse(last.unwrap_or(QuantError::NoConversion { from: Some(matrix.format), to: matrix.format })))
}

/// The smallest float type that holds every value exactly, with the bytes. `bf16` lets bfloat16 compete.
pub(super) fn smallest_float(values: &[f32], bf16: bool) -> (ParamType, Vec<u8>) {
    let exact = |kind: ParamType| values.iter().all(|&v| kind.round(v).to_bits() == v.to_bits());
    let kind = if exact(ParamType::F16) {
        ParamType::F16
    } else if bf16 && exact(ParamType::BF16) {
        ParamType::BF16
    } else {
        ParamType::F32
    };
    let mut bytes = Vec::with_capacity(values.len() * kind.bytes());
    values.iter().for_each(|&v| kind.write(v, &mut bytes));
    (kind, bytes)
}
