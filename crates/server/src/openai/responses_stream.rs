//! The events of a streamed response.

use super::responses_answer::{Echo, call, message, output_text, reasoning, reasoning_text, status};
use crate::choice::{Logprob, Part, logprobs_json};
use crate::collect::Call;
use crate::generation::{Finish, Piece};
use crate::id;
use crate::stream::{Frames, Writer};
use serde_json::{Value, json};

/// Writes events in their order: response, item, part, deltas, and the same from the inside out at the end.
pub(super) struct Events {
    echo: Echo,
    begun: bool,
    number: u64,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Item>,
    finish: Finish,
}

/// The item under way.
struct Item {
    id: String,
    kind: Kind,
    text: String,
    logprobs: Vec<Logprob>,
}

enum Kind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl Events {
    pub(super) fn new(echo: Echo) -> Self {
        Self { echo, begun: false, number: 0, output: Vec::new(), open: None, finish: Finish::Stop }
    }

    fn event(&mut self, name: &str, mut data: Value, out: &mut Frames) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.number);
        self.number += 1;
        out.event(name, &data);
    }

    fn begin(&mut self, out: &mut Frames) {
        if !self.begun {
            self.begun = true;
            for name in ["response.created", "response.in_progress"] {
                self.event(name, json!({"response": self.echo.in_progress()}), out);
            }
        }
    }

    fn part(&mut self, part: Part, out: &mut Frames) {
        match part {
            Part::Reasoning(text) => {
                if !matches!(self.open, Some(Item { kind: Kind::Reasoning, .. })) {
                    self.open(id::fresh("rs_"), Kind::Reasoning, out);
                }
                self.delta("response.reasoning_text.delta", text, Vec::new(), out);
            }
            Part::Text(text, logprobs) => {
                if !matches!(self.open, Some(Item { kind: Kind::Message, .. })) {
                    self.open(id::fresh("msg_"), Kind::Message, out);
                }
                self.delta("response.output_text.delta", text, logprobs, out);
            }
            Part::CallBegin { id, name, .. } => self.open(id::fresh("fc_"), Kind::Call { id, name }, out),
            Part::CallArguments { text, .. } => {
                self.delta("response.function_call_arguments.delta", text, Vec::new(), out);
            }
            Part::CallEnd { .. } => self.close("completed", out),
        }
    }

    fn open(&mut self, id: String, kind: Kind, out: &mut Frames) {
        self.close("completed", out);
        let item = match &kind {
            Kind::Reasoning => reasoning(&id, "", "in_progress"),
            Kind::Message => message(&id, Vec::new(), "in_progress"),
            Kind::Call { id: call_id, name } => {
                let begun = Call { id: call_id.clone(), name: name.clone(), arguments: String::new() };
                call(&self.echo, &id, &begun, "in_progress")
            }
        };
        let part = match &kind {
            Kind::Reasoning => Some(reasoning_text("")),
            Kind::Message => Some(output_text("", json!([]))),
            Kind::Call { .. } => None,
        };
        let index = self.output.len();
        self.event("response.output_item.added", json!({"output_index": index, "item": item}), out);
        if let Some(part) = part {
            let data = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
            self.event("response.content_part.added", data, out);
        }
        self.open = Some(Item { id, kind, text: String::new(), logprobs: Vec::new() });
    }

    fn delta(&mut self, name: &str, text: String, logprobs: Vec<Logprob>, out: &mut Frames) {
        let index = self.output.len();
        let Some(item) = &mut self.open else { return };
        item.text.push_str(&text);
        let mut data = json!({"item_id": item.id, "output_index": index, "delta": text});
        if !matches!(item.kind, Kind::Call { .. }) {
            data["content_index"] = json!(0);
        }
        if matches!(item.kind, Kind::Message) {
            data["logprobs"] = logprobs_json(&logprobs);
        }
        item.logprobs.extend(logprobs);
        self.event(name, data, out);
    }

    /// Ends the item under way.
    fn close(&mut self, status: &str, out: &mut Frames) {
        let Some(Item { id, kind, text, logprobs }) = self.open.take() else { return };
        let index = self.output.len();
        let at = |extra: Value| {
            let mut data = json!({"item_id": id, "output_index": index});
            for (key, value) in extra.as_object().into_iter().flatten() {
                data[key] = value.clone();
            }
            data
        };
        let item = match kind {
            Kind::Reasoning => {
                self.event("response.reasoning_text.done", at(json!({"content_index": 0, "text": text})), out);
                let part = at(json!({"content_index": 0, "part": reasoning_text(&text)}));
                self.event("response.content_part.done", part, out);
                reasoning(&id, &text, status)
            }
            Kind::Message => {
                let logprobs = logprobs_json(&logprobs);
                let done = at(json!({"content_index": 0, "text": text, "logprobs": logprobs}));
                self.event("response.output_text.done", done, out);
                let part = output_text(&text, logprobs);
                self.event("response.content_part.done", at(json!({"content_index": 0, "part": part})), out);
                message(&id, vec![part], status)
            }
            Kind::Call { id: call_id, name } => {
                let done = at(json!({"name": self.echo.namespaces.apart(&name).1, "arguments": text}));
                self.event("response.function_call_arguments.done", done, out);
                call(&self.echo, &id, &Call { id: call_id, name, arguments: text }, status)
            }
        };
        self.event("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.output.push(item);
    }
}

impl Writer for Events {
    fn write(&mut self, piece: Piece, out: &mut Frames) {
        self.begin(out);
        match piece {
            Piece::Prefill { done, total } => out.comment(&format!("prefill {done}/{total}")),
            Piece::Part { part, .. } => self.part(part, out),
            Piece::End { finish, .. } => {
                // An answer of nothing is still a message.
                if self.output.is_empty() && self.open.is_none() {
                    self.open(id::fresh("msg_"), Kind::Message, out);
                }
                self.close(status(&finish), out);
                self.finish = finish;
            }
            Piece::Done(totals) => {
                let response = self.echo.ended(&self.finish, std::mem::take(&mut self.output), &totals);
                let name =
                    if response["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
                self.event(name, json!({"response": response}), out);
            }
            Piece::Failed(error) => {
                let response = self.echo.failed(&error.message);
                self.event("response.failed", json!({"response": response}), out);
            }
        }
    }

    fn alive(&self, out: &mut Frames) {
        out.comment("keep-alive");
    }
}
