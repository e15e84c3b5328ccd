//! Telling a model's reasoning from its answer while both stream by.

use crate::hold::{open_tail, take_front};

/// The texts around reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinkMarkers {
    /// Opens it, as `<think>`.
    pub open: String,
    /// Closes it, as `</think>`.
    pub close: String,
}

impl Default for ThinkMarkers {
    fn default() -> Self {
        Self { open: "<think>".into(), close: "</think>".into() }
    }
}

/// A stretch of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThinkPiece {
    /// Text between the markers.
    Reasoning(String),
    /// Text after them, or all text when there are none.
    Answer(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far.
    Start,
    Reasoning,
    Answer,
}

/// Splits a stream at its thinking markers.
///
/// The opening marker counts only at the very start, and only the first
/// closing marker after it counts: later ones are text that the model wrote
/// about them. Line breaks next to the markers belong to neither side.
#[derive(Debug, Clone)]
pub struct ThinkingSplitter {
    markers: ThinkMarkers,
    state: State,
    /// Line breaks are skipped until some other character comes.
    at_edge: bool,
    held: String,
}

impl ThinkingSplitter {
    /// `already_open` says that the prompt ended inside the block; see
    /// [`crate::Prompt::opens_thinking`].
    pub fn new(markers: ThinkMarkers, already_open: bool) -> Self {
        let state = if already_open { State::Reasoning } else { State::Start };
        Self { markers, state, at_edge: already_open, held: String::new() }
    }

    /// Whether the stream is inside the block now.
    pub fn is_reasoning(&self) -> bool {
        self.state == State::Reasoning
    }

    /// Adds text and returns what is certain.
    pub fn push(&mut self, text: &str) -> Vec<ThinkPiece> {
        self.held.push_str(text);
        let mut out = Vec::new();
        if self.state == State::Start {
            self.start(&mut out);
        }
        if self.state == State::Reasoning {
            self.reasoning(&mut out);
        }
        if self.state == State::Answer {
            self.answer(&mut out);
        }
        out
    }

    /// Ends the stream: what was kept back is plain text after all.
    pub fn finish(&mut self) -> Vec<ThinkPiece> {
        let rest = std::mem::take(&mut self.held);
        if rest.is_empty() {
            return Vec::new();
        }
        vec![match self.state {
            State::Reasoning => ThinkPiece::Reasoning(rest),
            State::Start | State::Answer => ThinkPiece::Answer(rest),
        }]
    }

    fn start(&mut self, out: &mut Vec<ThinkPiece>) {
        let begun = self.held.trim_start();
        if let Some(rest) = begun.strip_prefix(self.markers.open.as_str()) {
            self.held = rest.to_owned();
            self.state = State::Reasoning;
            self.at_edge = true;
        } else if !self.markers.open.starts_with(begun) {
            self.state = State::Answer;
            self.answer(out);
        }
    }

    fn reasoning(&mut self, out: &mut Vec<ThinkPiece>) {
        self.skip_edge();
        if let Some(at) = self.held.find(&self.markers.close) {
            let thought = take_front(&mut self.held, at);
            push_text(out, ThinkPiece::Reasoning, thought.trim_end_matches(['\n', '\r']));
            self.held.drain(..self.markers.close.len());
            self.state = State::Answer;
            self.at_edge = true;
            return;
        }
        let certain = self.held.len() - open_tail(&self.held, &self.markers.close);
        let certain = self.held[..certain].trim_end_matches(['\n', '\r']).len();
        push_text(out, ThinkPiece::Reasoning, &take_front(&mut self.held, certain));
    }

    fn answer(&mut self, out: &mut Vec<ThinkPiece>) {
        self.skip_edge();
        push_text(out, ThinkPiece::Answer, &std::mem::take(&mut self.held));
    }

    fn skip_edge(&mut self) {
        if self.at_edge {
            let rest = self.held.trim_start_matches(['\n', '\r']);
            self.at_edge = rest.is_empty();
            self.held = rest.to_owned();
        }
    }
}

fn push_text(out: &mut Vec<ThinkPiece>, kind: fn(String) -> ThinkPiece, text: &str) {
    if !text.is_empty() {
        out.push(kind(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(open: bool, text: &str, step: usize) -> (String, String) {
        let mut splitter = ThinkingSplitter::new(ThinkMarkers::default(), open);
        let chars: Vec<char> = text.chars().collect();
        let mut pieces: Vec<ThinkPiece> =
            chars.chunks(step).flat_map(|c| splitter.push(&c.iter().collect::<String>())).collect();
        pieces.extend(splitter.finish());
        let (mut reasoning, mut answer) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                ThinkPiece::Reasoning(t) => reasoning.push_str(&t),
                ThinkPiece::Answer(t) => answer.push_str(&t),
            }
        }
        (reasoning, answer)
    }

    #[track_caller]
    fn check(open: bool, text: &str, reasoning: &str, answer: &str) {
        for step in 1..=text.chars().count().max(1) {
            assert_eq!(split(open, text, step), (reasoning.into(), answer.into()), "step {step}");
        }
    }

    #[test]
    fn usual_forms() {
        check(false, "<think>\nwhy\n\nso\n</think>\n\nYes.\n", "why\n\nso", "Yes.\n");
        check(true, "\nwhy\n</think>\n\nYes.", "why", "Yes.");
        check(false, "  \n<think>\n\n</think>\n\nYes.", "", "Yes.");
    }

    #[test]
    fn no_block() {
        check(false, "Yes <think> is a tag.", "", "Yes <think> is a tag.");
        check(false, "<thin air", "", "<thin air");
        check(false, "", "", "");
        check(false, " \n", "", " \n");
    }

    #[test]
    fn only_the_first_close_counts() {
        check(true, "a</think>b</think>c<think>d", "a", "b</think>c<think>d");
    }

    #[test]
    fn never_closed() {
        check(true, "on and on </thi", "on and on </thi", "");
    }
}
