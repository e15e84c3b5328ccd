//! The parts of an image model: a folder for each network, beside a tokenizer.
//!
//! ```text
//! transformer-packed-mflux/ | transformer/       config.json and weights, packed | as diffusers writes them
//! text_encoder-mlx-4bit/    | text_encoder/      a language model
//! vae/                                           config.json and weights
//! tokenizer/tokenizer.json
//! ```
//!
//! `manifest.json` may name other folders in its `components`. A transformer may be a single file instead, such as Black Forest
//! Labs publish and GGUF has: the other parts lie beside it, or one folder up.

use std::path::{Path, PathBuf};

use crate::error::{Error, Problem, clip};
use crate::json::read_config;

/// Transformers packed for another runtime.
const FOREIGN: &str = "transformer-gemlite-int";

/// Where the parts of an image model lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFolders {
    /// Folder of the diffusion transformer, or its one file.
    pub transformer: PathBuf,
    /// Folder of the language model that reads the prompt.
    pub text_encoder: PathBuf,
    /// Folder of the VAE.
    pub vae: PathBuf,
    /// The file `tokenizer.json`.
    pub tokenizer: PathBuf,
}

/// A part's name in `manifest.json` and the folders that it may lie in otherwise, the first choice first.
const PARTS: [(&str, &[&str]); 4] = [
    ("transformer", &["transformer-packed-mflux", "transformer"]),
    ("text_encoder", &["text_encoder-mlx-4bit", "text_encoder"]),
    ("vae", &["vae"]),
    ("tokenizer", &["tokenizer"]),
];

/// Whether a folder looks like an image model, complete or not.
pub fn is_image_folder(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).is_dir();
    PARTS[0].1.iter().any(|name| has(name)) || foreign(folder).is_some()
}

/// The folder of a transformer for another runtime.
fn foreign(folder: &Path) -> Option<String> {
    (1..=2).map(|bits| format!("{FOREIGN}{bits}")).find(|name| folder.join(name).is_dir())
}

/// Finds the parts of an image model, of which a folder or the file of a transformer is named. Opens no weights.
///
/// # Errors
/// [`Problem::ImagePart`] for one that is missing, [`Problem::ForeignPack`] for weights of another runtime, and those of
/// reading `manifest.json`.
pub fn image_folders(path: &Path) -> Result<ImageFolders, Error> {
    if path.is_file() {
        let near = |folder: &Path| if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() };
        let folders: Vec<PathBuf> = path.ancestors().skip(1).take(2).map(near).collect();
        // Where there is a text encoder; where none is found, the sentence is about the folder of the file.
        let with_text = |folder: &&PathBuf| PARTS[1].1.iter().any(|name| folder.join(name).is_dir());
        let Some(folder) = folders.iter().find(with_text).or(folders.first()) else {
            return Err(missing(path, PARTS[1].0, PARTS[1].1[0]));
        };
        return parts(folder, Some(path));
    }
    parts(path, None)
}

/// The parts in a folder, with a transformer that lies elsewhere.
fn parts(folder: &Path, transformer: Option<&Path>) -> Result<ImageFolders, Error> {
    let manifest = read_config(&folder.join("manifest.json"))?;
    let named = |part: &str| -> Option<&str> { manifest.as_ref()?.get("components")?.get(part)?.as_str() };
    let find = |(part, known): &(&'static str, &[&str])| -> Result<PathBuf, Error> {
        if let Some(name) = named(part) {
            // A name, not a path: nothing leads out of the folder.
            let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':']);
            return match folder.join(name) {
                found if plain && found.is_dir() => Ok(found),
                _ => Err(missing(folder, part, &clip(name))),
            };
        }
        match known.iter().map(|name| folder.join(name)).find(|path| path.is_dir()) {
            Some(found) => Ok(found),
            None => match foreign(folder) {
                Some(name) if *part == "transformer" => Err(Error::new(folder, Problem::ForeignPack(name))),
                _ => Err(missing(folder, part, known[0])),
            },
        }
    };
    let transformer = transformer.map_or_else(|| find(&PARTS[0]), |file| Ok(file.to_owned()))?;
    let [text_encoder, vae, tokenizer] = [find(&PARTS[1])?, find(&PARTS[2])?, find(&PARTS[3])?];
    let tokenizer = tokenizer.join("tokenizer.json");
    if !tokenizer.is_file() {
        return Err(missing(folder, "tokenizer", "tokenizer/tokenizer.json"));
    }
    Ok(ImageFolders { transformer, text_encoder, vae, tokenizer })
}

