//! Tool calls in a stream of answer text.
//!
//! Qwen 3 writes a call as JSON, Qwen 3.5 as nested tags; both stand between
//! `<tool_call>` and `</tool_call>`, and which of the two it is shows in the
//! first letter. Calls are matched as text, so a tokenizer that lacks the
//! markers as tokens works as well.

use serde_json::Value;

use crate::hold::{open_tail, take_front};
use crate::tool_parse::{self, Verdict};
use crate::tool_stream::CallStream;

const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Name of the function.
    pub name: String,
    /// JSON schema of its arguments; types the values of tag-form calls.
    pub parameters: Value,
}

/// How a model writes a call between the markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolForm {
    /// One JSON object with `name` and `arguments`, as Qwen 3 does.
    Json,
    /// Nested tags, as Qwen 3.5 does.
    Tags,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// Its arguments, a JSON object.
    pub arguments: Value,
}

/// A stretch of output.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolPiece {
    /// Text that is no call, or a call that could not be read.
    Text(String),
    /// A complete call.
    Call(ToolCall),
    /// A piece of a call that is too long to wait for; only of a splitter that was made [`ToolSplitter::streaming`].
    Part(CallPart),
}

/// A piece of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallPart {
    /// A call of this tool begins.
    Begin(String),
    /// The next piece of its arguments' JSON text.
    Arguments(String),
    /// It ends. A call that was cut short has arguments that are no JSON.
    End,
}

/// Finds tool calls in a stream.
///
/// A call is released when it is complete. One that is malformed, names a tool
/// that was not offered, or never ends is returned as the text that it is, and
/// the search goes on behind its opening marker. White space around a call is
/// dropped. Without tools every text passes through untouched.
#[derive(Debug, Clone, Default)]
pub struct ToolSplitter {
    tools: Vec<ToolSpec>,
    /// A call may name any tool.
    any: bool,
    held: String,
    /// Where the body of the call begins in `held`, inside a call.
    body: Option<usize>,
    /// Up to where `held` is known to have no closing marker.
    searched: usize,
    /// White space is skipped: a call has just ended.
    after_call: bool,
    /// A call with a longer body is handed out in parts.
    longest_whole: Option<usize>,
    /// The call that is being handed out.
    stream: Option<CallStream>,
}

impl ToolSplitter {
    /// For the tools that the request offers.
    pub fn new(tools: Vec<ToolSpec>) -> Self {
        Self { tools, ..Self::default() }
    }

    /// For every tool, offered or not: a call needs only to be well formed. Values of tag-form calls stay text.
    pub fn of_any_tool() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// Hands out a call in parts when its body is longer than `longest_whole` bytes and has by then named an offered
    /// tool and begun its arguments. Shorter calls are still read as a whole, and are text when they are malformed.
    #[must_use]
    pub fn streaming(self, longest_whole: usize) -> Self {
        Self { longest_whole: Some(longest_whole), ..self }
    }

    /// Adds text and returns what is certain.
    pub fn push(&mut self, text: &str) -> Vec<ToolPiece> {
        self.held.push_str(text);
        let mut out = Vec::new();
        if self.tools.is_empty() && !self.any {
            self.release(self.held.len(), &mut out);
        } else {
            while self.step(&mut out) {}
        }
        out
    }

    /// Ends the stream: an unfinished call is text.
    pub fn finish(&mut self) -> Vec<ToolPiece> {
        let mut out = Vec::new();
        if self.stream.take().is_some() {
            self.held.clear();
            out.push(ToolPiece::Part(CallPart::End));
        }
        while let Some(body) = self.body {
            self.reject(body, &mut out);
            while self.step(&mut out) {}
        }
        self.release(self.held.len(), &mut out);
        out
    }

    /// One decision; false when more text is needed.
    fn step(&mut self, out: &mut Vec<ToolPiece>) -> bool {
        if self.stream.is_some() {
            return self.hand_out(out);
        }
        match self.body {
            None => self.outside(out),
            Some(body) => self.inside(body, out),
        }
    }

    fn outside(&mut self, out: &mut Vec<ToolPiece>) -> bool {
        if self.after_call {
            let rest = self.held.trim_start();
            self.after_call = rest.is_empty();
            self.held = rest.to_owned();
        }
        if let Some(at) = self.held.find(OPEN) {
            let text = self.held[..at].trim_end().len();
            self.release(text, out);
            let body = at - text + OPEN.len();
            self.body = Some(body);
            self.searched = body;
            return true;
        }
        let certain = self.held.len() - open_tail(&self.held, OPEN);
        let certain = self.held[..certain].trim_end().len();
        self.release(certain, out);
        false
    }

