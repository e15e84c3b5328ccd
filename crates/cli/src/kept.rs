//! Weights in the device's own layout, kept in a file between runs: `--cache-repack`.
//!
//! ```text
//! 0   "onebit-w" | index: first byte, length | length of the file   (8-byte little-endian numbers)
//! 32  SHA-256 of the index
//! 64  weights, each aligned to 4096, its pieces to 64
//!     index (JSON): identity, and for each weight its name, place and symmetry
//! ```
//!
//! A file is one checkpoint in one layout. Its identity is a hash of what would have to change with the weights: sizes,
//! times and headers of the checkpoint's files, the layout's name, and whether offsets were kept; not of their path, so
//! that a model may be moved. It is written beside its place and renamed when it is complete.

use crate::args::{KeepIn, RunOptions};
use crate::source::Source;
use crate::terminal;
use anyhow::{Context, Result, bail};
use onebit_ops::{Backend, PIECE_ALIGN, Resident, SharedBytes, WeightStore};
use onebit_quant::{Residual, Symmetry};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const MAGIC: &[u8; 8] = b"onebit-w";

/// Bytes before the first weight.
const PREFIX: usize = 64;

/// Alignment of weights in the file: a page.
const PAGE: u64 = 4096;

/// How kept files are named.
const EXTENSION: &str = "weights";

/// How files are named that are being written.
const UNFINISHED: &str = "unfinished";

/// Space that is left to others on the disk.
const SPARE: u64 = 256 << 20;

#[derive(Serialize, Deserialize)]
struct Index {
    identity: String,
    weights: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    start: u64,
    bytes: u64,
    symmetry: Vec<StoredSymmetry>,
}

/// [`Symmetry`] in the index: a residual is row, group and the bits of its value.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredSymmetry {
    Exact,
    Rounding(Vec<(usize, usize, u32)>),
    Affine,
}

impl StoredSymmetry {
    fn of(symmetry: &Symmetry) -> Self {
        match symmetry {
            Symmetry::Exact => StoredSymmetry::Exact,
            Symmetry::Rounding(list) => {
                StoredSymmetry::Rounding(list.iter().map(|r| (r.row, r.group, r.value.to_bits())).collect())
            }
            Symmetry::Affine => StoredSymmetry::Affine,
        }
    }

    fn read(&self) -> Symmetry {
        let residual = |&(row, group, bits): &(usize, usize, u32)| Residual { row, group, value: f32::from_bits(bits) };
        match self {
            StoredSymmetry::Exact => Symmetry::Exact,
            StoredSymmetry::Rounding(list) => Symmetry::Rounding(list.iter().map(residual).collect()),
            StoredSymmetry::Affine => Symmetry::Affine,
        }
    }
}

/// Where the kept weights of a checkpoint lie, whether they are there or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    identity: String,
}

impl Place {
    /// The place for a checkpoint on a backend; `None` for models that are part of the program, and for backends whose
    /// weights cannot be kept.
    ///
    /// # Errors
    /// No folder for caches.
    pub fn of(source: &Source, backend: &dyn Backend, options: &RunOptions) -> Result<Option<Place>> {
        let (Some(layout), Some(files)) = (backend.layout(), source.checkpoint().fingerprints()) else {
            return Ok(None);
        };
        let mut hash = Sha256::new();
        hash.update(&layout);
        hash.update([0, u8::from(options.keep_biases)]);
        for file in files {
            let modified = file.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            hash.update(file.len.to_le_bytes());
            hash.update(modified.as_nanos().to_le_bytes());
            hash.update(Sha256::digest(file.header));
        }
        let identity = hex(&hash.finalize());
        let path = folder(&options.cache_repack)?.join(format!("{}.{layout}.{EXTENSION}", &identity[..16]));
        Ok(Some(Place { path, identity }))
    }

    /// Bytes of the file, if it is there.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        fs::metadata(&self.path).ok().map(|meta| meta.len())
    }
}

/// The folder of kept weights: the one asked for, or `onebit/repack` among the user's caches.
///
/// # Errors
/// No folder for caches.
pub fn folder(asked: &KeepIn) -> Result<PathBuf> {
    if let KeepIn::Folder(folder) = asked {
        return Ok(folder.clone());
    }
    let caches = caches().context("there is no place for repacked weights; name a folder: --cache-repack=DIR")?;
    Ok(caches.join("repack"))
}

