//! From the folder of an image model, or the file of its transformer, to one that can be run.

use crate::args::RunOptions;
use crate::builtin::BuiltIn;
use crate::source::Source;
use crate::{load, memory, side, trial};
use anyhow::{Context, Result};
use onebit_checkpoint::{Error, ImageFolders, Kind, image_folders, is_image_folder};
use onebit_engine::image::{ImageModel, ImageOptions, ImageTree};
use onebit_models::image::{ImagePart, ImageSize, text_encoder, transformer, vae};
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
        match side::read(file) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(SourceError(format!("{} is gone", file.display()))),
            Err(error) => Err(SourceError(format!("{error:#}"))),
        }
    }
}

/// Whether a path is the folder of an image model, complete or not, or the file of its transformer.
#[must_use]
pub fn is_one(path: &Path) -> bool {
    built_in(path).is_some() || is_image_folder(path) || is_transformer(path)
}

/// Whether a file holds the transformer of an image model.
fn is_transformer(path: &Path) -> bool {
    let kind = |source: Source| matches!(source.checkpoint().kind(), Kind::Image { .. });
    path.is_file() && load::open_any(path, &load::Options::default()).is_ok_and(kind)
}

/// The parts of an image model, of a built-in one too.
///
/// # Errors
/// As [`image_folders`].
pub fn folders(path: &Path) -> Result<ImageFolders, Error> {
    built_in(path).map_or_else(|| image_folders(path), Ok)
}

/// The parts of a built-in model.
fn built_in(path: &Path) -> Option<ImageFolders> {
    BuiltIn::at(path)?.image_folders()
}

/// The size of a picture where nobody names any, by the decoder's header.
///
/// # Errors
/// A decoder that is missing or of another shape than this program runs.
pub fn usual_size(path: &Path) -> Result<ImageSize> {
    let decoder = load::open_any(&folders(path)?.vae, &load::Options::default())?;
    Ok(vae::outline(&decoder)?.0.usual_size())
}

/// Opens an image model. Reads headers only.
///
/// # Errors
/// A part that is missing or of another shape than this program runs.
pub fn open(path: &Path, options: &RunOptions, backend: Arc<dyn Backend>) -> Result<ImageModel> {
    let files = Files { folders: folders(path)?, options: options.files() };
    if backend.trial_key().is_some() {
        let transformer = load::open_any(&files.folders.transformer, &files.options)?;
        let text = load::open_any(&files.folders.text_encoder, &files.options)?;
        let outlines = [transformer::outline(&transformer).map(|o| o.1), text_encoder::outline(&text).map(|o| o.1)];
        for outline in outlines {
            trial::require(&*backend, &outline.with_context(|| path.display().to_string())?.parts)?;
        }
    }
    let free = backend.free_memory()?.unwrap_or_else(memory::free);
    let image = ImageOptions {
        activations: options.activations.resolve(backend.caps().default_activations),
        keep_biases: options.keep_biases,
        free_bytes: Some(free),
    };
    ImageModel::open(Box::new(files), backend, image).with_context(|| path.display().to_string())
}
