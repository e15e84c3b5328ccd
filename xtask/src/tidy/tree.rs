//! The files of the workspace: those that git tracks, and new ones that it does not ignore.

use crate::process::output;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every file, with the text of those that are UTF-8.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    texts: BTreeMap<String, String>,
    sizes: BTreeMap<String, u64>,
}

impl Tree {
    /// Lists the files by git and reads them.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let list = output(Command::new("git").current_dir(root).args(["ls-files", "-z", "-co", "--exclude-standard"]))
            .context("tidy needs a git checkout")?;
        let mut tree = Tree { root: root.to_path_buf(), texts: BTreeMap::new(), sizes: BTreeMap::new() };
        for name in list.split('\0').filter(|n| !n.is_empty()) {
            // A file that was deleted but not yet committed is no file.
            let Ok(bytes) = std::fs::read(root.join(name)) else { continue };
            tree.sizes.insert(name.to_owned(), bytes.len() as u64);
            if let Ok(text) = String::from_utf8(bytes) {
                tree.texts.insert(name.to_owned(), text);
            }
        }
        Ok(tree)
    }

    /// Name and text of every UTF-8 file.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// Name and text of every Rust file.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(|(name, _)| name.ends_with(".rs"))
    }

    /// Name and bytes of every file.
    pub(super) fn sizes(&self) -> impl Iterator<Item = (&str, u64)> {
        self.sizes.iter().map(|(name, size)| (name.as_str(), *size))
    }

    /// The text of a file; empty when there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.texts.get(name).map_or("", String::as_str)
    }

    /// True when a file or a folder of this name is in the tree.
    pub(super) fn has(&self, name: &str) -> bool {
        let folder = format!("{}/", name.trim_end_matches('/'));
        self.sizes.contains_key(name) || self.sizes.keys().any(|n| n.starts_with(&folder))
    }
}

/// The lines of a Rust file without `//` comments, numbered from 1.
pub(super) fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, line.split("//").next().unwrap_or_default()))
}

/// The identifiers of a line.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty())
}
