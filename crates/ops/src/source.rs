//! Where weights come from, without saying from which file.

use onebit_quant::{Format, Matrix};
use std::ops::{Deref, Range};
use std::sync::Arc;

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

/// Bytes that stay where they are for as long as this handle lives, such as those of a mapped file.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// The bytes `range` of an owner.
    ///
    /// # Panics
    /// When the range does not lie inside.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Self {
        let len = (*owner).as_ref().len();
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len} bytes");
        SharedBytes { owner, range }
    }
}

impl SharedBytes {
    /// A part of these bytes, or `None` where they end before.
    pub fn slice(&self, range: Range<usize>) -> Option<SharedBytes> {
        let fits = range.start <= range.end && range.end <= self.range.len();
        let moved = |at: usize| self.range.start + at;
        fits.then(|| SharedBytes { owner: self.owner.clone(), range: moved(range.start)..moved(range.end) })
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

/// A matrix that can be read where it lies, for weights of which single rows are looked up.
#[derive(Clone)]
pub struct Table {
    /// How the bytes are to be read.
    pub format: Format,
    /// Entries.
    pub rows: usize,
    /// Values of an entry.
    pub cols: usize,
    /// As in [`Matrix`].
    pub codes: SharedBytes,
    /// As in [`Matrix`].
    pub scales: SharedBytes,
    /// As in [`Matrix`].
    pub biases: SharedBytes,
}

impl Table {
    /// It as a matrix.
    pub fn matrix(&self) -> Matrix<'_> {
        Matrix {
            format: self.format,
            rows: self.rows,
            cols: self.cols,
            codes: &self.codes,
            scales: &self.scales,
            biases: &self.biases,
        }
    }
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
    /// The matrix `base` as something that outlives the source, or `None` where there is none or the source cannot lend
    /// it: then [`WeightSource::matrix`] is the way.
    ///
    /// # Errors
    /// As [`WeightSource::matrix`].
    fn table(&self, base: &str) -> Result<Option<Table>, SourceError> {
        let _ = base;
        Ok(None)
    }
    /// The float tensor of exactly this name, widened to f32; or `None`.
    ///
    /// # Errors
    /// When the tensor is there and is not a float tensor.
    fn dense(&self, name: &str) -> Result<Option<DenseTensor>, SourceError>;
    /// Tells the source that this matrix will be read now, and probably what lies behind it next.
    fn fetch(&self, base: &str) {
        let _ = base;
    }
    /// Tells the source that the pages of this matrix are no longer needed (they can be read again).
    fn release(&self, base: &str);
}
