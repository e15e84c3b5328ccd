//! `onebit run`: one prompt, one answer.

use crate::answer::{self, Ask, Sink};
use crate::args::RunArgs;
use crate::prompt::{self, Prepared};
use crate::session::{Session, Wishes};
use crate::terminal::{self, DIM, PLAIN};
use crate::{Usage, resolve, sampling};
use anyhow::{Context, Result, bail};
use onebit_engine::TextEvent;
use onebit_text::Message;
use std::io::{self, IsTerminal, Read, Write};
use std::ops::ControlFlow;

/// Runs the command.
///
/// # Errors
/// Bad usage, a model that does not run, output that cannot be written.
pub fn run(args: &RunArgs) -> Result<()> {
    let piped = piped_stdin()?;
    let (model, prompt) = split_words(args, piped)?;
    let mut session = Session::open(model.as_deref(), &args.run, Wishes { checkpoints: 0, quiet: args.quiet })?;
    let params = sampling::merge(&args.generate, &session.text.defaults)?;
    let prepared = prepare(args, &session, &prompt)?;
    let ask = Ask {
        sampling: &params,
        max_tokens: args.generate.max_tokens,
        stop: &args.generate.stop,
        cache: false,
        patience: answer::PATIENCE,
    };
    if args.json {
        let mut silent = Silent { quiet: args.quiet };
        let answer = answer::ask(&mut session, prepared, &ask, &mut silent)?;
        let mut json = answer.to_json(&params);
        json["model"] = session.name.clone().into();
        json["timings"]["load_s"] = session.load_time.as_secs_f64().into();
        json["timings"]["first_token_s"] = (session.load_time + answer.read).as_secs_f64().into();
        writeln!(io::stdout(), "{json}")?;
        return Ok(());
    }
    if terminal::stderr_colours() {
        // Faint thinking must not outlive the program; 130 is what shells expect of an interrupted one.
        let plain = || {
            terminal::say(PLAIN);
            std::process::exit(130);
        };
        ctrlc::set_handler(plain).context("the handler of Ctrl-C")?;
    }
    let mut stream = Stream::new(args.quiet);
    let answer = answer::ask(&mut session, prepared, &ask, &mut stream)?;
    stream.end()?;
    if !args.quiet {
        if let Some(advice) = answer.advice() {
            terminal::say(&format!("note: {advice}"));
        }
        let stats = format!(
            "{}; {}; loaded in {}, first token after {} on {}",
            answer.summary(),
            sampling::describe(&params),
            terminal::seconds(session.load_time),
            terminal::seconds(session.load_time + answer.read),
            session.device
        );
        terminal::say(&terminal::styled(&stats, DIM, terminal::stderr_colours()));
    }
    Ok(())
}

/// What was piped in; `None` when stdin is a terminal or holds nothing.
fn piped_stdin() -> Result<Option<String>> {
    let mut stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    stdin.read_to_end(&mut bytes).context("stdin")?;
    let text = String::from_utf8(bytes).context("stdin is not UTF-8 text")?;
    Ok(Some(text).filter(|t| !t.trim().is_empty()))
}

