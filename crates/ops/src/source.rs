//! Where weights come from, without saying from which file.

use onebit_quant::Matrix;

/// A scalar, a string or a list of a checkpoint's metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum Meta {
    /// Any integer.
    Int(i64),
    /// Any float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Meta>),
    /// A JSON object; its members have keys of their own (`parent.child`).
    Object,
}

impl Meta {
    /// The value as a count, if it is a non-negative integer (or a float without a fraction).
    pub fn as_usize(&self) -> Option<usize> {
        match self {
            Meta::Int(v) => usize::try_from(*v).ok(),
            Meta::Float(v) if v.fract() == 0.0 && *v >= 0.0 && *v < 9e15 => Some(*v as usize),
            _ => None,
        }
    }
    /// The value as a number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Meta::Int(v) => Some(*v as f64),
            Meta::Float(v) => Some(*v),
            _ => None,
        }
    }
    /// The value as a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Meta::Bool(v) = self { Some(*v) } else { None }
    }
    /// The value as a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Meta::Text(v) = self { Some(v) } else { None }
    }
    /// The value as a list.
    pub fn as_list(&self) -> Option<&[Meta]> {
        if let Meta::List(v) = self { Some(v) } else { None }
    }
}

/// A small float tensor, widened to f32.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseTensor {
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Row-major.
    pub values: Vec<f32>,
}

/// A weight source failed; the sentence already names file and tensor.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// Named tensors and metadata of one checkpoint.
///
/// Names are those of the container. Models hold the tables that map their own names to each container's.
pub trait WeightSource: Sync {
    /// True when names and keys follow GGUF, false when they follow Hugging Face / MLX.
    fn is_gguf(&self) -> bool;
    /// One metadata value: a GGUF key, or a dotted path into `config.json` (`text_config.hidden_size`).
    fn meta(&self, key: &str) -> Option<Meta>;
    /// Every tensor name with its shape as stored, outermost dimension first.
    fn tensors(&self) -> Vec<(String, Vec<usize>)>;
    /// The matrix `base` (tensor `base.weight`, with its scales and biases when it has them), or `None`.
    ///
    /// # Errors
    /// When the tensor is there and cannot be read as a matrix.
    fn matrix(&self, base: &str) -> Result<Option<Matrix<'_>>, SourceError>;
    /// The float tensor of exactly this name, widened to f32; or `None`.
    ///
    /// # Errors
    /// When the tensor is there and is not a float tensor.
    fn dense(&self, name: &str) -> Result<Option<DenseTensor>, SourceError>;
    /// Tells the source that the pages of this matrix are no longer needed (they can be read again).
    fn release(&self, base: &str);
}
