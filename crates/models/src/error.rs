//! Why a checkpoint cannot become a model.

use onebit_ops::{OpError, SourceError};

/// A model could not be read or built. Every variant is one sentence.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The file could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The device refused.
    #[error(transparent)]
    Op(#[from] OpError),
    /// No row of the registry.
    #[error("architecture `{found}` is not supported; onebit runs {known}")]
    UnknownArchitecture {
        /// What the file says.
        found: String,
        /// Names of the registry.
        known: String,
    },
    /// A value that the architecture needs is not there.
    #[error("the checkpoint's metadata has no `{0}`, which this architecture needs")]
    MissingKey(String),
    /// A value that this code does not implement.
    #[error("`{key}` is {found}; onebit runs this architecture only with {wanted}")]
    UnsupportedValue {
        /// Metadata key.
        key: String,
        /// What it says.
        found: String,
        /// What is implemented.
        wanted: String,
    },
    /// A tensor is not there.
    #[error("tensor `{0}` is missing from the checkpoint")]
    MissingTensor(String),
    /// A tensor that the architecture has no use for.
    #[error(
        "tensor `{tensor}`{} has no place in {layers} layers of this architecture: the file is another model, or its \
         layer count is wrong",
        if *others > 0 { format!(" (and {others} more)") } else { String::new() }
    )]
    UnusedTensor {
        /// The first such tensor.
        tensor: String,
        /// How many more there are.
        others: usize,
        /// Layers by the metadata.
        layers: usize,
    },
    /// A tensor of another shape than the metadata promise.
    #[error("tensor `{tensor}`: wanted shape {wanted}, got {got}")]
    TensorShape {
        /// Tensor name.
        tensor: String,
        /// Shape by metadata and by the other tensors.
        wanted: String,
        /// Shape in the file.
        got: String,
    },
}
