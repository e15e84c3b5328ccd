//! Small trained models whose files are part of the program: one that answers with text, and two that draw, with weights of one
//! bit and of three values. One of each kind runs when none is named.
//!
//! Their files have paths that no file system knows; [`file()`] serves them to the same readers that read folders. Nothing is
//! unpacked and nothing is written.

use crate::memory;
use crate::resolve::Located;
use crate::terminal;
use onebit_checkpoint::ImageFolders;
use onebit_hub::packs::{Alphabet, PACKS, Pack, Support};
use std::path::{Path, PathBuf};

/// A built-in model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltIn {
    /// Answers; weights of one bit.
    Seedling,
    /// Draws; weights of one bit.
    Sprout,
    /// Draws; weights of three values.
    SproutTernary,
}

/// A file of a model: its path below the model's folder, and its bytes.
type File = (&'static str, &'static [u8]);

/// Files of a folder below `models`.
macro_rules! files {
    ($model:literal: $($file:literal),+ $(,)?) => {
        [$(($file, include_bytes!(concat!("../../../models/", $model, "/", $file)))),+]
    };
}

static SEEDLING: [File; 6] = files!("seedling":
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
);

static SPROUT: [File; 3] = files!("sprout":
    "transformer-packed-mflux/config.json",
    "transformer-packed-mflux/diffusion_pytorch_model.safetensors",
    "transformer-packed-mflux/quantization_config.json",
);

static SPROUT_TERNARY: [File; 3] = files!("sprout-ternary":
    "transformer-packed-mflux/config.json",
    "transformer-packed-mflux/diffusion_pytorch_model.safetensors",
    "transformer-packed-mflux/quantization_config.json",
);

/// What both transformers stand between.
static SPROUT_SHARED: [File; 5] = files!("sprout":
    "text_encoder-mlx-4bit/config.json",
    "text_encoder-mlx-4bit/model.safetensors",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
    "tokenizer/tokenizer.json",
);

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
    /// All of them.
    pub const ALL: [BuiltIn; 3] = [BuiltIn::Seedling, BuiltIn::Sprout, BuiltIn::SproutTernary];

    /// The one that answers when no model is named.
    pub const TEXT: BuiltIn = BuiltIn::Seedling;

    /// The one that draws when no model is named: of the two that which is more often right.
    pub const IMAGE: BuiltIn = BuiltIn::SproutTernary;

    /// What users call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BuiltIn::Seedling => "seedling",
            BuiltIn::Sprout => "sprout",
            BuiltIn::SproutTernary => "sprout-ternary",
        }
    }

    /// The model of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<BuiltIn> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }

    /// Values of its weights.
    #[must_use]
    pub fn alphabet(self) -> Alphabet {
        match self {
            BuiltIn::Seedling | BuiltIn::Sprout => Alphabet::Binary,
            BuiltIn::SproutTernary => Alphabet::Ternary,
        }
    }

    /// Whether it makes pictures, and not text.
    #[must_use]
    pub fn draws(self) -> bool {
        self != BuiltIn::Seedling
    }

    /// The model whose folder a path is.
    #[must_use]
    pub fn at(path: &Path) -> Option<BuiltIn> {
        Self::ALL.into_iter().find(|model| model.root() == path)
    }

    /// The folder that its files seem to lie in.
    fn root(self) -> &'static Path {
        Path::new(match self {
            BuiltIn::Seedling => "built-in:seedling",
            BuiltIn::Sprout => "built-in:sprout",
            BuiltIn::SproutTernary => "built-in:sprout-ternary",
        })
    }

    /// Its own files, and those that it shares.
    fn files(self) -> impl Iterator<Item = &'static File> {
        let [own, shared]: [&[File]; 2] = match self {
            BuiltIn::Seedling => [&SEEDLING, &[]],
            BuiltIn::Sprout => [&SPROUT, &SPROUT_SHARED],
            BuiltIn::SproutTernary => [&SPROUT_TERNARY, &SPROUT_SHARED],
        };
        own.iter().chain(shared)
    }

    /// Bytes of all its files.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.files().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// The parts of a model that draws; `None` for one that does not.
    #[must_use]
    pub fn image_folders(self) -> Option<ImageFolders> {
        let part = |name: &str| self.root().join(name);
        self.draws().then(|| ImageFolders {
            transformer: part("transformer-packed-mflux"),
            text_encoder: part("text_encoder-mlx-4bit"),
            vae: part("vae"),
            tokenizer: part("tokenizer/tokenizer.json"),
        })
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
        let choice = if self.draws() {
            format!(
                "no model is named, so the built-in {size} demo model draws: simple shapes in plain colours and nothing else; \
                 `onebit pull image-ternary-4b` gets a model that draws everything"
            )
        } else {
            let better = match largest_that_fits(memory::free()) {
                Some((pack, bytes)) => format!(
                    "; `onebit pull {}` gets the largest pack that fits this machine ({})",
                    pack.short,
                    terminal::bytes(bytes)
                ),
                None => String::new(),
            };
            format!("no model is named, so the built-in {size} demo model answers{better}")
        };
        Located { choice: Some(choice), ..self.located() }
    }
}

