//! Chat templates: Jinja as the transformers library runs it.

mod branches;
mod dialect;
mod sources;

use std::collections::BTreeSet;

use minijinja::{Environment, Value as Jinja};
use serde_json::{Map, Value, json};

use crate::error::ChatError;
use crate::message::{Content, Message, Part, Role};
use crate::prompt::Prompt;
use crate::protect::{self, Protector};
use crate::thinking::ThinkMarkers;
use crate::tokenizer::Tokenizer;
use crate::tool_parse::object_in;
use crate::tools::{ToolCall, ToolForm};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// How to render a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderOptions {
    /// Ends with the header of the answer that is to come.
    pub add_generation_prompt: bool,
    /// `Some` sets the template's thinking switch; `None` leaves its default.
    pub enable_thinking: Option<bool>,
    /// More variables for the template.
    pub extra: Map<String, Value>,
    /// Seconds since 1970, for templates that write the date; the clock's if
    /// `None`.
    pub now: Option<i64>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, enable_thinking: None, extra: Map::new(), now: None }
    }
}

/// A model's chat template.
///
/// Rendering first merges all system and developer messages, wherever they
/// stand, into one leading system message: most templates refuse others.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    origin: String,
    has_tool_use: bool,
    /// All template text, to look for what it knows.
    source: String,
    /// `bos_token` and the like.
    token_texts: Vec<(String, String)>,
}

impl ChatTemplate {
    /// From Jinja source: a `chat_template.jinja` file, or the GGUF key
    /// `tokenizer.chat_template`. `origin` names it in errors.
    pub fn from_source(source: &str, origin: &str) -> Result<Self, ChatError> {
        Self::from_named(&[(DEFAULT.to_owned(), source.to_owned())], origin)
    }

    /// From the files of a checkpoint: the `chat_template.jinja` file if there
    /// is one, else the field in `tokenizer_config.json`, a string or a list of
    /// named templates. `None` when the model has no template.
    pub fn from_files(jinja_file: Option<&str>, tokenizer_config: Option<&str>) -> Result<Option<Self>, ChatError> {
        let config = sources::Config::read(tokenizer_config)?;
        let mut template = match jinja_file {
            Some(source) => Self::from_source(source, "chat_template.jinja")?,
            None if config.templates.is_empty() => return Ok(None),
            None => Self::from_named(&config.templates, sources::CONFIG_FILE)?,
        };
        template.token_texts = config.token_texts;
        Ok(Some(template))
    }

    fn from_named(templates: &[(String, String)], origin: &str) -> Result<Self, ChatError> {
        let syntax_error = |e: minijinja::Error| ChatError::Syntax {
            origin: origin.to_owned(),
            line: e.line().unwrap_or(0),
            reason: dialect::reason(&e),
        };
        let mut env = dialect::environment().map_err(syntax_error)?;
        let mut source = String::new();
        for (name, text) in templates {
            env.add_template_owned(name.clone(), text.clone()).map_err(syntax_error)?;
            source.push_str(text);
        }
        Ok(Self {
            env,
            origin: origin.to_owned(),
            has_tool_use: templates.iter().any(|(name, _)| name == TOOL_USE),
            source,
            token_texts: Vec::new(),
        })
    }

    /// The Jinja text, of all its templates where there are several.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template has a switch for thinking.
    pub fn has_thinking_switch(&self) -> bool {
        self.source.contains("enable_thinking")
    }

    /// The texts around reasoning, if the template writes them.
    pub fn think_markers(&self) -> Option<ThinkMarkers> {
        let markers = ThinkMarkers::default();
        (self.source.contains(&markers.open) && self.source.contains(&markers.close)).then_some(markers)
    }

    /// The form in which the template writes tool calls, if it writes any: the model has learnt to answer in it.
    pub fn tool_form(&self) -> Option<ToolForm> {
        if self.source.contains("<function=") {
            Some(ToolForm::Tags)
        } else if self.source.contains("<tool_call>") {
            Some(ToolForm::Json)
        } else {
            None
        }
    }

    /// Whether the template can place images.
    pub fn takes_media(&self) -> bool {
        self.source.contains("image")
    }