    fn inside(&mut self, body: usize, out: &mut Vec<ToolPiece>) -> bool {
        if !tool_parse::may_begin(&self.held[body..]) {
            self.reject(body, out);
            return true;
        }
        // The decision falls at a certain byte, so that it does not depend on how the text was cut.
        let whole = self.longest_whole.map_or(self.held.len(), |bytes| floor(&self.held, body + bytes));
        let Some(found) = self.held[..whole].get(self.searched..).and_then(|held| held.find(CLOSE)) else {
            if whole < self.held.len() && self.begin_stream(body, whole, out) {
                return true;
            }
            return self.search_on(body, out);
        };
        self.judge(body, found, out)
    }

    /// Looks for the end of a call that is not handed out in parts.
    fn search_on(&mut self, body: usize, out: &mut Vec<ToolPiece>) -> bool {
        let Some(found) = self.held[self.searched..].find(CLOSE) else {
            self.searched = self.held.len() - open_tail(&self.held[self.searched..], CLOSE);
            return false;
        };
        self.judge(body, found, out)
    }

    /// Reads a body up to a closing marker.
    fn judge(&mut self, body: usize, found: usize, out: &mut Vec<ToolPiece>) -> bool {
        let close = self.searched + found;
        match tool_parse::parse(&self.held[body..close], (!self.any).then_some(&self.tools)) {
            Verdict::Call(call) => {
                out.push(ToolPiece::Call(call));
                self.held.drain(..close + CLOSE.len());
                self.body = None;
                self.after_call = true;
            }
            Verdict::Unfinished => self.searched = close + CLOSE.len(),
            Verdict::Malformed => self.reject(body, out),
        }
        true
    }

    /// Goes over to handing the call out, if its first `whole` bytes allow it.
    fn begin_stream(&mut self, body: usize, whole: usize, out: &mut Vec<ToolPiece>) -> bool {
        let Some((stream, name, bytes)) = CallStream::begin(&self.held[body..whole], &self.tools) else { return false };
        out.push(ToolPiece::Part(CallPart::Begin(name)));
        self.held.drain(..body + bytes);
        self.body = None;
        self.stream = Some(stream);
        true
    }

    fn hand_out(&mut self, out: &mut Vec<ToolPiece>) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let mut parts = Vec::new();
        let (bytes, ended) = stream.push(&self.held, &mut parts);
        self.held.drain(..bytes);
        out.extend(parts.into_iter().map(ToolPiece::Part));
        if ended {
            out.push(ToolPiece::Part(CallPart::End));
            self.stream = None;
            self.after_call = true;
        }
        ended
    }

    /// Gives up on the call: its opening marker is text.
    fn reject(&mut self, body: usize, out: &mut Vec<ToolPiece>) {
        self.body = None;
        self.release(body, out);
    }

    fn release(&mut self, bytes: usize, out: &mut Vec<ToolPiece>) {
        if bytes == 0 {
            return;
        }
        let text = take_front(&mut self.held, bytes);
        match out.last_mut() {
            Some(ToolPiece::Text(last)) => last.push_str(&text),
            _ => out.push(ToolPiece::Text(text)),
        }
    }
}

