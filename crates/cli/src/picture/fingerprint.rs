//! A hash that tells image models apart: the same files give the same hash wherever they lie.

use crate::builtin;
use anyhow::{Context, Result};
use onebit_checkpoint::ImageFolders;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Files up to this size are read whole. Of a larger one this much of its beginning counts, where the header is, ...
const HEAD: u64 = 1 << 20;
/// ... and so many pieces ...
const PIECES: u64 = 64;
/// ... of this size, evenly spread up to its end. Reading gigabytes would take longer than making a picture.
const PIECE: u64 = 64 << 10;

/// 16 hexadecimal digits of the SHA-256 of names, sizes, and contents or samples of all files of an image model.
///
/// # Errors
/// A file that cannot be read.
pub fn of(folders: &ImageFolders) -> Result<String> {
    let mut hash = Sha256::new();
    let parts = [("transformer", &folders.transformer), ("text_encoder", &folders.text_encoder), ("vae", &folders.vae)];
    for (part, folder) in parts {
        for path in files(folder).with_context(|| folder.display().to_string())? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            hash.update(format!("{part}/{name}\0"));
            add(&mut hash, &path).with_context(|| path.display().to_string())?;
        }
    }
    hash.update("tokenizer\0");
    add(&mut hash, &folders.tokenizer).with_context(|| folders.tokenizer.display().to_string())?;
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// Weights and configurations of a folder, by name; a file as it is.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = builtin::files_in(folder);
    if !files.is_empty() {
        return Ok(files);
    }
    if folder.is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() && path.extension().is_some_and(|e| ["safetensors", "gguf", "json"].iter().any(|k| e == *k)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn add(hash: &mut Sha256, path: &Path) -> std::io::Result<()> {
    match builtin::file(path) {
        Some(bytes) => add_contents(hash, Cursor::new(bytes), bytes.len() as u64),
        None => {
            let file = File::open(path)?;
            let len = file.metadata()?.len();
            add_contents(hash, file, len)
        }
    }
}

fn add_contents(hash: &mut Sha256, mut file: impl Read + Seek, len: u64) -> std::io::Result<()> {
    hash.update(len.to_le_bytes());
    let mut buffer = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut buffer)?;
    hash.update(&buffer);
    if len <= HEAD {
        return Ok(());
    }
    for piece in 1..=PIECES {
        // The last piece ends with the file; in a file that is hardly larger than its head they overlap.
        let end = HEAD + (len - HEAD) / PIECES * piece + if piece == PIECES { (len - HEAD) % PIECES } else { 0 };
        file.seek(SeekFrom::Start(end.saturating_sub(PIECE)))?;
        buffer.clear();
        file.by_ref().take(PIECE).read_to_end(&mut buffer)?;
        hash.update(&buffer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn model(root: &Path, large: &[u8]) -> ImageFolders {
        let folder = |name: &str| {
            let folder = root.join(name);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("config.json"), name).expect("written");
            folder
        };
        let [transformer, text_encoder, vae] = ["transformer", "text", "vae"].map(folder);
        fs::write(transformer.join("w.safetensors"), large).expect("written");
        let tokenizer = root.join("tokenizer.json");
        fs::write(&tokenizer, "{}").expect("written");
        ImageFolders { transformer, text_encoder, vae, tokenizer }
    }

    #[test]
    fn the_place_does_not_count_and_contents_do() {
        let hash = |large: &[u8]| {
            let dir = tempfile::tempdir().expect("a folder");
            of(&model(dir.path(), large)).expect("a hash")
        };
        let mut large = vec![7u8; (HEAD + 300_000) as usize];
        let plain = hash(&large);
        assert_eq!(plain.len(), 16);
        assert_eq!(plain, hash(&large));
        for at in [0, HEAD as usize - 1, HEAD as usize + 150_000, large.len() - 1] {
            large[at] ^= 1;
            assert_ne!(plain, hash(&large), "byte {at}");
            large[at] ^= 1;
        }
        large.push(7);
        assert_ne!(plain, hash(&large), "another length");
    }

    #[test]
    fn pieces_of_large_files_are_spread() {
        // Larger than head and pieces together, so that gaps are not read; the last byte always is.
        let dir = tempfile::tempdir().expect("a folder");
        let len = HEAD + PIECE * PIECES * 2 + 17;
        let mut large = vec![0u8; len as usize];
        let before = of(&model(dir.path(), &large)).expect("a hash");
        large[len as usize - 1] = 1;
        assert_ne!(before, of(&model(dir.path(), &large)).expect("a hash"));
        // Every second stretch of the size of a piece is read.
        large[len as usize - 1] = 0;
        let stretch = (PIECE * 2) as usize;
        for start in (HEAD as usize..len as usize - stretch).step_by(stretch * 16) {
            large[start..start + stretch].fill(9);
            assert_ne!(before, of(&model(dir.path(), &large)).expect("a hash"), "{start}");
            large[start..start + stretch].fill(0);
        }
    }
}
