//! The architectures that this crate knows, one row each.

use crate::loader::Loader;
use crate::{Architecture, Facts, ModelError, llm};
use onebit_ops::{Meta, WeightSource};

/// What an architecture's loader returns: sizes, and the forward pass unless only an outline was asked for.
pub(crate) type Loaded = (Facts, Option<Box<dyn Architecture>>);

/// One architecture.
pub struct Entry {
    /// Our name.
    pub name: &'static str,
    /// `model_type` values of `config.json`.
    pub model_types: &'static [&'static str],
    /// `general.architecture` of GGUF.
    pub gguf: &'static str,
    pub(crate) load: fn(&mut Loader<'_>) -> Result<Loaded, ModelError>,
}

/// Every architecture.
pub const ENTRIES: &[Entry] = &[
    Entry { name: "qwen3", model_types: &["qwen3"], gguf: "qwen3", load: llm::qwen3::load },
    Entry { name: "qwen35", model_types: &["qwen3_5", "qwen3_5_text"], gguf: "qwen35", load: llm::qwen35::load },
];

/// The row for a checkpoint.
///
/// # Errors
/// [`ModelError::UnknownArchitecture`] with what the file says.
pub fn find(source: &dyn WeightSource) -> Result<&'static Entry, ModelError> {
    let key = if source.is_gguf() { "general.architecture" } else { "model_type" };
    let found = source.meta(key).as_ref().and_then(Meta::as_str).map(str::to_owned);
    let found = found.ok_or_else(|| ModelError::MissingKey(key.to_owned()))?;
    let entry = ENTRIES
        .iter()
        .find(|e| if source.is_gguf() { e.gguf == found } else { e.model_types.contains(&found.as_str()) });
    entry.ok_or_else(|| ModelError::UnknownArchitecture {
        found,
        known: ENTRIES.iter().map(|e| e.name).collect::<Vec<_>>().join(", "),
    })
}
