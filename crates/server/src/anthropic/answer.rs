//! Answers of the Messages API, whole and as events.

use crate::choice::Part;
use crate::collect::{Answer, Call};
use crate::error::Dialect;
use crate::generation::{Finish, Piece, Totals};
use crate::id;
use crate::stream::{Frames, Writer};
use serde_json::{Value, json};

/// Clients send it back with the block; it proves nothing here.
const SIGNATURE: &str = "onebit";

/// A whole answer.
pub(super) fn whole(model: &str, answer: &Answer, totals: &Totals, show_reasoning: bool) -> Value {
    let mut content = Vec::new();
    if show_reasoning && !answer.reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": SIGNATURE}));
    }
    if !answer.text.is_empty() {
        content.push(json!({"type": "text", "text": answer.text}));
    }
    content.extend(answer.calls.iter().map(tool_use));
    let (reason, sequence) = stop_reason(&answer.finish);
    json!({
        "id": id::fresh("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": usage(totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens),
    })
}

fn tool_use(call: &Call) -> Value {
    // A call that was cut short has no input that could be used, and must not look as if it had.
    let input: Value =
        serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({"INVALID_JSON": call.arguments}));
    json!({"type": "tool_use", "id": tool_id(&call.id), "name": call.name, "input": input})
}

fn tool_id(id: &str) -> String {
    format!("toolu_{}", id.trim_start_matches("call_"))
}

fn stop_reason(finish: &Finish) -> (&'static str, Option<&str>) {
    match finish {
        Finish::Stop => ("end_turn", None),
        Finish::StopString(text) => ("stop_sequence", Some(text)),
        Finish::Length => ("max_tokens", None),
        Finish::ContextFull => ("model_context_window_exceeded", None),
        Finish::Calls => ("tool_use", None),
    }
}

/// `input_tokens` are those that were not cached.
fn usage(prompt: usize, cached: usize, output: usize) -> Value {
    json!({
        "input_tokens": prompt - cached.min(prompt),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    })
}

/// The answer as events.
pub(super) struct Events {
    model: String,
    prompt_tokens: usize,
    show_reasoning: bool,
    begun: bool,
    /// Index of the block under way, or of the next.
    index: usize,
    open: Option<Block>,
    finish: Finish,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Call,
}

impl Events {
    pub(super) fn new(model: String, prompt_tokens: usize, show_reasoning: bool) -> Self {
        Self { model, prompt_tokens, show_reasoning, begun: false, index: 0, open: None, finish: Finish::Stop }
    }

    /// How much of the prompt was cached is not known yet; the last event tells.
    fn begin(&mut self, out: &mut Frames) {
        if self.begun {
            return;
        }
        self.begun = true;
        let message = json!({
            "id": id::fresh("msg_"),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(self.prompt_tokens, 0, 0),
        });
        out.event("message_start", &json!({"type": "message_start", "message": message}));
        ping(out);
    }

    fn part(&mut self, part: Part, out: &mut Frames) {
        match part {
            Part::Reasoning(_) if !self.show_reasoning => {}
            Part::Reasoning(text) => {
                self.open(Block::Thinking, json!({"type": "thinking", "thinking": "", "signature": ""}), out);
                self.delta(json!({"type": "thinking_delta", "thinking": text}), out);
            }
            Part::Text(text, _) => {
                self.open(Block::Text, json!({"type": "text", "text": ""}), out);
                self.delta(json!({"type": "text_delta", "text": text}), out);
            }
            Part::CallBegin { id, name, .. } => {
                self.close(out);
                let block = json!({"type": "tool_use", "id": tool_id(&id), "name": name, "input": {}});
                self.open(Block::Call, block, out);
            }
            Part::CallArguments { text, .. } => {
                self.delta(json!({"type": "input_json_delta", "partial_json": text}), out)
            }
            Part::CallEnd { .. } => self.close(out),
        }
    }

    fn open(&mut self, block: Block, content: Value, out: &mut Frames) {
        if self.open == Some(block) {
            return;
        }
        self.close(out);
        self.open = Some(block);
        let data = json!({"type": "content_block_start", "index": self.index, "content_block": content});
        out.event("content_block_start", &data);
    }

    fn delta(&self, delta: Value, out: &mut Frames) {
        let data = json!({"type": "content_block_delta", "index": self.index, "delta": delta});
        out.event("content_block_delta", &data);
    }

    fn close(&mut self, out: &mut Frames) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            self.delta(json!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        out.event("content_block_stop", &json!({"type": "content_block_stop", "index": self.index}));
        self.index += 1;
    }
}

fn ping(out: &mut Frames) {
    out.event("ping", &json!({"type": "ping"}));
}

impl Writer for Events {
    fn write(&mut self, piece: Piece, out: &mut Frames) {
        if !matches!(piece, Piece::Failed(_)) {
            self.begin(out);
        }
        match piece {
            Piece::Prefill { done, total } => out.comment(&format!("prefill {done}/{total}")),
            Piece::Part { part, .. } => self.part(part, out),
            Piece::End { finish, .. } => {
                self.close(out);
                self.finish = finish;
            }
            Piece::Done(totals) => {
                let (reason, sequence) = stop_reason(&self.finish);
                out.event(
                    "message_delta",
                    &json!({
                        "type": "message_delta",
                        "delta": {"stop_reason": reason, "stop_sequence": sequence},
                        "usage": usage(totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens),
                    }),
                );
                out.event("message_stop", &json!({"type": "message_stop"}));
            }
            Piece::Failed(error) => out.event("error", &error.body(Dialect::Anthropic)),
        }
    }

    fn alive(&self, out: &mut Frames) {
        if self.begun { ping(out) } else { out.comment("keep-alive") }
    }
}
