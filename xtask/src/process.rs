//! Running other programs.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Prints the command, runs it, and fails when it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", shown(command));
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// What the command prints on stdout.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !out.status.success() {
        bail!("{} ended with {}: {}", shown(command), out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8(out.stdout)?)
}

/// True when the command can be started and succeeds.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// Cargo, as this program was started with.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    command.get_args().fold(program.into_owned(), |line, arg| line + " " + &arg.to_string_lossy())
}
