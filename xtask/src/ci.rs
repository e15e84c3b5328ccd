//! `cargo xtask ci`: what CI runs, in the order that fails fastest.

use crate::process::{self, cargo, succeeds};
use crate::{clients, tidy};
use anyhow::Result;
use std::path::Path;

/// The arguments of the test command that the README names.
pub(crate) const TEST: &[&str] = &["test", "--workspace"];

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
