//! The input items of the Responses API.

use super::messages::content;
use super::namespaces::joined;
use crate::error::ApiError;
use crate::fields::{kind, maybe_text, text};
use onebit_text::{Content, Message, Role, ToolCall};
use serde_json::Value;
use std::collections::HashMap;

/// Records of what hosted tools did. Their results were given to the model that ran them, and are not in the request.
const HOSTED: [&str; 8] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
];

/// Reads `input`: text, or a list of items.
pub(super) fn messages(input: &Value, instructions: Option<&str>) -> Result<Vec<Message>, ApiError> {
    let mut reader = Reader::default();
    reader.messages.extend(instructions.map(Message::system));
    match input {
        Value::String(text) => reader.messages.push(Message::user(text.clone())),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                reader.item(item, &format!("input[{index}]"))?;
            }
        }
        Value::Null => return Err(ApiError::field("input", "is missing")),
        other => {
            return Err(ApiError::field("input", format!("expected text or a list of items, got {}", kind(other))));
        }
    }
    if !reader.messages.iter().any(|m| !m.role.is_system()) {
        return Err(ApiError::field("input", "is empty; send a message at least"));
    }
    Ok(reader.messages)
}

#[derive(Default)]
struct Reader {
    messages: Vec<Message>,
    /// Reasoning that belongs to the assistant's next words or calls.
    thought: Option<String>,
    /// Which tool a call has named, by the call's id.
    names: HashMap<String, String>,
}

impl Reader {
    fn item(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        match item["type"].as_str() {
            Some("message") | None => self.message(item, path),
            Some("reasoning") => {
                let of = |key: &str| -> String {
                    item[key].as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect()
                };
                let said = of("content");
                let said = if said.is_empty() { of("summary") } else { said };
                if !said.is_empty() {
                    self.thought = Some(said);
                }
                Ok(())
            }
            Some("function_call") => self.call(item, path),
            Some("function_call_output") => self.output(item, path),
            Some("item_reference") => {
                Err(ApiError::field(path, "refers to a stored item, and nothing is stored here; send the item itself"))
            }
            Some(hosted) if HOSTED.contains(&hosted) => Ok(()),
            Some(other) => {
                let message = format!(
                    "`{other}` is not supported; message, reasoning, function_call and function_call_output are"
                );
                Err(ApiError::field(format!("{path}.type"), message))
            }
        }
    }

    fn message(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        let role = text(item, "role", path)?;
        let role = Role::parse(role).ok_or_else(|| {
            ApiError::field(
                format!("{path}.role"),
                format!("must be user, assistant, system or developer, got `{role}`"),
            )
        })?;
        let (content, thought) = content(&item["content"], &format!("{path}.content"))?;
        let mut message = Message::new(role, content);
        if role == Role::Assistant {
            message.reasoning = thought.or_else(|| self.thought.take());
        }
        self.messages.push(message);
        Ok(())
    }

    fn call(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        let namespace = maybe_text(item, "namespace", &format!("{path}."))?;
        let name = joined(namespace, text(item, "name", path)?);
        if let Some(id) = item["call_id"].as_str() {
            self.names.insert(id.to_owned(), name.clone());
        }
        let call = ToolCall { name, arguments: item["arguments"].clone() };
        match self.messages.last_mut() {
            Some(last) if last.role == Role::Assistant && self.thought.is_none() => last.tool_calls.push(call),
            _ => {
                let mut message = Message::new(Role::Assistant, Content::Null);
                message.reasoning = self.thought.take();
                message.tool_calls.push(call);
                self.messages.push(message);
            }
        }
        Ok(())
    }

    fn output(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        let (content, _) = content(&item["output"], &format!("{path}.output"))?;
        let mut message = Message::new(Role::Tool, content);
        message.name = item["call_id"].as_str().and_then(|id| self.names.get(id)).cloned();
        self.messages.push(message);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_turn_with_tools() {
        let input = json!([
            {"role": "developer", "content": [{"type": "input_text", "text": "d"}]},
            {"type": "message", "role": "user", "content": "u"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "here", "arguments": "{}"},
            {"type": "web_search_call", "id": "ws_1"},
            {"type": "function_call_output", "call_id": "c2", "output": "Köln"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "noon"}]},
        ]);
        let read = messages(&input, Some("i")).expect("well formed");
        let roles: Vec<Role> = read.iter().map(|m| m.role).collect();
        assert_eq!(roles, [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool, Role::Tool]);
        assert_eq!((read[3].reasoning.as_deref(), read[3].tool_calls.len()), (Some("hm"), 2));
        assert_eq!((read[4].name.as_deref(), read[5].content.text().as_str()), (Some("here"), "noon"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (input, field) in [
            (json!([]), "input"),
            (json!(3), "input"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0]"),
            (json!([{"type": "local_shell_call"}]), "input[0].type"),
            (json!([{"role": "user", "content": [{"type": "input_image"}]}]), "input[0].content[0]"),
        ] {
            assert_eq!(messages(&input, None).map_err(|e| e.param).err(), Some(Some(field.to_owned())));
        }
    }
}