/// What a folder of a built-in model holds; `None` for every other folder.
#[must_use]
pub fn embedded(folder: &Path) -> Option<Embedded> {
    // Pictures are described by the part that makes them.
    let transformer = BuiltIn::at(folder).and_then(BuiltIn::image_folders).map(|folders| folders.transformer);
    let folder = transformer.as_deref().unwrap_or(folder);
    let read = |name: &str| file(&folder.join(name));
    let weights = read("model.safetensors").or_else(|| read("diffusion_pytorch_model.safetensors"))?;
    Some(Embedded { config: read("config.json")?, quantization: read("quantization_config.json"), weights })
}

/// The bytes of a built-in file; `None` for every other path.
#[must_use]
pub fn file(path: &Path) -> Option<&'static [u8]> {
    BuiltIn::ALL.into_iter().find_map(|model| {
        let name = path.strip_prefix(model.root()).ok()?;
        model.files().find(|(known, _)| Path::new(known) == name).map(|(_, bytes)| *bytes)
    })
}

/// Paths of the built-in files right below a folder, in order.
#[must_use]
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let all = BuiltIn::ALL.into_iter().flat_map(|model| model.files().map(move |(name, _)| model.root().join(name)));
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
            assert!(model.files().all(|(name, bytes)| file(&model.root().join(name)) == Some(*bytes)));
            assert!(file(&model.root().join("absent")).is_none() && embedded(model.root()).is_some());
        }
        assert!(file(Path::new("config.json")).is_none() && embedded(Path::new("")).is_none());
    }

    /// Two models that draw take less than 12 MB of the program: what they share is one piece of it.
    #[test]
    fn models_that_draw_share_what_is_alike() {
        let drawing = || BuiltIn::ALL.into_iter().filter(|model| model.draws());
        let mut pieces: Vec<(*const u8, usize)> =
            drawing().flat_map(BuiltIn::files).map(|(_, bytes)| (bytes.as_ptr(), bytes.len())).collect();
        let large = |pieces: &[(*const u8, usize)]| pieces.iter().filter(|(_, len)| *len > 100_000).count();
        let files = large(&pieces);
        pieces.sort_unstable();
        pieces.dedup();
        // Two transformers between one text encoder and one decoder.
        assert_eq!((files, large(&pieces)), (6, 4));
        let bytes: usize = pieces.iter().map(|(_, len)| len).sum();
        assert!(bytes < 12_000_000, "{bytes} bytes");
        for model in drawing() {
            let folders = model.image_folders().expect("it draws");
            assert_eq!(files_in(&folders.vae).len(), 2);
            assert_eq!(BuiltIn::at(model.root()), Some(model));
        }
        assert_eq!((BuiltIn::TEXT.draws(), BuiltIn::IMAGE.draws()), (false, true));
    }
}
