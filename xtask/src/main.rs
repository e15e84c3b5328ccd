//! Repository chores. `cargo xtask` lists them.

mod ci;
mod clients;
mod cross;
mod fuzz;
mod goldens;
mod gpu;
mod kernels;
mod load;
mod picture;
mod process;
mod quality;
mod release;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask COMMAND

  ci                    everything that CI runs: format, lints, docs, tidy, licences, tests
  clients [ARGS]        the server against its real clients, and its page in a browser; ARGS go to pytest
  tidy                  the rules of ARCHITECTURE.md that a program can check
  cross [TARGET]        cargo check for the other platforms whose standard library can be had here
  emulate               the CPU backend's tests for aarch64 in an emulator (Debian's packages)
  goldens FULL          rebuild testdata/golden from the full cases in folder FULL, then check it
  cuda-kernels          compile the CUDA kernels that the program carries, with NVRTC; after changing one
  gpu-check             conformance, goldens and fixed prompts on every code path of this machine's GPU, recorded;
                        --build DIR: only gather what another machine with a GPU needs for it
  fuzz [SECONDS]        run every fuzz target for so long (60)
  load soak|bench URL   many clients against a server that runs: everything they do, or one thing, measured; --help
  picture               redraw docs/screenshot.svg from what the binary prints
  record-quality        measure the built-in model anew for its quality tests, after it was replaced
  release [--check]     one tarball with the binary, its docs and completions; --check runs it in a bare root";

/// The folder that holds the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// The folder that cargo builds in.
fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = cross::wrap(&args) {
        std::process::exit(code);
    }
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["ci"] => ci::run(&root()),
        ["clients", args @ ..] => clients::run(&root(), args),
        ["tidy"] => tidy::run(&root()),
        ["cross"] => cross::run(&root(), None),
        ["cross", target] => cross::run(&root(), Some(target)),
        ["emulate"] => cross::emulate(&root()),
        ["cuda-kernels"] => kernels::run(&root()),
        ["gpu-check", words @ ..] => gpu::run(&root(), words),
        ["goldens", full] => goldens::run(&root(), Path::new(full)),
        ["fuzz"] => fuzz::run(&root(), 60),
        ["fuzz", seconds] if seconds.parse::<u64>().is_ok() => fuzz::run(&root(), seconds.parse().unwrap_or(60)),
        ["load", words @ ..] => load::run(words),
        ["picture"] => picture::run(&root()),
        ["record-quality"] => quality::run(&root()),
        ["release"] => release::run(&root(), false),
        ["release", "--check"] => release::run(&root(), true),
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
