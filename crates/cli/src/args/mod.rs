//! Arguments: the one place that says which commands and flags there are.

mod eval;
mod files;
mod generate;
mod image;
mod model;
mod report;
mod running;
mod serve;

pub use eval::EvalArgs;
pub use files::{CompletionsArgs, ConvertArgs, ConvertTo, PullArgs};
pub(crate) use generate::think;
pub use generate::{ChatArgs, GenerateOptions, RunArgs, Think};
pub use image::{CompareArgs, ImageArgs, ImageRunOptions, ImageTask, NoiseRngName, PaintOptions, image_size};
pub use model::{ModelArg, default_model};
pub use report::{BenchArgs, DoctorArgs, InfoArgs, LogitsArgs, ModelsArgs};
pub use running::{ActivationsName, BackendName, KeepIn, KvQuant, RunOptions};
pub use serve::{ListenOptions, LogFormat, ServeArgs};

use clap::{Parser, Subcommand};

const AFTER_HELP: &str = "\
MODEL is a folder, a .gguf file, owner/name[:file-or-type] on the hub, or a short name such as bonsai-8b.

Examples:
  onebit pull bonsai-1.7b                     download a model
  onebit run bonsai-1.7b 'Why is the sky blue?'
  onebit chat ./Bonsai-8B-mlx-1bit
  onebit serve bonsai-8b
  onebit image image-ternary-4b --prompt 'A bonsai tree on a desk' -o tree.png
  git diff | onebit run bonsai-8b 'Write a commit message for this diff'

Exit codes: 0 fine, 1 the work failed, 2 bad usage.";

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "onebit",
    version,
    about = "Runs every Bonsai model - 1-bit and 2-bit - on any machine",
    after_help = AFTER_HELP,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    args_override_self = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt and exit
    Run(RunArgs),
    /// Talk to a model
    Chat(ChatArgs),
    /// Serve models over HTTP: OpenAI's, Anthropic's and Ollama's APIs, and a page to chat on
    Serve(ServeArgs),
    /// Make pictures from text, or compare models that do
    Image(Box<ImageArgs>),
    /// List the published Bonsai packs: size, quality, memory, and whether they fit here
    Models(ModelsArgs),
    /// Say what a model is and what running it takes, without reading its weights
    Info(InfoArgs),
    /// Check this machine, and a model's files, for wrong results
    Doctor(DoctorArgs),
    /// Measure prefill and decode speed, stage by stage
    Bench(BenchArgs),
    /// Download a model; an interrupted download is resumed
    Pull(PullArgs),
    /// Rewrite a model between MLX safetensors and GGUF, without loss
    Convert(ConvertArgs),
    /// Measure quality: perplexity of texts, questions with known answers
    Eval(EvalArgs),
    /// Write the logits of given tokens to a file, for parity checks
    Logits(LogitsArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}
