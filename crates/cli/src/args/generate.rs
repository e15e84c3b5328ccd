//! Arguments of `run` and `chat`: the prompt, and how the answer is drawn.

use super::model::{ModelArg, default_model};
use super::running::{RunOptions, count};
use crate::Usage;
use anyhow::{Result, anyhow};
use clap::Args;
use std::path::PathBuf;

/// Whether the model may think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Think {
    /// As long as it likes.
    On,
    /// Not at all.
    Off,
    /// At most so many tokens.
    Budget(usize),
}

/// `on`, `off` or a number of tokens.
///
/// # Errors
/// The accepted values, for anything else.
pub(crate) fn think(text: &str) -> Result<Think, String> {
    match text {
        "on" => Ok(Think::On),
        "off" => Ok(Think::Off),
        _ => text.parse().map(Think::Budget).map_err(|_| "wanted on, off or a number of tokens".to_owned()),
    }
}

/// `ID=BIAS`.
fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parsed.ok_or_else(|| "wanted TOKEN_ID=NUMBER, such as 198=-5".to_owned())
}

/// How answers are drawn. What the user leaves out comes from the model's own `generation_config.json`, else it is
/// neutral.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Answer")]
pub struct GenerateOptions {
    /// Most tokens to generate, thinking included [default: up to the end of the context]
    #[arg(short = 'n', long, value_name = "N", env = "ONEBIT_MAX_TOKENS", value_parser = count, allow_negative_numbers = true)]
    pub max_tokens: Option<usize>,
    /// Randomness: 0 always takes the likeliest token [default: the model's own, else 1]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Draw from the K likeliest tokens only; 0 for all [default: the model's own, else 0]
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<usize>,
    /// Draw from the fewest likeliest tokens that reach probability P [default: the model's own, else 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than P times the likeliest [default: the model's own, else 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Divide the logits of tokens already seen by this [default: the model's own, else 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// Subtract this from the logits of tokens that the answer holds [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtract this for every time that the answer holds the token [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// The penalties look at this many last tokens [default: all]
    #[arg(long, value_name = "N", value_parser = count)]
    pub penalty_window: Option<usize>,
    /// Add a number to the logit of a token; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random draws; equal seeds give equal answers [default: a fresh one, which is printed]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// System message [env: ONEBIT_SYSTEM=]
    // The two variables are read below and not by clap: one that is set for a whole shell must not contradict --raw.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Thinking before the answer: on, off, or at most N tokens of it [default: as the model's template says]
    /// [env: ONEBIT_THINK=]
    #[arg(long, value_name = "on|off|N", value_parser = think)]
    pub think: Option<Think>,
}

impl GenerateOptions {
    /// The system message: `--system`, else `ONEBIT_SYSTEM`.
    #[must_use]
    pub fn system(&self) -> Option<String> {
        self.system.clone().or_else(|| variable("ONEBIT_SYSTEM"))
    }

    /// The wish about thinking: `--think`, else `ONEBIT_THINK` for models that think.
    ///
    /// # Errors
    /// [`Usage`] for a variable with another value than `--think` takes.
    pub fn think(&self, model_thinks: bool) -> Result<Option<Think>> {
        match (self.think, variable("ONEBIT_THINK")) {
            (None, Some(text)) if model_thinks => {
                think(&text).map(Some).map_err(|wanted| anyhow!(Usage(format!("ONEBIT_THINK is `{text}`: {wanted}"))))
            }
            (flag, _) => Ok(flag),
        }
    }
}

/// A variable, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
What is piped in is the prompt, or is appended to it. The answer goes to stdout; thinking and statistics go to stderr.

Examples:
  onebit run bonsai-8b 'Name three rivers'
  onebit run -m ./model.gguf 'Name three rivers' --temperature 0 --max-tokens 50
  onebit run bonsai-8b 'Summarise this text' --think off < notes.txt
  onebit run prism-ml/Bonsai-1.7B-gguf:Q1_0 'Once upon a time' --raw --seed 7")]
pub struct RunArgs {
    /// MODEL and PROMPT, or PROMPT alone
    #[arg(value_name = "MODEL] [PROMPT", num_args = 0..=2)]
    pub words: Vec<String>,
    /// Folder, .gguf file, owner/name[:file-or-type] or short name [env: ONEBIT_MODEL=]
    #[arg(short = 'm', long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Continue the prompt as it is, without the chat template
    #[arg(long, conflicts_with_all = ["system", "think"])]
    pub raw: bool,
    /// One JSON object on stdout at the end, instead of the streamed answer
    #[arg(long)]
    pub json: bool,
    /// Nothing on stderr but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// How the answer is drawn
    #[command(flatten)]
    pub generate: GenerateOptions,
    /// How to run
    #[command(flatten)]
    pub run: RunOptions,
}

impl RunArgs {
    /// The model named by `-m` or, failing that, by `ONEBIT_MODEL`.
    #[must_use]
    pub fn default_model(&self) -> Option<String> {
        self.model.clone().or_else(default_model)
    }
}

/// Arguments of `chat`.
#[derive(Debug, Args)]
#[command(after_help = "\
Type /help in the chat for its commands. Ctrl-C stops an answer, Ctrl-D leaves. A line that ends in \\ goes on in the \
next one; \"\"\" opens and closes a longer text.

Examples:
  onebit chat bonsai-8b
  onebit chat ./model.gguf --system 'Answer in French' --think off")]
pub struct ChatArgs {
    /// The model
    #[command(flatten)]
    pub model: ModelArg,
    /// Go on with a conversation that /save wrote
    #[arg(long, value_name = "FILE")]
    pub load: Option<PathBuf>,
    /// Keep no history of typed lines
    #[arg(long, env = "ONEBIT_NO_HISTORY")]
    pub no_history: bool,
    /// How answers are drawn
    #[command(flatten)]
    pub generate: GenerateOptions,
    /// How to run
    #[command(flatten)]
    pub run: RunOptions,
}
