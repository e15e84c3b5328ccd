//! `cargo xtask clients`: the server in front of its real clients: OpenAI's and Anthropic's Python packages, the snippets
//! of docs/clients, and the page in a browser.

use crate::process::{cargo, run as run_command, succeeds};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

const TESTS: &str = "crates/server/tests/clients";

/// OpenAI's package for Node, which one snippet is about.
const NODE_PACKAGE: &str = "openai@7.59.0";

/// Whether this machine has what making a virtual environment takes.
pub(crate) fn can_run() -> bool {
    succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"]))
}

/// Builds the programs, makes the virtual environment where there is none yet, and runs the tests.
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<()> {
    // As the tests build them, so that nothing is built twice.
    let build = ["build", "--profile", "test", "--workspace", "--bin", "onebit", "--example", "scripted"];
    run_command(cargo().current_dir(root).args(build))?;
    let target = crate::target_dir(root);
    let place = target.join("clients-venv");
    let python = place.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !python.exists() {
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&place))
            .context("a virtual environment is needed (Debian: python3-venv)")?;
    }
    let requirements = root.join(TESTS).join("requirements.txt");
    run_command(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements))?;
    let node = target.join("clients-node");
    let has_node = succeeds(Command::new("npm").arg("--version"));
    if has_node && !node.join("node_modules").exists() {
        std::fs::create_dir_all(&node)?;
        let quiet = ["--silent", "--no-audit", "--no-fund"];
        run_command(Command::new("npm").current_dir(&node).args(["install", NODE_PACKAGE]).args(quiet))?;
    }
    let program = |name: &str| target.join("debug").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    run_command(
        Command::new(&python)
            .current_dir(root)
            .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS])
            .args(args)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NODE_FOLDER", if has_node { node } else { PathBuf::new() })
            .env("ONEBIT", program("onebit"))
            .env("SCRIPTED", program("examples/scripted")),
    )
}
