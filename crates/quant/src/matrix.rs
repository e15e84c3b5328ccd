//! A weight matrix as it lies in a file: borrowed bytes and the one way to read them.

use std::ops::Range;

use crate::error::QuantError;
use crate::float::f16_to_f32;
use crate::format::Format;
use crate::formats::affine;

/// Largest native group of any format; a buffer of this many codes fits every [`Matrix::group`].
pub const MAX_GROUP: usize = 128;

/// One weight matrix, rows = outputs, cols = inputs, row-major, borrowed from a file at any alignment.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// How the bytes are to be read.
    pub format: Format,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// MLX code words, GGUF blocks, or dense values.
    pub codes: &'a [u8],
    /// MLX scales, `[rows, cols / group]`; empty for every other format.
    pub scales: &'a [u8],
    /// MLX biases, `[rows, cols / group]`; empty for every other format.
    pub biases: &'a [u8],
}

/// The two numbers of a group: `w = scale * code + bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// Multiplier of the code.
    pub scale: f32,
    /// Weight of code 0.
    pub bias: f32,
}

impl<'a> Matrix<'a> {
    /// Checks that every part has exactly the length that format and shape ask for.
    ///
    /// # Errors
    /// [`QuantError::Columns`], [`QuantError::Overflow`] or [`QuantError::Length`].
    pub fn new(
        format: Format,
        rows: usize,
        cols: usize,
        codes: &'a [u8],
        scales: &'a [u8],
        biases: &'a [u8],
    ) -> Result<Self, QuantError> {
        if let Format::Affine { bits, group, scale, bias } = format {
            // The variant's fields are public, so a value may not have passed through the constructor.
            Format::affine(u32::from(bits), u32::from(group), scale, bias)?;
        }
        let (scale_row, bias_row) = format.param_row_bytes(cols)?;
        for (part, data, row) in
            [("codes", codes, format.row_bytes(cols)?), ("scales", scales, scale_row), ("biases", biases, bias_row)]
        {
            let wanted = row.checked_mul(rows).ok_or(QuantError::Overflow { rows, cols })?;
            if data.len() != wanted {
                return Err(QuantError::Length { format, part, wanted, got: data.len() });
            }
        }
        Ok(Self { format, rows, cols, codes, scales, biases })
    }

    /// Groups per row; 0 for dense formats, which have none.
    #[must_use]
    pub fn groups_per_row(&self) -> usize {
        if self.format.is_packed() { self.cols / self.format.group() } else { 0 }
    }

    /// Stored bytes, all parts together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.biases.len()
    }

    /// The rows `range` as a matrix of their own, sharing the bytes.
    ///
    /// # Panics
    /// When the range does not lie inside the matrix.
    #[must_use]
    pub fn slice_rows(&self, range: Range<usize>) -> Matrix<'a> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let cut = |data: &'a [u8]| {
            let row = data.len() / self.rows.max(1);
            &data[range.start * row..range.end * row]
        };
        Matrix {
            rows: range.len(),
            codes: cut(self.codes),
            scales: cut(self.scales),
            biases: cut(self.biases),
            ..*self
        }
    }

    /// Bytes of one row of the codes part.
    fn code_row(&self, row: usize) -> &'a [u8] {
        let bytes = self.codes.len() / self.rows;
        &self.codes[row * bytes..(row + 1) * bytes]
    }

    /// Unpacks the codes of group `g` of `row` to the start of `codes` and returns the group's numbers.
    ///
    /// # Panics
    /// For dense formats, for a row or group outside the matrix, and when `codes` is shorter than the group.
    pub fn group(&self, row: usize, g: usize, codes: &mut [u8]) -> Group {
        assert!(row < self.rows && g < self.groups_per_row(), "group {g} of row {row} in {self:?}");
        let codes = &mut codes[..self.format.group()];
        let data = self.code_row(row);
        if let Format::Affine { bits, .. } = self.format {
            affine::read_codes(bits, &data[g * codes.len() * usize::from(bits) / 8..], codes);
            return self.affine_params(row, g);
        }
        let Some(block) = self.format.block() else { unreachable!("dense formats have no groups") };
        let params = (block.read)(&data[g * block.bytes..(g + 1) * block.bytes], codes);
        let d = f16_to_f32(params.d);
        Group {
            scale: block.scale_of_d * d,
            bias: block.bias_of_d.map_or_else(|| f16_to_f32(params.m), |factor| factor * d),
        }
    }

    /// Scale and bias of an MLX group.
    pub(crate) fn affine_params(&self, row: usize, g: usize) -> Group {
        let Format::Affine { group, scale, bias, .. } = self.format else {
            unreachable!("only MLX affine stores both numbers")
        };
        let at = row * (self.cols / usize::from(group)) + g;
        Group { scale: scale.read(self.scales, at), bias: bias.read(self.biases, at) }
    }

    /// Decodes one row to f32: `scale * code + bias`, a product and a sum, each rounded once; dense values are
    /// widened. For every format except MLX affine and `Q4_1` the result is exact.
    ///
    /// # Panics
    /// When the row lies outside the matrix or `out` is not exactly `cols` long.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "one f32 per column");
        if let Some(dense) = self.format.dense() {
            return dense.read_all(self.code_row(row), out);
        }
        let mut codes = [0u8; MAX_GROUP];
        let size = self.format.group();
        for (g, out) in out.chunks_exact_mut(size).enumerate() {
            let Group { scale, bias } = self.group(row, g, &mut codes);
            for (w, &code) in out.iter_mut().zip(&codes) {
                *w = scale * f32::from(code) + bias;
            }
        }
    }
}
