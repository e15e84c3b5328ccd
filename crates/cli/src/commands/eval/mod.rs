//! `onebit eval`: how good a model is, on texts and on questions with known answers.

mod judge;
mod report;
mod stats;
mod tasks;
mod text;
mod windows;

use crate::args::EvalArgs;
use crate::session::{Session, Wishes};
use crate::{Usage, sampling, side, terminal};
use anyhow::{Result, anyhow, bail};
use report::{Report, Setting};
use std::io::Write;
use std::path::Path;
use tasks::Asking;
use text::{Cut, Text};

/// Tokens of a window where the user does not say and the context allows it.
const WINDOW: usize = 2048;

/// Runs the command.
///
/// # Errors
/// Bad usage, files that cannot be read, a model that does not run.
pub fn run(args: &EvalArgs) -> Result<()> {
    // What is wrong with the files shows before a model is loaded.
    let texts: Vec<Text> = args.text.iter().map(|path| read_text(path)).collect::<Result<_>>()?;
    let tasks: Vec<_> = args.tasks.iter().map(|path| tasks::read(path, args.limit)).collect::<Result<_>>()?;
    if args.separator.is_empty() {
        bail!(Usage("--separator is empty; name the text that stands between documents".to_owned()));
    }
    let answers = args.answers();
    let params = sampling::merge(&answers, &side::GenerationDefaults::default())?;

    let wishes = Wishes { checkpoints: 0, quiet: false };
    let mut session = Session::open(args.model.name().as_deref(), &args.run, wishes)?;
    if !tasks.is_empty() && session.text.template.is_none() {
        bail!(
            "{} has no chat template, and --tasks asks through one; name a model that chats, or use --text",
            session.name
        );
    }
    let context = session.plan.context;
    let window = args.window.unwrap_or(WINDOW.min(context));
    if window > context {
        bail!(Usage(format!(
            "a window of {window} tokens does not fit the context of {context}; take a smaller --window or a larger --ctx"
        )));
    }
    let stride = args.stride.unwrap_or(window);
    if stride > window {
        bail!(Usage(format!(
            "a stride of {stride} tokens skips some of the text, because windows have {window}; take at most that"
        )));
    }
    let mut reference = None;
    if let Some(word) = &args.against {
        // A context has at least two tokens.
        let other = Session::open(Some(word), &args.run_of_reference(window.max(2)), wishes)?;
        text::require_same_vocabulary(&session, &other)?;
        reference = Some(other);
    }

    let cut = Cut { window, stride, separator: &args.separator, limit: args.limit };
    let texts: Vec<_> =
        texts.iter().map(|text| text::measure(text, &cut, &mut session, reference.as_mut())).collect::<Result<_>>()?;
    let asking = Asking {
        sampling: &params,
        max_tokens: answers.max_tokens,
        stop: &answers.stop,
        system: answers.system(),
        think: answers.think(session.text.think_markers().is_some())?,
        failures: args.show_failures,
    };
    let tasks: Vec<_> = tasks.iter().map(|file| tasks::measure(file, &asking, &mut session)).collect::<Result<_>>()?;

    let report = Report {
        model: Setting::of(&session),
        reference: reference.as_ref().map(Setting::of),
        cut,
        asking: &asking,
        texts,
        tasks,
    };
    let mut out = std::io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&report.json())?)?,
        false => write!(out, "{}", report.text(terminal::stdout_colours()))?,
    }
    Ok(())
}

fn read_text(path: &Path) -> Result<Text> {
    let name = path.display().to_string();
    match side::read_text(path)? {
        Some(text) => Ok(Text { path: name, text }),
        None => Err(anyhow!("{name} does not exist; check the path")),
    }
}
