//! Language models, one file each.

pub(crate) mod qwen3;
pub(crate) mod qwen35;
