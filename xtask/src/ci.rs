//! `cargo xtask ci`: what CI runs, in the order that fails fastest.

use crate::process::{self, cargo, succeeds};
use crate::{clients, tidy};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arguments of the test command that the README names.
pub(crate) const TEST: &[&str] = &["test", "--workspace"];

/// What runs on lavapipe, Mesa's Vulkan driver on the processor: every kernel once or more. The sweeps over all formats and
/// numbers of rows are left to GPUs.
const ON_LAVAPIPE: &[&str] = &[
    "attention",
    "contract",
    "conv",
    "embedding",
    "full_attention",
    "gated_delta",
    "gates",
    "kept",
    "latents",
    "matmul_epilogues",
    "matmul_integers",
    "matmul_members",
    "neighbours",
    "norms",
    "pictures",
    "replay",
    "rope",
    "sample",
    "select",
    "slots",
    "speculation",
];

/// Whole models there: fused operations, pictures in floats, and what the built-in model answers. Golden texts take minutes
/// there; `gpu-check` runs them on a GPU.
const MODELS_ON_LAVAPIPE: [(&str, &str, &[&str]); 3] = [
    ("crates/backend-wgpu", "fused", &[]),
    ("crates/cli", "images", &["wgpu_in_f32"]),
    ("crates/cli", "commands", &["quality::greedy_text_is_the_recorded_one_on_wgpu"]),
];

/// Whether lavapipe is installed where Debian and others put it.
fn has_lavapipe() -> bool {
    let manifests = Path::new("/usr/share/vulkan/icd.d").read_dir();
    manifests.is_ok_and(|all| all.flatten().any(|file| file.file_name().to_string_lossy().starts_with("lvp_icd")))
}

/// Runs every check.
pub(crate) fn run(root: &Path) -> Result<()> {
    let step = |args: &[&str]| run_in(root, args, &[]);
    step(&["fmt", "--all", "--check"])?;
    tidy::run(root)?;
    step(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    run_in(root, &["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    if succeeds(cargo().args(["deny", "--version"])) {
        step(&["deny", "check"])?;
    } else {
        eprintln!("cargo-deny is not installed: licences and advisories not checked");
    }
    step(TEST)?;
    if has_lavapipe() {
        let programs = programs(root)?;
        on_lavapipe(root, &programs, ("crates/backend-wgpu", "conformance", ON_LAVAPIPE))?;
        for test in MODELS_ON_LAVAPIPE {
            on_lavapipe(root, &programs, test)?;
        }
    } else {
        eprintln!("mesa-vulkan-drivers is not installed: the wgpu backend ran nothing");
    }
    if clients::can_run() {
        clients::run(root, &[])?;
    } else {
        eprintln!("there is no python3 with venv: the server was not tested with its clients");
    }
    // The checks of the tree close the log.
    step(&["test", "-p", "xtask"])
}

/// What cargo says of the programs of all tests. It is asked as in [`TEST`]: for a package alone it would compile what that
/// depends on once more, with fewer features.
fn programs(root: &Path) -> Result<Vec<Value>> {
    let args = [TEST, &["--no-run", "--message-format", "json"]].concat();
    let messages = process::output(cargo().current_dir(root).args(args))?;
    Ok(messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Runs cases of a package's test on lavapipe; all of them if none is named.
fn on_lavapipe(root: &Path, programs: &[Value], (package, test, cases): (&str, &str, &[&str])) -> Result<()> {
    let package = root.join(package);
    let manifest = package.join("Cargo.toml");
    let found = programs.iter().find_map(|message| {
        let is_it = message["target"]["name"] == test
            && message["target"]["kind"] == json!(["test"])
            && message["manifest_path"].as_str().is_some_and(|path| Path::new(path) == manifest);
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    let program = found.with_context(|| format!("cargo names no program for {test} of {}", package.display()))?;
    let mut command = Command::new(program);
    command.current_dir(&package).env("CARGO_MANIFEST_DIR", &package).env("ONEBIT_TEST_BACKEND", "wgpu");
    process::run(command.arg("--exact").args(cases))
}

fn run_in(root: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    process::run(cargo().args(args).envs(env.iter().copied()).current_dir(root))
}
