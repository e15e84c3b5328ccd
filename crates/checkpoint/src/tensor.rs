//! What a header says about one tensor.

use onebit_quant::{Format, ParamType};

/// Element or block type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredType {
    /// Dense binary16, bfloat16 or binary32.
    Float(ParamType),
    /// A GGUF block format.
    Block(Format),
    /// Binary64.
    F64,
    /// Packed code words of an MLX triplet.
    U32,
    /// A type that no weight uses, kept so that files with such tensors still open: name and bytes per element.
    Other(&'static str, u8),
}

/// Safetensors types that are neither weights nor packed words.
const OTHER: [StoredType; 12] = [
    StoredType::Other("BOOL", 1),
    StoredType::Other("U8", 1),
    StoredType::Other("I8", 1),
    StoredType::Other("F8_E4M3", 1),
    StoredType::Other("F8_E5M2", 1),
    StoredType::Other("F8_E8M0", 1),
    StoredType::Other("U16", 2),
    StoredType::Other("I16", 2),
    StoredType::Other("I32", 4),
    StoredType::Other("U64", 8),
    StoredType::Other("I64", 8),
    StoredType::Other("C64", 8),
];

impl StoredType {
    /// Type behind a safetensors dtype string.
    #[must_use]
    pub fn from_safetensors(dtype: &str) -> Option<Self> {
        Some(match dtype {
            "F16" => Self::Float(ParamType::F16),
            "BF16" => Self::Float(ParamType::BF16),
            "F32" => Self::Float(ParamType::F32),
            "F64" => Self::F64,
            "U32" => Self::U32,
            _ => *OTHER.iter().find(|t| matches!(t, Self::Other(name, _) if *name == dtype))?,
        })
    }

    /// Plain element types of GGUF; blocks and the usual floats are in [`Format::from_gguf_id`].
    pub(crate) fn plain_gguf(id: u32) -> Option<Self> {
        Some(match id {
            24 => Self::Other("I8", 1),
            25 => Self::Other("I16", 2),
            26 => Self::Other("I32", 4),
            27 => Self::Other("I64", 8),
            28 => Self::F64,
            _ => return None,
        })
    }

    /// Safetensors dtype string, or the name of a block format.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Float(p) => p.name(),
            Self::Block(f) => f.name(),
            Self::F64 => "F64",
            Self::U32 => "U32",
            Self::Other(name, _) => name,
        }
    }

    /// Bytes of one element; `None` for blocks.
    #[must_use]
    pub fn element_bytes(self) -> Option<usize> {
        match self {
            Self::Float(p) => Some(p.bytes()),
            Self::Block(_) => None,
            Self::F64 => Some(8),
            Self::U32 => Some(4),
            Self::Other(_, bytes) => Some(usize::from(bytes)),
        }
    }

    /// Bytes of a tensor with this row-major shape; `None` when that overflows or rows are not whole blocks.
    #[must_use]
    pub fn tensor_bytes(self, shape: &[usize]) -> Option<usize> {
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        match self {
            Self::Block(format) => {
                let (&cols, rows) = shape.split_last()?;
                format.matrix_bytes(rows.iter().product(), cols).ok()
            }
            plain => elements.checked_mul(plain.element_bytes()?),
        }
    }
}

impl From<Format> for StoredType {
    /// Dense formats become floats, everything else a block.
    fn from(format: Format) -> Self {
        format.dense().map_or(Self::Block(format), Self::Float)
    }
}

/// One tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name as in the file.
    pub name: String,
    /// Row-major shape: the last dimension is contiguous. GGUF's reversed order is already turned round.
    pub shape: Vec<usize>,
    /// Element or block type.
    pub stored: StoredType,
    /// Which of [`Inventory::files`](crate::Inventory::files) holds it.
    pub file: usize,
    /// First byte in that file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// `F16 [5120]`, `Q1_0 [4096, 5120]`.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{} {:?}", self.stored.name(), self.shape)
    }
}
