//! Options of every command that runs a model.

use clap::{Args, ValueEnum};
use onebit_ops::{Activations, KvFormat};
use std::path::PathBuf;

/// Which device to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// The fastest that this machine has
    Auto,
    /// Scalar loops, for checks only
    Reference,
    /// The processor
    Cpu,
    /// NVIDIA GPUs
    Cuda,
    /// Metal, Vulkan, DX12
    Wgpu,
}

impl BackendName {
    /// The name as users spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            BackendName::Auto => "auto",
            BackendName::Reference => "reference",
            BackendName::Cpu => "cpu",
            BackendName::Cuda => "cuda",
            BackendName::Wgpu => "wgpu",
        }
    }
}

/// How matmul inputs are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivationsName {
    /// What the backend does best
    Auto,
    /// Not at all
    F32,
    /// 8 bits for each group of 128
    Int8,
    /// 9 bits for each group of 128
    Int9,
}

impl ActivationsName {
    /// The name as users spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ActivationsName::Auto => "auto",
            ActivationsName::F32 => "f32",
            ActivationsName::Int8 => "int8",
            ActivationsName::Int9 => "int9",
        }
    }

    /// The kind, with the backend's default for `auto`.
    #[must_use]
    pub fn resolve(self, default: Activations) -> Activations {
        match self {
            ActivationsName::Auto => default,
            ActivationsName::F32 => Activations::F32,
            ActivationsName::Int8 => Activations::I8G128,
            ActivationsName::Int9 => Activations::I9G128,
        }
    }
}

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvQuant {
    /// f16, or f32 with `--activations f32`
    None,
    /// 8 bits
    Q8,
    /// 4 bits
    Q4,
}

impl KvQuant {
    /// The storage format that goes with these activations.
    #[must_use]
    pub fn resolve(self, activations: Activations) -> KvFormat {
        match (self, activations) {
            (KvQuant::None, Activations::F32) => KvFormat::F32,
            (KvQuant::None, _) => KvFormat::F16,
            (KvQuant::Q8, _) => KvFormat::Q8,
            (KvQuant::Q4, _) => KvFormat::Q4,
        }
    }
}

/// Options of every command that runs a model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Running")]
pub struct RunOptions {
    /// Device to run on
    #[arg(long, value_enum, default_value = "auto", env = "ONEBIT_BACKEND")]
    pub backend: BackendName,
    /// Threads of the CPU backend [default: one for each core that the process may use]
    #[arg(long, value_name = "N", env = "ONEBIT_THREADS", value_parser = threads)]
    pub threads: Option<usize>,
    /// Tokens of context [default: what fits, at most the model's own]
    #[arg(long, value_name = "TOKENS", env = "ONEBIT_CTX", value_parser = count)]
    pub ctx: Option<usize>,
    /// Precision of cached keys and values
    #[arg(long, value_enum, default_value = "none", env = "ONEBIT_KV_QUANT")]
    pub kv_quant: KvQuant,
    /// Precision of the inputs of packed matmuls
    #[arg(long, value_enum, default_value = "auto", env = "ONEBIT_ACTIVATIONS")]
    pub activations: ActivationsName,
    /// Keep stored offsets even where they follow from the scales
    #[arg(long, env = "ONEBIT_KEEP_BIASES")]
    pub keep_biases: bool,
    /// Read weight files into memory instead of mapping them
    #[arg(long, env = "ONEBIT_NO_MMAP")]
    pub no_mmap: bool,
    /// Keep repacked weights in a file, for a quicker start the next time [default DIR: ~/.cache/onebit/repack]
    #[arg(
        long,
        value_name = "DIR",
        env = "ONEBIT_CACHE_REPACK",
        num_args = 0..=1,
        require_equals = true,
        default_value = "0",
        default_missing_value = "1",
        hide_default_value = true,
        value_parser = KeepIn::parse
    )]
    pub cache_repack: KeepIn,
    /// Group size of GGUF type 42 (Q2_0) where the file does not tell: 64 (llama.cpp) or 128 (older Prism files)
    #[arg(long, value_name = "64|128", env = "ONEBIT_Q2_0_GROUP", value_parser = q2_0_group)]
    pub q2_0_group: Option<u16>,
}

/// Where repacked weights are kept for the next start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepIn {
    /// They are not.
    Nowhere,
    /// In the user's cache folder.
    Cache,
    /// In this folder.
    Folder(PathBuf),
}

impl KeepIn {
    /// `1` and `0` are for the variable; everything else is a folder.
    pub(super) fn parse(text: &str) -> Result<KeepIn, String> {
        Ok(match text {
            "" | "0" => KeepIn::Nowhere,
            "1" => KeepIn::Cache,
            folder => KeepIn::Folder(PathBuf::from(folder)),
        })
    }
}

impl RunOptions {
    /// How weight files are opened.
    #[must_use]
    pub fn files(&self) -> crate::load::Options {
        crate::load::Options { mmap: !self.no_mmap, q2_0_group: self.q2_0_group }
    }
}

/// A count of at least 1.
pub(super) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("wanted a whole number of at least 1".to_owned()),
        Ok(n) => Ok(n),
    }
}

/// Most threads that can be asked for: beyond any machine, and far below what an operating system refuses.
const MAX_THREADS: usize = 1024;

/// A count of threads.
pub(super) fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_THREADS).contains(&n) => Ok(n),
        _ => Err(format!("wanted a whole number from 1 to {MAX_THREADS}")),
    }
}

/// 64 or 128.
pub(super) fn q2_0_group(text: &str) -> Result<u16, String> {
    match text {
        "64" => Ok(64),
        "128" => Ok(128),
        _ => Err("wanted 64 or 128".to_owned()),
    }
}