    /// Renders a conversation. `tools` are function definitions as requests
    /// carry them; none and an empty list are the same.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        tools: &[Value],
        options: &RenderOptions,
    ) -> Result<Prompt, ChatError> {
        let messages = merge_system(messages)?;
        for (index, message) in messages.iter().enumerate() {
            if message.content.has_media() && !self.takes_media() {
                return Err(ChatError::MediaUnsupported { index });
            }
        }
        let messages: Vec<(Value, Vec<usize>)> = messages
            .iter()
            .enumerate()
            .map(|(index, message)| message_json(index, message))
            .collect::<Result<_, _>>()?;

        let mut used = BTreeSet::new();
        protect::note_used(&self.source, &mut used);
        messages.iter().for_each(|(m, _)| protect::note_used_json(m, &mut used));
        tools.iter().for_each(|t| protect::note_used_json(t, &mut used));
        for (key, value) in &options.extra {
            protect::note_used(key, &mut used);
            protect::note_used_json(value, &mut used);
        }
        let marker = protect::choose_marker(&used).ok_or(ChatError::NoMarker)?;
        let protector = Protector { specials: tokenizer.specials(), marker };

        let messages: Vec<Value> =
            messages.iter().map(|(m, framing)| protected_message(&protector, m, framing)).collect();
        let tools: Vec<Value> = tools.iter().map(|t| protector.json(t)).collect();

        let mut variables: Vec<(String, Jinja)> = Vec::new();
        for (name, text) in &self.token_texts {
            variables.push((name.clone(), Jinja::from(text.clone())));
        }
        for (name, value) in &options.extra {
            variables.push((name.clone(), dialect::to_jinja(&protector.json(value))));
        }
        variables.push(("messages".into(), dialect::to_jinja(&Value::Array(messages))));
        let has_tools = !tools.is_empty();
        let tools = if has_tools { Value::Array(tools) } else { Value::Null };
        variables.push(("tools".into(), dialect::to_jinja(&tools)));
        variables.push(("documents".into(), Jinja::from(())));
        variables.push(("add_generation_prompt".into(), options.add_generation_prompt.into()));
        if let Some(on) = options.enable_thinking {
            variables.push(("enable_thinking".into(), on.into()));
        }
        variables.push(("strftime_now".into(), dialect::strftime_now(options.now)));

        let name = if has_tools && self.has_tool_use { TOOL_USE } else { DEFAULT };
        let marked = self
            .env
            .get_template(name)
            .and_then(|template| template.render(Jinja::from_pairs(variables)))
            .map_err(|e| dialect::render_error(&e, &self.origin))?;
        Ok(Prompt::new(marked, marker))
    }
}

/// All system and developer messages as one at the head. A lone leading one
/// stays as it is, even when empty.
fn merge_system(messages: &[Message]) -> Result<Vec<Message>, ChatError> {
    let media = messages.iter().position(|m| m.role.is_system() && m.content.has_media());
    if let Some(index) = media {
        return Err(ChatError::MediaInSystem { index });
    }
    let system: Vec<String> = messages.iter().filter(|m| m.role.is_system()).map(|m| m.content.text()).collect();
    let merged = match system.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => {
            let texts: Vec<&str> = several.iter().map(String::as_str).filter(|t| !t.trim().is_empty()).collect();
            Some(texts.join("\n\n"))
        }
    };
    let rest = messages.iter().filter(|m| !m.role.is_system()).cloned();
    Ok(merged.map(Message::system).into_iter().chain(rest).collect())
}

/// The message as templates know it, and the offsets in its content of the
/// markers that frame reasoning.
fn message_json(index: usize, message: &Message) -> Result<(Value, Vec<usize>), ChatError> {
    let mut out = Map::new();
    out.insert("role".into(), message.role.template_name().into());
    let mut framing = Vec::new();
    let content = match &message.content {
        Content::Parts(parts) if message.content.has_media() => Value::Array(parts.iter().map(part_json).collect()),
        text => {
            let text = text.text();
            if message.role == Role::Assistant && message.reasoning.is_none() {
                framing = protect::framing_markers(&text, &ThinkMarkers::default());
            }
            Value::String(text)
        }
    };
    out.insert("content".into(), content);
    if let Some(reasoning) = &message.reasoning {
        out.insert("reasoning_content".into(), reasoning.as_str().into());
    }
    if let Some(name) = &message.name {
        out.insert("name".into(), name.as_str().into());
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|c| call_json(index, c)).collect::<Result<_, _>>()?;
        out.insert("tool_calls".into(), Value::Array(calls));
    }
    Ok((Value::Object(out), framing))
}

fn part_json(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image => json!({"type": "image"}),
        Part::Video => json!({"type": "video"}),
    }
}

fn call_json(index: usize, call: &ToolCall) -> Result<Value, ChatError> {
    let arguments = match &call.arguments {
        Value::Object(_) => Some(call.arguments.clone()),
        Value::Null => Some(json!({})),
        Value::String(text) if text.trim().is_empty() => Some(json!({})),
        Value::String(text) => object_in(text),
        _ => None,
    };
    let arguments = arguments.ok_or_else(|| ChatError::ToolArguments { index, tool: call.name.clone() })?;
    Ok(json!({"type": "function", "function": {"name": call.name, "arguments": arguments}}))
}

fn protected_message(protector: &Protector<'_>, message: &Value, framing: &[usize]) -> Value {
    let mut out = protector.json(message);
    if let (Some(text), false) = (message["content"].as_str(), framing.is_empty()) {
        out["content"] = Value::String(protector.text(text, framing));
    }
    out
}
