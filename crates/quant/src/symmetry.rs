//! The symmetry rule: when a stored bias carries no information and may be dropped.
//!
//! A binary weight is `s * (2 bit - 1)` and a ternary one `s * (code - 1)`, so the bias of an MLX group should be
//! `-scale/2` or `-scale`. What is left over is the residual
//!
//! ```text
//! 1 bit:  r = bias + scale/2        2 bit:  r = bias + scale
//! ```
//!
//! Packs store binary16 numbers, so where `scale/2` is subnormal the bias was rounded and r is one such rounding;
//! the published 27B has a handful of these groups. A kernel adds `r * sum(x)` for them, which is exact.

use crate::format::{Format, ParamType};
use crate::matrix::Matrix;

/// Residual of one group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Residual {
    /// Row of the matrix.
    pub row: usize,
    /// Group inside the row.
    pub group: usize,
    /// `bias + scale/2` (1 bit) or `bias + scale` (2 bit).
    pub value: f32,
}

/// What a matrix needs besides codes and scales.
#[derive(Debug, Clone, PartialEq)]
pub enum Symmetry {
    /// Every bias follows from its scale (always so for the GGUF formats that store `d` alone, and for dense).
    Exact,
    /// At most 1% of the groups deviate, listed in row and group order.
    Rounding(Vec<Residual>),
    /// The biases are needed as stored.
    Affine,
}

impl Matrix<'_> {
    /// Applies the symmetry rule. Reads only scales and biases, never the codes.
    ///
    /// A 1-bit or 2-bit MLX matrix is [`Symmetry::Exact`] when all residuals are zero (of either sign),
    /// [`Symmetry::Rounding`] when at most 1% are not, else [`Symmetry::Affine`]. A residual that is not finite
    /// makes the matrix affine: nothing may be derived from such numbers. 4-bit and 8-bit MLX and `Q4_1` are affine.
    #[must_use]
    pub fn symmetry(&self) -> Symmetry {
        let factor = match self.format {
            Format::Affine { bits: 1, .. } => 0.5,
            Format::Affine { bits: 2, .. } => 1.0,
            Format::Affine { .. } | Format::Q4_1 => return Symmetry::Affine,
            _ => return Symmetry::Exact,
        };
        let groups = self.groups_per_row();
        let limit = self.rows * groups / 100;
        let mut residuals = Vec::new();
        let halved = factor == 0.5;
        for row in 0..self.rows {
            if self.follows(row, halved) {
                continue;
            }
            for group in 0..groups {
                let params = self.affine_params(row, group);
                let value = params.bias + factor * params.scale;
                if value != 0.0 {
                    if residuals.len() == limit || !value.is_finite() {
                        return Symmetry::Affine;
                    }
                    residuals.push(Residual { row, group, value });
                }
            }
        }
        if residuals.is_empty() { Symmetry::Exact } else { Symmetry::Rounding(residuals) }
    }

    /// Whether the bits of a row's biases show that all residuals are zero; false where they do not tell. A quick look
    /// for the usual case: a bias is the scale with the other sign, and where it is half of it one exponent lower.
    fn follows(&self, row: usize, halved: bool) -> bool {
        let (least, step, limit) = match self.format {
            Format::Affine { scale: ParamType::F16, bias: ParamType::F16, .. } => (0x0800, 0x0400, 0x7c00),
            Format::Affine { scale: ParamType::BF16, bias: ParamType::BF16, .. } => (0x0100, 0x0080, 0x7f80),
            _ => return false,
        };
        let step = if halved { step } else { 0 };
        let bytes = 2 * self.groups_per_row();
        let row = row * bytes..(row + 1) * bytes;
        let (scales, biases) = (self.scales[row.clone()].as_chunks::<2>().0, self.biases[row].as_chunks::<2>().0);
        // No early end, so that the loop is one of vector instructions.
        scales.iter().zip(biases).fold(true, |all, (scale, bias)| {
            let (scale, bias) = (u16::from_le_bytes(*scale), u16::from_le_bytes(*bias));
            // Both numbers must be normal.
            let normal = (scale & 0x7fff) >= least && (scale & 0x7fff) < limit;
            all & normal & (bias == (scale ^ 0x8000).wrapping_sub(step))
        })
    }
}
