//! How each stored format lies on the device: which codes, which numbers beside them, and how many bytes.
//!
//! `shaders/README.md` draws the layouts; here are their sizes.

use onebit_quant::{Format, Matrix, ParamType, Residual, Symmetry};

/// Rows of a block of a weight.
pub(crate) const BLOCK_ROWS: usize = 32;

/// Columns of a record of a weight, and of an activation group.
pub(crate) const GROUP: usize = 128;

/// Bytes of a unit of codes.
pub(crate) const UNIT: usize = 16;

/// How the values of a weight are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Codes {
    /// Of so many bits, with a scale for every group.
    Packed { bits: u32, group: u32 },
    /// As numbers.
    Dense(ParamType),
}

/// What decides which kernel runs a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub codes: Codes,
    pub scale: ParamType,
    /// Stored type of the biases, where they are kept.
    pub bias: Option<ParamType>,
    /// Half of what the stored scale is multiplied by, as bits.
    factor: u32,
}

impl Shape {
    /// Packed codes with f16 scales and no biases.
    #[cfg(test)]
    pub(crate) fn of_symmetric(bits: u32, group: u32) -> Shape {
        let codes = Codes::Packed { bits, group };
        Shape { codes, scale: ParamType::F16, bias: None, factor: 0.5f32.to_bits() }
    }

    /// Half of what the stored scale is multiplied by.
    pub(crate) fn factor(self) -> f32 {
        f32::from_bits(self.factor)
    }

    /// `bits1`, `bits2-affine`, `dense-f16`, ...
    pub(crate) fn name(self) -> String {
        match (self.codes, self.bias) {
            (Codes::Dense(kind), _) => format!("dense-{}", kind.name().to_lowercase()),
            (Codes::Packed { bits, .. }, Some(_)) => format!("bits{bits}-affine"),
            (Codes::Packed { bits, .. }, None) => format!("bits{bits}"),
        }
    }

    /// Units of a row of `cols` weights: packed rows are padded to whole records of [`GROUP`] columns.
    pub(crate) fn units(self, cols: usize) -> usize {
        match self.codes {
            Codes::Packed { bits, .. } => cols.div_ceil(GROUP) * bits as usize,
            Codes::Dense(kind) => cols.div_ceil(UNIT / kind.bytes()),
        }
    }

    /// Groups of a row, padding counted; 0 for dense.
    pub(crate) fn groups(self, cols: usize) -> usize {
        match self.codes {
            Codes::Packed { group, .. } => cols.next_multiple_of(GROUP) / group as usize,
            Codes::Dense(_) => 0,
        }
    }
}

/// Rows of one uploaded matrix as they lie on the device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    pub shape: Shape,
    pub rows: usize,
    pub cols: usize,
    /// What rounded biases lack, by row and group.
    pub residuals: Vec<Residual>,
    /// Bytes of biases that are derived from now on.
    pub shed_bytes: u64,
}

impl Layout {
    /// The layout of a matrix, by the symmetry rule: a bias that follows from its scale is dropped, a few rounded ones
    /// become a sparse list, anything else is kept.
    pub(crate) fn of(matrix: &Matrix<'_>, symmetry: Symmetry) -> Layout {
        let format = matrix.format;
        let codes = match format.dense() {
            Some(kind) => Codes::Dense(kind),
            None => Codes::Packed { bits: format.bits() as u32, group: format.group() as u32 },
        };
        let mut shape = Shape { codes, scale: ParamType::F16, bias: None, factor: 0.5f32.to_bits() };
        let (mut residuals, mut shed_bytes) = (Vec::new(), 0);
        match format {
            Format::Affine { scale, bias, .. } => {
                shape.scale = scale;
                match symmetry {
                    Symmetry::Affine => shape.bias = Some(bias),
                    Symmetry::Exact => shed_bytes = matrix.biases.len() as u64,
                    Symmetry::Rounding(list) => {
                        shed_bytes = (matrix.biases.len() - list.len() * bias.bytes()) as u64;
                        residuals = list;
                    }
                }
            }
            Format::Q4_1 => shape.bias = Some(ParamType::F16),
            _ => {
                if let Some(block) = format.block() {
                    shape.factor = (block.scale_of_d / 2.0).to_bits();
                }
            }
        }
        Layout { shape, rows: matrix.rows, cols: matrix.cols, residuals, shed_bytes }
    }

    /// Blocks of rows.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(BLOCK_ROWS)
    }

    /// Bytes of one block's codes, scales and biases.
    pub(crate) fn block_bytes(&self) -> [usize; 3] {
        let numbers =
            |kind: Option<ParamType>| self.shape.groups(self.cols) * BLOCK_ROWS * kind.map_or(0, ParamType::bytes);
        [self.shape.units(self.cols) * BLOCK_ROWS * UNIT, numbers(Some(self.shape.scale)), numbers(self.shape.bias)]
    }

    /// Residuals of these blocks as the kernels read them: for each block where its own begin, and a place (row in the block,
    /// group above) and a value each.
    pub(crate) fn residual_words(&self, blocks: std::ops::Range<usize>) -> (Vec<u32>, Vec<u32>) {
        let before = |block: usize| self.residuals.partition_point(|r| r.row < block * BLOCK_ROWS);
        let start = before(blocks.start);
        let firsts = (blocks.start..=blocks.end).map(|block| (before(block) - start) as u32).collect();
        let place = |r: &Residual| (r.row % BLOCK_ROWS) as u32 | (r.group as u32) << BLOCK_ROWS.trailing_zeros();
        let list = &self.residuals[start..before(blocks.end)];
        (firsts, list.iter().flat_map(|r| [place(r), r.value.to_bits()]).collect())
    }
}
