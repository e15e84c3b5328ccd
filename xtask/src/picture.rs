//! `cargo xtask picture`: the README's terminal picture, drawn from what the release binary really prints.

use crate::process::{cargo, run as run_command};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// What is run, as a reader would type it.
const COMMANDS: &[&[&str]] =
    &[&["run", "Tell me a short story about a tree.", "--temperature", "0", "--max-tokens", "60"], &["models"]];
const OUTPUT: &str = "docs/screenshot.svg";
const COLUMNS: usize = 100;
const LINE_HEIGHT: usize = 18;
const CHAR_WIDTH: f32 = 8.43;
const MARGIN: usize = 20;

/// Builds the binary, runs the commands and writes the picture.
pub(crate) fn run(root: &Path) -> Result<()> {
    run_command(cargo().current_dir(root).args(["build", "--release", "--package", "onebit"]))?;
    let binary = crate::target_dir(root).join("release/onebit");
    let mut lines = Vec::new();
    for args in COMMANDS {
        let typed = args.iter().map(|a| if a.contains(' ') { format!("\"{a}\"") } else { (*a).to_owned() });
        lines.push(format!("$ onebit {}", typed.collect::<Vec<_>>().join(" ")));
        let out = Command::new(&binary).current_dir(root).args(*args).output().context("cannot start onebit")?;
        ensure!(out.status.success(), "onebit {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout)?;
        lines.extend(text.trim_end().lines().flat_map(wrapped));
        lines.push(String::new());
    }
    lines.pop();
    std::fs::write(root.join(OUTPUT), svg(&lines))?;
    println!("{OUTPUT}: {} lines", lines.len());
    Ok(())
}

/// A line cut at words so that it fits.
fn wrapped(line: &str) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), line);
    while let Some((end, _)) = rest.char_indices().nth(COLUMNS) {
        let cut = rest[..end].rfind(' ').map_or(end, |space| space + 1);
        lines.push(rest[..cut].trim_end().to_owned());
        rest = &rest[cut..];
    }
    lines.push(rest.to_owned());
    lines
}

/// Lines of a terminal as a picture; a line that starts with `$` is what was typed.
fn svg(lines: &[String]) -> String {
    let width = (COLUMNS as f32 * CHAR_WIDTH) as usize + 2 * MARGIN;
    let height = lines.len() * LINE_HEIGHT + 2 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#16191d\"/>\n\
         <g font-family=\"ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\">\n"
    );
    for (i, line) in lines.iter().enumerate() {
        let y = MARGIN + i * LINE_HEIGHT + 13;
        let color = if line.starts_with('$') { "#7fd1b9" } else { "#d6dbe1" };
        let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        out += &format!("<text x=\"{MARGIN}\" y=\"{y}\" fill=\"{color}\">{text}</text>\n");
    }
    out + "</g>\n</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, svg, wrapped};

    #[test]
    fn long_lines_are_cut_at_words() {
        let line = "word ".repeat(COLUMNS);
        let lines = wrapped(line.trim_end());
        assert!(lines.iter().all(|l| l.len() <= COLUMNS && l.starts_with("word")));
        assert_eq!(lines.join(" "), line.trim_end());
    }

    #[test]
    fn text_is_escaped() {
        let picture = svg(&["$ onebit".to_owned(), "a < b & c".to_owned()]);
        assert!(picture.contains("a &lt; b &amp; c") && picture.contains("#7fd1b9"));
    }
}
