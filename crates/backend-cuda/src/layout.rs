//! How each stored format lies on the device: which codes, which numbers beside them, and how many bytes.
//!
//! `kernels/README.md` draws the layouts; here are their sizes.

use crate::params::{self, BLOCK_ROWS, Codes, GROUP, param_type};
use onebit_quant::{Format, Matrix, ParamType, Residual, Symmetry};

/// Rows of one uploaded matrix as they lie on the device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    pub codes: Codes,
    /// Columns that share a scale; 0 for dense.
    pub group: usize,
    pub rows: usize,
    pub cols: usize,
    pub scale: ParamType,
    /// Stored type of the biases, where they are kept.
    pub bias: Option<ParamType>,
    /// Half of what the stored scale is multiplied by.
    pub factor: f32,
    /// Twice the code whose weight is zero.
    pub center: u32,
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
        let (codes, center) = match (format.dense(), format.bits()) {
            (Some(ParamType::F16), _) => (Codes::DenseF16, 0),
            (Some(ParamType::BF16), _) => (Codes::DenseBf16, 0),
            (Some(ParamType::F32), _) => (Codes::DenseF32, 0),
            (None, 1) => (Codes::Bits1, 1),
            (None, 2) => (Codes::Bits2, 2),
            (None, 4) => (Codes::Bits4, 16),
            (None, _) => (Codes::Bits8, 256),
        };
        let mut layout = Layout {
            codes,
            group: if codes.is_packed() { format.group() } else { 0 },
            rows: matrix.rows,
            cols: matrix.cols,
            scale: ParamType::F16,
            bias: None,
            factor: 0.5,
            center,
            residuals: Vec::new(),
            shed_bytes: 0,
        };
        match format {
            Format::Affine { scale, bias, .. } => {
                layout.scale = scale;
                match symmetry {
                    Symmetry::Affine => layout.bias = Some(bias),
                    Symmetry::Exact => layout.shed_bytes = matrix.biases.len() as u64,
                    Symmetry::Rounding(residuals) => {
                        layout.shed_bytes = (matrix.biases.len() - residuals.len() * bias.bytes()) as u64;
                        layout.residuals = residuals;
                    }
                }
            }
            Format::Q4_1 => layout.bias = Some(ParamType::F16),
            _ => {
                if let Some(block) = format.block() {
                    layout.factor = block.scale_of_d / 2.0;
                }
            }
        }
        layout
    }

    /// Whether a weight is its code's distance from the center times a scale of a whole record, whose product with 1.5 * 2^23
    /// is exact.
    pub(crate) fn is_plain(&self) -> bool {
        let short = self.scale != ParamType::F32 && (self.factor == 0.5 || self.factor == 1.0);
        self.group == GROUP && self.bias.is_none() && short
    }

    /// Whether codes are of four bits, with scales and biases of 16 bits for each half of a record.
    pub(crate) fn is_affine_half(&self) -> bool {
        let short = |kind| kind != ParamType::F32;
        self.codes == Codes::Bits4 && 2 * self.group == GROUP && short(self.scale) && self.bias.is_some_and(short)
    }

    /// Blocks of rows.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(BLOCK_ROWS)
    }

    /// Units of a row, padding counted.
    pub(crate) fn units(&self) -> usize {
        self.codes.units(self.cols)
    }

    /// Groups of a row, padding counted; 0 for dense.
    pub(crate) fn groups(&self) -> usize {
        self.cols.next_multiple_of(GROUP).checked_div(self.group).unwrap_or(0)
    }

    /// Bytes of one block's codes, scales and biases.
    pub(crate) fn block_bytes(&self) -> [usize; 3] {
        let numbers = |kind: Option<ParamType>| self.groups() * BLOCK_ROWS * kind.map_or(0, ParamType::bytes);
        [self.units() * BLOCK_ROWS * UNIT, numbers(Some(self.scale)), numbers(self.bias)]
    }

    /// Pieces of the part: codes, scales, biases, ranges of the residuals, residuals.
    pub(crate) fn pieces(&self) -> [usize; 5] {
        let [codes, scales, biases] = self.block_bytes().map(|bytes| bytes * self.blocks());
        let residuals = self.residuals.len();
        let firsts = if residuals == 0 { 0 } else { self.blocks() + 1 };
        [codes, scales, biases, firsts * size_of::<u32>(), residuals * size_of::<params::Residual>()]
    }

    /// The residuals as the kernels read them: for each block where its own begin, and all of them.
    pub(crate) fn residual_lists(&self) -> (Vec<u32>, Vec<params::Residual>) {
        if self.residuals.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let first = |block: usize| self.residuals.partition_point(|r| r.row < block * BLOCK_ROWS) as u32;
        let one = |r: &Residual| params::Residual {
            place: (r.row % BLOCK_ROWS) as u32 | (r.group as u32) << BLOCK_ROWS.trailing_zeros(),
            value: r.value,
        };
        ((0..=self.blocks()).map(first).collect(), self.residuals.iter().map(one).collect())
    }

    /// What the kernels are told of the part, whose pieces lie at these addresses.
    pub(crate) fn part(&self, first_row: usize, pieces: [params::Address; 5]) -> params::Part {
        let [codes, scales, biases, residual_first, residuals] = pieces;
        params::Part {
            codes,
            scales,
            biases,
            residual_first,
            residuals,
            rows: self.rows as u32,
            first_row: first_row as u32,
            first_block: 0,
            format: self.codes as u32,
            group: self.group as u32,
            groups: self.groups() as u32,
            units: self.units() as u32,
            scale_type: kind(self.scale),
            bias_type: kind(self.bias.unwrap_or(self.scale)),
            factor: self.factor,
            center: self.center,
            reserved: 0,
        }
    }

    /// `bits1`, `bits2-affine`, `dense-f16`, ...
    pub(crate) fn name(&self) -> String {
        let name = self.codes.name();
        match (self.codes.is_packed(), self.bias) {
            (false, _) => format!("dense-{name}"),
            (true, Some(_)) => format!("{name}-affine"),
            (true, None) => name.to_owned(),
        }
    }
}

/// Bytes of a unit of codes.
pub(crate) const UNIT: usize = 16;

fn kind(kind: ParamType) -> u32 {
    match kind {
        ParamType::F16 => param_type::F16,
        ParamType::BF16 => param_type::BF16,
        ParamType::F32 => param_type::F32,
    }
}
