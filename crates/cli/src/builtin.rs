//! The models that run when none is named: small trained ones whose files are part of the program, one that answers with
//! text and one that draws.
//!
//! Their files have paths that no file system knows; [`file()`] serves them to the same readers that read folders. Nothing is
//! unpacked and nothing is written.

use crate::memory;
use crate::resolve::Located;
use crate::terminal;
use onebit_checkpoint::ImageFolders;
use onebit_hub::packs::{PACKS, Pack, Support};
use std::path::{Path, PathBuf};

/// What a built-in model makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltIn {
    /// Answers.
    Text,
    /// Pictures.
    Image,
}

/// A file of a model: its path below the model's folder, and its bytes.
type File = (&'static str, &'static [u8]);

const TEXT_FILES: [File; 6] = [
    ("model.safetensors", include_bytes!("../../../models/seedling/model.safetensors")),
    ("config.json", include_bytes!("../../../models/seedling/config.json")),
    ("generation_config.json", include_bytes!("../../../models/seedling/generation_config.json")),
    ("tokenizer.json", include_bytes!("../../../models/seedling/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../models/seedling/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../../../models/seedling/chat_template.jinja")),
];

macro_rules! sprout {
    ($file:literal) => {
        ($file, include_bytes!(concat!("../../../models/sprout/", $file)))
    };
}

const IMAGE_FILES: [File; 8] = [
    sprout!("transformer-packed-mflux/config.json"),
    sprout!("transformer-packed-mflux/diffusion_pytorch_model.safetensors"),
    sprout!("transformer-packed-mflux/quantization_config.json"),
    sprout!("text_encoder-mlx-4bit/config.json"),
    sprout!("text_encoder-mlx-4bit/model.safetensors"),
    sprout!("vae/config.json"),
    sprout!("vae/diffusion_pytorch_model.safetensors"),
    sprout!("tokenizer/tokenizer.json"),
];

/// One model in one folder: bytes of its configuration, of what says how it is packed, and of its weights.
pub struct Embedded {
    /// `config.json`.
    pub config: &'static [u8],
    /// `quantization_config.json`, if it has one.
    pub quantization: Option<&'static [u8]>,
    /// The weight file.
    pub weights: &'static [u8],
}

impl BuiltIn {
    const ALL: [BuiltIn; 2] = [BuiltIn::Text, BuiltIn::Image];

    /// What users call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BuiltIn::Text => "seedling",
            BuiltIn::Image => "sprout",
        }
    }

    /// The model of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<BuiltIn> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }

    /// The folder that its files seem to lie in.
    fn root(self) -> &'static Path {
        Path::new(match self {
            BuiltIn::Text => "built-in:seedling",
            BuiltIn::Image => "built-in:sprout",
        })
    }

    fn files(self) -> &'static [File] {
        match self {
            BuiltIn::Text => &TEXT_FILES,
            BuiltIn::Image => &IMAGE_FILES,
        }
    }

    fn bytes(self) -> u64 {
        self.files().iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// It by its own name.
    #[must_use]
    pub fn located(self) -> Located {
        Located { path: self.root().to_owned(), name: self.name().to_owned(), choice: None }
    }

    /// It for a command that names no model: the choice says so, and which download would be better.
    #[must_use]
    pub fn by_default(self) -> Located {
        let size = terminal::bytes(self.bytes());
        let choice = match self {
            BuiltIn::Text => {
                let better = match largest_that_fits(memory::free()) {
                    Some((pack, bytes)) => format!(
                        "; `onebit pull {}` gets the largest pack that fits this machine ({})",
                        pack.short,
                        terminal::bytes(bytes)
                    ),
                    None => String::new(),
                };
                format!("no model is named, so the built-in {size} demo model answers{better}")
            }
            BuiltIn::Image => format!(
                "no model is named, so the built-in {size} demo model draws: simple shapes in plain colours and nothing else; \
                 `onebit pull image-ternary-4b` gets a model that draws everything"
            ),
        };
        Located { choice: Some(choice), ..self.located() }
    }
}

/// Whether a path is the folder of the built-in model that makes pictures.
#[must_use]
pub fn is_image(path: &Path) -> bool {
    path == BuiltIn::Image.root()
}

/// The parts of the built-in model that makes pictures.
#[must_use]
pub fn image_folders() -> ImageFolders {
    let part = |name: &str| BuiltIn::Image.root().join(name);
    ImageFolders {
        transformer: part("transformer-packed-mflux"),
        text_encoder: part("text_encoder-mlx-4bit"),
        vae: part("vae"),
        tokenizer: part("tokenizer/tokenizer.json"),
    }
}

/// What a folder of a built-in model holds; `None` for every other folder.
#[must_use]
pub fn embedded(folder: &Path) -> Option<Embedded> {
    // Pictures are described by the part that makes them.
    let transformer = image_folders().transformer;
    let folder = if is_image(folder) { &transformer } else { folder };
    let read = |name: &str| file(&folder.join(name));
    let weights = read("model.safetensors").or_else(|| read("diffusion_pytorch_model.safetensors"))?;
    Some(Embedded { config: read("config.json")?, quantization: read("quantization_config.json"), weights })
}

/// The bytes of a built-in file; `None` for every other path.
#[must_use]
pub fn file(path: &Path) -> Option<&'static [u8]> {
    BuiltIn::ALL.into_iter().find_map(|model| {
        let name = path.strip_prefix(model.root()).ok()?;
        model.files().iter().find(|(known, _)| Path::new(known) == name).map(|(_, bytes)| *bytes)
    })
}

/// Paths of the built-in files right below a folder, in order.
#[must_use]
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let all =
        BuiltIn::ALL.into_iter().flat_map(|model| model.files().iter().map(move |(name, _)| model.root().join(name)));
    let mut files: Vec<PathBuf> = all.filter(|path| path.parent() == Some(folder)).collect();
    files.sort();
    files
}

/// The supported pack with the most parameters, and then the most bits, that leaves a gigabyte for everything else.
fn largest_that_fits(free: u64) -> Option<(&'static Pack, u64)> {
    const ROOM: u64 = 1_000_000_000;
    let fitting = PACKS.iter().filter(|p| p.support == Support::Text).filter_map(|p| Some((p, p.mlx_bytes?)));
    fitting.filter(|(_, bytes)| bytes + ROOM <= free).max_by_key(|(pack, _)| (pack.params, pack.bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recommended_pack_grows_with_memory() {
        let short = |gigabytes: u64| largest_that_fits(gigabytes * 1_000_000_000).map(|(pack, _)| pack.short);
        assert_eq!(short(1), None);
        assert_eq!(short(7), Some("bonsai-27b"));
        assert_eq!(short(64), Some("ternary-27b"));
    }

    #[test]
    fn only_their_own_paths_are_served() {
        for model in BuiltIn::ALL {
            assert!(model.files().iter().all(|(name, bytes)| file(&model.root().join(name)) == Some(*bytes)));
            assert!(file(&model.root().join("absent")).is_none() && embedded(model.root()).is_some());
        }
        assert!(file(Path::new("config.json")).is_none() && embedded(Path::new("")).is_none());
        assert_eq!(files_in(&image_folders().vae).len(), 2);
    }
}
