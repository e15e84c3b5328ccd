//! `onebit completions`: a completion script for a shell, from the same definitions as `--help`.

use crate::args::{Cli, CompletionsArgs};
use anyhow::Result;
use clap::CommandFactory;
use std::io::Write;

/// Runs the command.
///
/// # Errors
/// Output that cannot be written.
pub fn run(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "onebit", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}
