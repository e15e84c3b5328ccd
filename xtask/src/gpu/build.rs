//! A folder with everything that a machine without a compiler needs for the check.

use super::{FILES, ORIGIN, RUNNER};
use crate::process::{cargo, output, run as run_command, succeeds, test_program};
use crate::{quality, target_dir};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Test programs: package and target.
const TESTS: [(&str, &str); 3] = [("onebit-backend-cuda", "conformance"), ("onebit", "goldens"), ("onebit", "images")];
/// Files of the repository that the tests read.
const DATA: [&str; 4] =
    ["testdata", "models/training/heldout/teacher.txt", "models/training/heldout/human.txt", quality::FILE];
/// Folders are carried between machines: more would not be carried gladly. Three of the programs hold the built-in models, which
/// a compressed archive keeps once: of 120 MB it makes 28.
const MOST_BYTES: u64 = 160 << 20;

/// Puts programs into the folder, and data where it is wanted.
pub(super) fn build(root: &Path, folder: &Path, data: bool) -> Result<()> {
    if folder.exists() {
        ensure!(folder.join(ORIGIN).exists(), "{} is there and was not made by this command", folder.display());
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let git = |args: &[&str]| output(Command::new("git").current_dir(root).args(args));
    let origin = json!({
        "commit": git(&["rev-parse", "HEAD"])?.trim(),
        "changed": !git(&["status", "--porcelain", "--untracked-files=no"])?.trim().is_empty(),
    });
    fs::write(folder.join(ORIGIN), serde_json::to_string_pretty(&origin)? + "\n")?;
    for (package, test) in TESTS {
        let args = ["test", "--no-run", "--message-format", "json", "--package", package, "--test", test];
        let messages = output(cargo().current_dir(root).args(args))?;
        let (program, _) = test_program(&messages, package, test)?;
        install(&program, &folder.join(test))?;
    }
    run_command(cargo().current_dir(root).args(["build", "--release", "--package", "onebit"]))?;
    install(&target_dir(root).join("release/onebit"), &folder.join("onebit"))?;
    install(&std::env::current_exe()?, &folder.join(RUNNER))?;
    for path in DATA.iter().filter(|_| data) {
        copy(&root.join(path), &folder.join(FILES).join(path))?;
    }
    let bytes = size(folder)?;
    ensure!(bytes <= MOST_BYTES, "{} holds {bytes} bytes, at most {MOST_BYTES} are wanted", folder.display());
    println!("{} ({} MiB); there: ./{RUNNER} gpu-check --run .", folder.display(), bytes.div_ceil(1 << 20));
    Ok(())
}

/// Copies a program without its symbols, where they can be taken off.
fn install(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    if !succeeds(Command::new("strip").arg(to)) {
        eprintln!("{}: not stripped", to.display());
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        return Ok(());
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn size(path: &Path) -> Result<u64> {
    if !path.is_dir() {
        return Ok(fs::metadata(path)?.len());
    }
    fs::read_dir(path)?.map(|entry| size(&entry?.path())).sum()
}
