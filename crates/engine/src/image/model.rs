//! An image model on a device.

use super::{ImageError, ImageEvent, ImagePlan, ImageRequest, ImageSettings, Picture};
use onebit_models::image::{ImageFacts, ImagePart};
use onebit_ops::{Activations, Backend, SourceError, WeightSource};
use onebit_text::Tokenizer;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Where the parts of an image model come from. Weights are opened when they are needed, and closed after.
pub trait ImageTree: Send + Sync {
    /// Opens a part: its configuration and its tensors.
    ///
    /// # Errors
    /// A sentence for a part that is missing or cannot be read, with how to get it.
    fn open(&self, part: ImagePart) -> Result<Box<dyn WeightSource + '_>, SourceError>;
    /// The bytes of `tokenizer.json`.
    ///
    /// # Errors
    /// As [`ImageTree::open`].
    fn tokenizer(&self) -> Result<Vec<u8>, SourceError>;
}

/// How the model is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageOptions {
    /// Rounding of the inputs of packed products.
    pub activations: Activations,
    /// Keep offsets even where they can be derived.
    pub keep_biases: bool,
    /// Bytes that weights and temporaries may take, if it is known; decides about [`Residency::Auto`](super::Residency).
    pub free_bytes: Option<u64>,
}

/// An open image model.
pub struct ImageModel {
    tree: Box<dyn ImageTree>,
    backend: Arc<dyn Backend>,
    options: ImageOptions,
    facts: ImageFacts,
    tokenizer: Tokenizer,
}

impl ImageModel {
    /// Reads headers, configuration and tokenizer; no weights.
    ///
    /// # Errors
    /// A part that is missing, or of another shape than this program runs.
    pub fn open(
        tree: Box<dyn ImageTree>,
        backend: Arc<dyn Backend>,
        options: ImageOptions,
    ) -> Result<ImageModel, ImageError> {
        let _ = (tree, backend, options);
        Err(ImageError::Source(SourceError("image models do not run yet".to_owned())))
    }

    /// Sizes.
    pub fn facts(&self) -> &ImageFacts {
        &self.facts
    }

    /// Tokens of a prompt with its frame: what must not exceed [`ImageSettings::text_tokens`].
    ///
    /// # Errors
    /// [`ImageError::Tokenizer`].
    pub fn tokens(&self, prompt: &str) -> Result<usize, ImageError> {
        Ok(self.tokenizer.encode(prompt, onebit_text::Specials::Literal)?.len())
    }

    /// What a picture will need.
    ///
    /// # Errors
    /// [`ImageError::Parameter`].
    pub fn plan(&self, settings: &ImageSettings) -> Result<ImagePlan, ImageError> {
        let _ = (settings, &self.tree, &self.backend, &self.options);
        Err(ImageError::Source(SourceError("image models do not run yet".to_owned())))
    }

    /// Makes a picture. `on` hears of every event and stops the work with [`ControlFlow::Break`].
    ///
    /// # Errors
    /// Any [`ImageError`]; a picture with NaN or of one colour is one.
    pub fn generate(
        &mut self,
        request: &ImageRequest,
        on: &mut dyn FnMut(ImageEvent<'_>) -> ControlFlow<()>,
    ) -> Result<Picture, ImageError> {
        let _ = (request, on);
        Err(ImageError::Source(SourceError("image models do not run yet".to_owned())))
    }
}
