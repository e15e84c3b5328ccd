//! `cargo xtask gpu-check`: everything that only a GPU can show, on every code path that the GPU runs.
//!
//! A machine with a GPU may have no compiler. `--build DIR` therefore makes a folder with all that is needed, and
//! `DIR/gpu-check --run DIR` checks there and writes the record; without words both happen on this machine.

use crate::process::{cargo, output, run as run_command, succeeds};
use crate::target_dir;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Test programs: package and target.
const TESTS: [(&str, &str); 3] =
    [("onebit-backend-cuda", "conformance"), ("onebit", "goldens"), ("onebit", "commands")];
/// What is run on every code path: a name, the test program, and the tests in it.
const CHECKS: [(&str, &str, &str); 3] = [
    ("conformance", "conformance", ""),
    ("goldens", "goldens", "cuda"),
    ("fixed prompts and perplexity", "commands", "quality"),
];
/// Files of the repository that the tests read.
const DATA: [&str; 3] = ["testdata", "models/training/heldout/teacher.txt", "models/training/heldout/human.txt"];
/// The runner in a built folder: this program.
const RUNNER: &str = "gpu-check";
/// What the folder was built from.
const ORIGIN: &str = "origin.json";
const RECORD: &str = "gpu-check.json";
/// Folders are carried between machines: more would not be carried gladly.
const MOST_BYTES: u64 = 60 << 20;

/// Builds, runs, or both.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<()> {
    match words {
        [] => {
            let folder = target_dir(root).join("gpu-check");
            build(root, &folder)?;
            let (card, record) = check(&folder, &CODE_PATHS)?;
            let place = root.join("bench/record").join(card);
            fs::create_dir_all(&place)?;
            finish(&place.join(RECORD), &record)
        }
        ["--build", folder] => build(root, Path::new(folder)),
        ["--run", folder, paths @ ..] => {
            let paths = if paths.is_empty() { &CODE_PATHS } else { paths };
            let (_, record) = check(Path::new(folder), paths)?;
            finish(&Path::new(folder).join(RECORD), &record)
        }
        _ => bail!("usage: cargo xtask gpu-check [--build DIR], or DIR/{RUNNER} gpu-check --run DIR [CODE PATHS]"),
    }
}

/// Code paths, as `ONEBIT_CUDA_ARCH` names them.
const CODE_PATHS: [&str; 4] = ["75", "80", "89", "90"];

/// Puts programs and data into the folder.
fn build(root: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        ensure!(folder.join(ORIGIN).exists(), "{} is there and was not made by this command", folder.display());
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    for (package, test) in TESTS {
        let args = ["test", "--no-run", "--message-format", "json", "--package", package, "--test", test];
        let messages = output(cargo().current_dir(root).args(args))?;
        let program =
            messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
                let found = message["target"]["name"] == test && message["target"]["kind"] == json!(["test"]);
                message["executable"].as_str().filter(|_| found).map(PathBuf::from)
            });
        let program = program.with_context(|| format!("cargo names no program for the test {test}"))?;
        install(&program, &folder.join(test))?;
    }
    run_command(cargo().current_dir(root).args(["build", "--release", "--package", "onebit"]))?;
    install(&target_dir(root).join("release/onebit"), &folder.join("onebit"))?;
    install(&std::env::current_exe()?, &folder.join(RUNNER))?;
    for path in DATA {
        copy(&root.join(path), &folder.join("files").join(path))?;
    }
    // The tests look for data two folders above a crate.
    fs::create_dir_all(folder.join("files/crates/cli"))?;
    let git = |args: &[&str]| output(Command::new("git").current_dir(root).args(args));
    let origin = json!({
        "commit": git(&["rev-parse", "HEAD"])?.trim(),
        "changed": !git(&["status", "--porcelain", "--untracked-files=no"])?.trim().is_empty(),
    });
    fs::write(folder.join(ORIGIN), serde_json::to_string_pretty(&origin)? + "\n")?;
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