/// Which word is the model and which the prompt. A lone word that can be a model is one, never a prompt.
fn split_words(args: &RunArgs, piped: Option<String>) -> Result<(Option<String>, String)> {
    let join = |prompt: Option<&String>| match (prompt, &piped) {
        (Some(prompt), Some(piped)) => Some(format!("{prompt}\n\n{piped}")),
        (Some(prompt), None) => Some(prompt.clone()),
        (None, Some(piped)) => Some(piped.clone()),
        (None, None) => None,
    };
    let (model, prompt) = match (&args.model, args.words.as_slice()) {
        (Some(_), [_, _]) => {
            bail!(Usage("two words beside -m: -m names the model, so quote the prompt as one word".to_owned()))
        }
        (Some(model), words) => (Some(model.clone()), join(words.first())),
        (None, [model, prompt]) => (Some(model.clone()), join(Some(prompt))),
        (None, [word]) if resolve::is_model(word) => {
            let Some(prompt) = join(None) else {
                bail!(Usage(format!(
                    "`{word}` is a model, and there is no prompt; give one:\n  onebit run {0} 'PROMPT'\nor, if it is the \
                     prompt, name the model:\n  onebit run -m MODEL {0}",
                    quoted(word)
                )));
            };
            (Some(word.clone()), Some(prompt))
        }
        (None, words) => (args.default_model(), join(words.first())),
    };
    match prompt {
        Some(prompt) if !prompt.is_empty() => Ok((model, prompt)),
        _ => bail!(Usage(
            "there is no prompt; give one:\n  onebit run MODEL 'PROMPT'\nor pipe one in:\n  onebit run MODEL < file"
                .to_owned()
        )),
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@+,=%".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

fn prepare(args: &RunArgs, session: &Session, prompt: &str) -> Result<Prepared> {
    if args.raw {
        return prompt::raw(&session.text, prompt);
    }
    if session.text.template.is_none() {
        if args.generate.system.is_some() || args.generate.think.is_some() {
            bail!(Usage(
                "the model has no chat template, so --system and --think have no effect; leave them out".to_owned()
            ));
        }
        if !args.quiet {
            terminal::say("note: the model has no chat template; it continues the prompt as it is, as with --raw");
        }
        return prompt::raw(&session.text, prompt);
    }
    let mut messages: Vec<Message> = args.generate.system().into_iter().map(Message::system).collect();
    messages.push(Message::user(prompt.to_owned()));
    prompt::chat(&session.text, &messages, &[], args.generate.think(session.text.think_markers().is_some())?)
}

/// Waits for `--json`.
struct Silent {
    quiet: bool,
}

impl Sink for Silent {
    fn piece(&mut self, _: &TextEvent) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn long_wait(&mut self) {
        if !self.quiet {
            terminal::say(HINT);
        }
    }
}

/// What is said when nothing was answered for a while.
pub(crate) const HINT: &str =
    "hint: the model is still thinking; --think off answers at once, --think N limits it to N tokens";

/// The answer on stdout, thinking on stderr.
pub(crate) struct Stream {
    quiet: bool,
    colours: bool,
    /// On a terminal, control characters of the model's text are shown and not obeyed.
    screen: bool,
    thinking: bool,
    last: char,
    failure: Option<io::Error>,
}

impl Stream {
    pub(crate) fn new(quiet: bool) -> Stream {
        let (colours, screen) = (terminal::stderr_colours(), io::stdout().is_terminal());
        Stream { quiet, colours, screen, thinking: false, last: '\n', failure: None }
    }

    /// Ends the lines that are open.
    ///
    /// # Errors
    /// What went wrong with stdout on the way.
    pub(crate) fn end(mut self) -> Result<()> {
        self.end_thinking();
        if let Some(failure) = self.failure.take() {
            return Err(failure.into());
        }
        if self.last != '\n' {
            writeln!(io::stdout())?;
        }
        Ok(())
    }

    fn end_thinking(&mut self) {
        if std::mem::take(&mut self.thinking) {
            terminal::say_part(&format!("{}\n\n", if self.colours { PLAIN } else { "" }));
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Sink for Stream {
    fn piece(&mut self, event: &TextEvent) -> ControlFlow<()> {
        match event {
            TextEvent::Prefill { .. } => {}
            TextEvent::Reasoning(text) => {
                if !self.quiet {
                    if !std::mem::replace(&mut self.thinking, true) && self.colours {
                        terminal::say_part(DIM);
                    }
                    terminal::say_part(&if self.colours { terminal::visible(text) } else { text.clone() });
                }
            }
            TextEvent::Answer(text) => {
                self.end_thinking();
                let text = if self.screen { terminal::visible(text) } else { text.clone() };
                self.last = text.chars().last().unwrap_or(self.last);
                if let Err(failure) = self.write(&text) {
                    self.failure = Some(failure);
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn long_wait(&mut self) {
        if !self.quiet {
            let open = std::mem::take(&mut self.thinking);
            let (plain, line) = (if self.colours { PLAIN } else { "" }, if open { "\n" } else { "" });
            terminal::say(&format!("{plain}{line}{HINT}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        assert_eq!(quoted("bonsai-8b"), "bonsai-8b");
        assert_eq!(quoted("モデル/é.gguf"), "モデル/é.gguf");
        assert_eq!(quoted("my model's"), "'my model'\\''s'");
    }
}
