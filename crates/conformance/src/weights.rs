//! Generators of weight matrices: every stored format, every kind of bias.

use crate::prng::Rng;
use onebit_quant::{Format, Packed, ParamType, pack, quantize};

/// How the biases of a matrix relate to its scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    /// Every bias follows from its scale.
    Symmetric,
    /// At most 1% of the groups deviate.
    Rounding,
    /// Scales and biases are independent.
    Affine,
}

/// Every stored format: the dense ones, the GGUF blocks, and MLX affine with every width, group and pair of types.
pub(crate) fn all_formats() -> Vec<Format> {
    let mut formats = vec![Format::F32, Format::F16, Format::BF16];
    formats.extend(onebit_quant::formats::BLOCKS.iter().map(|b| b.format));
    let types = [ParamType::F16, ParamType::BF16, ParamType::F32];
    for bits in [1, 2, 4, 8] {
        for group in [32, 64, 128] {
            for scale in types {
                formats.extend(types.map(|bias| Format::Affine { bits, group, scale, bias }));
            }
        }
    }
    formats
}

/// One format of each resident layout and group size, for the sweeps over shapes.
pub(crate) fn typical_formats() -> Vec<Format> {
    let mut formats = vec![Format::F32, Format::F16, Format::BF16];
    formats.extend(onebit_quant::formats::BLOCKS.iter().map(|b| b.format));
    formats.extend([affine(1, 128), affine(1, 32), affine(2, 128), affine(2, 64), affine(4, 64), affine(8, 32)]);
    formats
}

/// An MLX affine format with F16 scales and biases.
pub(crate) fn affine(bits: u8, group: u16) -> Format {
    Format::Affine { bits, group, scale: ParamType::F16, bias: ParamType::F16 }
}

/// The kinds of bias that a format can hold.
pub(crate) fn biases(format: Format) -> &'static [Bias] {
    match format {
        Format::Affine { bits: 1 | 2, .. } => &[Bias::Symmetric, Bias::Rounding, Bias::Affine],
        Format::Affine { .. } | Format::Q4_1 => &[Bias::Affine],
        _ => &[Bias::Symmetric],
    }
}

/// The bias that a symmetric group of scale 1 has, and the largest code.
fn code_range(format: Format) -> (f32, usize) {
    match (format, format.block()) {
        (Format::Affine { bits: 1, .. }, _) => (-0.5, 1),
        (Format::Affine { bits: 2, .. }, _) => (-1.0, 3),
        (Format::Affine { bits, .. }, _) => (-f32::from(1u16 << (bits - 1)), (1 << bits) - 1),
        (_, Some(block)) => (block.bias_of_d.unwrap_or(-8.0) / block.scale_of_d, usize::from(block.max_code)),
        _ => (0.0, 0),
    }
}

/// Rounds to a value that both parameter types of the format hold.
fn representable(format: Format, value: f32) -> f32 {
    match format {
        Format::Affine { scale, bias, .. } => scale.round(bias.round(scale.round(value))),
        _ => ParamType::F16.round(value),
    }
}

/// A random matrix: uniform codes; continuous scales of either sign, between 2^-7 and about 0.2 in magnitude.
pub(crate) fn matrix(rng: &mut Rng, format: Format, bias: Bias, rows: usize, cols: usize) -> Packed {
    if format.dense().is_some() {
        let values: Vec<f32> = rng.normals(rows * cols).iter().map(|v| v * 0.05).collect();
        return done(quantize(format, rows, cols, &values));
    }
    let (factor, max_code) = code_range(format);
    let groups = rows * cols / format.group();
    let codes: Vec<u8> = (0..rows * cols).map(|_| rng.below(max_code + 1) as u8).collect();
    let scales: Vec<f32> = (0..groups)
        .map(|_| {
            let size = 0.007_812_5 + 0.05 * rng.normal().abs();
            representable(format, if rng.below(8) == 0 { -size } else { size })
        })
        .collect();
    let mut biases: Vec<f32> = scales.iter().map(|s| s * factor).collect();
    match bias {
        Bias::Symmetric => {}
        Bias::Rounding => {
            // Far larger than a real rounding, so that a dropped residual is seen.
            for at in rng.permutation(groups).into_iter().take(groups / 100) {
                biases[at] = representable(format, biases[at] * 3.0);
            }
        }
        Bias::Affine => {
            biases.iter_mut().for_each(|b| *b = representable(format, *b + 0.1 * rng.normal()));
        }
    }
    done(pack(format, rows, cols, &codes, &scales, &biases))
}

/// A matrix whose weights are whole numbers: scale 1 (2 where a code step is two), symmetric.
pub(crate) fn whole_numbers(rng: &mut Rng, format: Format, rows: usize, cols: usize) -> Packed {
    let (factor, max_code) = code_range(format);
    let groups = rows * cols / format.group();
    let scale = if factor == -0.5 { 2.0 } else { 1.0 };
    let codes: Vec<u8> = (0..rows * cols).map(|_| rng.below(max_code + 1) as u8).collect();
    done(pack(format, rows, cols, &codes, &vec![scale; groups], &vec![scale * factor; groups]))
}

/// Plain f32 rows as a matrix, for tables of inputs.
pub(crate) fn dense(rows: &[Vec<f32>]) -> Packed {
    done(quantize(Format::F32, rows.len(), rows[0].len(), &rows.concat()))
}

/// The same weights, one f32 each.
pub(crate) fn dequantised(packed: &Packed) -> Packed {
    let matrix = packed.as_matrix();
    let mut row = vec![0.0; matrix.cols];
    let rows: Vec<Vec<f32>> = (0..matrix.rows)
        .map(|r| {
            matrix.decode_row(r, &mut row);
            row.clone()
        })
        .collect();
    dense(&rows)
}

fn done<E: std::fmt::Display>(result: Result<Packed, E>) -> Packed {
    result.unwrap_or_else(|e| panic!("a generator made what its format cannot hold: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_quant::Symmetry;

    #[test]
    fn every_format_and_bias_kind_is_made_as_asked() {
        let mut rng = Rng::new("weights");
        for format in all_formats() {
            for &bias in biases(format) {
                let symmetry = matrix(&mut rng, format, bias, 50, 384).as_matrix().symmetry();
                let right = match bias {
                    Bias::Symmetric => symmetry == Symmetry::Exact,
                    Bias::Rounding => matches!(symmetry, Symmetry::Rounding(_)),
                    Bias::Affine => symmetry == Symmetry::Affine,
                };
                assert!(right, "{format} {bias:?}: {symmetry:?}");
            }
        }
    }

    #[test]
    fn whole_numbers_are_whole() {
        let mut rng = Rng::new("whole");
        for format in all_formats().into_iter().filter(|f| f.is_packed()) {
            let mut row = vec![0.0; 128];
            whole_numbers(&mut rng, format, 1, 128).as_matrix().decode_row(0, &mut row);
            assert!(row.iter().all(|w| w.fract() == 0.0) && row.iter().any(|w| *w != 0.0), "{format}");
        }
    }
}
