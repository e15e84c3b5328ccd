//! `onebit image compare`: the same pictures by several models. Each is made by a process of its own: what one of them takes is
//! measured alone, and one that dies leaves the others be.

use super::sheet::{Cell, Column, Content, Row};
use super::{INTERRUPTED, beside, sheet, watch_interrupts};
use crate::args::CompareArgs;
use crate::picture::pixels::Pixels;
use crate::picture::{place, png};
use crate::terminal::{self, bytes, seconds};
use crate::{Interrupted, Usage, image_model, resolve};
use anyhow::{Context, Result, anyhow, bail};
use onebit_models::image::ImageSize;
use serde_json::{Value, json};
use std::io::{Cursor, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A picture that was made, or the reason why not.
struct Outcome {
    prompt: String,
    model: String,
    size: ImageSize,
    made: Result<Made, String>,
    /// Of the whole process.
    whole: Duration,
}

struct Made {
    picture: Pixels,
    report: Value,
}

impl Made {
    fn seconds(&self) -> Option<f64> {
        self.report["pictures"][0]["seconds"].as_f64()
    }
}

/// Runs the command.
///
/// # Errors
/// Bad usage, files that cannot be read or written, and when not a single picture was made.
pub(super) fn run(args: &CompareArgs) -> Result<()> {
    place::must_be_png(&args.output)?;
    let numbers = beside(&args.output, "json");
    place::check(&[args.output.clone(), numbers.clone()], args.force)?;
    let prompts = prompts(&args.prompts)?;
    watch_interrupts(true)?;
    let folder = tempfile::tempdir().context("a folder for the pictures")?;
    let columns: Vec<(&String, ImageSize)> = args
        .models
        .iter()
        .flat_map(|model| {
            let sizes = if args.sizes.is_empty() { vec![usual_size(model)] } else { args.sizes.clone() };
            sizes.into_iter().map(move |size| (model, size))
        })
        .collect();
    let total = columns.len() * prompts.len();
    // Column by column: a model's files stay in the system's memory for the next prompt.
    let mut outcomes = Vec::new();
    for (model, size) in &columns {
        for prompt in &prompts {
            let outcome = make(args, model, prompt, *size, &folder.path().join("cell.png"))?;
            if INTERRUPTED.load(Ordering::Relaxed) {
                bail!(Interrupted);
            }
            if !args.quiet {
                let verdict = match &outcome.made {
                    Ok(_) => seconds(outcome.whole),
                    Err(reason) => format!("no picture: {reason}"),
                };
                terminal::say(&format!("{} of {total}: {model}, {size}, “{prompt}”: {verdict}", outcomes.len() + 1));
            }
            outcomes.push(outcome);
        }
    }
    let cells: Vec<Value> = outcomes.iter().map(|outcome| numbers_of(args, outcome)).collect();
    let report = json!({
        "seed": args.seed,
        "noise_rng": args.noise_rng.rng().as_str(),
        "steps": args.steps,
        "sheet": args.output.display().to_string(),
        "cells": cells,
    });
    let first_reason = outcomes.iter().find_map(|outcome| outcome.made.as_ref().err().cloned());
    let any = outcomes.iter().any(|outcome| outcome.made.is_ok());
    let drawn = drawn(args, &columns, &prompts, outcomes)?;
    let software = [("Software", format!("onebit {}", env!("CARGO_PKG_VERSION")))];
    place::write(&args.output, &png::encode(drawn.bytes(), drawn.width(), drawn.height(), &software)?)?;
    place::write(&numbers, format!("{report:#}\n").as_bytes())?;
    if args.json {
        writeln!(std::io::stdout(), "{report}")?;
    }
    if !args.quiet {
        terminal::say(&format!("{} and {}", args.output.display(), numbers.display()));
    }
    match first_reason {
        Some(reason) if !any => bail!("not a single picture was made; the first reason: {reason}"),
        _ => Ok(()),
    }
}

/// The size of a model's pictures where nobody names any. A model that does not run says so in its cells, whatever their size.
fn usual_size(model: &str) -> ImageSize {
    let size = resolve::locate_image(model).and_then(|located| image_model::usual_size(&located.path));
    size.unwrap_or(ImageSize::USUAL)
}

/// The lines of a file.
fn prompts(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if lines.is_empty() {
        return Err(anyhow!(Usage(format!("{} holds no prompt; write one on each line", path.display()))));
    }
    Ok(lines)
}

fn make(args: &CompareArgs, model: &str, prompt: &str, size: ImageSize, file: &Path) -> Result<Outcome> {
    let begun = Instant::now();
    let mut command = Command::new(std::env::current_exe().context("this program's own file")?);
    command.args(["image", "--json", "--quiet", "--force", "-m", model]);
    command.arg(format!("--prompt={prompt}")).arg(format!("--size={size}"));
    command.arg(format!("--steps={}", args.steps)).arg(format!("--seed={}", args.seed));
    command.arg(format!("--noise-rng={}", args.noise_rng.rng().as_str())).arg("-o").arg(file);
    command.args(args.run.to_args());
    let output = command.stdin(Stdio::null()).output().context("the program cannot start itself")?;
    let made = if output.status.success() {
        let report = serde_json::from_slice(&output.stdout).context("the report of a picture")?;
        let (rgb, width, height) = png::decode(Cursor::new(std::fs::read(file)?))?;
        let picture = Pixels::from_bytes(width, height, &rgb).context("the pixels of a picture")?;
        Ok(Made { picture, report })
    } else {
        let text = String::from_utf8_lossy(&output.stderr);
        let sentence = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
        // Without a sentence it was ended from outside, most likely for want of memory.
        Err(sentence.map_or_else(|| format!("the process was ended by the system ({})", output.status), str::to_owned))
    };
    Ok(Outcome { prompt: prompt.to_owned(), model: model.to_owned(), size, made, whole: begun.elapsed() })
}

fn numbers_of(args: &CompareArgs, outcome: &Outcome) -> Value {
    let mut numbers = json!({
        "model": outcome.model,
        "prompt": outcome.prompt,
        "seed": args.seed,
        "width": outcome.size.width(),
        "height": outcome.size.height(),
        "process_seconds": outcome.whole.as_secs_f64(),
        "seconds": null,
        "peak_rss": null,
        "predicted_peak_bytes": null,
        "model_hash": null,
        "error": null,
    });
    match &outcome.made {
        Ok(made) => {
            numbers["seconds"] = json!(made.seconds());
            for key in ["peak_rss", "predicted_peak_bytes", "model_hash", "prompt_tokens", "prompt_dropped"] {
                numbers[key] = made.report[key].clone();
            }
        }
        Err(reason) => numbers["error"] = json!(reason),
    }
    numbers
}

fn drawn(
    args: &CompareArgs,
    columns: &[(&String, ImageSize)],
    prompts: &[String],
    outcomes: Vec<Outcome>,
) -> Result<Pixels> {
    let hash = |column: usize| {
        let of = outcomes[column * prompts.len()..][..prompts.len()].iter();
        of.filter_map(|o| o.made.as_ref().ok()?.report["model_hash"].as_str().map(str::to_owned)).next()
    };
    let head = |(index, (model, size)): (usize, &(&String, ImageSize))| Column {
        title: name_of(model),
        words: [format!("{size}, {} steps", args.steps)]
            .into_iter()
            .chain(hash(index).map(|hash| format!("model {hash}")))
            .collect(),
        size: (size.width(), size.height()),
    };
    let heads: Vec<Column> = columns.iter().enumerate().map(head).collect();
    let mut rows: Vec<Row> = prompts
        .iter()
        .map(|prompt| Row { heading: prompt.clone(), words: format!("seed {}", args.seed), cells: Vec::new() })
        .collect();
    for (index, outcome) in outcomes.into_iter().enumerate() {
        rows[index % prompts.len()].cells.push(cell(outcome));
    }
    sheet::draw(&heads, &rows)
}

fn cell(outcome: Outcome) -> Cell {
    match outcome.made {
        Ok(made) => {
            let time = made.seconds().map(|s| seconds(Duration::from_secs_f64(s)));
            let peak = made.report["peak_rss"].as_u64().map(|peak| format!("peak {}", bytes(peak)));
            let words: Vec<String> = time.into_iter().chain(peak).collect();
            Cell { content: Content::Picture(made.picture), words: vec![words.join(", ")] }
        }
        Err(reason) => Cell {
            content: Content::Error(reason),
            words: vec![format!("no picture after {}", seconds(outcome.whole))],
        },
    }
}

/// The last part of a path, or the name as it is.
fn name_of(model: &str) -> String {
    let path = Path::new(model);
    match path.file_name() {
        Some(name) if path.exists() => name.to_string_lossy().into_owned(),
        _ => model.to_owned(),
    }
}
