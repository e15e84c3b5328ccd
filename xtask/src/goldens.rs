//! `cargo xtask goldens`: `testdata/golden` from full cases, then the float64 check of every row.

use crate::process;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Shrinks the cases of `full` and checks what came out. `reference/README.md` says how full cases are made.
pub(crate) fn run(root: &Path, full: &Path) -> Result<()> {
    ensure!(full.join("qwen3_1bit_untied").is_dir(), "{} holds no golden cases", full.display());
    let golden = root.join("testdata/golden");
    let script = |name: &str| {
        let mut command = Command::new("python3");
        command.arg(root.join("reference").join(name));
        command
    };
    process::run(script("shrink.py").arg(full).arg(&golden))?;
    process::run(script("gguf_check.py").args(cases(&golden, true)?))?;
    process::run(script("check.py").args(cases(&golden, false)?))
}

fn cases(golden: &Path, gguf: bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(golden)? {
        let path = entry?.path();
        if path.join("model.gguf").exists() == gguf {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