/// Runs all checks; returns the card's name as a folder's, and the record.
fn check(folder: &Path, paths: &[&str]) -> Result<(String, Value)> {
    let folder = fs::canonicalize(folder).with_context(|| format!("there is no {}", folder.display()))?;
    let origin: Value = serde_json::from_str(
        &fs::read_to_string(folder.join(ORIGIN)).context("the folder was not made by gpu-check --build")?,
    )?;
    let query = ["--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader"];
    let card = output(Command::new("nvidia-smi").args(query)).context("nvidia-smi says nothing of a GPU")?;
    let facts: Vec<&str> = card.lines().next().unwrap_or_default().split(',').map(str::trim).collect();
    let [name, driver, capability, memory] = facts[..] else { bail!("nvidia-smi says {card:?}") };
    let mut results = Map::new();
    for path in paths {
        let Some(least) = capability_of(path) else { bail!("`{path}` is no code path: {}", CODE_PATHS.join(", ")) };
        let number = capability.replace('.', "").parse::<u32>().unwrap_or(0);
        // Code for 9.0 uses what no other generation has.
        let runs = if least == 90 { number == 90 } else { number >= least };
        if !runs {
            results.insert((*path).to_owned(), json!("not for this card"));
            continue;
        }
        let mut rows = Map::new();
        for (title, program, filter) in CHECKS {
            rows.insert(title.to_owned(), one(&folder, path, program, filter)?);
        }
        results.insert((*path).to_owned(), Value::Object(rows));
    }
    let record = json!({
        "command": "cargo xtask gpu-check",
        "card": name, "driver": driver, "compute_capability": capability, "memory": memory,
        "commit": origin["commit"], "changed_since": origin["changed"],
        "code_paths": results,
    });
    Ok((name.to_lowercase().replace(' ', "-"), record))
}

/// The least compute capability of a code path, times ten.
fn capability_of(path: &str) -> Option<u32> {
    CODE_PATHS.contains(&path).then(|| path.parse().ok()).flatten()
}

/// Runs the tests of one program on one code path.
fn one(folder: &Path, path: &str, program: &str, filter: &str) -> Result<Value> {
    eprintln!("code path {path}: {program} {filter}");
    let started = Instant::now();
    let crate_folder = folder.join("files/crates/cli");
    let mut command = Command::new(folder.join(program));
    command.current_dir(&crate_folder).env("CARGO_MANIFEST_DIR", &crate_folder);
    command.env("ONEBIT_TEST_PROGRAM", folder.join("onebit")).env("XDG_CACHE_HOME", folder.join("cache"));
    command.env("ONEBIT_TEST_BACKEND", "cuda").env("ONEBIT_CUDA_ARCH", path);
    if !filter.is_empty() {
        command.arg(filter);
    }
    let out = command.output().with_context(|| format!("cannot start {program}"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    fs::write(folder.join(format!("{program}.{path}.log")), &text)?;
    let summary = text.lines().find(|l| l.starts_with("test result:")).unwrap_or("no summary");
    let count = |what: &str| -> Option<u64> {
        let words: Vec<&str> = summary.split([' ', ';']).filter(|w| !w.is_empty()).collect();
        words.iter().position(|w| *w == what).and_then(|i| words[i - 1].parse().ok())
    };
    let failed: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("test ")?.strip_suffix(" ... FAILED")).collect();
    if !out.status.success() {
        eprintln!("{}", tail(&text));
    }
    Ok(json!({
        "ok": out.status.success() && count("passed") > Some(0),
        "passed": count("passed"),
        "failed": failed,
        "ended": if out.status.success() { Value::Null } else { json!(out.status.to_string()) },
        "seconds": started.elapsed().as_secs_f64().round(),
    }))
}

/// The end of a log, where failures stand.
fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(6000);
    &text[text.ceil_char_boundary(start)..]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_paths_have_their_least_capability() {
        assert_eq!(capability_of("75"), Some(75));
        assert_eq!(capability_of("86"), None);
    }

    #[test]
    fn a_long_log_is_cut_at_a_character() {
        let text = "é".repeat(5000);
        assert!(tail(&text).len() <= 6000 && tail("short") == "short");
    }
}
