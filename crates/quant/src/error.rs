//! What can be wrong with a matrix: one variant per cause, one sentence each.

use std::fmt;

use crate::format::Format;

/// Why bytes do not form a weight matrix, or why a matrix has no equal in another format.
///
/// The crate knows no tensor names; a caller that does prefixes the sentence with one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuantError {
    /// An MLX affine format with a width or group size that no file of the family uses.
    UnsupportedAffine {
        /// Bits per code as asked for.
        bits: u32,
        /// Weights per group as asked for.
        group: u32,
    },
    /// A GGUF type id that is not in the format table.
    UnknownGgufId {
        /// The id as stored in the file.
        id: u32,
    },
    /// A row length that is not a whole number of groups.
    Columns {
        /// The format asked for.
        format: Format,
        /// Columns of the matrix.
        cols: usize,
    },
    /// A size that does not fit in the address space.
    Overflow {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// A part of the matrix with another length than rows, columns and format ask for.
    Length {
        /// The format asked for.
        format: Format,
        /// `codes`, `scales`, `biases` or `values`.
        part: &'static str,
        /// Length that the shape needs, in bytes (in elements for `values` and unpacked codes).
        wanted: usize,
        /// Length that was given.
        got: usize,
    },
    /// The target's codes cannot express the source's (another width), or the format has no such encoder.
    NoConversion {
        /// Format of the source; `None` for plain f32 values.
        from: Option<Format>,
        /// The format asked for.
        to: Format,
    },
    /// One group that the target cannot hold without changing a weight.
    NotExact {
        /// The format asked for.
        to: Format,
        /// Row of the group.
        row: usize,
        /// Group inside the row, counted in the target's groups.
        group: usize,
        /// What stands in the way.
        why: &'static str,
    },
}

impl fmt::Display for QuantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedAffine { bits, group } => write!(
                f,
                "MLX affine {bits}-bit with groups of {group} is not supported: bits must be 1, 2, 4 or 8 and groups 32, 64 or 128"
            ),
            Self::UnknownGgufId { id } => {
                write!(f, "GGUF type id {id} is unknown; supported ids are {}", Format::supported_gguf_ids())
            }
            Self::Columns { format, cols } => {
                write!(f, "{format} needs rows of whole groups of {}, got {cols} columns", format.group())
            }
            Self::Overflow { rows, cols } => write!(f, "a matrix of {rows} x {cols} does not fit in memory"),
            Self::Length { format, part, wanted, got } => {
                write!(f, "{format}: the {part} should hold {wanted} bytes or elements for this shape, got {got}")
            }
            Self::NoConversion { from: Some(from), to } => {
                write!(f, "{from} cannot be rewritten as {to}: the codes have another width")
            }
            Self::NoConversion { from: None, to } => write!(f, "there is no encoder from f32 to {to}"),
            Self::NotExact { to, row, group, why } => {
                write!(f, "row {row}, group {group} has no exact form in {to}: {why}")
            }
        }
    }
}

impl std::error::Error for QuantError {}
