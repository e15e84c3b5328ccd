//! The `onebit` command as a library: arguments, the choice of a backend, and one file or folder for each command.
//!
//! | module | idea |
//! |---|---|
//! | [`args`] | every command and flag |
//! | [`resolve`], [`builtin`] | from a word to files |
//! | [`load`], [`source`], [`side`], [`kept`] | from files to weights, tokenizer and template |
//! | [`image_model`] | from the folder of an image model to one that can be run |
//! | [`backends`], [`memory`], [`advice`], [`session`] | from weights to a model that answers |
//! | [`prompt`], [`sampling`], [`answer`] | from a question to an answer |
//! | [`picture`] | from a prompt to a picture and its file |
//! | [`terminal`] | what may be written where |
//! | [`shape`], [`image_shape`] | random weights of the published sizes |
//! | [`commands`] | what each command does |
//!
//! Exit codes: 0 fine, 1 the work failed (one sentence on stderr), 2 bad usage, 130 interrupted.

#![forbid(unsafe_code)]

pub mod advice;
pub mod answer;
pub mod args;
pub mod backends;
pub mod builtin;
pub mod commands;
pub mod image_model;
pub mod image_shape;
pub mod kept;
pub mod load;
pub mod memory;
pub mod picture;
pub mod prompt;
pub mod resolve;
pub mod sampling;
pub mod session;
pub mod shape;
pub mod side;
pub mod source;
pub mod terminal;
pub mod trial;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

/// Bad usage: exits with 2 instead of 1.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Ctrl-C came and the work was put down in order: exits with 130, as shells expect of an interrupted program.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Parses the arguments, runs the command and turns its result into an exit code.
pub fn main() -> ExitCode {
    onebit_checkpoint::explain_shrunk_files();
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say(&format!("error: {error:#}"));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    match error {
        error if error.is::<Usage>() => 2,
        error if error.is::<Interrupted>() => 130,
        _ => 1,
    }
}

/// The reader of our output went away (`onebit ... | head`): nothing failed.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    };
    error.chain().any(io)
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Run(args) => commands::run::run(&args),
        Command::Chat(args) => commands::chat::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Image(args) => commands::image::run(&args),
        Command::Models(args) => commands::models::run(&args),
        Command::Info(args) => commands::info::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::Convert(args) => commands::convert::run(&args),
        Command::Eval(args) => commands::eval::run(&args),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
    }
}
