//! Arguments of `serve`.

use super::generate::{Think, think};
use super::running::{RunOptions, count};
use clap::{Args, ValueEnum};
use std::net::IpAddr;

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// A JSON object a line
    Json,
}

/// `ALIAS=MODEL`.
fn alias(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(alias, model)| !alias.is_empty() && !model.is_empty());
    parts
        .map(|(a, m)| (a.to_owned(), m.to_owned()))
        .ok_or_else(|| "wanted NAME=MODEL, such as gpt-4o=bonsai-8b".to_owned())
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
The server speaks OpenAI's API under /v1, Anthropic's under /v1/messages and Ollama's under /api, and has a page to chat \
on at /. One model is loaded at once; of several each is loaded when it is first asked for.

Examples:
  onebit serve bonsai-8b
  onebit serve bonsai-8b ternary-27b --alias gpt-4o=bonsai-8b
  onebit serve bonsai-27b --host 0.0.0.0 --api-key SECRET")]
pub struct ServeArgs {
    /// Folders, .gguf files, owner/name[:file-or-type] or short names [env: ONEBIT_MODEL=]
    #[arg(value_name = "MODEL")]
    pub models: Vec<String>,
    /// The same as the positional MODEL
    #[arg(short = 'm', long = "model", value_name = "MODEL", conflicts_with = "models")]
    pub model: Option<String>,
    /// Serve random weights of a published size, such as bonsai-8b: real speed, noise for text
    #[arg(long, value_name = "NAME", conflicts_with_all = ["models", "model"])]
    pub shape: Option<String>,
    /// How to listen, and to whom
    #[command(flatten)]
    pub listen: ListenOptions,
    /// Another name for a model; may be repeated
    #[arg(long, value_name = "NAME=MODEL", value_parser = alias)]
    pub alias: Vec<(String, String)>,
    /// Answer requests for unknown models with the first one
    #[arg(long)]
    pub any_model: bool,
    /// Requests that are answered at the same time; more wait [default: 8, or what memory allows]
    #[arg(long, value_name = "N", env = "ONEBIT_PARALLEL", value_parser = count)]
    pub parallel: Option<usize>,
    /// Thinking where a request says nothing: on, off, or at most N tokens of it [default: as the model's template says]
    #[arg(long, value_name = "on|off|N", env = "ONEBIT_THINK", value_parser = think)]
    pub think: Option<Think>,
    /// How to run
    #[command(flatten)]
    pub run: RunOptions,
}

/// How to listen, and to whom.
#[derive(Debug, Args)]
#[command(next_help_heading = "Listening")]
pub struct ListenOptions {
    /// Address to listen on; 0.0.0.0 is every network of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", env = "ONEBIT_HOST")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080, env = "ONEBIT_PORT")]
    pub port: u16,
    /// Key that clients must send; may be repeated [default: none]
    #[arg(long, value_name = "KEY", env = "ONEBIT_API_KEY", hide_env_values = true, value_delimiter = ',')]
    pub api_key: Vec<String>,
    /// Origin whose pages may ask, or * for all; may be repeated [default: none]
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Largest request body in megabytes
    #[arg(long, value_name = "MB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_body: u32,
    /// Most requests at work or waiting, counted by prompts and pictures; more get a 503
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_requests: u32,
    /// Seconds that requests under way may go on after SIGTERM or Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain: u64,
    /// Seconds that a client may be silent where it is its turn: to ask, to send the rest of a request, to read its answer
    #[arg(long, value_name = "SECONDS", default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..))]
    pub idle: u32,
    /// Serve no page at /
    #[arg(long)]
    pub no_page: bool,
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text", env = "ONEBIT_LOG_FORMAT")]
    pub log_format: LogFormat,
    /// Write prompts into the log
    #[arg(long)]
    pub log_prompts: bool,
}
