//! Downloading into the cache.

mod download;
mod link;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cache::{Cache, Snapshot};
use crate::client::Client;
use crate::error::HubError;
use crate::listing::{Listing, RepoFile, is_hex};
use crate::names::check_name;
use crate::repo_ref::RepoRef;

/// Left free on the disk besides the download.
const MARGIN: u64 = 64 << 20;

/// What a download is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A file begins, with what an earlier try has left.
    Start {
        /// The file.
        file: &'a str,
        /// Bytes that are here already.
        have: u64,
        /// Its size, where known.
        size: Option<u64>,
    },
    /// Bytes have come.
    Bytes {
        /// The file.
        file: &'a str,
        /// Bytes that are here now.
        have: u64,
    },
    /// Another process downloads the same file; this one waits for it.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// A try failed; another follows.
    Retry {
        /// The file.
        file: &'a str,
        /// What went wrong.
        reason: String,
        /// The pause before the next try.
        pause: Duration,
    },
    /// The file is here and checked.
    Done {
        /// The file.
        file: &'a str,
    },
}

/// How to download.
pub struct PullOptions<'a> {
    /// Told what happens.
    pub progress: &'a mut dyn FnMut(Progress<'_>),
    /// Free bytes on the disk of an existing folder.
    pub free_space: &'a dyn Fn(&Path) -> io::Result<u64>,
    /// Tries in a row that may bring nothing before giving up.
    pub tries: u32,
    /// The first pause between tries; it doubles with every one.
    pub pause: Duration,
}

impl<'a> PullOptions<'a> {
    /// Five tries, from one second on, on the real disk.
    pub fn new(progress: &'a mut dyn FnMut(Progress<'_>)) -> Self {
        Self { progress, free_space: &|path| fs4::available_space(path), tries: 5, pause: Duration::from_secs(1) }
    }
}

/// Downloads `files` of a listing into the cache. What is there already is
/// kept; an unfinished file goes on where it stopped. Each file appears in the
/// snapshot only when its size and checksum are right. A second process that
/// pulls the same file waits.
pub fn pull(
    client: &Client,
    cache: &Cache,
    repo: &RepoRef,
    listing: &Listing,
    files: &[RepoFile],
    options: &mut PullOptions<'_>,
) -> Result<Snapshot, HubError> {
    let id = repo.id();
    files.iter().try_for_each(|f| check_name(&f.name, &id))?;
    if !is_hex(&listing.commit) {
        return Err(HubError::UnsafeName { name: listing.commit.clone(), place: id });
    }
    let repo_dir = cache.repo_dir(repo);
    let blobs = repo_dir.join("blobs");
    let dir = repo_dir.join("snapshots").join(&listing.commit);
    create_dir(&blobs)?;
    create_dir(&dir)?;
    check_space(cache, &id, &blobs, files, options)?;

    for file in files {
        let blob = blob_path(&blobs, file);
        let job = download::Job { client, cache, repo, commit: &listing.commit, file, blob: &blob };
        job.run(options)?;
        link::into_snapshot(&blob, &dir, &file.name)?;
        (options.progress)(Progress::Done { file: &file.name });
    }
    let revision = repo.revision_or_main();
    if revision != listing.commit {
        write_ref(&repo_dir.join("refs").join(revision), &listing.commit)?;
    }
    Ok(Snapshot::new(repo, repo_dir, dir))
}

/// Where a file's content goes. A listing without checksums gets the name.
fn blob_path(blobs: &Path, file: &RepoFile) -> PathBuf {
    match file.blob_name() {
        Some(sum) if is_hex(sum) => blobs.join(sum),
        _ => blobs.join(format!("name-{}", file.name.replace('/', "--"))),
    }
}

fn incomplete_path(blob: &Path) -> PathBuf {
    let mut name = blob.as_os_str().to_owned();
    name.push(".incomplete");
    PathBuf::from(name)
}

fn check_space(
    cache: &Cache,
    id: &str,
    blobs: &Path,
    files: &[RepoFile],
    options: &PullOptions<'_>,
) -> Result<(), HubError> {
    let on_disk = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let need: u64 = files
        .iter()
        .map(|file| {
            let blob = blob_path(blobs, file);
            let have = on_disk(&blob).max(on_disk(&incomplete_path(&blob)));
            file.size.unwrap_or(0).saturating_sub(have)
        })
        .sum();
    let have = (options.free_space)(blobs).map_err(HubError::io("asking for free space in", blobs))?;
    if need > 0 && need.saturating_add(MARGIN) > have {
        let path = cache.root().to_owned();
        return Err(HubError::NoSpace { repo: id.to_owned(), need, have, path });
    }
    Ok(())
}

fn write_ref(path: &Path, commit: &str) -> Result<(), HubError> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    let new = incomplete_path(path);
    std::fs::write(&new, commit).map_err(HubError::io("writing", &new))?;
    std::fs::rename(&new, path).map_err(HubError::io("writing", path))
}

fn create_dir(path: &Path) -> Result<(), HubError> {
    std::fs::create_dir_all(path).map_err(HubError::io("creating the folder", path))
}
