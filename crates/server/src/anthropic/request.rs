//! Requests of the Messages API.

use crate::ask::{Ask, Chat, Format, Prompt, Sampling, Wish};
use crate::error::ApiError;
use crate::fields::{self, Refusal, kind, text};
use crate::model::Model;
use crate::openai::{TEXT_ONLY, schema};
use crate::tools::{Tool, ToolChoice, Tools, parameters};
use onebit_text::{Content, Message, Role, ToolCall};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;

/// A request in its inner form.
pub(super) struct Request {
    pub(super) model: Option<String>,
    pub(super) ask: Ask,
    pub(super) stream: bool,
    /// The client has asked for reasoning, and so expects to see it.
    pub(super) show_reasoning: bool,
    /// It leaves to the model whether there is any.
    adaptive: bool,
}

impl Request {
    /// What is asked of this model. One that does not reason adapts by not reasoning: coding agents leave it to every
    /// model.
    pub(super) fn asked_of(self, model: &Model) -> Ask {
        let reasons = model.text.template.as_ref().is_none_or(|template| template.think_markers().is_some());
        let thinking = if self.adaptive && !reasons { Wish::OFF } else { self.ask.thinking };
        Ask { thinking, ..self.ask }
    }
}

#[derive(Debug, Default, Deserialize)]
struct Fields {
    model: Option<String>,
    max_tokens: Option<i64>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    output_format: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Thinking {
    r#type: Option<String>,
    budget_tokens: Option<i64>,
    display: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct OutputConfig {
    effort: Option<String>,
    format: Option<Value>,
}

const REFUSED: [Refusal; 2] = [
    Refusal { field: "mcp_servers", harmless: fields::empty, why: "connect them in the client" },
    Refusal { field: "container", harmless: fields::empty, why: "this server runs no code" },
];

/// Tools that run on their maker's servers, by the beginning of their type. They are left out, with a line in the log.
const HOSTED: [&str; 5] = ["web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset"];

/// Reads a request.
pub(super) fn read(object: &Value) -> Result<Request, ApiError> {
    let fields: Fields = fields::read(object, &REFUSED)?;
    let tools = tools(&object["tools"], &object["tool_choice"])?;
    let messages = conversation(&object["system"], &object["messages"])?;
    let prefill = messages.last().is_some_and(|m| m.role == Role::Assistant);
    let thinking = wish(&fields)?;
    if prefill && thinking.on == Some(true) {
        let message = "an answer that has begun cannot be combined with `thinking`; end with a user message";
        return Err(ApiError::field("messages", message));
    }
    let stop = fields::stops(fields.stop_sequences.unwrap_or_default(), "stop_sequences")?;
    let config = fields.output_config.as_ref();
    let format = fields.output_format.as_ref().or(config.and_then(|c| c.format.as_ref()));
    let hidden = fields.thinking.as_ref().is_some_and(|t| t.display.as_deref() == Some("omitted"));
    let ask = Ask {
        prompt: Prompt::Chat(Box::new(Chat { messages, tools, prefill, ..Chat::default() })),
        sampling: Sampling {
            temperature: fields.temperature,
            top_k: fields.top_k,
            top_p: fields.top_p,
            ..Sampling::default()
        },
        max_tokens: fields::limit(fields.max_tokens, "max_tokens")?,
        choices: 1,
        stop,
        thinking,
        format: format.map(output_format).transpose()?.flatten(),
        ..Ask::default()
    };
    Ok(Request {
        model: fields.model,
        ask,
        stream: fields.stream == Some(true),
        show_reasoning: thinking.on == Some(true) && !hidden,
        adaptive: fields.thinking.is_some_and(|t| t.r#type.as_deref() == Some("adaptive")),
    })
}

/// Without `thinking` there is none: clients that do not ask for it cannot read it.
fn wish(fields: &Fields) -> Result<Wish, ApiError> {
    let effort = fields.output_config.as_ref().and_then(|c| c.effort.as_deref());
    let effort = Wish::effort(effort, "output_config.effort")?;
    let Some(thinking) = &fields.thinking else { return Ok(Wish::OFF) };
    let budget = thinking.budget_tokens;
    match thinking.r#type.as_deref() {
        Some("disabled") => Ok(Wish::OFF),
        Some("enabled" | "adaptive") => {
            let budget = Wish::tokens(budget, "thinking.budget_tokens")?;
            Ok(budget.or(Wish::switch(Some(true))).or(effort))
        }
        other => {
            let message = format!("must be enabled, disabled or adaptive, got `{}`", other.unwrap_or_default());
            Err(ApiError::field("thinking.type", message))
        }
    }
}

fn output_format(value: &Value) -> Result<Option<Format>, ApiError> {
    const FIELD: &str = "output_config.format";
    match value["type"].as_str() {
        None if value.is_null() => Ok(None),
        Some("json_schema") => Ok(Some(Format { grammar: schema(&value["schema"], FIELD)?, field: FIELD })),
        other => {
            let message = format!("must be json_schema, got `{}`", other.unwrap_or_default());
            Err(ApiError::field(format!("{FIELD}.type"), message))
        }
    }
}

fn tools(list: &Value, choice: &Value) -> Result<Tools, ApiError> {
    let mut tools = Tools::default();
    for (index, item) in fields::items(list, "tools")?.iter().enumerate() {
        let path = format!("tools[{index}]");
        match item["type"].as_str() {
            None | Some("custom") => tools.specs.push(Tool {
                name: text(item, "name", &path)?.to_owned(),
                description: fields::maybe_text(item, "description", &format!("{path}."))?.map(str::to_owned),
                parameters: parameters(&item["input_schema"], &format!("{path}.input_schema"))?,
                strict: fields::maybe_flag(item, "strict", &format!("{path}."))? == Some(true),
            }),
            Some(hosted) if HOSTED.iter().any(|start| hosted.starts_with(start)) => {
                tools.dropped.push(hosted.to_owned());
            }
            Some(other) => {
                let message = format!("`{other}` has no schema here; describe the tool with `input_schema`");
                return Err(ApiError::field(format!("{path}.type"), message));
            }
        }
    }
    if !choice.is_null() && !choice.is_object() {
        return Err(ApiError::field("tool_choice", format!("expected an object with a type, got {}", kind(choice))));
    }
    tools.one_call = fields::maybe_flag(choice, "disable_parallel_tool_use", "tool_choice.")? == Some(true);
    tools.choice = match choice["type"].as_str() {
        None if choice.is_null() => ToolChoice::Auto,
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("any") => ToolChoice::Required,
        Some("tool") => ToolChoice::Named(text(choice, "name", "tool_choice")?.to_owned()),
        other => {
            let message = format!("must be auto, any, tool or none, got `{}`", other.unwrap_or_default());
            return Err(ApiError::field("tool_choice.type", message));
        }
    };
    if tools.specs.is_empty() && tools.choice == ToolChoice::None {
        tools.choice = ToolChoice::Auto;
    }
    tools.check("tools", "tool_choice")?;
    Ok(tools)
}

fn conversation(system: &Value, list: &Value) -> Result<Vec<Message>, ApiError> {
    let mut out = Vec::new();
    match system {
        Value::Null => {}
        Value::String(text) => out.push(Message::system(text.clone())),
        Value::Array(blocks) => {
            let kept = blocks.iter().filter(|block| !is_billing(block)).cloned().collect();
            out.push(Message::system(Blocks::read(&Value::Array(kept), "system")?.text));
        }
        other => return Err(ApiError::field("system", format!("expected text or blocks, got {}", kind(other)))),
    }
    let items = match list {
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => return Err(ApiError::field("messages", "is empty; send a message at least")),
        Value::Null => return Err(ApiError::field("messages", "is missing")),
        other => return Err(ApiError::field("messages", format!("expected a list, got {}", kind(other)))),
    };
    let mut names: HashMap<String, String> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("messages[{index}]");
        let role = text(item, "role", &path)?;
        let role = Role::parse(role).filter(|role| *role != Role::Tool).ok_or_else(|| {
            ApiError::field(format!("{path}.role"), format!("must be user or assistant, got `{role}`"))
        })?;
        let blocks = Blocks::read(&item["content"], &format!("{path}.content"))?;
        if role != Role::Assistant && !blocks.calls.is_empty() {
            let message = "a `tool_use` block belongs to a message of the assistant";
            return Err(ApiError::field(format!("{path}.content"), message));
        }
        names.extend(blocks.calls.iter().map(|(id, call)| (id.clone(), call.name.clone())));
        for (id, result) in blocks.results {
            let mut message = Message::new(Role::Tool, result);
            message.name = names.get(&id).cloned();
            out.push(message);
        }
        if role == Role::Assistant {
            let content = if blocks.text.is_empty() { Content::Null } else { Content::Text(blocks.text) };
            let mut message = Message::new(role, content);
            message.reasoning = blocks.thought;
            message.tool_calls = blocks.calls.into_iter().map(|(_, call)| call).collect();
            out.push(message);
        } else if !blocks.text.is_empty() || !blocks.only_results {
            out.push(Message::new(role, blocks.text));
        }
    }
    Ok(out)
}

/// A line that a client puts before its instructions for its maker's accounts. It differs from request to request, and
/// would have every prompt read from its beginning.
fn is_billing(block: &Value) -> bool {
    block["text"].as_str().is_some_and(|text| text.trim_start().starts_with("x-anthropic-billing-header:"))
}

/// The content of a message, by kind.
#[derive(Default)]
struct Blocks {
    text: String,
    thought: Option<String>,
    calls: Vec<(String, ToolCall)>,
    results: Vec<(String, String)>,
    /// There are results of tools and nothing else.
    only_results: bool,
}

impl Blocks {
    fn read(value: &Value, path: &str) -> Result<Self, ApiError> {
        let mut out = Self::default();
        let blocks = match value {
            Value::Null => return Ok(out),
            Value::String(text) => return Ok(Self { text: text.clone(), ..out }),
            Value::Array(blocks) => blocks,
            other => return Err(ApiError::field(path, format!("expected text or blocks, got {}", kind(other)))),
        };
        let mut texts: Vec<&str> = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
            let path = format!("{path}[{index}]");
            match block["type"].as_str() {
                Some("text") => texts.push(text(block, "text", &path)?),
                Some("thinking") => {
                    out.thought.get_or_insert_default().push_str(block["thinking"].as_str().unwrap_or_default());
                }
                Some("tool_use") => {
                    let call =
                        ToolCall { name: text(block, "name", &path)?.to_owned(), arguments: block["input"].clone() };
                    out.calls.push((block["id"].as_str().unwrap_or_default().to_owned(), call));
                }
                Some("tool_result") => {
                    let id = block["tool_use_id"].as_str().unwrap_or_default().to_owned();
                    out.results.push((id, Self::read(&block["content"], &format!("{path}.content"))?.text));
                }
                Some("document") if block["source"]["type"] == "text" => {
                    texts.push(text(&block["source"], "data", &format!("{path}.source"))?);
                }
                Some(
                    media @ ("image" | "image_url" | "input_image" | "document" | "audio" | "input_audio" | "video"),
                ) => {
                    return Err(ApiError::field(path, format!("`{media}` {TEXT_ONLY}")));
                }
                // Blocks of hosted tools and of reasoning that only their maker can read.
                Some(_) => {}
                None => return Err(ApiError::field(format!("{path}.type"), "is missing")),
            }
        }
        out.text = texts.join("\n");
        out.only_results = texts.is_empty() && !out.results.is_empty();
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(request: &Value) -> Vec<Message> {
        let read = read(request).map_err(|e| e.message).expect("well formed");
        match read.ask.prompt {
            Prompt::Chat(chat) => chat.messages,
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_turn_with_tools() {
        let read = messages(&json!({
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "t1", "name": "now", "input": {"zone": "UTC"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "noon"}]},
                    {"type": "text", "text": "thanks"},
                ]},
                {"role": "system", "content": "late"},
            ],
        }));
        let roles: Vec<Role> = read.iter().map(|m| m.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool, Role::User, Role::System]);
        assert_eq!((read[2].reasoning.as_deref(), read[2].tool_calls.len()), (Some("hm"), 1));
        assert_eq!((read[3].name.as_deref(), read[3].content.text().as_str()), (Some("now"), "noon"));
    }

    #[test]
    fn thinking_is_off_unless_asked_for() {
        let on = |extra: Value| {
            let mut request = json!({"messages": [{"role": "user", "content": "u"}]});
            for (key, value) in extra.as_object().into_iter().flatten() {
                request[key] = value.clone();
            }
            read(&request).map(|r| r.ask.thinking)
        };
        assert_eq!(on(json!({})), Ok(Wish::OFF));
        assert_eq!(on(json!({"thinking": null, "output_config": {"effort": "high"}})), Ok(Wish::OFF));
        let budget = on(json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}));
        assert_eq!(budget, Ok(Wish { on: Some(true), budget: Some(2000) }));
        let adaptive = on(json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}));
        assert_eq!(adaptive, Ok(Wish { on: Some(true), budget: Some(1024) }));
        assert!(on(json!({"thinking": {"type": "maybe"}})).is_err());
    }

    #[test]
    fn hosted_tools_are_left_out_and_others_refused() {
        let request = |tools: Value| json!({"messages": [{"role": "user", "content": "u"}], "tools": tools});
        let hosted = read(&request(json!([{"type": "web_search_20250305", "name": "web_search"}])));
        assert!(hosted.is_ok_and(|r| matches!(r.ask.prompt, Prompt::Chat(chat) if chat.tools.dropped.len() == 1)));
        let client = read(&request(json!([{"type": "bash_20250124", "name": "bash"}])));
        assert_eq!(client.map_err(|e| e.param).err(), Some(Some("tools[0].type".to_owned())));
    }
}
