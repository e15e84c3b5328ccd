//! `cargo xtask cross`: `cargo check` for the other platforms, as far as this machine can.
//!
//! A target whose standard library is installed is checked with the usual compiler. For the others Debian's packages
//! `rustc-web`, `cargo-web` and `rust-web-src` bring a second compiler with the library's source, from which it is
//! built on the spot. `gcc-aarch64-linux-gnu` compiles the C of a dependency for that target, and
//! `binutils-mingw-w64-x86-64` has the tool that imports Windows libraries. Nothing is linked and nothing runs.

use crate::process::{cargo, output, run as run_command};
use anyhow::{Result, bail, ensure};
use std::path::Path;
use std::process::Command;

/// The platforms of the README's support table, beside the one that runs the tests.
const TARGETS: &[&str] = &["aarch64-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-pc-windows-gnu"];

/// Debian's second toolchain: its compiler, its cargo, and the source of its standard library.
const DEBIAN: [&str; 3] = ["/usr/bin/rustc", "/usr/bin/cargo", "/usr/lib/rustlib/src/rust/library/std/Cargo.toml"];

/// Checks every target, or one, and says at the end what was checked and what was not.
pub(crate) fn run(root: &Path, only: Option<&str>) -> Result<()> {
    let mut report = Vec::new();
    let mut failed = false;
    for target in TARGETS.iter().filter(|t| only.is_none_or(|only| only == **t)) {
        let line = match toolchain(root, target) {
            None => {
                "not checked: neither an installed standard library nor rustc-web, cargo-web and rust-web-src".into()
            }
            Some((name, mut command)) => match run_command(command.current_dir(root)) {
                Ok(()) => format!("checks, with {name}"),
                Err(error) => {
                    failed = true;
                    format!("FAILS, with {name}: {error}")
                }
            },
        };
        report.push(format!("{target}: {line}"));
    }
    ensure!(!report.is_empty(), "the targets are {}", TARGETS.join(", "));
    println!("{}", report.join("\n"));
    if failed {
        bail!("a target does not check");
    }
    Ok(())
}

/// A check of the product for the target, with the compiler's name.
fn toolchain(root: &Path, target: &str) -> Option<(String, Command)> {
    let libdir = output(Command::new("rustc").args(["--print", "target-libdir", "--target", target])).ok()?;
    if Path::new(libdir.trim()).exists() {
        let mut command = cargo();
        command.args(["check", "-p", "onebit", "--target", target]);
        return Some((version("rustc")?, command));
    }
    let [rustc, cargo, std] = DEBIAN;
    if !DEBIAN.iter().all(|p| Path::new(p).exists()) {
        eprintln!("{target}: needs {rustc}, {cargo} and {std}");
        return None;
    }
    let mut command = Command::new(cargo);
    command.args(["check", "-p", "onebit", "--target", target, "-Zbuild-std=std,panic_abort"]);
    command
        .env("RUSTC", rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", crate::target_dir(root).join("cross"));
    // Nothing runs, so nothing needs optimising.
    command.args(["--config", "profile.dev.opt-level=0", "--config", "profile.dev.package.'*'.opt-level=0"]);
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    Some((version(rustc)?, command))
}

fn version(rustc: &str) -> Option<String> {
    Some(output(Command::new(rustc).arg("--version")).ok()?.trim().to_owned())
}
