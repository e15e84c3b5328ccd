//! From what a person wrote to files: a path, a repository in the cache, or a short name.

use crate::builtin::BuiltIn;
use crate::{Usage, backends, image_model, load};
use anyhow::{Result, anyhow, bail};
use onebit_hub::packs::{self, Support};
use onebit_hub::{Choice, HubConfig, RepoRef, choose};
use onebit_ops::Backend;
use std::path::{Path, PathBuf};

/// Files of a model, and how they were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Folder or file to open.
    pub path: PathBuf,
    /// The name to show.
    pub name: String,
    /// Why these files and not others of the repository, where there was a choice.
    pub choice: Option<String>,
}

/// What a word can mean as a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// A file or folder, which may not exist.
    Path(PathBuf),
    /// A repository.
    Repo(RepoRef),
    /// A model that is part of the program.
    BuiltIn(BuiltIn),
}

/// Reads a word as a model; `None` for a word that can only be a prompt.
#[must_use]
pub fn named(word: &str) -> Option<Named> {
    let path = Path::new(word);
    if !word.is_empty() && (path.exists() || is_path_like(word)) {
        return Some(Named::Path(path.to_owned()));
    }
    if let Some(model) = BuiltIn::find(word) {
        return Some(Named::BuiltIn(model));
    }
    RepoRef::parse(word).ok().map(Named::Repo)
}

/// Whether a lone word is a model and not a prompt.
#[must_use]
pub fn is_model(word: &str) -> bool {
    named(word).is_some()
}

/// Written like a path, or like a model file's name.
fn is_path_like(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    let spaced = word.contains(['\n', '\r']);
    !spaced
        && (["/", "./", "../", "~/", ".\\", "..\\"].iter().any(|start| word.starts_with(start))
            || [".gguf", ".safetensors"].iter().any(|end| lower.ends_with(end)))
}

/// Finds the files of a model on this machine. `backend` decides between the files of a repository.
///
/// # Errors
/// Names that mean nothing, paths that do not exist, repositories that are not in the cache.
pub fn locate(word: &str, backend: &dyn Backend) -> Result<Located> {
    match named(word) {
        Some(Named::BuiltIn(model)) => Ok(model.located()),
        Some(Named::Path(path)) if path.exists() => Ok(Located { name: title(&path), path, choice: None }),
        Some(Named::Path(path)) => bail!("{} does not exist; check the path", path.display()),
        Some(Named::Repo(repo)) => in_cache(&repo, backend),
        None => bail!(Usage(unknown(word))),
    }
}

/// Finds the files of a model of either kind, for commands that run both.
///
/// # Errors
/// As [`locate`].
pub fn locate_any(word: &str, backend: &dyn Backend) -> Result<Located> {
    let is_image = |repo: &RepoRef| packs::find(&repo.id()).is_some_and(|pack| pack.support == Support::Image);
    match named(word) {
        Some(Named::Repo(repo)) if is_image(&repo) => image_in_cache(&repo),
        _ => locate(word, backend),
    }
}

/// Finds an image model on this machine: its folder, or the file of its transformer.
///
/// # Errors
/// As [`locate`], and models that make no pictures.
pub fn locate_image(word: &str) -> Result<Located> {
    let located = match named(word) {
        Some(Named::Path(path)) if path.exists() => Located { name: title(&path), path, choice: None },
        Some(Named::Path(path)) => bail!("{} does not exist; check the path", path.display()),
        Some(Named::Repo(repo)) => image_in_cache(&repo)?,
        Some(Named::BuiltIn(model)) if model.draws() => model.located(),
        Some(Named::BuiltIn(_)) => {
            bail!("{word} answers with text; the models that make pictures are {}", image_names())
        }
        None => bail!(Usage(format!(
            "`{word}` is no model: wanted the folder of an image model, owner/name or a short name ({})",
            image_names()
        ))),
    };
    if !image_model::is_one(&located.path) {
        if located.path.is_file() {
            // One that cannot be read has a sentence of its own.
            load::open_any(&located.path, &load::Options::default())?;
            bail!(
                "{} is not the transformer of an image model; name its folder with transformer, text_encoder, vae and \
                 tokenizer, or the transformer's file with the others beside it",
                located.path.display()
            );
        }
        bail!(
            "{} is not the folder of an image model: it has no folder with a transformer (such as transformer-packed-mflux); \
             the models that make pictures are {}, and text models are for `onebit run`",
            located.path.display(),
            image_names()
        );
    }
    Ok(located)
}

fn image_in_cache(repo: &RepoRef) -> Result<Located> {
    let snapshot = HubConfig::from_env()?.cache().resolve(repo)?;
    let choice = choose(repo, &snapshot.files()?, &|_| true)?;
    // A link whose content is gone shows here with its name.
    choice.files.iter().try_for_each(|file| snapshot.file(&file.name).map(drop))?;
    let path = model_path(&choice, |name| Ok(snapshot.file(name)?), snapshot.dir())?;
    Ok(Located { path, name: repo.to_string(), choice: None })
}

