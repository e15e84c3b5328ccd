//! Why there is no picture. Every variant is one sentence.

use onebit_models::ModelError;
use onebit_models::image::ImagePart;
use onebit_ops::{OpError, SourceError};
use onebit_text::TokenizerError;

/// A picture was refused or failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// A parameter outside its range.
    #[error("`{name}` must be {wanted}, got {got}")]
    Parameter {
        /// The parameter as users spell it.
        name: &'static str,
        /// Its range in words.
        wanted: String,
        /// What came.
        got: String,
    },
    /// A prompt that does not fit.
    #[error("the prompt has {tokens} tokens with its frame, the text encoder reads {most}: shorten it by {} tokens", tokens - most)]
    PromptTooLong {
        /// With the frame.
        tokens: usize,
        /// What fits.
        most: usize,
    },
    /// A part of the checkpoint that cannot be read or built.
    #[error("{part}: {error}")]
    Part {
        /// Which.
        part: ImagePart,
        /// Why.
        error: ModelError,
    },
    /// A file of the checkpoint that cannot be read; the sentence names it.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An unusable tokenizer.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The device failed.
    #[error("{part}: {error}")]
    Device {
        /// At work then.
        part: ImagePart,
        /// Its sentence.
        error: OpError,
    },
    /// The numbers broke down; there is no picture to write.
    #[error(
        "{part}{}: {what}; the weights are damaged or a kernel is wrong (`onebit doctor MODEL` tells which)",
        if *step > 0 { format!(", step {step}") } else { String::new() }
    )]
    Broken {
        /// Where it showed.
        part: ImagePart,
        /// Counted from 1; 0 outside the steps.
        step: usize,
        /// What was seen: NaN, infinity, or a picture of one colour.
        what: String,
    },
    /// Not enough memory, found before anything was loaded.
    #[error("a picture of {size} needs {wanted} bytes, {free} are free: {advice}")]
    Memory {
        /// Width and height.
        size: String,
        /// Predicted peak.
        wanted: u64,
        /// Free.
        free: u64,
        /// What to do.
        advice: String,
    },
    /// The callback stopped it.
    #[error("stopped")]
    Cancelled,
}

impl From<TokenizerError> for ImageError {
    fn from(error: TokenizerError) -> Self {
        ImageError::Tokenizer(error.to_string())
    }
}
