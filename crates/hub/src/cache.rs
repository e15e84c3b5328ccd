//! The cache folder that all Hugging Face tools share.
//!
//! A repository is `models--OWNER--NAME` with `refs/REVISION` (a file with a
//! commit id), `snapshots/COMMIT/` (the files by name) and `blobs/` (their
//! contents by checksum). A snapshot's files are links into `blobs`, or real
//! files where links are not permitted.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::HubError;
use crate::listing::{RepoFile, is_hex};
use crate::names::check_name;
use crate::repo_ref::RepoRef;

/// A cache folder, which need not exist yet.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache in this folder.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn repo_dir(&self, repo: &RepoRef) -> PathBuf {
        self.root.join(format!("models--{}--{}", repo.owner, repo.name))
    }

    pub(crate) fn lock_path(&self, repo: &RepoRef, blob: &str) -> PathBuf {
        let folder = format!("models--{}--{}", repo.owner, repo.name);
        self.root.join(".locks").join(folder).join(format!("{blob}.lock"))
    }

    /// The repository's files on the disk, for its revision. Never touches the
    /// network. Without `refs/main`, the newest snapshot stands for it.
    pub fn resolve(&self, repo: &RepoRef) -> Result<Snapshot, HubError> {
        let repo_dir = self.repo_dir(repo);
        if !repo_dir.is_dir() {
            return Err(HubError::NotCached { repo: repo.id(), cache: self.root.clone() });
        }
        let snapshots = repo_dir.join("snapshots");
        let revision = repo.revision_or_main();
        let ref_path = repo_dir.join("refs").join(revision);
        let dir = match std::fs::read_to_string(&ref_path) {
            Ok(commit) if is_hex(commit.trim()) => snapshots.join(commit.trim()),
            _ if is_hex(revision) && snapshots.join(revision).is_dir() => snapshots.join(revision),
            _ if repo.revision.is_none() => newest_folder(&snapshots).unwrap_or(snapshots),
            _ => {
                return Err(HubError::NoRevision { repo: repo.id(), revision: revision.to_owned(), path: ref_path });
            }
        };
        let snapshot = Snapshot { repo: repo.id(), repo_dir, dir };
        if snapshot.is_empty() {
            return Err(snapshot.missing("its list of files", snapshot.dir.clone()));
        }
        Ok(snapshot)
    }
}

/// The folder in `dir` that was changed last.
fn newest_folder(dir: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?;
    entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.is_dir())
        .max_by_key(|p| (std::fs::metadata(p).and_then(|m| m.modified()).ok(), p.clone()))
}

/// The files of one commit on the disk.
#[derive(Debug, Clone)]
pub struct Snapshot {
    repo: String,
    repo_dir: PathBuf,
    dir: PathBuf,
}

impl Snapshot {
    pub(crate) fn new(repo: &RepoRef, repo_dir: PathBuf, dir: PathBuf) -> Self {
        Self { repo: repo.id(), repo_dir, dir }
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of one of its files, which is there in full. A link may lead
    /// to the repository's `blobs`, but not out of the repository.
    pub fn file(&self, name: &str) -> Result<PathBuf, HubError> {
        check_name(name, &self.repo)?;
        let path = self.dir.join(name);
        let Ok(target) = path.canonicalize() else { return Err(self.missing(name, path)) };
        let inside = self.repo_dir.canonicalize().is_ok_and(|root| target.starts_with(root));
        if !inside {
            return Err(HubError::UnsafeName { name: name.to_owned(), place: self.dir.display().to_string() });
        }
        if target.is_file() { Ok(path) } else { Err(self.missing(name, path)) }
    }

    /// All its files by name. A link whose content is gone is listed without a
    /// size: [`Snapshot::file`] says so when the file is needed.
    pub fn files(&self) -> Result<Vec<RepoFile>, HubError> {
        let mut out = Vec::new();
        let mut folders = vec![(self.dir.clone(), String::new())];
        while let Some((dir, prefix)) = folders.pop() {
            let entries = std::fs::read_dir(&dir).map_err(HubError::io("reading the folder", &dir))?;
            for entry in entries.flatten() {
                let Ok(base) = entry.file_name().into_string() else { continue };
                let name = format!("{prefix}{base}");
                match std::fs::metadata(entry.path()) {
                    // A link to a folder could lead in a circle.
                    Ok(m) if m.is_dir() && !entry.path().is_symlink() => {
                        folders.push((entry.path(), format!("{name}/")));
                    }
                    Ok(m) if m.is_file() => {
                        out.push(RepoFile { name, size: Some(m.len()), ..RepoFile::default() });
                    }
                    Err(_) => out.push(RepoFile { name, ..RepoFile::default() }),
                    Ok(_) => {}
                }
            }
        }
        out.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    /// Names of files whose content is gone.
    pub fn broken_files(&self) -> Vec<String> {
        let files = self.files().unwrap_or_default();
        files.into_iter().filter(|f| f.size.is_none()).map(|f| f.name).collect()
    }

    fn is_empty(&self) -> bool {
        match std::fs::read_dir(&self.dir) {
            Ok(mut entries) => entries.next().is_none(),
            Err(_) => true,
        }
    }

    fn missing(&self, file: &str, path: PathBuf) -> HubError {
        let reason = if has_incomplete(&self.repo_dir.join("blobs")).unwrap_or(false) {
            "a download of it was not finished"
        } else if path.is_symlink() {
            "its content is gone"
        } else if self.is_empty() {
            "the contents are there, but not their names"
        } else {
            "it was never downloaded"
        };
        HubError::MissingFile { repo: self.repo.clone(), file: file.to_owned(), reason, path }
    }
}

fn has_incomplete(blobs: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(blobs)? {
        if entry?.path().extension().is_some_and(|e| e == "incomplete") {
            return Ok(true);
        }
    }
    Ok(false)
}
