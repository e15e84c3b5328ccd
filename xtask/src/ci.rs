//! `cargo xtask ci`: what CI runs, in the order that fails fastest.

use crate::process::{self, cargo, succeeds};
use crate::{clients, tidy};
use anyhow::Result;
use std::path::Path;

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

/// Golden cases there: whole text models with integers, whole pictures, and what the built-in model answers.
const GOLDENS_ON_LAVAPIPE: [(&str, &str); 3] = [
    ("goldens", "wgpu_stays_within_the_int8_profile"),
    ("images", "wgpu_in_f32"),
    ("commands", "quality::greedy_text_is_the_recorded_one_on_wgpu"),
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
        let test = ["test", "-p", "onebit-backend-wgpu", "--test", "conformance", "--", "--exact"];
        let asked = [("ONEBIT_TEST_BACKEND", "wgpu")];
        run_in(root, &[&test, ON_LAVAPIPE].concat(), &asked)?;
        run_in(root, &["test", "-p", "onebit-backend-wgpu", "--test", "fused"], &asked)?;
        for (file, name) in GOLDENS_ON_LAVAPIPE {
            run_in(root, &["test", "-p", "onebit", "--test", file, "--", "--exact", name], &asked)?;
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

fn run_in(root: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    process::run(cargo().args(args).envs(env.iter().copied()).current_dir(root))
}
