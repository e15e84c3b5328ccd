//! Finding the weight files of a model, and refusing names that lead out of its folder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Problem, clip};
use crate::gguf::split_name;
use crate::json::{INDEX_LIMIT, read_file};
use crate::safetensors::Index;

/// The weight files of a model.
#[derive(Debug)]
pub(crate) enum Files {
    /// Safetensors files with their names, and the index if there is one.
    Safetensors { shards: Vec<(String, PathBuf)>, index: Option<(PathBuf, Index)> },
    /// All splits of one GGUF model.
    Gguf(Vec<(String, PathBuf)>),
}

/// Weight files of a folder: the index, else `model.safetensors`, else the only GGUF model (vision projectors and
/// drafters do not count), else the only `.safetensors` file.
pub(crate) fn in_folder(folder: &Path) -> Result<Files, Error> {
    let mut names = Vec::new();
    let listing = fs::read_dir(folder).map_err(|e| Error::new(folder, e.into()))?;
    for entry in listing {
        let entry = entry.map_err(|e| Error::new(folder, e.into()))?;
        // A name that is not Unicode is none of those looked for.
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    let with = |suffix: &str| names.iter().filter(|n| n.ends_with(suffix)).cloned().collect::<Vec<_>>();
    let indexes = with(".safetensors.index.json");
    let index = indexes.iter().find(|n| *n == "model.safetensors.index.json");
    let weights = with(".safetensors");
    let single = weights.iter().find(|n| *n == "model.safetensors");
    if let Some(index) = index.or(if single.is_none() && indexes.len() == 1 { indexes.first() } else { None }) {
        return sharded(folder, &folder.join(index));
    }
    if let Some(name) = single {
        return Ok(one_safetensors(folder, name));
    }
    let models: Vec<String> = with(".gguf").into_iter().filter(|name| is_model(name)).collect();
    match (models.as_slice(), weights.as_slice()) {
        ([name], _) => splits(&folder.join(name)),
        ([], [name]) => Ok(one_safetensors(folder, name)),
        ([], _) => Err(Error::new(folder, Problem::NoWeights(found(&names)))),
        _ => Err(Error::new(folder, Problem::SeveralModels(models))),
    }
}

fn one_safetensors(folder: &Path, name: &str) -> Files {
    Files::Safetensors { shards: vec![(name.to_owned(), folder.join(name))], index: None }
}

/// Whether a GGUF file name stands for a model of its own: not a projector, not a drafter, not a later split.
fn is_model(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    !lower.contains("mmproj") && !lower.contains("dspark") && split_name(name).is_none_or(|(_, number, _)| number == 1)
}

/// A clause about what a folder does hold.
fn found(names: &[String]) -> String {
    if names.is_empty() {
        return "; it is empty".into();
    }
    if let Some(part) = names.iter().find(|n| n.ends_with(".incomplete") || n.ends_with(".part")) {
        return format!("; `{}` is an unfinished download", clip(part));
    }
    let list: Vec<String> = names.iter().take(8).map(|n| clip(n)).collect();
    format!("; it holds {}{}", list.join(", "), if names.len() > 8 { ", ..." } else { "" })
}

/// The shards that an index names.
pub(crate) fn sharded(folder: &Path, index_path: &Path) -> Result<Files, Error> {
    let bytes = read_file(index_path, INDEX_LIMIT)?.ok_or_else(|| Error::new(index_path, Problem::NotFound))?;
    let index = Index::parse(&bytes).map_err(|problem| Error::new(index_path, problem))?;
    let home = Home::new(folder)?;
    let mut shards = Vec::new();
    for name in index.shards() {
        let path = folder.join(name);
        match fs::canonicalize(&path) {
            Ok(real) if home.contains(&real) => shards.push((name.to_owned(), path)),
            Ok(_) => return Err(Error::new(index_path, Problem::UnsafeShard(clip(name)))),
            Err(_) => return Err(Error::new(index_path, Problem::MissingShard(clip(name)))),
        }
    }
    if shards.is_empty() {
        return Err(Error::new(index_path, Problem::NoWeights("; its weight_map is empty".into())));
    }
    Ok(Files::Safetensors { shards, index: Some((index_path.to_owned(), index)) })
}

/// Where the files of a model may really lie: in its folder, or, for a snapshot of the HF cache
/// (`models--X/snapshots/REVISION`), in `models--X/blobs`, where the cache's links lead.
struct Home {
    folder: PathBuf,
    blobs: Option<PathBuf>,
}

impl Home {
    fn new(folder: &Path) -> Result<Self, Error> {
        let folder = fs::canonicalize(folder).map_err(|e| Error::new(folder, e.into()))?;
        let snapshots = folder.ancestors().find(|a| a.file_name().is_some_and(|name| name == "snapshots"));
        let blobs = snapshots.and_then(Path::parent).map(|repo| repo.join("blobs"));
        Ok(Self { blobs: blobs.and_then(|b| fs::canonicalize(b).ok()), folder })
    }

    fn contains(&self, real: &Path) -> bool {
        real.starts_with(&self.folder) || self.blobs.as_ref().is_some_and(|blobs| real.starts_with(blobs))
    }
}

/// The one file, or all splits of its model when its name is that of a split.
pub(crate) fn splits(path: &Path) -> Result<Files, Error> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let Some((stem, _, count)) = split_name(name) else {
        return Ok(Files::Gguf(vec![(name.to_owned(), path.to_owned())]));
    };
    let mut files = Vec::new();
    for number in 1..=count {
        let name = format!("{stem}-{number:05}-of-{count:05}.gguf");
        let file = path.with_file_name(&name);
        if !file.exists() {
            return Err(Error::new(path, Problem::MissingShard(name)));
        }
        files.push((name, file));
    }
    Ok(Files::Gguf(files))
}
