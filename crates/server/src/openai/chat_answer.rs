//! Answers of the chat API, whole and in chunks.

use super::chat::Wanted;
use super::common::{chat_logprobs, finish_reason, timings, usage};
use crate::choice::{Logprob, Part};
use crate::collect::{Answer, Call};
use crate::error::Dialect;
use crate::generation::{Finish, Piece, Totals};
use crate::id;
use crate::stream::{Frames, Writer};
use serde_json::{Value, json};

/// A whole answer.
pub(super) fn whole(model: &str, wanted: &Wanted, answers: &[Answer], totals: &Totals) -> Value {
    let choices: Vec<Value> = answers.iter().enumerate().map(|(index, answer)| choice(index, answer, wanted)).collect();
    json!({
        "id": id::fresh("chatcmpl-"),
        "object": "chat.completion",
        "created": id::unix_time(),
        "model": model,
        "choices": choices,
        "usage": usage(totals),
        "timings": timings(totals),
    })
}

fn choice(index: usize, answer: &Answer, wanted: &Wanted) -> Value {
    let content = if answer.text.is_empty() && !answer.calls.is_empty() { Value::Null } else { json!(answer.text) };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !answer.reasoning.is_empty() && !wanted.hide_reasoning {
        message["reasoning_content"] = json!(answer.reasoning);
    }
    let function = |call: &Call| json!({"name": call.name, "arguments": call.arguments});
    if wanted.old_functions {
        if let Some(call) = answer.calls.first() {
            message["function_call"] = function(call);
        }
    } else if !answer.calls.is_empty() {
        let call = |call: &Call| json!({"id": call.id, "type": "function", "function": function(call)});
        message["tool_calls"] = answer.calls.iter().map(call).collect();
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": if wanted.logprobs { chat_logprobs(&answer.logprobs) } else { Value::Null },
        "finish_reason": reason(&answer.finish, wanted),
    })
}

fn reason(finish: &Finish, wanted: &Wanted) -> &'static str {
    match finish {
        Finish::Calls if wanted.old_functions => "function_call",
        other => finish_reason(other),
    }
}

/// The answer in chunks.
pub(super) struct Chunks {
    wanted: Wanted,
    /// What all chunks begin with.
    head: Value,
    begun: bool,
}

impl Chunks {
    pub(super) fn new(model: String, wanted: Wanted) -> Self {
        let head = json!({
            "id": id::fresh("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": id::unix_time(),
            "model": model,
        });
        Self { wanted, head, begun: false }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.head.clone();
        chunk["choices"] = choices;
        if self.wanted.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, choice: usize, delta: Value, logprobs: &[Logprob], finish: Option<&'static str>) -> Value {
        let logprobs = if self.wanted.logprobs && !logprobs.is_empty() { chat_logprobs(logprobs) } else { Value::Null };
        self.chunk(json!([{"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}]))
    }

    fn part(&self, choice: usize, part: Part, out: &mut Frames) {
        let old = self.wanted.old_functions;
        let delta = match part {
            Part::Reasoning(_) if self.wanted.hide_reasoning => return,
            Part::Reasoning(text) => json!({"reasoning_content": text}),
            Part::Text(text, logprobs) => {
                out.data(&self.delta(choice, json!({"content": text}), &logprobs, None));
                return;
            }
            Part::CallBegin { name, .. } if old => json!({"function_call": {"name": name, "arguments": ""}}),
            Part::CallArguments { text, .. } if old => json!({"function_call": {"arguments": text}}),
            Part::CallBegin { call, id, name } => json!({"tool_calls": [
                {"index": call, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            ]}),
            Part::CallArguments { call, text } => {
                json!({"tool_calls": [{"index": call, "function": {"arguments": text}}]})
            }
            Part::CallEnd { .. } => return,
        };
        out.data(&self.delta(choice, delta, &[], None));
    }
}

impl Writer for Chunks {
    fn write(&mut self, piece: Piece, out: &mut Frames) {
        if !self.begun && !matches!(piece, Piece::Failed(_)) {
            self.begun = true;
            for choice in 0..self.wanted.choices {
                out.data(&self.delta(choice, json!({"role": "assistant", "content": ""}), &[], None));
            }
        }
        match piece {
            Piece::Prefill { done, total } => out.comment(&format!("prefill {done}/{total}")),
            Piece::Part { choice, part } => self.part(choice, part, out),
            Piece::End { choice, finish, logprobs } => {
                out.data(&self.delta(choice, json!({}), &logprobs, Some(reason(&finish, &self.wanted))));
            }
            Piece::Done(totals) => {
                if self.wanted.usage {
                    let mut last = self.chunk(json!([]));
                    last["usage"] = usage(&totals);
                    last["timings"] = timings(&totals);
                    out.data(&last);
                }
                out.done();
            }
            Piece::Failed(error) => {
                out.data(&error.body(Dialect::OpenAi));
                out.done();
            }
        }
    }

    fn alive(&self, out: &mut Frames) {
        out.comment("keep-alive");
    }
}