/// The program's folder among the user's caches.
///
/// # Errors
/// No folder for caches.
pub fn caches() -> Result<PathBuf> {
    let given = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let caches =
        given("XDG_CACHE_HOME").or_else(|| Some(given("HOME").or_else(|| given("USERPROFILE"))?.join(".cache")));
    Ok(caches.context("neither XDG_CACHE_HOME nor HOME is set")?.join("onebit"))
}

/// Deletes all kept weights of a folder; returns how many files and bytes there were.
///
/// # Errors
/// A file that cannot be deleted.
pub fn clear(folder: &Path) -> Result<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok((0, 0)),
        Err(e) => return Err(e).with_context(|| folder.display().to_string()),
    };
    for entry in entries {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        if path.extension().is_some_and(|e| e == EXTENSION || e == UNFINISHED) {
            let size = fs::metadata(&path).map_or(0, |meta| meta.len());
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
            (files, bytes) = (files + 1, bytes + size);
        }
    }
    Ok((files, bytes))
}

/// The weights of an earlier run, or a file for those of this one.
pub enum Kept {
    /// They were kept.
    Found(Found),
    /// They are being written.
    New(New),
}

impl Kept {
    /// Opens the file of a place, or begins a new one for about `bytes` of weights. What keeps either from being of use
    /// is said in one line unless `quiet`, and costs the time of a repacking, nothing else.
    #[must_use]
    pub fn open(place: &Place, bytes: u64, quiet: bool) -> Option<Kept> {
        let say = |text: String| {
            if !quiet {
                terminal::say(&text);
            }
        };
        if place.path.exists() {
            match Found::open(place) {
                Ok(found) => return Some(Kept::Found(found)),
                Err(why) => say(format!("note: {}: {why:#}; it is made anew", place.path.display())),
            }
        }
        match New::create(place, bytes) {
            Ok(new) => {
                say(format!("note: keeping repacked weights for the next start: {}", place.path.display()));
                Some(Kept::New(new))
            }
            Err(why) => {
                say(format!("note: repacked weights are not kept: {why:#}"));
                None
            }
        }
    }

    /// Completes a new file; a fault is said in one line unless `quiet`.
    pub fn finish(self, quiet: bool) {
        if let Kept::New(new) = self
            && let Err(why) = new.finish()
            && !quiet
        {
            terminal::say(&format!("note: repacked weights are not kept: {why:#}"));
        }
    }
}

impl WeightStore for Kept {
    fn find(&self, name: &str) -> Option<Resident<SharedBytes>> {
        let Kept::Found(found) = self else { return None };
        let entry = found.index.weights.get(name)?;
        // The places were checked when the file was opened.
        let data = found.bytes.slice(entry.start as usize..(entry.start + entry.bytes) as usize)?;
        Some(Resident { symmetry: entry.symmetry.iter().map(StoredSymmetry::read).collect(), data })
    }

    fn keep(&self, name: &str, weight: Resident<Vec<&[u8]>>) {
        if let Kept::New(new) = self {
            new.add(name, &weight);
        }
    }
}

/// A complete file.
pub struct Found {
    bytes: SharedBytes,
    index: Index,
}

