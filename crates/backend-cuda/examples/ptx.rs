//! Compiles the kernels for every code path into the folder that is named: `cargo xtask cuda-ptx`.

use onebit_backend_cuda::{build_archive, sources_fingerprint};
use std::error::Error;
use std::fs;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: ptx FOLDER")?);
    let archive = build_archive()?;
    println!("{}: {} bytes", folder.join("kernels.xz").display(), archive.len());
    fs::write(folder.join("kernels.xz"), archive)?;
    fs::write(folder.join("sources.sha256"), format!("{}\n", sources_fingerprint()))?;
    Ok(())
}
