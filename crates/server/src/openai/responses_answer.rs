//! The objects of the Responses API.

use super::namespaces::Namespaces;
use crate::choice::logprobs_json;
use crate::collect::{Answer, Call};
use crate::generation::{Finish, Totals};
use crate::id;
use serde_json::{Value, json};

/// What a response repeats of its request.
pub(super) struct Echo {
    head: Value,
    pub(super) logprobs: bool,
    pub(super) namespaces: Namespaces,
}

impl Echo {
    pub(super) fn new(request: &Value, model: &str, logprobs: bool) -> Self {
        let given = |key: &str, default: Value| match &request[key] {
            Value::Null => default,
            value => value.clone(),
        };
        let head = json!({
            "id": id::fresh("resp_"),
            "object": "response",
            "created_at": id::unix_time(),
            "status": "in_progress",
            "background": false,
            "error": null,
            "incomplete_details": null,
            "instructions": request["instructions"],
            "max_output_tokens": request["max_output_tokens"],
            "model": model,
            "output": [],
            "parallel_tool_calls": given("parallel_tool_calls", json!(true)),
            "previous_response_id": null,
            "reasoning": {"effort": request["reasoning"]["effort"], "summary": null},
            "store": false,
            "temperature": request["temperature"],
            "text": {"format": match &request["text"]["format"] {
                Value::Null => json!({"type": "text"}),
                format => format.clone(),
            }},
            "tool_choice": given("tool_choice", json!("auto")),
            "tools": given("tools", json!([])),
            "top_p": request["top_p"],
            "truncation": given("truncation", json!("disabled")),
            "usage": null,
            "user": request["user"],
            "metadata": given("metadata", json!({})),
        });
        Self { head, logprobs, namespaces: Namespaces::of(&request["tools"]) }
    }

    /// The response so far.
    pub(super) fn in_progress(&self) -> Value {
        self.head.clone()
    }

    /// The response at its end.
    pub(super) fn ended(&self, finish: &Finish, output: Vec<Value>, totals: &Totals) -> Value {
        let mut response = self.head.clone();
        let cut = matches!(finish, Finish::Length | Finish::ContextFull);
        response["status"] = json!(if cut { "incomplete" } else { "completed" });
        if cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response["output"] = json!(output);
        response["usage"] = json!({
            "input_tokens": totals.prompt_tokens,
            "input_tokens_details": {"cached_tokens": totals.cached_tokens},
            "output_tokens": totals.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": totals.reasoning_tokens},
            "total_tokens": totals.prompt_tokens + totals.completion_tokens,
        });
        response
    }

    /// The response that failed.
    pub(super) fn failed(&self, message: &str) -> Value {
        let mut response = self.head.clone();
        response["status"] = json!("failed");
        response["error"] = json!({"code": "server_error", "message": message});
        response
    }
}

/// A whole response.
pub(super) fn whole(echo: &Echo, answer: &Answer, totals: &Totals) -> Value {
    let status = status(&answer.finish);
    let mut output = Vec::new();
    if !answer.reasoning.is_empty() {
        output.push(reasoning(&id::fresh("rs_"), &answer.reasoning, status));
    }
    if !answer.text.is_empty() || answer.calls.is_empty() {
        let logprobs = if echo.logprobs { logprobs_json(&answer.logprobs) } else { json!([]) };
        output.push(message(&id::fresh("msg_"), vec![output_text(&answer.text, logprobs)], status));
    }
    output.extend(answer.calls.iter().map(|c| call(echo, &id::fresh("fc_"), c, status)));
    echo.ended(&answer.finish, output, totals)
}

pub(super) fn status(finish: &Finish) -> &'static str {
    if matches!(finish, Finish::Length | Finish::ContextFull) { "incomplete" } else { "completed" }
}

pub(super) fn reasoning(id: &str, text: &str, status: &str) -> Value {
    let content = if text.is_empty() { json!([]) } else { json!([reasoning_text(text)]) };
    json!({"type": "reasoning", "id": id, "summary": [], "content": content, "encrypted_content": null, "status": status})
}

pub(super) fn reasoning_text(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

pub(super) fn message(id: &str, content: Vec<Value>, status: &str) -> Value {
    json!({"type": "message", "id": id, "role": "assistant", "status": status, "content": content})
}

pub(super) fn output_text(text: &str, logprobs: Value) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

pub(super) fn call(echo: &Echo, id: &str, call: &Call, status: &str) -> Value {
    let (namespace, name) = echo.namespaces.apart(&call.name);
    let mut item = json!({
        "type": "function_call",
        "id": id,
        "call_id": call.id,
        "name": name,
        "arguments": call.arguments,
        "status": status,
    });
    if let Some(namespace) = namespace {
        item["namespace"] = json!(namespace);
    }
    item
}
