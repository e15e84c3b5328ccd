//! The bytes of one weight file: mapped, read into memory, or part of the program. The only unsafe code of the crate is here.
//!
//! **Hazard of mapping.** The operating system serves a mapped page from the file when it is first touched. If
//! another program shortens the file meanwhile, touching a page beyond the new end kills this process with SIGBUS,
//! which no check can fully prevent. Lengths are therefore compared again before every slice is handed out, which
//! catches a file that shrank since it was opened, and `mmap: false` reads everything up front and has no such hazard.
//! [`explain_shrunk_files`] turns what remains into a sentence.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(unix)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use memmap2::Mmap;

use crate::error::{Error, Problem};
use crate::{Parsed, sniff};

/// Bytes behind a tensor that are read from the disk while it is worked on.
const FETCH_AHEAD: u64 = 64 << 20;

/// First read of a header in memory mode.
const FIRST_READ: u64 = 64 << 10;

#[derive(Debug)]
enum Bytes {
    Mapped(Arc<Mmap>),
    Owned(Vec<u8>),
    Embedded(&'static [u8]),
}

/// The bytes of a mapped file, for as long as anybody holds them.
pub type FileBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// One open weight file.
#[derive(Debug)]
pub(crate) struct Storage {
    path: PathBuf,
    /// Absent for embedded bytes.
    file: Option<File>,
    len: u64,
    bytes: Bytes,
    /// End of what [`Storage::fetch`] asked for.
    fetched: AtomicU64,
}

impl Storage {
    /// Opens a file and parses its header, before the rest is read in memory mode.
    pub(crate) fn open<T>(
        path: &Path,
        mmap: bool,
        parse: impl Fn(&[u8], u64) -> Result<Parsed<T>, Problem>,
    ) -> Result<(Self, T), Error> {
        let fail = |problem| Error::new(path, problem);
        let refused = |e: std::io::Error| {
            fail(if e.kind() == std::io::ErrorKind::NotFound { Problem::NotFound } else { Problem::Io(e) })
        };
        // Opening a pipe waits for its other end.
        if !std::fs::metadata(path).map_err(refused)?.is_file() {
            return Err(fail(Problem::NotAFile));
        }
        let file = File::open(path).map_err(refused)?;
        let len = file.metadata().map_err(|e| fail(e.into()))?.len();
        if len == 0 {
            return Err(fail(Problem::Empty));
        }
        let bytes = if mmap {
            Bytes::Mapped(Arc::new(map(&file).map_err(|e| fail(e.into()))?))
        } else {
            Bytes::Owned(Vec::new())
        };
        let fetched = AtomicU64::new(0);
        let mut storage = Self { path: path.to_owned(), file: Some(file), len, bytes, fetched };
        let header = storage.parse(parse)?;
        Ok((storage, header))
    }

    /// Takes bytes of the program itself as a file. `path` stands in messages.
    pub(crate) fn embedded<T>(
        path: &Path,
        bytes: &'static [u8],
        parse: impl Fn(&[u8], u64) -> Result<Parsed<T>, Problem>,
    ) -> Result<(Self, T), Error> {
        let len = bytes.len() as u64;
        let bytes = Bytes::Embedded(bytes);
        let mut storage = Self { path: path.to_owned(), file: None, len, bytes, fetched: AtomicU64::new(0) };
        let header = storage.parse(parse)?;
        Ok((storage, header))
    }

    fn parse<T>(&mut self, parse: impl Fn(&[u8], u64) -> Result<Parsed<T>, Problem>) -> Result<T, Error> {
        let (path, len) = (self.path.clone(), self.len);
        let fail = |problem| Error::new(&path, problem);
        self.read_to(FIRST_READ)?;
        let header = loop {
            let have = self.all().len() as u64;
            sniff::check(self.all(), len).map_err(fail)?;
            match parse(self.all(), len).map_err(fail)? {
                Parsed::Header(header) => break header,
                // Doubling keeps the repeated parsing linear in the header's length.
                Parsed::NeedBytes(n) if have < len => self.read_to(n.max(2 * have))?,
                Parsed::NeedBytes(n) => return Err(fail(Problem::Truncated { wanted: n.max(len + 1), got: len })),
            }
        };
        self.read_to(len)?;
        Ok(header)
    }

    fn all(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
            Bytes::Embedded(bytes) => bytes,
        }
    }

    /// In memory mode, reads on until `target` bytes (at most the whole file) are there.
    fn read_to(&mut self, target: u64) -> Result<(), Error> {
        let (Bytes::Owned(bytes), Some(file)) = (&mut self.bytes, &self.file) else { return Ok(()) };
        let target = target.min(self.len);
        let more = target.saturating_sub(bytes.len() as u64);
        let got = { file }.take(more).read_to_end(bytes);
        let got = got.map_err(|e| Error::new(&self.path, e.into()))? as u64;
        if got < more {
            let got = bytes.len() as u64;
            return Err(Error::new(&self.path, Problem::Changed { wanted: self.len, got }));
        }
        Ok(())
    }

