//! Opening a model's files, and the sentences for those that cannot run.

use crate::args::{KeepIn, RunOptions};
use crate::builtin::{self, BuiltIn, Embedded};
use crate::kept::{Kept, Place};
use crate::source::Source;
use crate::{Usage, terminal, trial};
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use onebit_checkpoint::{Kind, OpenOptions};
use onebit_models::{LoadOptions, Model, outline};
use onebit_ops::{Backend, WeightSource, WeightStore};
use std::path::Path;
use std::sync::Arc;

/// How to open files.
#[derive(Debug, Clone)]
pub struct Options {
    /// Map weight files instead of reading them into memory.
    pub mmap: bool,
    /// Group size of GGUF type 42 where the file does not tell: 64 or 128.
    pub q2_0_group: Option<u16>,
}

impl Default for Options {
    fn default() -> Self {
        Options { mmap: true, q2_0_group: None }
    }
}

/// Opens a folder or file that holds a text model. Reads headers only.
///
/// # Errors
/// Damaged files, and kinds that this program does not run: rotated weights, image models (they have a
/// command of their own), vision projectors, draft models, unknown architectures.
pub fn open(path: &Path, options: &Options) -> Result<Source> {
    let source = open_any(path, options)?;
    let name = BuiltIn::at(path).map_or_else(|| path.display().to_string(), |model| model.name().to_owned());
    refuse_kind(&name, source.checkpoint().kind())?;
    Ok(source)
}

/// Opens a folder or file of any kind, for reports.
///
/// # Errors
/// Damaged files.
pub fn open_any(path: &Path, options: &Options) -> Result<Source> {
    if let Some(Embedded { config, quantization, weights }) = builtin::embedded(path) {
        return Ok(Source::new(onebit_checkpoint::open_embedded(path, config, quantization, weights)?));
    }
    let options = OpenOptions { mmap: options.mmap, q2_0_group: options.q2_0_group };
    Ok(Source::new(onebit_checkpoint::open(path, &options)?))
}

/// Puts the weights of an open model on a device, or finds them kept there by an earlier run.
///
/// # Errors
/// As [`weights`].
pub fn model(
    source: &Source,
    backend: &dyn Backend,
    options: &RunOptions,
    name: &str,
    quiet: bool,
) -> Result<Arc<Model>> {
    let place = match options.cache_repack {
        KeepIn::Nowhere => None,
        KeepIn::Cache | KeepIn::Folder(_) if options.no_mmap => bail!(Usage(
            "--cache-repack maps the file that it keeps, and --no-mmap forbids mapping; leave one of them out"
                .to_owned()
        )),
        KeepIn::Cache | KeepIn::Folder(_) if backend.layout().is_none() => {
            if !quiet {
                let name = &backend.caps().name;
                terminal::say(&format!(
                    "note: --cache-repack has no effect with --backend {name}, which keeps no weights"
                ));
            }
            None
        }
        KeepIn::Cache | KeepIn::Folder(_) => Place::of(source, backend, options)?,
    };
    weights(source, backend, options, place, name, quiet)
}

/// Puts weights on a device, with a progress bar unless `quiet`. `name` stands in messages, and `place` is where
/// repacked weights are kept.
///
/// # Errors
/// Damaged or missing tensors, too little memory.
pub fn weights(
    source: &dyn WeightSource,
    backend: &dyn Backend,
    options: &RunOptions,
    place: Option<Place>,
    name: &str,
    quiet: bool,
) -> Result<Arc<Model>> {
    let context = || name.to_owned();
    let parts = outline(source).with_context(context)?.1;
    trial::require(backend, &parts.parts)?;
    let total = parts.bytes();
    let bar = if quiet { ProgressBar::hidden() } else { terminal::bytes_bar("loading", total) };
    let kept = place.and_then(|place| Kept::open(&place, total, quiet));
    let store = kept.as_ref().map(|kept| kept as &dyn WeightStore);
    let load_options = LoadOptions { keep_biases: options.keep_biases, store };
    let model = Model::load(source, backend, load_options, &mut |progress| bar.set_position(progress.bytes));
    bar.finish_and_clear();
    let model = model.map(Arc::new).with_context(context)?;
    if let Some(kept) = kept {
        kept.finish(quiet);
    }
    Ok(model)
}

/// Fails with a sentence for every kind that does not run as a text model. `name` is the file, folder or repository.
///
/// # Errors
/// All kinds but [`Kind::Text`].
pub fn refuse_kind(name: &str, kind: &Kind) -> Result<()> {
    match kind {
        Kind::Text => Ok(()),
        Kind::Rotated { .. } => bail!(
            "{name} is {kind}; onebit does not undo that rotation yet, and without it the answers would be nonsense: \
             use an unrotated pack such as prism-ml/Ternary-Bonsai-27B-mlx-2bit"
        ),
        Kind::Image { .. } => {
            bail!("{name} is {kind} and answers no prompts with text: use `onebit image {name} --prompt TEXT`")
        }
        Kind::VisionProjector => {
            bail!("{name} is {kind} and cannot run by itself: name the text model's own .gguf file instead")
        }
        Kind::Drafter => bail!("{name} is {kind} and cannot run by itself: name the model that it drafts for instead"),
        Kind::Unknown(architecture) if architecture.is_empty() => bail!(
            "{name} does not say which architecture it has: config.json is missing or has no `model_type` (in GGUF: the key \
             `general.architecture`); download the whole repository, not the weight file alone"
        ),
        Kind::Unknown(architecture) => {
            let known: Vec<&str> = onebit_models::registry::ENTRIES.iter().map(|e| e.name).collect();
            bail!(
                "{name} has the architecture `{architecture}`, which onebit does not run; it runs {}",
                known.join(", ")
            )
        }
    }
}
