//! Arguments of the commands that move files: `pull`, `convert`, `completions`.

use super::running::{BackendName, q2_0_group};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Arguments of `pull`.
#[derive(Debug, Args)]
#[command(after_help = "\
Files go to the Hugging Face cache (HF_HOME), where other programs find them too. An interrupted download goes on \
where it stopped. HF_TOKEN opens private repositories, HF_ENDPOINT names a mirror, HF_HUB_OFFLINE=1 forbids the network.

Examples:
  onebit pull bonsai-1.7b
  onebit pull prism-ml/Bonsai-8B-gguf:Q1_0")]
pub struct PullArgs {
    /// owner/name[:file-or-type] or short name; without file or type the best file for this machine is taken
    #[arg(value_name = "REPO")]
    pub repo: String,
    /// Branch, tag or commit
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Device whose kernels decide which file is best
    #[arg(long, value_enum, default_value = "auto", env = "ONEBIT_BACKEND")]
    pub backend: BackendName,
}

/// A container to convert to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ConvertTo {
    /// A folder with model.safetensors and its side files
    Mlx,
    /// One .gguf file
    Gguf,
}

/// Arguments of `convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
A destination that ends in .gguf becomes a GGUF file, anything else an MLX folder. Every weight stays what it is; what \
has no exact form in the other container is refused. SRC stays untouched and nothing is ever uploaded.

Examples:
  onebit convert ./Bonsai-8B-mlx-1bit Bonsai-8B-Q1_0.gguf
  onebit convert Ternary-Bonsai-8B-Q2_0.gguf ./ternary-mlx --q2-0-group 128")]
pub struct ConvertArgs {
    /// Folder or .gguf file to read
    #[arg(value_name = "SRC")]
    pub src: String,
    /// Folder or .gguf file to write; must not exist
    #[arg(value_name = "DST")]
    pub dst: PathBuf,
    /// Group size of 2-bit blocks in a GGUF file: 64 is Q2_0 as llama.cpp reads it, 128 is PQ2_0 [default: 64]
    #[arg(long, value_name = "64|128", value_parser = q2_0_group)]
    pub gguf_group: Option<u16>,
    /// Group size of GGUF type 42 (Q2_0) in SRC where the file does not tell: 64 or 128
    #[arg(long, value_name = "64|128", env = "ONEBIT_Q2_0_GROUP", value_parser = q2_0_group)]
    pub q2_0_group: Option<u16>,
    /// Read weight files into memory instead of mapping them
    #[arg(long, env = "ONEBIT_NO_MMAP")]
    pub no_mmap: bool,
}

impl ConvertArgs {
    /// The container, by the destination's name.
    #[must_use]
    pub fn to(&self) -> ConvertTo {
        if self.dst.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            ConvertTo::Gguf
        } else {
            ConvertTo::Mlx
        }
    }
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  onebit completions bash > ~/.local/share/bash-completion/completions/onebit")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}