impl Found {
    fn open(place: &Place) -> Result<Found> {
        let owner = onebit_checkpoint::map_file(&place.path)?;
        let len = (*owner).as_ref().len();
        let bytes = SharedBytes::new(owner, 0..len);
        let Some(prefix) = bytes.first_chunk::<PREFIX>().filter(|prefix| prefix.starts_with(MAGIC)) else {
            bail!("is no file of repacked weights");
        };
        let number = |at: usize| {
            let bytes = prefix[at..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        let (start, size, whole) = (number(8), number(16), number(24));
        if whole != len as u64 {
            bail!("is {len} bytes long and should be {whole}");
        }
        let end = start.checked_add(size).and_then(|end| usize::try_from(end).ok());
        let index = end.and_then(|end| bytes.get(start as usize..end)).context("is damaged: its index lies outside")?;
        if Sha256::digest(index).as_slice() != &prefix[32..] {
            bail!("is damaged: its index is not the one that was written");
        }
        let index: Index = serde_json::from_slice(index).context("is damaged")?;
        if index.identity != place.identity {
            bail!("belongs to another model");
        }
        let inside =
            |e: &Entry| e.start.is_multiple_of(PAGE) && e.start.checked_add(e.bytes).is_some_and(|end| end <= start);
        if !index.weights.values().all(inside) {
            bail!("is damaged: a weight lies outside");
        }
        Ok(Found { bytes, index })
    }
}

/// A file that is being written.
pub struct New {
    place: Place,
    unfinished: PathBuf,
    state: RefCell<State>,
}

struct State {
    file: BufWriter<File>,
    next: u64,
    weights: BTreeMap<String, Entry>,
    failure: Option<std::io::Error>,
}

impl New {
    fn create(place: &Place, bytes: u64) -> Result<New> {
        let folder = place.path.parent().unwrap_or(Path::new("."));
        let named = || folder.display().to_string();
        fs::create_dir_all(folder).with_context(named)?;
        let free = fs4::available_space(folder).with_context(named)?;
        if free < bytes + SPARE {
            bail!("{} has {} free, and it takes {}", named(), terminal::bytes(free), terminal::bytes(bytes + SPARE));
        }
        let unfinished = place.path.with_extension(format!("{}.{UNFINISHED}", std::process::id()));
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&unfinished).with_context(named)?);
        file.write_all(&[0; PREFIX]).with_context(named)?;
        let state = State { file, next: PREFIX as u64, weights: BTreeMap::new(), failure: None };
        Ok(New { place: place.clone(), unfinished, state: RefCell::new(state) })
    }

    fn add(&self, name: &str, weight: &Resident<Vec<&[u8]>>) {
        let mut state = self.state.borrow_mut();
        if state.failure.is_none()
            && let Err(failure) = state.add(name, weight)
        {
            state.failure = Some(failure);
        }
    }

    fn finish(&self) -> Result<()> {
        let mut state = self.state.borrow_mut();
        let path = || self.place.path.display().to_string();
        if let Some(failure) = state.failure.take() {
            return Err(failure).with_context(path);
        }
        let index = Index { identity: self.place.identity.clone(), weights: std::mem::take(&mut state.weights) };
        let index = serde_json::to_vec(&index)?;
        let written = state.complete(&index).and_then(|()| fs::rename(&self.unfinished, &self.place.path));
        written.with_context(path)
    }
}

impl Drop for New {
    fn drop(&mut self) {
        // After a rename there is nothing under this name; a leftover goes with `--clear-cache`.
        let _ = fs::remove_file(&self.unfinished);
    }
}

impl State {
    fn pad(&mut self, to: u64) -> std::io::Result<()> {
        let gap = self.next.next_multiple_of(to) - self.next;
        std::io::copy(&mut std::io::Read::take(std::io::repeat(0), gap), &mut self.file)?;
        self.next += gap;
        Ok(())
    }

    fn add(&mut self, name: &str, weight: &Resident<Vec<&[u8]>>) -> std::io::Result<()> {
        self.pad(PAGE)?;
        let start = self.next;
        for piece in &weight.data {
            self.pad(PIECE_ALIGN as u64)?;
            self.file.write_all(piece)?;
            self.next += piece.len() as u64;
        }
        let symmetry = weight.symmetry.iter().map(StoredSymmetry::of).collect();
        self.weights.insert(name.to_owned(), Entry { start, bytes: self.next - start, symmetry });
        Ok(())
    }

    fn complete(&mut self, index: &[u8]) -> std::io::Result<()> {
        self.file.write_all(index)?;
        let mut prefix = MAGIC.to_vec();
        for number in [self.next, index.len() as u64, self.next + index.len() as u64] {
            prefix.extend(number.to_le_bytes());
        }
        prefix.extend(Sha256::digest(index));
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&prefix)?;
        self.file.flush()?;
        // A file whose name is there and whose bytes are not would give nonsense after a loss of power.
        self.file.get_ref().sync_all()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
