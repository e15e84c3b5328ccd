//! `cargo xtask cross`: `cargo check` for the other platforms, as far as this machine can.
//!
//! A target whose standard library is installed is checked with the usual compiler. For the others Debian's packages
//! `rustc-web`, `cargo-web` and `rust-web-src` bring a second compiler with the library's source, from which it is
//! built on the spot. `gcc-aarch64-linux-gnu` compiles the C of a dependency for that target, and
//! `binutils-mingw-w64-x86-64` has the tool that imports Windows libraries. Nothing is linked and nothing runs.
//!
//! `cargo xtask emulate` links and runs the tests of the CPU backend for aarch64 with that toolchain under
//! `qemu-user-static`: slow, but the NEON kernels really run.

use crate::process::{cargo, output, run as run_command};
use anyhow::{Result, bail, ensure};
use std::path::Path;
use std::process::Command;

/// The platforms of the README's support table, beside the one that runs the tests.
const TARGETS: &[&str] = &["aarch64-unknown-linux-gnu", "aarch64-apple-darwin", "x86_64-pc-windows-gnu"];

/// Debian's second toolchain: its compiler, its cargo, and the source of its standard library.
const DEBIAN: [&str; 3] = ["/usr/bin/rustc", "/usr/bin/cargo", "/usr/lib/rustlib/src/rust/library/std/Cargo.toml"];

/// What the product uses that the second compiler, which is older, does not call stable yet.
const FEATURES: &str = "slice_as_chunks,unsigned_is_multiple_of,let_chains,target_feature_11";

/// Set in commands that this program wraps the compiler of.
const WRAPS: &str = "ONEBIT_XTASK_WRAPS";

/// Stands in for the compiler, whose command line this is: features are switched on for the product's own crates only,
/// since the standard library, built on the spot, has switched some on itself. `None` when nothing is wrapped.
pub(crate) fn wrap(args: &[String]) -> Option<i32> {
    std::env::var_os(WRAPS)?;
    let (compiler, args) = args.split_first()?;
    let name = args.iter().position(|a| a == "--crate-name").and_then(|i| args.get(i + 1));
    let dir = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let ours = name.is_some() && Path::new(&dir).starts_with(Path::new(env!("CARGO_MANIFEST_DIR")).parent()?);
    let mut command = Command::new(compiler);
    command.args(args);
    if ours {
        command.arg(format!("-Zcrate-attr=feature({FEATURES})"));
    }
    Some(command.status().ok()?.code().unwrap_or(1))
}

/// Runs the CPU backend's tests for aarch64 in an emulator.
pub(crate) fn emulate(root: &Path) -> Result<()> {
    const QEMU: &str = "/usr/bin/qemu-aarch64-static";
    for path in DEBIAN.iter().chain(&[QEMU, "/usr/bin/aarch64-linux-gnu-gcc"]) {
        ensure!(
            Path::new(path).exists(),
            "{path} is missing: apt install rustc-web cargo-web rust-web-src gcc-aarch64-linux-gnu qemu-user-static"
        );
    }
    let mut command = second_toolchain(root, "aarch64-unknown-linux-gnu", "test", "onebit-backend-cpu")?;
    command.args(["-Zbuild-std=std,panic_unwind,test", "--config", "profile.test.opt-level=2"]);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{QEMU} -L /usr/aarch64-linux-gnu"));
    command.args(["--", "neon"]);
    run_command(&mut command)
}

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
    let mut command = second_toolchain(root, target, "check", "onebit").ok()?;
    command.arg("-Zbuild-std=std,panic_abort");
    // Nothing runs, so nothing needs optimising.
    command.args(["--config", "profile.dev.opt-level=0", "--config", "profile.dev.package.'*'.opt-level=0"]);
    Some((version(rustc)?, command))
}

/// A command of Debian's cargo on one package for the target.
fn second_toolchain(root: &Path, target: &str, verb: &str, package: &str) -> Result<Command> {
    let [rustc, cargo, _] = DEBIAN;
    let mut command = Command::new(cargo);
    command.args([verb, "-p", package, "--target", target, "--ignore-rust-version"]).current_dir(root);
    command
        .env("RUSTC", rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC_WRAPPER", std::env::current_exe()?)
        .env(WRAPS, "1")
        .env("CARGO_TARGET_DIR", crate::target_dir(root).join("cross"));
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    Ok(command)
}

fn version(rustc: &str) -> Option<String> {
    Some(output(Command::new(rustc).arg("--version")).ok()?.trim().to_owned())
}
