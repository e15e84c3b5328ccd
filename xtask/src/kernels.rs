//! `cargo xtask cuda-ptx`: the compiled kernels that the program carries.
//!
//! NVRTC comes with the CUDA toolkit, or as a Python package that needs nothing else:
//! `pip install --target DIR nvidia-cuda-nvrtc-cu12==12.0.140`. It is looked for among the system's libraries, in
//! `LD_LIBRARY_PATH`, and in the folder that `CUDA_NVRTC` names. Old is good here: code compiled by a version runs with
//! the drivers of that version and all later ones.

use crate::process::{cargo, run as run_command};
use anyhow::Result;
use std::path::Path;

const FOLDER: &str = "crates/backend-cuda/ptx";

/// Compiles every kernel for every code path and writes the archives.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut command = cargo();
    command.current_dir(root).args(["run", "--package", "onebit-backend-cuda", "--example", "ptx", "--"]).arg(FOLDER);
    if let Some(folder) = std::env::var_os("CUDA_NVRTC") {
        let known = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let all = std::iter::once(folder.into()).chain(std::env::split_paths(&known));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(all)?);
    }
    run_command(&mut command)
}
