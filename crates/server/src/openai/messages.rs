//! The messages of OpenAI's chat API.

use crate::error::ApiError;
use crate::fields::{items, kind, maybe_text, text};
use onebit_text::{Content, Message, Role, ToolCall};
use serde_json::Value;
use std::collections::HashMap;

/// Why pictures, sounds and files are refused.
pub(crate) const TEXT_ONLY: &str = "is not supported: the models of this server read text only";

/// Reads a conversation. `path` is the field's name.
pub(crate) fn messages(value: &Value, path: &str) -> Result<Vec<Message>, ApiError> {
    let list = match value {
        Value::Array(list) if list.is_empty() => {
            return Err(ApiError::field(path, "is empty; send a message at least"));
        }
        Value::Array(list) => list,
        Value::Null => return Err(ApiError::field(path, "is missing")),
        other => return Err(ApiError::field(path, format!("expected a list of messages, got {}", kind(other)))),
    };
    // Which tool a result comes from, by the id of its call.
    let mut names: HashMap<String, String> = HashMap::new();
    let mut out = Vec::with_capacity(list.len());
    for (index, item) in list.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if !item.is_object() {
            return Err(ApiError::field(path, format!("expected a message, got {}", kind(item))));
        }
        let mut message = one(item, &path)?;
        for (id, name) in call_ids(item) {
            names.insert(id, name);
        }
        if message.role == Role::Tool && message.name.is_none() {
            message.name = item["tool_call_id"].as_str().and_then(|id| names.get(id)).cloned();
        }
        out.push(message);
    }
    Ok(out)
}

fn one(item: &Value, path: &str) -> Result<Message, ApiError> {
    let role = text(item, "role", path)?;
    let role = Role::parse(role).ok_or_else(|| {
        let known = "system, developer, user, assistant or tool";
        ApiError::field(format!("{path}.role"), format!("must be {known}, got `{role}`"))
    })?;
    let (content, thought) = content(&item["content"], &format!("{path}.content"))?;
    let mut message = Message::new(role, content);
    if role == Role::Assistant {
        let inside = format!("{path}.");
        let stated = match maybe_text(item, "reasoning_content", &inside)? {
            None => maybe_text(item, "reasoning", &inside)?,
            stated => stated,
        };
        message.reasoning = stated.map(str::to_owned).or(thought);
        message.tool_calls = calls(item, path)?;
    }
    message.name = maybe_text(item, "name", &format!("{path}."))?.map(str::to_owned);
    Ok(message)
}

/// Text, a list of parts, or nothing. Beside the content, reasoning that stands in parts of its own.
pub(crate) fn content(value: &Value, path: &str) -> Result<(Content, Option<String>), ApiError> {
    let parts = match value {
        Value::Null => return Ok((Content::Null, None)),
        Value::String(text) => return Ok((Content::Text(text.clone()), None)),
        Value::Array(parts) => parts,
        other => {
            return Err(ApiError::field(path, format!("expected text or a list of parts, got {}", kind(other))));
        }
    };
    let (mut said, mut thought) = (String::new(), None);
    for (index, part) in parts.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if let Value::String(text) = part {
            said.push_str(text);
            continue;
        }
        match part["type"].as_str() {
            // Parts without a type are text to several clients.
            Some("text" | "input_text" | "output_text") | None => said.push_str(text(part, "text", &path)?),
            Some("refusal") => said.push_str(text(part, "refusal", &path)?),
            Some(kind @ ("thinking" | "reasoning")) => {
                let text = part[kind].as_str().or_else(|| part["text"].as_str()).unwrap_or_default();
                thought.get_or_insert_with(String::new).push_str(text);
            }
            Some(
                media @ ("image_url" | "input_image" | "image" | "input_audio" | "video_url" | "file" | "input_file"),
            ) => {
                return Err(ApiError::field(path, format!("`{media}` {TEXT_ONLY}")));
            }
            Some(other) => {
                return Err(ApiError::field(format!("{path}.type"), format!("must be `text`, got `{other}`")));
            }
        }
    }
    Ok((Content::Text(said), thought))
}

fn calls(item: &Value, path: &str) -> Result<Vec<ToolCall>, ApiError> {
    let call = |function: &Value, path: &str| -> Result<ToolCall, ApiError> {
        Ok(ToolCall { name: text(function, "name", path)?.to_owned(), arguments: function["arguments"].clone() })
    };
    if !item["function_call"].is_null() {
        return Ok(vec![call(&item["function_call"], &format!("{path}.function_call"))?]);
    }
    let numbered = items(&item["tool_calls"], &format!("{path}.tool_calls"))?.iter().enumerate();
    numbered.map(|(i, c)| call(&c["function"], &format!("{path}.tool_calls[{i}].function"))).collect()
}

fn call_ids(item: &Value) -> Vec<(String, String)> {
    let list = item["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let pair = |call: &Value| Some((call["id"].as_str()?.to_owned(), call["function"]["name"].as_str()?.to_owned()));
    list.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_form_of_content() {
        let list = json!([
            {"role": "developer", "content": "a", "id": 7, "extra": {"x": []}},
            {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": ""},
            {"role": "user"},
        ]);
        let read = messages(&list, "messages").expect("all are well formed");
        assert_eq!(read.iter().map(|m| m.content.text()).collect::<Vec<_>>(), ["a", "bc", "", "", ""]);
        assert_eq!(read[2].reasoning.as_deref(), Some("hm"));
        assert_eq!(read[2].tool_calls[0].name, "now");
        assert_eq!(read[3].name.as_deref(), Some("now"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "boss", "content": "x"}]), "messages[0].role"),
            (json!([{"role": "user", "content": 5}]), "messages[0].content"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0]"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]),
                "messages[0].tool_calls[0].function.name",
            ),
        ];
        for (list, field) in cases {
            let error = messages(&list, "messages").expect_err(field);
            assert_eq!(error.param.as_deref(), Some(field), "{}", error.message);
        }
    }
}
