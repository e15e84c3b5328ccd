//! Where results go: names that are checked before the work begins, and files that are there whole or not at all.

use crate::Usage;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// `out.png`, or `out-1.png` to `out-N.png` for several.
#[must_use]
pub fn numbered(path: &Path, count: usize) -> Vec<PathBuf> {
    if count == 1 {
        return vec![path.to_owned()];
    }
    let name = |number: usize| {
        let mut name = path.file_stem().map(OsString::from).unwrap_or_default();
        name.push(format!("-{number}"));
        if let Some(extension) = path.extension() {
            name.push(".");
            name.push(extension);
        }
        path.with_file_name(name)
    };
    (1..=count).map(name).collect()
}

/// Fails for a name that is not a PNG file's.
///
/// # Errors
/// [`Usage`] with the name that would do.
pub fn must_be_png(path: &Path) -> Result<()> {
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("png")) {
        return Ok(());
    }
    let better = path.with_extension("png");
    bail!(Usage(format!(
        "{} is no name for a PNG file, which is what is written: use -o {}",
        path.display(),
        better.display()
    )))
}

/// Fails where something is in the way or a folder is missing.
///
/// # Errors
/// The first such path.
pub fn check(paths: &[PathBuf], force: bool) -> Result<()> {
    for path in paths {
        let folder = folder(path);
        if !folder.is_dir() {
            bail!("{}: there is no folder {}; make it first", path.display(), folder.display());
        }
        if path.is_dir() {
            bail!("{} is a folder; name a file", path.display());
        }
        if !force && path.exists() {
            bail!("{} exists; --force writes over it, or name another file with -o", path.display());
        }
    }
    Ok(())
}

/// Fails where two results, or a result and what it is made of, would be one file.
///
/// # Errors
/// [`Usage`] with the flags and the path.
pub fn must_differ((flag, path): (&str, &Path), (other_flag, other): (&str, &Path)) -> Result<()> {
    // What is not there yet has a folder that is; names of a folder may differ and mean one.
    let real = |path: &Path| -> PathBuf {
        let whole = fs::canonicalize(path).ok();
        let in_folder = || Some(fs::canonicalize(folder(path)).ok()?.join(path.file_name()?));
        whole.or_else(in_folder).unwrap_or_else(|| path.to_owned())
    };
    if real(path) == real(other) {
        bail!(Usage(format!("{flag} and {other_flag} both name {}; give one of them another file", path.display())));
    }
    Ok(())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file under another name and renames it, so that nobody sees half of it.
///
/// # Errors
/// Whatever the system says; nothing is left behind then.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.unfinished", std::process::id()));
    let unfinished = path.with_file_name(name);
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    });
    if written.is_err() {
        // It may not even have come into being.
        let _ = fs::remove_file(&unfinished);
    }
    written.with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several() {
        let names = |path: &str, count| {
            let paths = numbered(Path::new(path), count);
            paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names("a/out.png", 1), ["a/out.png"]);
        assert_eq!(names("a/out.v2.png", 2), ["a/out.v2-1.png", "a/out.v2-2.png"]);
    }

    #[test]
    fn one_file_is_not_two_results() {
        let dir = tempfile::tempdir().expect("a folder");
        let [plain, dotted] = ["a.png", "./a.png"].map(|name| dir.path().join(name));
        let differ = |other: &Path| must_differ(("-o", &plain), ("--latents-out", other));
        assert!(differ(&dir.path().join("b.png")).is_ok());
        let error = differ(&dotted).expect_err("the same").to_string();
        assert!(error.contains("-o and --latents-out both name"), "{error}");
        fs::write(&plain, b"x").expect("written");
        assert!(differ(&dotted).is_err());
    }

    #[test]
    fn nothing_is_written_over_or_left_half_done() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("out.png");
        check(std::slice::from_ref(&path), false).expect("free");
        write(&path, b"one").expect("written");
        let error = check(std::slice::from_ref(&path), false).expect_err("taken").to_string();
        assert!(error.contains("--force"), "{error}");
        check(std::slice::from_ref(&path), true).expect("wanted");
        write(&path, b"two").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"two");
        // A folder stands where the file should go: the rename fails and the unfinished file is gone.
        let blocked = dir.path().join("blocked.png");
        fs::create_dir_all(blocked.join("inside")).expect("a folder");
        assert!(check(std::slice::from_ref(&blocked), true).is_err() && write(&blocked, b"x").is_err());
        let left = fs::read_dir(dir.path()).expect("a folder").count();
        assert_eq!(left, 2, "out.png and the folder");
        assert!(check(&[dir.path().join("no/such.png")], true).is_err());
        assert!(must_be_png(Path::new("a.PNG")).is_ok() && must_be_png(Path::new("a.jpg")).is_err());
    }
}
