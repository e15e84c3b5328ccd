//! `cargo xtask fuzz`: every target of `fuzz/` for some seconds.

use crate::process::{output, run as run_command, succeeds};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

/// Runs each target; a crash fails and leaves its input in `fuzz/artifacts`.
pub(crate) fn run(root: &Path, seconds: u64) -> Result<()> {
    let folder = root.join("fuzz");
    ensure!(folder.join("Cargo.toml").exists(), "there is no fuzz/Cargo.toml");
    ensure!(succeeds(cargo_fuzz().arg("--version")), "cargo-fuzz is missing: cargo install cargo-fuzz (needs nightly)");
    let targets = output(cargo_fuzz().arg("list").current_dir(root))?;
    ensure!(!targets.trim().is_empty(), "fuzz/ has no targets");
    for target in targets.lines() {
        let limit = format!("-max_total_time={seconds}");
        let memory = "-rss_limit_mb=1024";
        run_command(cargo_fuzz().args(["run", target, "--", &limit, memory]).current_dir(root))?;
    }
    Ok(())
}

/// Cargo through rustup, because fuzzing needs the nightly compiler.
fn cargo_fuzz() -> Command {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz"]).env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    command
}
