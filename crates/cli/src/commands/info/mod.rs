//! `onebit info`: what a model is and what running it takes, from its headers.
//!
//! | file | idea |
//! |---|---|
//! | `report` | the facts, gathered |
//! | `text` | the facts, printed |
//! | `check` | the scales, read: `--check` |
//! | `image` | the same for image models |
//! | `remote` | headers over HTTP ranges |

mod check;
mod image;
mod remote;
mod report;
mod text;

use crate::args::InfoArgs;
use crate::builtin::BuiltIn;
use crate::resolve::{self, Located, Named};
use crate::{backends, kept, load, side, terminal};
use anyhow::{Result, bail};
use onebit_checkpoint::Kind;
use onebit_hub::HubError;
use onebit_ops::Backend;
use report::{Repacked, Report, TextFacts};
use std::io::Write;
use std::sync::Arc;

/// Runs the command.
///
/// # Errors
/// Files that are damaged or absent; output that cannot be written.
pub fn run(args: &InfoArgs) -> Result<()> {
    let backend = backends::open_to_look(args.run.backend, args.run.threads)?;
    let report = match args.model.name() {
        Some(word) => describe(&word, args, &backend)?,
        None => describe_files(&BuiltIn::TEXT.by_default(), args, &backend)?,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        out.write_all(text::render(&report).as_bytes())?;
    }
    Ok(())
}

fn describe(word: &str, args: &InfoArgs, backend: &Arc<dyn Backend>) -> Result<Report> {
    let located = match resolve::locate(word, &**backend) {
        Ok(located) => located,
        Err(error) => {
            // What is not in the cache is described from the hub.
            let Some(Named::Repo(repo)) = resolve::named(word) else { return Err(error) };
            if !matches!(error.downcast_ref(), Some(HubError::NotCached { .. } | HubError::MissingFile { .. })) {
                return Err(error);
            }
            if args.check {
                bail!("--check reads the weights, and {repo} is not downloaded; run `onebit pull {repo}` first");
            }
            return remote::describe(&repo, args, &**backend);
        }
    };
    describe_files(&located, args, backend)
}

fn describe_files(located: &Located, args: &InfoArgs, backend: &Arc<dyn Backend>) -> Result<Report> {
    if let Some(choice) = &located.choice {
        terminal::say(&format!("note: {choice}"));
    }
    let source = load::open_any(&located.path, &args.run.files())?;
    let mut report = Report::of(&located.name, source.checkpoint().inventory(), &args.run, &**backend)?;
    if let Kind::Image { .. } = source.checkpoint().kind() {
        match image::describe(&located.path, &args.run, backend.clone()) {
            Ok(facts) => (report.runs, report.image) = (true, Some(facts)),
            Err(error) => report.problems.push(format!("{error:#}")),
        }
        if args.check {
            report
                .problems
                .push("--check reads the weights of text models; `onebit doctor` reads an image model's".to_owned());
        }
        return Ok(report);
    }
    report.text = match side::TextSide::read(&source) {
        Ok(side) => Some(TextFacts::of(&side)),
        Err(error) => {
            report.problems.push(format!("{error:#}"));
            None
        }
    };
    // Without a folder for caches nothing was kept.
    if let Ok(Some(place)) = kept::Place::of(&source, &**backend, &args.run)
        && let Some(bytes) = place.bytes()
    {
        report.repacked = Some(Repacked { path: place.path.display().to_string(), bytes });
    }
    if args.check && report.model.is_some() {
        report.check = Some(check::read(&source)?);
    }
    Ok(report)
}
