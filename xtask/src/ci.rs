//! `cargo xtask ci`: what CI runs, in the order that fails fastest.

use crate::process::{self, cargo, succeeds};
use crate::{clients, tidy};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// The arguments of the test command that the README names.
pub(crate) const TEST: &[&str] = &["test", "--workspace"];

/// What runs on lavapipe, Mesa's Vulkan driver on the processor: every kernel once or more. The sweeps over all formats and
/// numbers of rows are left to GPUs.
const ON_LAVAPIPE: &[&str] = &[
    "attention",
    "chains",
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
const MODELS_ON_LAVAPIPE: [(&str, &str, &[&str]); 4] = [
    ("onebit-backend-wgpu", "fused", &[]),
    ("onebit-backend-wgpu", "one_row", &[]),
    ("onebit", "images", &["wgpu_in_f32"]),
    ("onebit", "commands", &["quality::greedy_text_is_the_recorded_one_on_wgpu"]),
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
        // Asked as in `TEST`: for a package alone cargo would compile what that depends on once more, with fewer features.
        let asked = [TEST, &["--no-run", "--message-format", "json"]].concat();
        let programs = process::output(cargo().current_dir(root).args(asked))?;
        on_lavapipe(&programs, ("onebit-backend-wgpu", "conformance", ON_LAVAPIPE))?;
        for test in MODELS_ON_LAVAPIPE {
            on_lavapipe(&programs, test)?;
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

/// Runs cases of a package's test on lavapipe; all of them if none is named.
fn on_lavapipe(programs: &str, (package, test, cases): (&str, &str, &[&str])) -> Result<()> {
    let (program, folder) = process::test_program(programs, package, test)?;
    let mut command = Command::new(program);
    command.current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder).env("ONEBIT_TEST_BACKEND", "wgpu");
    process::run(command.arg("--exact").args(cases))
}

fn run_in(root: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    process::run(cargo().args(args).envs(env.iter().copied()).current_dir(root))
}
