//! Reasoning, answer and tool calls in one pass.

use crate::thinking::{ThinkPiece, ThinkingSplitter};
use crate::tools::{CallPart, ToolCall, ToolPiece, ToolSpec, ToolSplitter};

/// A stretch of output.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputPiece {
    /// Text of the thinking block.
    Reasoning(String),
    /// Text for the person.
    Answer(String),
    /// A complete tool call.
    Call(ToolCall),
    /// A piece of a long tool call.
    CallPart(CallPart),
}

/// Splits a stream into reasoning, answer and tool calls.
///
/// A call counts wherever it stands: before, inside or after the thinking
/// block. One inside does not end the block. A call that is cut by the end of
/// the block, or of the stream, is the text that it is.
#[derive(Debug, Clone)]
pub struct OutputSplitter {
    thinking: Option<ThinkingSplitter>,
    reasoning_tools: ToolSplitter,
    answer_tools: ToolSplitter,
}

impl OutputSplitter {
    /// `thinking` is `None` for a model without thinking markers.
    pub fn new(thinking: Option<ThinkingSplitter>, tools: Vec<ToolSpec>) -> Self {
        Self { thinking, reasoning_tools: ToolSplitter::new(tools.clone()), answer_tools: ToolSplitter::new(tools) }
    }

    /// Hands out calls longer than so many bytes in parts; see [`ToolSplitter::streaming`].
    #[must_use]
    pub fn streaming(self, longest_whole: usize) -> Self {
        let Self { thinking, reasoning_tools, answer_tools } = self;
        let (reasoning_tools, answer_tools) =
            (reasoning_tools.streaming(longest_whole), answer_tools.streaming(longest_whole));
        Self { thinking, reasoning_tools, answer_tools }
    }

    /// Whether the stream is inside the thinking block now.
    pub fn is_reasoning(&self) -> bool {
        self.thinking.as_ref().is_some_and(ThinkingSplitter::is_reasoning)
    }

    /// Adds text and returns what is certain.
    pub fn push(&mut self, text: &str) -> Vec<OutputPiece> {
        let mut out = Vec::new();
        let pieces = match &mut self.thinking {
            Some(thinking) => thinking.push(text),
            None => vec![ThinkPiece::Answer(text.to_owned())],
        };
        self.pass(pieces, &mut out);
        if !self.is_reasoning() {
            convert(self.reasoning_tools.finish(), OutputPiece::Reasoning, &mut out);
        }
        out
    }

    /// Ends the stream.
    pub fn finish(&mut self) -> Vec<OutputPiece> {
        let mut out = Vec::new();
        let pieces = self.thinking.as_mut().map(ThinkingSplitter::finish).unwrap_or_default();
        self.pass(pieces, &mut out);
        convert(self.reasoning_tools.finish(), OutputPiece::Reasoning, &mut out);
        convert(self.answer_tools.finish(), OutputPiece::Answer, &mut out);
        out
    }

    fn pass(&mut self, pieces: Vec<ThinkPiece>, out: &mut Vec<OutputPiece>) {
        for piece in pieces {
            match piece {
                ThinkPiece::Reasoning(text) => {
                    convert(self.reasoning_tools.push(&text), OutputPiece::Reasoning, out);
                }
                ThinkPiece::Answer(text) => {
                    convert(self.reasoning_tools.finish(), OutputPiece::Reasoning, out);
                    convert(self.answer_tools.push(&text), OutputPiece::Answer, out);
                }
            }
        }
    }
}

fn convert(pieces: Vec<ToolPiece>, kind: fn(String) -> OutputPiece, out: &mut Vec<OutputPiece>) {
    out.extend(pieces.into_iter().map(|piece| match piece {
        ToolPiece::Text(text) => kind(text),
        ToolPiece::Call(call) => OutputPiece::Call(call),
        ToolPiece::Part(part) => OutputPiece::CallPart(part),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thinking::ThinkMarkers;
    use serde_json::json;

    fn run(text: &str, step: usize) -> (String, String, usize) {
        let tools = vec![ToolSpec { name: "now".into(), parameters: json!({}) }];
        let thinking = ThinkingSplitter::new(ThinkMarkers::default(), false);
        let mut splitter = OutputSplitter::new(Some(thinking), tools);
        let chars: Vec<char> = text.chars().collect();
        let mut pieces: Vec<OutputPiece> =
            chars.chunks(step).flat_map(|c| splitter.push(&c.iter().collect::<String>())).collect();
        pieces.extend(splitter.finish());
        let (mut reasoning, mut answer, mut calls) = (String::new(), String::new(), 0);
        for piece in pieces {
            match piece {
                OutputPiece::Reasoning(t) => reasoning.push_str(&t),
                OutputPiece::Answer(t) => answer.push_str(&t),
                OutputPiece::Call(_) | OutputPiece::CallPart(CallPart::Begin(_)) => calls += 1,
                OutputPiece::CallPart(_) => {}
            }
        }
        (reasoning, answer, calls)
    }

    const CALL: &str = "<tool_call>{\"name\": \"now\"}</tool_call>";

    #[track_caller]
    fn check(text: &str, reasoning: &str, answer: &str, calls: usize) {
        for step in 1..=text.chars().count() {
            assert_eq!(run(text, step), (reasoning.into(), answer.into(), calls), "step {step}");
        }
    }

    #[test]
    fn call_after_inside_before_and_all() {
        check(&format!("<think>\na\n</think>\n\n{CALL}"), "a", "", 1);
        check(&format!("<think>\na {CALL} b\n</think>\n\nc"), "ab", "c", 1);
        check(&format!("{CALL}c"), "", "c", 1);
        check(&format!("<think>{CALL}</think>{CALL}"), "", "", 2);
    }

    #[test]
    fn call_cut_by_the_end_of_the_block() {
        check("<think>a<tool_call>{\"name\": </think>b", "a<tool_call>{\"name\": ", "b", 0);
    }
}
