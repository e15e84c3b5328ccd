//! The Bonsai architectures: which tensors they have, how their sizes follow from the files, and their forward pass.
//!
//! A model is one file under `llm/` and one row of [`registry`]. Nothing here knows a backend or a file: weights come
//! from an [`onebit_ops::WeightSource`], the forward pass goes into an [`onebit_ops::Recorder`].

#![forbid(unsafe_code)]

mod config;
mod error;
pub mod image;
mod layers;
pub mod llm;
mod loader;
mod model;
pub mod registry;

pub use error::ModelError;
pub use loader::{LoadOptions, Outline, Part, PartKind, Progress};
pub use model::{Architecture, Facts, Forward, KvShape, Model, StateShape, outline};
