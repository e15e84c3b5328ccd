//! From the folder of an image model to one that can be run.

use crate::args::RunOptions;
use crate::source::Source;
use crate::{load, memory};
use anyhow::{Context, Result};
use onebit_checkpoint::{ImageFolders, image_folders};
use onebit_engine::image::{ImageModel, ImageOptions, ImageTree};
use onebit_models::image::ImagePart;
use onebit_ops::{Backend, SourceError, WeightSource};
use std::path::Path;
use std::sync::Arc;

/// The files of an image model.
struct Files {
    folders: ImageFolders,
    options: load::Options,
}

impl ImageTree for Files {
    fn open(&self, part: ImagePart) -> Result<Box<dyn WeightSource + '_>, SourceError> {
        let folder = match part {
            ImagePart::TextEncoder => &self.folders.text_encoder,
            ImagePart::Transformer => &self.folders.transformer,
            ImagePart::Vae => &self.folders.vae,
        };
        let source: Source = load::open_any(folder, &self.options).map_err(|e| SourceError(format!("{e:#}")))?;
        Ok(Box::new(source))
    }

    fn tokenizer(&self) -> Result<Vec<u8>, SourceError> {
        let file = &self.folders.tokenizer;
        std::fs::read(file).map_err(|e| SourceError(format!("{} cannot be read: {e}", file.display())))
    }
}

/// Opens the folder of an image model. Reads headers only.
///
/// # Errors
/// A part that is missing or of another shape than this program runs.
pub fn open(path: &Path, options: &RunOptions, backend: Arc<dyn Backend>) -> Result<ImageModel> {
    let files = Files { folders: image_folders(path)?, options: options.files() };
    let free = backend.free_memory()?.unwrap_or_else(memory::free);
    let image = ImageOptions {
        activations: options.activations.resolve(backend.caps().default_activations),
        keep_biases: options.keep_biases,
        free_bytes: Some(free),
    };
    ImageModel::open(Box::new(files), backend, image).with_context(|| path.display().to_string())
}
