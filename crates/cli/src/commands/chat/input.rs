//! Lines from the keyboard or from a pipe: longer texts, history, completion of commands.

use super::order;
use anyhow::Result;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Context, Editor, Helper};
use std::path::PathBuf;

/// Lines that are remembered.
const REMEMBERED: usize = 1000;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    Text(String),
    /// Ctrl-C on a line.
    Cancelled,
    /// Ctrl-D, or the end of the pipe.
    End,
}

/// Reads texts.
pub(super) struct Input {
    editor: Editor<Commands, FileHistory>,
    history: Option<PathBuf>,
}

impl Input {
    /// With the history of earlier chats, if it is wanted.
    pub(super) fn new(keep_history: bool) -> Result<Input> {
        let config = Config::builder().max_history_size(REMEMBERED)?.history_ignore_space(true).auto_add_history(false);
        let mut editor = Editor::with_config(config.build())?;
        editor.set_helper(Some(Commands));
        let history = if keep_history { history_file() } else { None };
        if let Some(path) = &history {
            // The first chat has none.
            let _ = editor.load_history(path);
        }
        Ok(Input { editor, history })
    }

    /// One text: a line, lines that end in a backslash, or everything between two `"""`.
    pub(super) fn read(&mut self) -> Result<Typed> {
        let mut text = match self.line("> ")? {
            Typed::Text(line) => line,
            other => return Ok(other),
        };
        if let Some(opened) = text.trim_start().strip_prefix("\"\"\"") {
            text = opened.to_owned();
            while !text.trim_end().ends_with("\"\"\"") {
                match self.line(". ")? {
                    Typed::Text(line) => text = format!("{text}\n{line}"),
                    Typed::End => return self.remember(text.trim_matches('\n').to_owned()),
                    Typed::Cancelled => return Ok(Typed::Cancelled),
                }
            }
            let closed = text.trim_end().trim_end_matches('"');
            return self.remember(closed.trim_matches('\n').to_owned());
        }
        while let Some(open) = text.strip_suffix('\\') {
            match self.line(". ")? {
                Typed::Text(line) => text = format!("{open}\n{line}"),
                Typed::End => text = open.to_owned(),
                Typed::Cancelled => return Ok(Typed::Cancelled),
            }
        }
        self.remember(text)
    }

    fn line(&mut self, prompt: &str) -> Result<Typed> {
        match self.editor.readline(prompt) {
            Ok(line) => Ok(Typed::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Typed::Cancelled),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(other) => Err(other.into()),
        }
    }

    fn remember(&mut self, text: String) -> Result<Typed> {
        if !text.trim().is_empty() {
            self.editor.add_history_entry(text.as_str())?;
        }
        Ok(Typed::Text(text))
    }

    /// Writes the history. A failure costs the history and not the chat.
    pub(super) fn save(&mut self) {
        if let Some(path) = &self.history {
            let made = path.parent().is_none_or(|folder| std::fs::create_dir_all(folder).is_ok());
            if made {
                let _ = self.editor.save_history(path);
            }
        }
    }
}

/// Where programs keep such things: `$XDG_STATE_HOME`, `~/.local/state`, or `%LOCALAPPDATA%`.
fn history_file() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let state = folder("XDG_STATE_HOME").or_else(|| folder("LOCALAPPDATA"));
    let state = state.or_else(|| folder("HOME").map(|home| home.join(".local").join("state")));
    state.map(|state| state.join("onebit").join("chat_history"))
}

/// Completes commands.
struct Commands;

impl Completer for Commands {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..at];
        if typed.starts_with('/') && !typed.contains(char::is_whitespace) {
            return Ok((0, order::beginning_with(typed)));
        }
        Ok((at, Vec::new()))
    }
}

impl Hinter for Commands {
    type Hint = String;
}
impl Highlighter for Commands {}
impl Validator for Commands {}
impl Helper for Commands {}