    /// `len` bytes from `offset`, after checking that the file still has the length that it was opened with.
    pub(crate) fn slice(&self, offset: u64, len: u64) -> Result<&[u8], Error> {
        if let (Bytes::Mapped(_), Some(file)) = (&self.bytes, &self.file) {
            let now = file.metadata().map_err(|e| Error::new(&self.path, e.into()))?.len();
            if now != self.len {
                return Err(Error::new(&self.path, Problem::Changed { wanted: self.len, got: now }));
            }
        }
        let range = usize::try_from(offset).ok().zip(offset.checked_add(len).and_then(|e| usize::try_from(e).ok()));
        range.and_then(|(start, end)| self.all().get(start..end)).ok_or_else(|| {
            Error::new(&self.path, Problem::Truncated { wanted: offset.saturating_add(len), got: self.len })
        })
    }

    /// Time of the last change, if this is a file and its system tells.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        self.file.as_ref()?.metadata().ok()?.modified().ok()
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The map itself, for those who hold on to it; `None` in memory mode, where all of the file would be held.
    pub(crate) fn mapped(&self) -> Option<Arc<Mmap>> {
        match &self.bytes {
            Bytes::Mapped(map) => Some(map.clone()),
            Bytes::Owned(_) | Bytes::Embedded(_) => None,
        }
    }

    /// Asks for a range and the stretch behind it to be read. What was asked for before is not asked for again: looking
    /// every page up takes time even when all are there.
    pub(crate) fn fetch(&self, offset: u64, len: u64) {
        let Bytes::Mapped(map) = &self.bytes else { return };
        let end = offset.saturating_add(len).saturating_add(FETCH_AHEAD).min(self.len);
        let start = self.fetched.fetch_max(end, Ordering::Relaxed).max(offset);
        if start < end {
            read_pages(map, start as usize, (end - start) as usize);
        }
    }

    /// Gives the pages behind a range back to the operating system; they are read again when touched.
    pub(crate) fn release(&self, offset: u64, len: u64) {
        if let Bytes::Mapped(map) = &self.bytes {
            drop_pages(map, offset as usize, len as usize);
        }
    }
}

fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read-only and private. Rust asks that nobody changes the file meanwhile, which no program
    // can guarantee about files of others; the module's documentation states the hazard and the way round it.
    unsafe { Mmap::map(file) }
}

/// Maps a file of the program's own making as it is. The hazard of mapping is that of
/// [`OpenOptions::mmap`](crate::OpenOptions::mmap).
///
/// # Errors
/// Those of the system.
pub fn map_file(path: &Path) -> std::io::Result<FileBytes> {
    Ok(Arc::new(map(&File::open(path)?)?))
}

/// Makes the signal of a mapped file that another program shortens end this process with a sentence and exit code 1
/// instead of a bare SIGBUS. For programs, not libraries: it replaces the process's handler. Does nothing elsewhere than
/// on Unix.
pub fn explain_shrunk_files() {
    #[cfg(unix)]
    {
        static SAID: AtomicBool = AtomicBool::new(false);
        extern "C" fn explain(_: libc::c_int) {
            if SAID.swap(true, Ordering::Relaxed) {
                // Another thread is saying it, and ends the process when it has.
                loop {
                    std::hint::spin_loop();
                }
            }
            const TEXT: &[u8] =
                b"error: a weight file was shortened or lost while it was in use; check its disk and run \
                again, or use --no-mmap, which reads files up front\n";
            // SAFETY: write and _exit are among the few calls allowed in a signal handler; TEXT is static.
            unsafe {
                libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
                libc::_exit(1)
            }
        }
        // SAFETY: all zeros is a valid sigaction; the handler only makes calls that signals allow, and SA_ONSTACK lets
        // it run on the stack that the runtime gave each thread for signals. A failure leaves the default in place.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = explain as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    }
}

/// Advice is only advice: when it fails pages are read when they are touched.
#[cfg(unix)]
fn read_pages(map: &Mmap, offset: usize, len: usize) {
    let _ = map.advise_range(memmap2::Advice::WillNeed, offset, len);
}

#[cfg(not(unix))]
fn read_pages(_map: &Mmap, _offset: usize, _len: usize) {}

#[cfg(unix)]
fn drop_pages(map: &Mmap, offset: usize, len: usize) {
    if len == 0 || offset.checked_add(len).is_none_or(|end| end > map.len()) {
        return;
    }
    // Advice is only advice: when it fails the pages stay resident, and nothing else changes.
    // SAFETY: MADV_DONTNEED on a private mapping of a file that is never written through the map: the pages hold no
    // data of their own and are read from the file again, so no reader sees other bytes than before.
    let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len) };
}

#[cfg(not(unix))]
fn drop_pages(_map: &Mmap, _offset: usize, _len: usize) {}
