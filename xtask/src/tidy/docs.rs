//! Rules that keep the documents true.

use super::tree::Tree;
use crate::ci;
use anyhow::Result;

const DOCUMENTS: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/tuning.md",
    "docs/eval.md",
    "docs/formats.md",
    "docs/image.md",
    "docs/server.md",
    "docs/clients/README.md",
    "docs/decisions/0001-own-kernels.md",
    "reference/README.md",
    "testdata/README.md",
];
const REGISTRY: &str = "crates/models/src/registry.rs";

/// The names in the rows of the registry.
fn architectures(tree: &Tree) -> Vec<&str> {
    let rows = tree.text(REGISTRY).lines().filter(|line| line.trim_start().starts_with("Entry {"));
    rows.filter_map(|row| row.split("name: \"").nth(1)?.split('"').next()).collect()
}

/// A row without a golden case is a promise without a proof.
pub(super) fn registry_rows(tree: &Tree) -> Result<Vec<String>> {
    let mut breaches = Vec::new();
    let names = architectures(tree);
    if names.is_empty() {
        breaches.push(format!("no row found in {REGISTRY}"));
    }
    for name in names {
        for prefix in [format!("testdata/golden/{name}_"), format!("testdata/golden/gguf_{name}_")] {
            if !tree.sizes().any(|(file, _)| file.starts_with(&prefix)) {
                breaches.push(format!("{name}: no {prefix}* case"));
            }
        }
        let document = "docs/formats.md";
        if !tree.text(document).contains(&format!("`{name}`")) {
            breaches.push(format!("{name}: not in {document}"));
        }
    }
    Ok(breaches)
}

/// A path in backticks, or the target of a link, that begins with one of our folders is in the tree.
pub(super) fn paths_exist(tree: &Tree) -> Result<Vec<String>> {
    let folders = ["crates/", "docs/", "testdata/", "reference/", "xtask/", "fuzz/", ".ci/", "models/"];
    let mut breaches = Vec::new();
    for document in DOCUMENTS {
        let text = tree.text(document);
        if text.is_empty() {
            breaches.push(format!("{document} is missing"));
        }
        let ticked = text.split('`').skip(1).step_by(2);
        let linked = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for path in ticked.chain(linked).map(|p| p.split('#').next().unwrap_or_default()) {
            let ours = folders.iter().any(|f| path.starts_with(f)) && !path.contains(['<', '*', '{', ' ', '…']);
            if ours && !tree.has(path) {
                breaches.push(format!("{document}: {path}"));
            }
        }
    }
    Ok(breaches)
}

/// The code map has a heading for every folder of `crates/`.
pub(super) fn crates_described(tree: &Tree) -> Result<Vec<String>> {
    let manifests = tree.sizes().filter_map(|(name, _)| name.strip_suffix("/Cargo.toml"));
    let folders = manifests.filter(|name| name.starts_with("crates/") && name.matches('/').count() == 1);
    let map = tree.text("ARCHITECTURE.md");
    Ok(folders.filter(|f| !map.contains(&format!("### `{f}`"))).map(str::to_owned).collect())
}

/// What a newcomer is told to run is what CI ran.
pub(super) fn test_command(tree: &Tree) -> Result<Vec<String>> {
    let command = format!("cargo {}", ci::TEST.join(" "));
    let known = tree.text("README.md").lines().any(|line| line.trim() == command);
    Ok(if known { Vec::new() } else { vec![format!("no line `{command}` in README.md")] })
}
