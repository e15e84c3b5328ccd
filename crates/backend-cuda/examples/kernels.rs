//! Compiles the kernels for every code path into the folder that is named: `cargo xtask cuda-kernels`.

use onebit_backend_cuda::build_archives;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: kernels FOLDER")?);
    for (name, bytes) in build_archives()? {
        let path = folder.join(name);
        println!("{}: {} bytes", path.display(), bytes.len());
        fs::write(path, bytes)?;
    }
    Ok(())
}
