//! `cargo xtask cuda-kernels`: the compiled kernels that the program carries.
//!
//! NVRTC comes with the CUDA toolkit, or as a Python package that needs nothing else:
//! `pip install --target DIR nvidia-cuda-nvrtc-cu12==12.8.93`. It is looked for among the system's libraries, in
//! `LD_LIBRARY_PATH`, and in the folder that `CUDA_NVRTC` names. Machine code of a version runs with the drivers of every
//! version of the same generation (12: driver 525), its PTX only with those of that version and later ones. 12.8 (driver
//! 570) is the first that knows Blackwell, whose devices are the oldest that need the PTX.

use crate::process::{cargo, run as run_command};
use anyhow::Result;
use std::path::Path;

const FOLDER: &str = "crates/backend-cuda/compiled";

/// Compiles every kernel for every code path and writes the archives.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut command = cargo();
    command
        .current_dir(root)
        .args(["run", "--release", "--package", "onebit-backend-cuda", "--example", "kernels", "--"])
        .arg(FOLDER);
    if let Some(folder) = std::env::var_os("CUDA_NVRTC") {
        let known = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let all = std::iter::once(folder.into()).chain(std::env::split_paths(&known));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(all)?);
    }
    run_command(&mut command)
}
