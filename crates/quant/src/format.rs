//! The closed set of stored formats, and the facts about each that follow from the format table.

use std::fmt;

use crate::error::QuantError;
use crate::float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::formats::{BLOCKS, Block, block};

/// How one scale, bias or dense weight is stored. Always little-endian, at any alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParamType {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// IEEE binary32.
    F32,
}

impl ParamType {
    /// Bytes of one value.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
        }
    }

    /// Value `index` of a run of values, widened exactly.
    ///
    /// # Panics
    /// When `data` ends before that value.
    #[inline]
    #[must_use]
    pub fn read(self, data: &[u8], index: usize) -> f32 {
        match self {
            Self::F16 => f16_to_f32(u16_at(data, 2 * index)),
            Self::BF16 => bf16_to_f32(u16_at(data, 2 * index)),
            Self::F32 => {
                let at = 4 * index;
                f32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
            }
        }
    }

    /// Widens all of `data` into `out` (`out.len()` values).
    ///
    /// # Panics
    /// When `data` holds fewer than `out.len()` values.
    pub fn read_all(self, data: &[u8], out: &mut [f32]) {
        let data = &data[..out.len() * self.bytes()];
        match self {
            Self::F16 => {
                for (o, b) in out.iter_mut().zip(data.chunks_exact(2)) {
                    *o = f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
                }
            }
            Self::BF16 => {
                for (o, b) in out.iter_mut().zip(data.chunks_exact(2)) {
                    *o = bf16_to_f32(u16::from_le_bytes([b[0], b[1]]));
                }
            }
            Self::F32 => {
                for (o, b) in out.iter_mut().zip(data.chunks_exact(4)) {
                    *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
        }
    }

    /// Appends `value`, rounded to this type (nearest, ties to even).
    pub fn write(self, value: f32, out: &mut Vec<u8>) {
        match self {
            Self::F16 => out.extend_from_slice(&f32_to_f16(value).to_le_bytes()),
            Self::BF16 => out.extend_from_slice(&f32_to_bf16(value).to_le_bytes()),
            Self::F32 => out.extend_from_slice(&value.to_le_bytes()),
        }
    }

    /// The value of this type nearest to `value`.
    #[must_use]
    pub fn round(self, value: f32) -> f32 {
        match self {
            Self::F16 => f16_to_f32(f32_to_f16(value)),
            Self::BF16 => bf16_to_f32(f32_to_bf16(value)),
            Self::F32 => value,
        }
    }

    /// `F16`, `BF16` or `F32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::F32 => "F32",
        }
    }
}

fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([data[at], data[at + 1]])
}

/// How a weight matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Dense binary32 (GGUF id 0).
    F32,
    /// Dense binary16 (GGUF id 1).
    F16,
    /// Dense bfloat16 (GGUF id 30).
    BF16,
    /// MLX affine triplet: codes in little-endian u32 words, one scale and one bias per group.
    Affine {
        /// Bits per code: 1, 2, 4 or 8.
        bits: u8,
        /// Weights per scale: 32, 64 or 128.
        group: u16,
        /// Storage of the scales.
        scale: ParamType,
        /// Storage of the biases; need not equal that of the scales.
        bias: ParamType,
    },
    /// Binary, groups of 128 (GGUF id 41).
    Q1_0,
    /// Ternary, groups of 64: mainline's meaning of GGUF id 42.
    Q2_0G64,
    /// Ternary, groups of 128: the older fork's meaning of GGUF id 42.
    Q2_0G128,
    /// Ternary, groups of 128 under the fork's own GGUF id 142; same bytes as [`Format::Q2_0G128`].
    Pq2_0,
    /// Ternary, five codes to a byte, groups of 128 (GGUF id 143).
    Ptq1_0,
    /// 4-bit, groups of 32, symmetric (GGUF id 2).
    Q4_0,
    /// 4-bit, groups of 32, with a stored minimum (GGUF id 3).
    Q4_1,
    /// 8-bit, groups of 32, symmetric (GGUF id 8).
    Q8_0,
}

/// What a GGUF type id says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GgufType {
    /// The id names one format.
    Format(Format),
    /// Id 42: [`Format::Q2_0G64`] in mainline files, [`Format::Q2_0G128`] in older files of the fork. Only the
    /// sizes of the tensors in the file can tell.
    Q2_0,
}

impl Format {
    /// An MLX affine format.
    ///
    /// # Errors
    /// [`QuantError::UnsupportedAffine`] for bits other than 1, 2, 4, 8 or groups other than 32, 64, 128.
    pub fn affine(bits: u32, group: u32, scale: ParamType, bias: ParamType) -> Result<Self, QuantError> {
        match (bits, group) {
            (1 | 2 | 4 | 8, 32 | 64 | 128) => Ok(Self::Affine { bits: bits as u8, group: group as u16, scale, bias }),
            _ => Err(QuantError::UnsupportedAffine { bits, group }),
        }
    }

    /// The format behind a GGUF type id.
    ///
    /// # Errors
    /// [`QuantError::UnknownGgufId`].
    pub fn from_gguf_id(id: u32) -> Result<GgufType, QuantError> {
        match id {
            0 => Ok(GgufType::Format(Self::F32)),
            1 => Ok(GgufType::Format(Self::F16)),
            30 => Ok(GgufType::Format(Self::BF16)),
            42 => Ok(GgufType::Q2_0),
            _ => match BLOCKS.iter().find(|b| b.gguf_id == id) {
                Some(b) => Ok(GgufType::Format(b.format)),
                None => Err(QuantError::UnknownGgufId { id }),
            },
        }
    }

