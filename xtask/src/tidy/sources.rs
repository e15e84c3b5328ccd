//! Rules about the text of source files.

use super::tree::{Tree, code_lines, words};
use anyhow::Result;

type Breaches = Result<Vec<String>>;

/// Files that may be larger than the limit, with the reason beside each.
const LARGE: &[&str] = &[
    "models/seedling/model.safetensors", // the built-in model is a part of the program
    "models/seedling-ternary/model.safetensors", // its sibling in 2 bits, for comparisons
    "models/sprout/transformer-packed-mflux/diffusion_pytorch_model.safetensors", // built in too: pictures
    "models/sprout/vae/diffusion_pytorch_model.safetensors",
    "models/sprout-ternary/transformer-packed-mflux/diffusion_pytorch_model.safetensors", // its sibling in 2 bits
    "crates/backend-cuda/compiled/machine-90a.xz", // every CUDA kernel for one generation of GPUs
    "crates/backend-cuda/compiled/machine-100.xz",
    "crates/backend-cuda/compiled/machine-120.xz",
    "crates/backend-cuda/compiled/ptx.xz", // every CUDA kernel for four of them, as text
];
const LARGE_KIB: u64 = 1500;
const TESTDATA_BYTES: u64 = 22_000_000;
const LONG_LINES: usize = 800;

/// Where `unsafe` may stand: kernels, the file mapping, and the allocator that counts for the parsers' tests.
fn may_be_unsafe(name: &str) -> bool {
    const FILES: [&str; 2] = ["crates/checkpoint/src/storage.rs", "crates/checkpoint/tests/it/support.rs"];
    name.starts_with("crates/backend-") || FILES.contains(&name)
}

/// Folders for experiments, where versions of one kernel stand side by side.
fn is_lab(name: &str) -> bool {
    name.starts_with("lab/")
}

/// A module file begins with its documentation.
pub(super) fn module_docs(tree: &Tree) -> Breaches {
    let bare = tree.rust().filter(|(_, text)| !text.starts_with("//!"));
    Ok(bare.map(|(name, _)| name.to_owned()).collect())
}

/// No `kernel_v2` in a name or a file's name, but for functions of the CUDA driver, which numbers its own.
pub(super) fn numbered_names(tree: &Tree) -> Breaches {
    let of_driver = |name: &str| name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase));
    let numbered = |word: &str| {
        let (name, digits) = word.rsplit_once("_v").unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && !of_driver(name)
    };
    let mut breaches = Vec::new();
    for (name, _) in tree.sizes().filter(|(name, _)| !is_lab(name) && !name.starts_with("testdata/")) {
        if words(name).any(numbered) {
            breaches.push(name.to_owned());
        }
    }
    for (name, text) in tree.rust().filter(|(name, _)| !is_lab(name)) {
        for (line, code) in code_lines(text) {
            breaches.extend(words(code).filter(|w| numbered(w)).map(|w| format!("{name}:{line}: {w}")));
        }
    }
    Ok(breaches)
}

/// No placeholder is left in.
pub(super) fn unfinished(tree: &Tree) -> Breaches {
    let marks =
        [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("FIX", "ME"), concat!("assert!(", "true)")];
    Ok(find(tree.rust().filter(|(name, _)| !is_lab(name)), &marks))
}

/// No absolute path that exists on one machine only.
pub(super) fn machine_paths(tree: &Tree) -> Breaches {
    let paths = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/t", "mp/")];
    Ok(find(tree.texts().filter(|(name, _)| *name != "Cargo.lock"), &paths))
}

fn find<'a>(files: impl Iterator<Item = (&'a str, &'a str)>, marks: &[&str]) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, text) in files {
        for (i, line) in text.lines().enumerate() {
            breaches.extend(marks.iter().filter(|m| line.contains(**m)).map(|m| format!("{name}:{}: {m}", i + 1)));
        }
    }
    breaches
}

/// `unsafe` stands where the list allows it, and the other crates forbid it.
pub(super) fn unsafe_code(tree: &Tree) -> Breaches {
    let mut breaches = Vec::new();
    for (name, text) in tree.rust().filter(|(name, _)| !may_be_unsafe(name) && !is_lab(name)) {
        for (line, code) in code_lines(text) {
            // Text in quotes is no code: a test may well say the word.
            let outside_quotes: String = code.split('"').step_by(2).collect();
            if words(&outside_quotes).any(|w| w == "unsafe") {
                breaches.push(format!("{name}:{line}"));
            }
        }
        let is_root = name.starts_with("crates/") && name.ends_with("/src/lib.rs");
        if is_root && !name.starts_with("crates/checkpoint/") && !text.contains("#![forbid(unsafe_code)]") {
            breaches.push(format!("{name} does not forbid it"));
        }
    }
    Ok(breaches)
}

/// An ignored test carries its reason.
pub(super) fn ignored_tests(tree: &Tree) -> Breaches {
    Ok(find(tree.rust(), &[concat!("#[ig", "nore]")]))
}

/// Cargo features choose a backend in the binary, and nothing else.
pub(super) fn features(tree: &Tree) -> Breaches {
    let may = |name: &str| {
        name.starts_with("crates/cli/") || (name.starts_with("crates/backend-") && name.ends_with("/src/lib.rs"))
    };
    Ok(find(tree.rust().filter(|(name, _)| !may(name)), &[concat!("cfg(fea", "ture"), concat!("cfg!(fea", "ture")]))
}

/// A model's code is the same on every device.
pub(super) fn plain_models(tree: &Tree) -> Breaches {
    let mut breaches = Vec::new();
    for (name, text) in tree.rust().filter(|(name, _)| name.starts_with("crates/models/src/")) {
        for (line, code) in code_lines(text) {
            let is_cfg = (code.contains("cfg(") || code.contains("cfg!(")) && !code.contains("cfg(test)");
            let names = words(code).any(|w| matches!(w, "cpu" | "cuda" | "wgpu" | "metal"));
            if is_cfg || names {
                breaches.push(format!("{name}:{line}: {}", code.trim()));
            }
        }
    }
    Ok(breaches)
}

/// The repository stays small enough to clone in seconds.
pub(super) fn sizes(tree: &Tree) -> Breaches {
    let large = tree.sizes().filter(|(name, size)| size.div_ceil(1024) > LARGE_KIB && !LARGE.contains(name));
    let mut breaches: Vec<String> = large.map(|(name, size)| format!("{name}: {} KiB", size.div_ceil(1024))).collect();
    let testdata: u64 = tree.sizes().filter(|(name, _)| name.starts_with("testdata/")).map(|(_, size)| size).sum();
    if testdata > TESTDATA_BYTES {
        breaches.push(format!("testdata holds {testdata} bytes, at most {TESTDATA_BYTES} are wanted"));
    }
    Ok(breaches)
}

/// A link leads nowhere in somebody else's clone, while every test of the one who made it reads what it leads to.
pub(super) fn links(tree: &Tree) -> Breaches {
    let is_link = |name: &str| tree.root.join(name).symlink_metadata().is_ok_and(|m| m.is_symlink());
    Ok(tree.sizes().filter(|(name, _)| is_link(name)).map(|(name, _)| name.to_owned()).collect())
}

/// Files that may hold two ideas. A warning: a long file with one idea is fine.
pub(super) fn long_files(tree: &Tree) -> Vec<String> {
    let long = tree.rust().map(|(name, text)| (name, text.lines().count())).filter(|(_, n)| *n > LONG_LINES);
    long.map(|(name, n)| format!("{name} has {n} lines: does it hold two ideas?")).collect()
}
