//! `cargo xtask clients`: the server in front of its real clients: OpenAI's and Anthropic's Python packages, the snippets
//! of docs/clients, and the page in a browser.

use crate::process::{cargo, run as run_command};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

const TESTS: &str = "crates/server/tests/clients";

/// Builds the programs, makes the virtual environment where there is none yet, and runs the tests.
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<()> {
    run_command(cargo().current_dir(root).args(["build", "--package", "onebit"]))?;
    run_command(cargo().current_dir(root).args(["build", "--package", "onebit-server", "--example", "scripted"]))?;
    let target = crate::target_dir(root);
    let place = target.join("clients-venv");
    let python = place.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !python.exists() {
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&place))
            .context("a virtual environment is needed (Debian: python3-venv)")?;
    }
    let requirements = root.join(TESTS).join("requirements.txt");
    run_command(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements))?;
    let program = |name: &str| target.join("debug").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    run_command(
        Command::new(&python)
            .current_dir(root)
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS])
            .args(args)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("ONEBIT", program("onebit"))
            .env("SCRIPTED", program("examples/scripted")),
    )
}