fn missing(folder: &Path, part: &'static str, wanted: &str) -> Error {
    let part = match part {
        "text_encoder" => "text encoder",
        other => other,
    };
    Error::new(folder, Problem::ImagePart { part, wanted: wanted.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(names: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            let path = root.path().join(name);
            if name.ends_with(".json") {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "{}").unwrap();
            } else {
                fs::create_dir_all(path).unwrap();
            }
        }
        root
    }

    const TOKENIZER: &str = "tokenizer/tokenizer.json";

    #[test]
    fn both_trees_are_found_and_the_packed_one_first() {
        let packed = tree(&["transformer-packed-mflux", "transformer", "text_encoder-mlx-4bit", "vae", TOKENIZER]);
        let found = image_folders(packed.path()).unwrap();
        assert!(found.transformer.ends_with("transformer-packed-mflux"));
        assert!(found.tokenizer.ends_with(TOKENIZER));
        let plain = tree(&["transformer", "text_encoder", "vae", TOKENIZER]);
        assert!(image_folders(plain.path()).unwrap().text_encoder.ends_with("text_encoder"));
        assert!(is_image_folder(plain.path()) && !is_image_folder(&plain.path().join("vae")));
    }

    #[test]
    fn what_is_missing_is_named_with_how_to_get_it() {
        let all = ["transformer-packed-mflux", "text_encoder-mlx-4bit", "vae", TOKENIZER];
        for (i, word) in ["transformer", "text encoder", "vae", "tokenizer"].iter().enumerate() {
            let some: Vec<&str> = (0..4).filter(|j| *j != i).map(|j| all[j]).collect();
            let error = image_folders(tree(&some).path()).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("onebit pull"), "{error}");
        }
    }

    #[test]
    fn packs_for_another_runtime_are_named() {
        let root = tree(&["transformer-gemlite-int2", "text_encoder", "vae", TOKENIZER]);
        let error = image_folders(root.path()).unwrap_err().to_string();
        assert!(error.contains("transformer-gemlite-int2") && error.contains("mlx"), "{error}");
    }

    #[test]
    fn a_single_file_has_the_other_parts_beside_it_or_above() {
        let root = tree(&["transformer", "text_encoder", "vae", TOKENIZER]);
        for name in ["flux.safetensors", "transformer/flux.gguf"] {
            let file = root.path().join(name);
            fs::write(&file, "").unwrap();
            let found = image_folders(&file).unwrap();
            assert_eq!(found.transformer, file);
            assert!(found.text_encoder.ends_with("text_encoder") && found.vae.ends_with("vae"));
        }
        let alone = tree(&["x"]);
        let file = alone.path().join("x/flux.gguf");
        fs::write(&file, "").unwrap();
        let error = image_folders(&file).unwrap_err().to_string();
        assert!(error.contains("text encoder"), "{error}");
    }

    #[test]
    fn a_manifest_names_folders_inside_alone() {
        let root = tree(&["dit", "text_encoder", "vae", TOKENIZER]);
        let manifest = |name: &str| {
            fs::write(root.path().join("manifest.json"), format!(r#"{{"components": {{"transformer": "{name}"}}}}"#))
                .unwrap();
            image_folders(root.path())
        };
        assert!(manifest("dit").unwrap().transformer.ends_with("dit"));
        for name in ["../dit", "/tmp", "", "gone"] {
            assert!(manifest(name).is_err(), "{name}");
        }
    }
}
