//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde::Deserialize;

use crate::error::{Problem, clip};

/// A parsed index whose shard names are all plain relative paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Shard of every tensor.
    pub weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RawIndex {
    weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Parses the index.
    ///
    /// # Errors
    /// [`Problem::Json`] and [`Problem::UnsafeShard`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        let raw: RawIndex =
            serde_json::from_slice(bytes).map_err(|e| Problem::Json { part: "index", why: clip(&e.to_string()) })?;
        match raw.weight_map.values().find(|shard| !is_plain(shard)) {
            Some(shard) => Err(Problem::UnsafeShard(clip(shard))),
            None => Ok(Self { weight_map: raw.weight_map }),
        }
    }

    /// The shards, each once, sorted.
    #[must_use]
    pub fn shards(&self) -> Vec<&str> {
        let mut shards: Vec<&str> = self.weight_map.values().map(String::as_str).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}

/// A relative path of ordinary names on every operating system: no `..`, no root, no drive, no backslash, no NUL.
fn is_plain(shard: &str) -> bool {
    !shard.is_empty()
        && !shard.chars().any(|c| c.is_control() || matches!(c, '\\' | ':'))
        && shard.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
        && Path::new(shard).components().all(|part| matches!(part, Component::Normal(_)))
}