/// The last character border at or before a byte.
fn floor(text: &str, at: usize) -> usize {
    if at >= text.len() { text.len() } else { (0..=at).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn offered() -> Vec<ToolSpec> {
        vec![
            ToolSpec {
                name: "weather".into(),
                parameters: json!({"type": "object", "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "where": {"type": "object"},
                    "note": {"type": ["string", "null"]},
                }}),
            },
            ToolSpec { name: "now".into(), parameters: json!({}) },
        ]
    }

    fn collect(pieces: impl IntoIterator<Item = ToolPiece>) -> Vec<ToolPiece> {
        let mut out: Vec<ToolPiece> = Vec::new();
        for piece in pieces {
            match (out.last_mut(), piece) {
                (Some(ToolPiece::Text(last)), ToolPiece::Text(text)) => last.push_str(&text),
                (_, piece) => out.push(piece),
            }
        }
        out
    }

    fn split_at(text: &str, cuts: &[usize]) -> Vec<ToolPiece> {
        let mut splitter = ToolSplitter::new(offered());
        let mut pieces = Vec::new();
        let mut from = 0;
        for &cut in cuts {
            pieces.extend(splitter.push(&text[from..cut]));
            from = cut;
        }
        pieces.extend(splitter.push(&text[from..]));
        pieces.extend(splitter.finish());
        collect(pieces)
    }

    /// The same for every single cut and for one character at a time.
    #[track_caller]
    fn check(text: &str, want: &[ToolPiece]) {
        let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        assert_eq!(split_at(text, &[]), want, "whole");
        assert_eq!(split_at(text, &borders), want, "by character");
        for &cut in &borders {
            assert_eq!(split_at(text, &[cut]), want, "cut at {cut}");
        }
    }

    fn text(t: &str) -> ToolPiece {
        ToolPiece::Text(t.into())
    }

    fn call(name: &str, arguments: Value) -> ToolPiece {
        ToolPiece::Call(ToolCall { name: name.into(), arguments })
    }

    #[test]
    fn json_form() {
        check(
            "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>",
            &[text("Let me look."), call("weather", json!({"city": "Köln"}))],
        );
    }

    #[test]
    fn tag_form_is_typed_by_the_schema() {
        check(
            "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork \"<b>\" {1}\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=where>\n{\"lat\": 1.5}\n</parameter>\n<parameter=note>\nnull\n</parameter>\n</function>\n</tool_call>",
            &[call(
                "weather",
                json!({"city": "New\nYork \"<b>\" {1}", "days": 3, "exact": true, "where": {"lat": 1.5}, "note": null}),
            )],
        );
    }

    #[test]
    fn two_calls_and_text_after() {
        check(
            "<tool_call>\n{\"name\": \"now\"}\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\nDone. ",
            &[call("now", json!({})), call("now", json!({})), text("Done. ")],
        );
    }

    #[test]
    fn closing_marker_inside_a_string() {
        check(
            "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"a</tool_call>\\\"b\"}}</tool_call>",
            &[call("weather", json!({"city": "a</tool_call>\"b"}))],
        );
        check(
            "<tool_call><function=weather><parameter=city>\na</tool_call>b</parameter>c\n</parameter></function></tool_call>",
            &[call("weather", json!({"city": "a</tool_call>b</parameter>c"}))],
        );
    }

    #[test]
    fn malformed_is_text_and_the_next_call_is_found() {
        let bad = "x <tool_call>{\"name\": \"now\", \"arguments\": {}</tool_call>";
        check(&format!("{bad} <tool_call>{{\"name\": \"now\"}}</tool_call>"), &[text(bad), call("now", json!({}))]);
        check("<tool_call>{oops}</tool_call>\n", &[text("<tool_call>{oops}</tool_call>\n")]);
        check("<tool_call>[]</tool_call>", &[text("<tool_call>[]</tool_call>")]);
        check("<tool_call><function=now></tool_call>", &[text("<tool_call><function=now></tool_call>")]);
    }

    #[test]
    fn tool_not_offered_is_text() {
        let t = "<tool_call>{\"name\": \"rm\", \"arguments\": {}}</tool_call>";
        check(t, &[text(t)]);
    }

    #[test]
    fn any_tool_when_only_the_form_counts() {
        let read = |text: &str| {
            let mut splitter = ToolSplitter::of_any_tool();
            let mut pieces = splitter.push(text);
            pieces.extend(splitter.finish());
            collect(pieces)
        };
        let t = "<tool_call><function=rm><parameter=days>\n3\n</parameter></function></tool_call>";
        assert_eq!(read(t), [call("rm", json!({"days": "3"}))]);
        assert_eq!(read("<tool_call>rm</tool_call>"), [text("<tool_call>rm</tool_call>")]);
    }

    #[test]
    fn never_finished_is_text() {
        let t = "a\n<tool_call>\n<function=weather>\n<parameter=city>\nPar";
        check(t, &[text(t)]);
    }

    #[test]
    fn marker_in_prose_is_not_held() {
        let mut splitter = ToolSplitter::new(offered());
        let pieces = collect(splitter.push("the <tool_call> tag opens it."));
        assert_eq!(pieces, [text("the <tool_call> tag opens it.")]);
    }

    #[test]
    fn no_tools_no_parsing() {
        let t = "<tool_call>{\"name\": \"now\"}</tool_call> ";
        assert_eq!(collect(ToolSplitter::new(Vec::new()).push(t)), [text(t)]);
    }

    proptest! {
        #[test]
        fn any_text_in_any_cut(
            parts in proptest::collection::vec(prop_oneof![
                Just("<tool_call>"), Just("</tool_call>"), Just("{\"name\": \"now\"}"), Just("{\""),
                Just("<function=now>"), Just("</function>"), Just("<parameter=a>"), Just("</parameter>"),
                Just("x"), Just("\n"), Just("é"),
            ], 0..12),
            step in 1usize..9,
        ) {
            let text = parts.concat();
            let cuts: Vec<usize> =
                text.char_indices().map(|(at, _)| at).skip(1).step_by(step).collect();
            let whole = split_at(&text, &[]);
            prop_assert_eq!(&split_at(&text, &cuts), &whole);
            if whole.iter().all(|p| matches!(p, ToolPiece::Text(_))) {
                prop_assert_eq!(whole, if text.is_empty() { vec![] } else { vec![ToolPiece::Text(text)] });
            }
        }
    }
}
