//! Running other programs.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
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

/// The program of a package's test and the folder of that package, by what `cargo test --no-run --message-format json` printed.
pub(crate) fn test_program(messages: &str, package: &str, test: &str) -> Result<(PathBuf, PathBuf)> {
    let id = format!("#{package}@");
    let found = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let target = &message["target"];
        let is_it = target["name"] == test
            && target["kind"] == json!(["test"])
            && message["package_id"].as_str().is_some_and(|it| it.contains(&id));
        let folder = message["manifest_path"].as_str().and_then(|path| Path::new(path).parent()).filter(|_| is_it)?;
        Some((PathBuf::from(message["executable"].as_str()?), folder.to_owned()))
    });
    found.with_context(|| format!("cargo names no program for the test {test} of {package}"))
}

fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    command.get_args().fold(program.into_owned(), |line, arg| line + " " + &arg.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_of_the_package() {
        let line = |package: &str, folder: &str, kind: &str, program: &str| {
            json!({
                "package_id": format!("path+file:///r/crates/{folder}#{package}@0.1.0"),
                "manifest_path": format!("/r/crates/{folder}/Cargo.toml"),
                "target": {"name": "images", "kind": [kind]},
                "executable": program,
            })
            .to_string()
        };
        let messages = [
            "not json".to_owned(),
            line("onebit-engine", "engine", "test", "/t/images-1"),
            line("onebit", "cli", "bin", "/t/images-2"),
            line("onebit", "cli", "test", "/t/images-3"),
        ]
        .join("\n");
        let found = test_program(&messages, "onebit", "images").expect("it is there");
        assert_eq!(found, ("/t/images-3".into(), "/r/crates/cli".into()));
        let error = test_program(&messages, "onebit", "goldens").expect_err("it is not there").to_string();
        assert!(error.contains("goldens of onebit"), "{error}");
    }
}
