//! Giving a content in `blobs` its name in a snapshot.

use std::io;
use std::path::{Path, PathBuf};

use super::create_dir;
use crate::error::HubError;

/// Puts `name` into the snapshot `dir`: a relative link to the blob, or where
/// links are not permitted a second name of the same content, or a copy.
pub(super) fn into_snapshot(blob: &Path, dir: &Path, name: &str) -> Result<(), HubError> {
    let path = dir.join(name);
    let failed = HubError::io("adding to the cache", &path);
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    let same = |a: io::Result<PathBuf>, b: io::Result<PathBuf>| matches!((a, b), (Ok(a), Ok(b)) if a == b);
    if same(path.canonicalize(), blob.canonicalize()) {
        return Ok(());
    }
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    symlink(&relative_target(blob, name), &path)
        .or_else(|_| std::fs::hard_link(blob, &path))
        .or_else(|_| std::fs::copy(blob, &path).map(|_| ()))
        .map_err(failed)
}

/// `../../blobs/SUM`, with one `..` more for each folder in the name.
fn relative_target(blob: &Path, name: &str) -> PathBuf {
    let mut target = PathBuf::from("../..");
    for _ in name.matches('/') {
        target.push("..");
    }
    target.push("blobs");
    target.push(blob.file_name().unwrap_or_default());
    target
}

#[cfg(unix)]
fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(windows)]
fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, path)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_target: &Path, _path: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
