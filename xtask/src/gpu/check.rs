//! The checks themselves, from a built folder.

use super::{CODE_PATHS, ORIGIN, RECORD};
use crate::process::output;
use crate::quality::{self, Measured};
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Tests on every code path: a name, the test program, and which of its tests. The first one alone fills the folder of
/// translated kernels, which all others would otherwise translate at once.
const TESTS: [(&str, &str, &str); 4] = [
    ("translation", "conformance", "contract"),
    ("conformance", "conformance", ""),
    ("goldens", "goldens", "cuda"),
    ("pictures", "images", "cuda"),
];

/// Perplexities of the built-in model may be so far from the recorded ones: with f32 activations, where only the order of
/// sums differs, and with integers or 8-bit keys and values. The bounds of `crates/cli/tests/commands/quality.rs`.
const SAME: f64 = 0.001;
const INTEGERS: f64 = 0.02;

/// Runs all checks; returns the card's name as a folder's, and the record. Paths that an earlier run of the same programs
/// has checked stay in it.
pub(super) fn check(folder: &Path, files: &Path, paths: &[&str]) -> Result<(String, Value)> {
    let read = |name: &str| -> Result<Value> { Ok(serde_json::from_str(&fs::read_to_string(folder.join(name))?)?) };
    let origin = read(ORIGIN).with_context(|| format!("{} was not made by gpu-check --build", folder.display()))?;
    let query = ["--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader"];
    let card = output(Command::new("nvidia-smi").args(query)).context("nvidia-smi says nothing of a GPU")?;
    let facts: Vec<&str> = card.lines().next().unwrap_or_default().split(',').map(str::trim).collect();
    let [name, driver, capability, memory] = facts[..] else { bail!("nvidia-smi says {card:?}") };
    let mut results = read(RECORD).ok().and_then(|r| r["code_paths"].as_object().cloned()).unwrap_or_default();
    for path in paths {
        let Some(least) = capability_of(path) else { bail!("`{path}` is no code path: {}", CODE_PATHS.join(", ")) };
        let number = capability.replace('.', "").parse::<u32>().unwrap_or(0);
        // Code for 9.0 uses what no other generation has.
        let runs = if least == 90 { number == 90 } else { number >= least };
        let result = if runs { Ok(one_path(folder, files, path)) } else { Err("not for this card") };
        results.insert((*path).to_owned(), result.unwrap_or_else(|words| json!(words)));
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

fn one_path(folder: &Path, files: &Path, path: &str) -> Value {
    let mut rows = Map::new();
    let mut row = |title: &str, check: &dyn Fn() -> Result<Value>| {
        eprintln!("code path {path}: {title}");
        let started = Instant::now();
        let mut value = check().unwrap_or_else(|error| json!({"ok": false, "error": format!("{error:#}")}));
        value["seconds"] = started.elapsed().as_secs_f64().round().into();
        rows.insert(title.to_owned(), value);
    };
    for (title, program, filter) in TESTS {
        row(title, &|| tests(folder, files, path, title, (program, filter)));
    }
    row("built-in model", &|| built_in(folder, files, path));
    Value::Object(rows)
}

/// What makes the programs run on one code path of the GPU.
fn environment(folder: &Path, path: &str) -> [(&'static str, PathBuf); 4] {
    [
        ("ONEBIT_BACKEND", "cuda".into()),
        ("ONEBIT_TEST_BACKEND", "cuda".into()),
        ("ONEBIT_CUDA_ARCH", path.into()),
        ("XDG_CACHE_HOME", folder.join("cache")),
    ]
}

/// Runs tests of one program.
fn tests(folder: &Path, files: &Path, path: &str, title: &str, (program, filter): (&str, &str)) -> Result<Value> {
    // The tests look for data two folders above a crate.
    let crate_folder = files.join("crates/cli");
    let mut command = Command::new(folder.join(program));
    command.current_dir(&crate_folder).env("CARGO_MANIFEST_DIR", &crate_folder).envs(environment(folder, path));
    if !filter.is_empty() {
        command.arg(filter);
    }
    let out = command.output().with_context(|| format!("cannot start {program} in {}", crate_folder.display()))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    fs::write(folder.join(format!("{title}.{path}.log")), &text)?;
    let summary = text.lines().find(|l| l.starts_with("test result:")).unwrap_or_default();
    let words: Vec<&str> = summary.split([' ', ';']).filter(|w| !w.is_empty()).collect();
    let passed: Option<u64> = words.windows(2).find(|w| w[1] == "passed").and_then(|w| w[0].parse().ok());
    let failed = text.lines().filter_map(|l| l.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let failed: Vec<&str> = failed.collect();
    if !out.status.success() {
        eprintln!("{}", tail(&text));
    }
    let ended = if out.status.success() { Value::Null } else { json!(out.status.to_string()) };
    Ok(json!({
        "ok": out.status.success() && passed > Some(0),
        "passed": passed,
        "failed": failed,
        "ended": ended,
    }))
}

/// Perplexities and greedy answers of the built-in model against those that were recorded on the CPU.
fn built_in(folder: &Path, files: &Path, path: &str) -> Result<Value> {
    let recorded: Value = serde_json::from_str(&fs::read_to_string(files.join(quality::FILE))?)?;
    let environment = environment(folder, path);
    let env: Vec<(&str, &Path)> = environment.iter().map(|(name, value)| (*name, value.as_path())).collect();
    let onebit = Measured { program: &folder.join("onebit"), folder: files, env: &env };
    let exact = onebit.perplexities(&["--activations", "f32"])?;
    let default = onebit.perplexities(&[])?;
    let q8 = onebit.perplexities(&["--kv-quant", "q8"])?;
    let answers = onebit.answers()?;
    let near = |got: &Map<String, Value>, wanted: &Value, by: f64| {
        let close = |(name, got): (&String, &Value)| match (got.as_f64(), wanted[name].as_f64()) {
            (Some(got), Some(wanted)) => (got / wanted - 1.0).abs() <= by,
            _ => false,
        };
        !got.is_empty() && got.iter().all(close)
    };
    let wanted = &recorded["texts"];
    let same_answers = Value::Object(answers.clone()) == recorded["greedy"]["answers"];
    let ok = near(&exact, &wanted["f32"], SAME)
        && near(&default, &wanted["default"], INTEGERS)
        && near(&q8, &wanted["default"], INTEGERS)
        && same_answers;
    Ok(json!({
        "ok": ok,
        "perplexity": {"f32": exact, "default": default, "q8 keys and values": q8},
        "recorded on the CPU": {"f32": wanted["f32"], "default": wanted["default"]},
        "greedy answers": if same_answers { json!("those of the CPU") } else { Value::Object(answers) },
    }))
}

/// The end of a log, where failures stand.
fn tail(text: &str) -> &str {
    let start = (text.len().saturating_sub(6000)..).find(|at| text.is_char_boundary(*at));
    &text[start.unwrap_or_default()..]
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