/// Names of the packs that make pictures, and of the built-in models that do, as a list in words.
#[must_use]
pub fn image_names() -> String {
    let packs = packs::PACKS.iter().filter(|p| p.support == Support::Image).map(|p| p.short);
    let packs: Vec<&str> = packs.collect();
    let built_in: Vec<&str> = BuiltIn::ALL.into_iter().filter(|m| m.draws()).map(BuiltIn::name).collect();
    format!("{} and the built-in {}", packs.join(", "), built_in.join(" and "))
}

/// A file or folder that is named as a path, for commands that take nothing else.
///
/// # Errors
/// Anything but an existing path.
pub fn local(word: &str) -> Result<PathBuf> {
    let path = PathBuf::from(word);
    if path.exists() {
        return Ok(path);
    }
    if let Some(Named::Repo(repo)) = named(word) {
        // Which of a repository's files is meant does not depend on a device here.
        return Ok(in_cache(&repo, &onebit_ops::reference::Reference::new())?.path);
    }
    if let Some(Named::BuiltIn(_)) = named(word) {
        bail!("{word} is built into the program and has no files; name a folder or a .gguf file");
    }
    bail!("{} does not exist; name a folder or a .gguf file", path.display())
}

/// The sentence for a word that names no model.
fn unknown(word: &str) -> String {
    format!(
        "`{word}` is no model: wanted a folder, a .gguf file, owner/name or a short name ({})",
        short_names().join(", ")
    )
}

/// Short names of the packs that run.
#[must_use]
pub fn short_names() -> Vec<&'static str> {
    packs::PACKS.iter().filter(|p| p.support == Support::Text).map(|p| p.short).collect()
}

/// The repository's best files in the cache.
fn in_cache(repo: &RepoRef, backend: &dyn Backend) -> Result<Located> {
    refuse_unsupported(repo)?;
    let config = HubConfig::from_env()?;
    let snapshot = config.cache().resolve(repo)?;
    let choice = choose(repo, &snapshot.files()?, &|format| backends::runs_file(backend, format))?;
    // A link whose content is gone shows here with its name, and not later as a missing tensor or tokenizer.
    choice.files.iter().try_for_each(|file| snapshot.file(&file.name).map(drop))?;
    let path = model_path(&choice, |name| Ok(snapshot.file(name)?), snapshot.dir())?;
    let reason = repo.selector.is_none().then(|| choice.reason.clone());
    Ok(Located { path, name: repo.to_string(), choice: reason })
}

/// The file or folder to open for a choice of files.
///
/// # Errors
/// A weight file that is not there in full.
pub fn model_path(choice: &Choice, file: impl Fn(&str) -> Result<PathBuf>, dir: &Path) -> Result<PathBuf> {
    let first = choice.weights.first().ok_or_else(|| anyhow!("the repository has no weights"))?;
    let path = file(first)?;
    if choice.format.is_image() {
        return Ok(dir.to_owned());
    }
    if first.to_ascii_lowercase().ends_with(".gguf") {
        return Ok(path);
    }
    Ok(first.rsplit_once('/').map_or_else(|| dir.to_owned(), |(folder, _)| dir.join(folder)))
}

/// Fails for published packs that this version does not run, before anything is downloaded.
///
/// # Errors
/// One sentence that names a pack which does run.
pub fn refuse_rotated(repo: &RepoRef) -> Result<()> {
    match packs::find(&repo.id()) {
        Some(pack) if pack.support == Support::Rotated => bail!(
            "{} stores its weights rotated ({}-bit, groups of {}), which onebit does not undo yet; ternary-27b is the \
             pack of that size that runs",
            pack.title,
            pack.bits,
            pack.group
        ),
        _ => Ok(()),
    }
}

/// Fails for published packs that answer with no text.
///
/// # Errors
/// One sentence with what to do instead.
pub fn refuse_unsupported(repo: &RepoRef) -> Result<()> {
    refuse_rotated(repo)?;
    match packs::find(&repo.id()) {
        Some(pack) if pack.support == Support::Image => bail!(
            "{} makes pictures and answers with no text: `onebit pull {1}` gets it, and `onebit image {1} --prompt TEXT` runs it",
            pack.title,
            pack.short
        ),
        _ => Ok(()),
    }
}

/// Name of a file or folder as shown.
fn title(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    let name = absolute.as_deref().unwrap_or(path).file_name();
    name.map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_models() {
        for word in
            ["/nowhere", "./x", "../x", "model.gguf", "MODEL.GGUF", "a/b", "a/b:Q1_0", "bonsai-8b", "ternary-27b", "."]
        {
            assert!(is_model(word), "{word}");
        }
    }

    #[test]
    fn words_that_are_prompts() {
        for word in ["", "hello", "What is 2+2?", "Write a/b tests", "bonsai", "use model.gguf please"] {
            assert!(!is_model(word), "{word}");
        }
    }
}