    /// The id that a GGUF file stores for this format; `None` for MLX affine.
    #[must_use]
    pub fn gguf_id(self) -> Option<u32> {
        match self {
            Self::F32 => Some(0),
            Self::F16 => Some(1),
            Self::BF16 => Some(30),
            Self::Affine { .. } => None,
            _ => self.block().map(|b| b.gguf_id),
        }
    }

    /// `0 (F32), 1 (F16), ...`: the ids that [`Format::from_gguf_id`] accepts, for error messages.
    #[must_use]
    pub fn supported_gguf_ids() -> String {
        let mut rows = vec![(0, "F32"), (1, "F16"), (30, "BF16")];
        for b in &BLOCKS {
            if !rows.iter().any(|&(id, _)| id == b.gguf_id) {
                rows.push((b.gguf_id, if b.gguf_id == 42 { "Q2_0" } else { b.name }));
            }
        }
        rows.sort_unstable();
        rows.iter().map(|(id, name)| format!("{id} ({name})")).collect::<Vec<_>>().join(", ")
    }

    /// Row of the format table of a GGUF block format; `None` for MLX affine and dense.
    #[must_use]
    pub fn block(self) -> Option<&'static Block> {
        block(self)
    }

    /// Storage type of a dense format; `None` for packed ones.
    #[must_use]
    pub const fn dense(self) -> Option<ParamType> {
        match self {
            Self::F32 => Some(ParamType::F32),
            Self::F16 => Some(ParamType::F16),
            Self::BF16 => Some(ParamType::BF16),
            _ => None,
        }
    }

    /// True for everything but F32, F16 and BF16.
    #[must_use]
    pub const fn is_packed(self) -> bool {
        self.dense().is_none()
    }

    /// Bits of one code: 1, 2, 4, 8; 2 for PTQ1_0, whose digits are 0..=2; 16 or 32 for dense.
    #[must_use]
    pub fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::Affine { bits, .. } => usize::from(bits),
            _ => self.block().map_or(0, |b| usize::from(b.bits)),
        }
    }

    /// Weights that share one stored scale; 1 for dense.
    #[must_use]
    pub fn group(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Affine { group, .. } => usize::from(group),
            _ => self.block().map_or(1, |b| b.elements),
        }
    }

    /// Bytes of one row in the codes part: for GGUF blocks and dense that is the whole row, for MLX affine the
    /// scales and biases come on top ([`Format::param_row_bytes`]).
    ///
    /// # Errors
    /// [`QuantError::Columns`] when `cols` is not a whole number of groups (or 0), [`QuantError::Overflow`].
    pub fn row_bytes(self, cols: usize) -> Result<usize, QuantError> {
        let group = self.group();
        if cols == 0 || !cols.is_multiple_of(group) {
            return Err(QuantError::Columns { format: self, cols });
        }
        let per_group = match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Affine { bits, .. } => group * usize::from(bits) / 8,
            _ => self.block().map_or(0, |b| b.bytes),
        };
        (cols / group).checked_mul(per_group).ok_or(QuantError::Overflow { rows: 1, cols })
    }

    /// Bytes of one row of scales and of one row of biases; zero except for MLX affine.
    ///
    /// # Errors
    /// As [`Format::row_bytes`].
    pub fn param_row_bytes(self, cols: usize) -> Result<(usize, usize), QuantError> {
        self.row_bytes(cols)?;
        let Self::Affine { group, scale, bias, .. } = self else { return Ok((0, 0)) };
        // Fewer than cols / 32 * 4 bytes: no overflow once the columns themselves fit.
        let groups = cols / usize::from(group);
        Ok((groups * scale.bytes(), groups * bias.bytes()))
    }

    /// Bytes of a whole matrix, all parts together.
    ///
    /// # Errors
    /// As [`Format::row_bytes`].
    pub fn matrix_bytes(self, rows: usize, cols: usize) -> Result<usize, QuantError> {
        let (scales, biases) = self.param_row_bytes(cols)?;
        self.row_bytes(cols)?
            .checked_add(scales + biases)
            .and_then(|row| row.checked_mul(rows))
            .ok_or(QuantError::Overflow { rows, cols })
    }

    /// Stored bits per weight, scales and biases included.
    #[must_use]
    pub fn bits_per_weight(self) -> f64 {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => self.bits() as f64,
            Self::Affine { bits, group, scale, bias } => {
                f64::from(bits) + (8 * (scale.bytes() + bias.bytes())) as f64 / f64::from(group)
            }
            _ => self.block().map_or(0.0, |b| (8 * b.bytes) as f64 / b.elements as f64),
        }
    }

    /// Short name: that of the format table, `F32`, `F16`, `BF16`, or `affine` for every MLX affine format
    /// (whose parameters [`fmt::Display`] adds).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Affine { .. } => "affine",
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            _ => self.block().map_or("", |b| b.name),
        }
    }
}

/// `MLX affine 1-bit g128 F16`, `MLX affine 4-bit g64 BF16/F32` when scales and biases differ, else the name.
impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Affine { bits, group, scale, bias } => {
                write!(f, "MLX affine {bits}-bit g{group} {}", scale.name())?;
                if scale == bias { Ok(()) } else { write!(f, "/{}", bias.name()) }
            }
            other => f.write_str(other.name()),
        }
    }
}
