//! The model that runs when none is named: a small trained one whose files are part of the program.
//!
//! Its files have paths under `ROOT`, which no file system knows; [`file()`] serves them to the same readers that read
//! folders. Nothing is unpacked and nothing is written.

use crate::memory;
use crate::resolve::Located;
use crate::terminal;
use onebit_hub::packs::{PACKS, Pack, Support};
use std::path::{Path, PathBuf};

/// What users call it.
pub const NAME: &str = "seedling";

/// The folder that its files seem to lie in.
const ROOT: &str = "built-in:seedling";

const FILES: [(&str, &[u8]); 6] = [
    ("model.safetensors", include_bytes!("../../../models/seedling/model.safetensors")),
    ("config.json", include_bytes!("../../../models/seedling/config.json")),
    ("generation_config.json", include_bytes!("../../../models/seedling/generation_config.json")),
    ("tokenizer.json", include_bytes!("../../../models/seedling/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../models/seedling/tokenizer_config.json")),
    ("chat_template.jinja", include_bytes!("../../../models/seedling/chat_template.jinja")),
];

/// The built-in model, for a command that names none: the choice says so, and which download would be better.
#[must_use]
pub fn default_model() -> Located {
    let size: u64 = FILES.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let better = match largest_that_fits(memory::free()) {
        Some((pack, bytes)) => format!(
            "; `onebit pull {}` gets the largest pack that fits this machine ({})",
            pack.short,
            terminal::bytes(bytes)
        ),
        None => String::new(),
    };
    let choice = format!("no model is named, so the built-in {} demo model answers{better}", terminal::bytes(size));
    Located { choice: Some(choice), ..named() }
}

/// The built-in model by its own name.
#[must_use]
pub fn named() -> Located {
    Located { path: PathBuf::from(ROOT), name: NAME.to_owned(), choice: None }
}

/// Whether a path is the built-in model's folder.
#[must_use]
pub fn is_root(path: &Path) -> bool {
    path == Path::new(ROOT)
}

/// The bytes of one of its files; `None` for every path outside `ROOT`, and for files that it does not have.
#[must_use]
pub fn file(path: &Path) -> Option<&'static [u8]> {
    let name = path.strip_prefix(ROOT).ok()?;
    FILES.iter().find(|(known, _)| Path::new(known) == name).map(|(_, bytes)| *bytes)
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
    fn only_its_own_paths_are_served() {
        assert!(file(&Path::new(ROOT).join("config.json")).is_some());
        assert!(file(Path::new("config.json")).is_none());
        assert!(file(&Path::new(ROOT).join("absent")).is_none());
    }
}
