//! `cargo xtask gpu-check`: everything that only a GPU can show, on every code path that the GPU runs.
//!
//! A machine with a GPU may have no compiler. `--build DIR` therefore makes a folder with all that is needed, and
//! `DIR/gpu-check gpu-check --run DIR` checks there and writes the record; without words both happen on this machine.
//! `--build DIR --programs` leaves out the files that the tests read: they are then looked for in the folder in which the
//! runner is started, a checkout of the repository.

mod build;
mod check;

use crate::target_dir;
use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// Code paths, as `ONEBIT_CUDA_ARCH` names them.
const CODE_PATHS: [&str; 4] = ["75", "80", "89", "90"];

/// The runner in a built folder: this program.
const RUNNER: &str = "gpu-check";
/// What the folder was built from.
const ORIGIN: &str = "origin.json";
/// Files of the repository in a built folder.
const FILES: &str = "files";
const RECORD: &str = "gpu-check.json";

/// Builds, runs, or both.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<()> {
    match words {
        [] => {
            let folder = target_dir(root).join("gpu-check");
            build::build(root, &folder, false)?;
            let (card, record) = check::check(&folder, root, &CODE_PATHS)?;
            let place = root.join("bench/record").join(card);
            fs::create_dir_all(&place)?;
            finish(&place.join(RECORD), &record)
        }
        ["--build", folder] => build::build(root, Path::new(folder), true),
        ["--build", folder, "--programs"] => build::build(root, Path::new(folder), false),
        ["--run", folder, paths @ ..] => {
            let folder = fs::canonicalize(folder)?;
            let files = folder.join(FILES);
            let files = if files.exists() { files } else { std::env::current_dir()? };
            let paths = if paths.is_empty() { &CODE_PATHS } else { paths };
            let (_, record) = check::check(&folder, &files, paths)?;
            finish(&folder.join(RECORD), &record)
        }
        _ => bail!(
            "usage: cargo xtask gpu-check [--build DIR [--programs]], or DIR/{RUNNER} gpu-check --run DIR [CODE PATHS]"
        ),
    }
}

/// Writes the record, and fails when a check did.
fn finish(path: &Path, record: &Value) -> Result<()> {
    fs::write(path, serde_json::to_string_pretty(record)? + "\n")?;
    println!("{}", serde_json::to_string_pretty(record)?);
    println!("written to {}", path.display());
    let checked: Vec<&Value> =
        record["code_paths"].as_object().into_iter().flat_map(Map::values).filter(|v| v.is_object()).collect();
    ensure!(!checked.is_empty(), "this card runs none of the code paths that were asked for");
    let mut rows = checked.iter().filter_map(|path| path.as_object()).flat_map(Map::values);
    ensure!(rows.all(|row| row["ok"] == true), "a check failed: the .log files beside the programs say more");
    Ok(())
}
