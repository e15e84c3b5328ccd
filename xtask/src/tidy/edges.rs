//! Which crate may use which, read from `cargo metadata`.

use super::tree::Tree;
use crate::process::{cargo, output};
use anyhow::{Context, Result};
use serde_json::Value;

/// The allowed edges between our crates. The binary may use every crate.
const EDGES: &[(&str, &[&str])] = &[
    ("onebit-quant", &[]),
    ("onebit-checkpoint", &["onebit-quant"]),
    ("onebit-text", &[]),
    ("onebit-hub", &[]),
    ("onebit-ops", &["onebit-quant"]),
    ("onebit-conformance", &["onebit-ops", "onebit-quant"]),
    ("onebit-backend-cpu", &["onebit-ops", "onebit-quant"]),
    ("onebit-backend-cuda", &["onebit-ops", "onebit-quant"]),
    ("onebit-backend-wgpu", &["onebit-ops", "onebit-quant"]),
    ("onebit-models", &["onebit-ops", "onebit-quant"]),
    ("onebit-engine", &["onebit-models", "onebit-ops", "onebit-text"]),
    ("onebit-server", &["onebit-engine", "onebit-text"]),
    ("xtask", &[]),
];

/// What a crate must not use from outside, however indirectly it would like to.
const OUTSIDE: &[(&str, &[&str])] = &[
    ("onebit-quant", &["*"]),
    ("onebit-ops", &["serde", "serde_json", "memmap2", "safetensors"]),
    ("onebit-models", &["serde", "serde_json", "memmap2", "safetensors", "libc"]),
    ("onebit-engine", &["serde", "serde_json", "ureq", "axum", "tokio", "hyper"]),
];

const BINARY: &str = "onebit";
const DEV_ONLY: &str = "onebit-conformance";

/// A dependency between two crates of ours, or on one from outside.
struct Edge {
    from: String,
    to: String,
    dev: bool,
    ours: bool,
}

fn edges(tree: &Tree) -> Result<Vec<Edge>> {
    let text =
        output(cargo().current_dir(&tree.root).args(["metadata", "--format-version", "1", "--no-deps", "--offline"]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut edges = Vec::new();
    for package in packages {
        for dep in package["dependencies"].as_array().into_iter().flatten() {
            edges.push(Edge {
                from: package["name"].as_str().unwrap_or_default().to_owned(),
                to: dep["name"].as_str().unwrap_or_default().to_owned(),
                dev: dep["kind"].as_str() == Some("dev"),
                ours: dep["path"].is_string(),
            });
        }
    }
    Ok(edges)
}

/// Every edge between our crates is in the list; the conformance cases are used by tests only.
pub(super) fn crate_edges(tree: &Tree) -> Result<Vec<String>> {
    let mut breaches = Vec::new();
    for Edge { from, to, dev, .. } in edges(tree)?.iter().filter(|e| e.ours) {
        if to == DEV_ONLY {
            if !dev {
                breaches.push(format!("{from} -> {to} must be a dev-dependency"));
            }
            continue;
        }
        let allowed = EDGES.iter().find(|(name, _)| name == from).map(|(_, to)| *to);
        if from != BINARY && !dev && !allowed.unwrap_or_default().contains(&to.as_str()) {
            breaches.push(format!("{from} -> {to}"));
        }
    }
    Ok(breaches)
}

/// No crate takes in what its place in the house forbids.
pub(super) fn outside_dependencies(tree: &Tree) -> Result<Vec<String>> {
    let forbidden = |e: &Edge| {
        let list = OUTSIDE.iter().find(|(name, _)| *name == e.from).map_or(&[][..], |(_, list)| *list);
        list.iter().any(|name| *name == "*" || *name == e.to)
    };
    let edges = edges(tree)?;
    let breaches = edges.iter().filter(|e| !e.ours && !e.dev && forbidden(e));
    Ok(breaches.map(|e| format!("{} uses {}", e.from, e.to)).collect())
}
