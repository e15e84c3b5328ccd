//! Arguments of `eval`.

use super::generate::GenerateOptions;
use super::model::ModelArg;
use super::running::{ActivationsName, KvQuant, RunOptions, count};
use clap::{Arg, ArgGroup, Args};
use std::path::PathBuf;

/// Most tokens of an answer, where the user does not say.
pub(crate) const ANSWER_TOKENS: usize = 512;

/// Arguments of `eval`.
#[derive(Debug, Args)]
#[command(
    group(ArgGroup::new("measured").args(["text", "tasks"]).required(true).multiple(true)),
    // The answers of `eval` do not follow the model's own sampling values: the same help, another default.
    mut_arg("max_tokens", |a| default_of(a, "512")),
    mut_arg("temperature", |a| default_of(a, "0")),
    mut_arg("top_k", |a| default_of(a, "0")),
    mut_arg("top_p", |a| default_of(a, "1")),
    mut_arg("min_p", |a| default_of(a, "0")),
    mut_arg("repeat_penalty", |a| default_of(a, "1")),
    after_help = "\
Answers are greedy and without penalties, whatever the model's own sampling values are, unless an option says otherwise. \
Everything runs through the cache and kernels that `run` uses, so that --activations and --kv-quant show their price. \
docs/eval.md explains every figure and the form of task files.

Examples:
  onebit eval --text book.txt
  onebit eval ./Bonsai-8B-mlx-1bit --text wiki.txt --window 4096 --stride 2048 --json
  onebit eval bonsai-8b --text wiki.txt --kv-quant q4 --against bonsai-8b --against-kv-quant none
  onebit eval bonsai-8b --tasks sums.jsonl --tasks tools.jsonl --limit 50 --show-failures 5"
)]
pub struct EvalArgs {
    /// The model
    #[command(flatten)]
    pub model: ModelArg,
    /// Text to measure perplexity on; may be repeated
    #[arg(long, value_name = "FILE")]
    pub text: Vec<PathBuf>,
    /// Questions with known answers, one JSON object a line; may be repeated
    #[arg(long, value_name = "FILE")]
    pub tasks: Vec<PathBuf>,
    /// Compare with this model on the texts: KL(MODEL2 || MODEL) and agreement
    #[arg(long, value_name = "MODEL2", requires = "text")]
    pub against: Option<String>,
    /// Precision of MODEL2's matmul inputs [default: as --activations]
    #[arg(long, value_enum, value_name = "KIND", requires = "against")]
    pub against_activations: Option<ActivationsName>,
    /// Precision of MODEL2's cached keys and values [default: as --kv-quant]
    #[arg(long, value_enum, value_name = "FORMAT", requires = "against")]
    pub against_kv_quant: Option<KvQuant>,
    /// Tokens that one window of a text reads [default: 2048, or the context where it is shorter]
    #[arg(long, value_name = "N", value_parser = count)]
    pub window: Option<usize>,
    /// Tokens from one window to the next; the tokens that windows share count once [default: the window]
    #[arg(long, value_name = "N", value_parser = count)]
    pub stride: Option<usize>,
    /// What stands between the documents of a text
    #[arg(long, value_name = "TEXT", default_value = "<|endoftext|>")]
    pub separator: String,
    /// Only the first N windows of each text and the first N items of each task file
    #[arg(long, value_name = "N", value_parser = count)]
    pub limit: Option<usize>,
    /// Print up to N wrong answers of each task file
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub show_failures: usize,
    /// One JSON object on stdout
    #[arg(long)]
    pub json: bool,
    /// How answers are drawn
    #[command(flatten)]
    pub generate: GenerateOptions,
    /// How to run
    #[command(flatten)]
    pub run: RunOptions,
}

impl EvalArgs {
    /// The options of answers, greedy and neutral where the user does not say.
    #[must_use]
    pub fn answers(&self) -> GenerateOptions {
        GenerateOptions {
            max_tokens: self.generate.max_tokens.or(Some(ANSWER_TOKENS)),
            temperature: self.generate.temperature.or(Some(0.0)),
            ..self.generate.clone()
        }
    }

    /// How MODEL2 runs, with a context of so many tokens.
    #[must_use]
    pub fn run_of_reference(&self, context: usize) -> RunOptions {
        RunOptions {
            ctx: Some(context),
            activations: self.against_activations.unwrap_or(self.run.activations),
            kv_quant: self.against_kv_quant.unwrap_or(self.run.kv_quant),
            ..self.run.clone()
        }
    }
}

/// The same argument with another default in its help.
fn default_of(arg: Arg, value: &str) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let text = help.split(" [default:").next().unwrap_or_default();
    arg.help(format!("{text} [default: {value}]"))
}
