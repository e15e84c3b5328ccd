//! Arguments of the commands that report: `models`, `info`, `doctor`, `bench`, `logits`.

use super::model::ModelArg;
use super::running::{BackendName, KeepIn, KvQuant, RunOptions, count};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `models`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onebit models\n  onebit models --ctx 32768 --kv-quant q4\n  onebit models --json")]
pub struct ModelsArgs {
    /// One JSON array on stdout
    #[arg(long)]
    pub json: bool,
    /// Delete the repacked weights that --cache-repack kept, here or in DIR, and list nothing
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = KeepIn::parse,
        conflicts_with = "json"
    )]
    pub clear_cache: Option<KeepIn>,
    /// Device whose kernels count
    #[arg(long, value_enum, default_value = "auto", env = "ONEBIT_BACKEND")]
    pub backend: BackendName,
    /// Tokens of context that the memory column counts with
    #[arg(long, value_name = "TOKENS", default_value = "8192", env = "ONEBIT_CTX", value_parser = count)]
    pub ctx: usize,
    /// Precision of cached keys and values that the memory column counts with
    #[arg(long, value_enum, default_value = "none", env = "ONEBIT_KV_QUANT")]
    pub kv_quant: KvQuant,
}

/// Arguments of `info`.
#[derive(Debug, Args)]
#[command(after_help = "\
A repository is described from its file headers, which are read over the network: nothing is downloaded.

Examples:
  onebit info ./Bonsai-27B-mlx-1bit
  onebit info prism-ml/Bonsai-8B-gguf:Q1_0 --json
  onebit info model.gguf --check")]
pub struct InfoArgs {
    /// The model
    #[command(flatten)]
    pub model: ModelArg,
    /// One JSON object on stdout
    #[arg(long)]
    pub json: bool,
    /// Also read the scales: which matrices are symmetric, and how many bytes of offsets that sheds
    #[arg(long)]
    pub check: bool,
    /// How it would run
    #[command(flatten)]
    pub run: RunOptions,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without MODEL the kernels are tested on random weights. With MODEL they are tested on its own weights and shapes, and a \
published pack is also held against known answers. Exit code 1 when anything fails.

Examples:
  onebit doctor
  onebit doctor --bits 2 --group 64
  onebit doctor --tune
  onebit doctor ./Bonsai-1.7B-mlx-1bit")]
pub struct DoctorArgs {
    /// The model
    #[command(flatten)]
    pub model: ModelArg,
    /// Bits of the random weights [default: 1 and 2]
    #[arg(long, value_name = "BITS", value_parser = ["1", "2", "4", "8"])]
    pub bits: Option<String>,
    /// Group size of the random weights [default: 128]
    #[arg(long, value_name = "GROUP", value_parser = ["32", "64", "128"])]
    pub group: Option<String>,
    /// Instead, measure how products are cut best on the GPU of the wgpu backend, and keep that for later runs
    #[arg(long, conflicts_with_all = ["positional", "flag", "bits", "group"])]
    pub tune: bool,
    /// How to run
    #[command(flatten)]
    pub run: RunOptions,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onebit bench --shape bonsai-27b -p 64 -n 32\n  onebit bench ./model -p 512 -n 128 -r 5 --json"
)]
pub struct BenchArgs {
    /// The model
    #[command(flatten)]
    pub model: ModelArg,
    /// Random weights of a published size instead of a file
    #[arg(long, value_name = "NAME", conflicts_with_all = ["positional", "flag"])]
    pub shape: Option<String>,
    /// Prompt tokens
    #[arg(short = 'p', long, default_value_t = 512, value_name = "N")]
    pub prompt: usize,
    /// Generated tokens
    #[arg(short = 'n', long, default_value_t = 128, value_name = "N")]
    pub generate: usize,
    /// Tokens already cached before the measured ones
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub depth: usize,
    /// Rows of one decode step
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub rows: usize,
    /// Also measure so many sequences at once: counts, separated by commas
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub sequences: Vec<u16>,
    /// Repetitions; medians are reported
    #[arg(short = 'r', long, default_value_t = 3, value_name = "N")]
    pub repeat: usize,
    /// Size of a picture, for the shape of an image model [default: 512x512]
    #[arg(long, value_name = "WxH")]
    pub size: Option<String>,
    /// Steps to run for the shape of an image model; the picture's time is given for 4 [default: 1]
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// One JSON object on stdout
    #[arg(long)]
    pub json: bool,
    /// How to run
    #[command(flatten)]
    pub run: RunOptions,
}

/// Arguments of `logits`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onebit logits ./Bonsai-1.7B-mlx-1bit --tokens 785,6722,315 --out logits.safetensors\n  onebit logits model.gguf --tokens 1,2,3 --hidden --activations f32 --out F.safetensors"
)]
pub struct LogitsArgs {
    /// The model
    #[command(flatten)]
    pub model: ModelArg,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,
    /// File to write: tensor `logits` [T, vocab]
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Also write `hidden.<i>` [T, hidden] (0: embedding, i: after layer i) and `final_norm`
    #[arg(long)]
    pub hidden: bool,
    /// Rows of one prefill chunk
    #[arg(long, value_name = "ROWS", value_parser = count)]
    pub chunk: Option<usize>,
    /// How to run
    #[command(flatten)]
    pub run: RunOptions,
}
