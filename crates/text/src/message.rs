//! A conversation, as the caller gives it.

use crate::tools::ToolCall;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions of the operator.
    System,
    /// The same under its newer name.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The answer of a tool.
    Tool,
}

impl Role {
    /// The role's name in a request; none for an unknown one.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "system" => Self::System,
            "developer" => Self::Developer,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" | "function" => Self::Tool,
            _ => return None,
        })
    }

    /// Whether the message is part of the leading system block.
    pub fn is_system(self) -> bool {
        matches!(self, Self::System | Self::Developer)
    }

    /// The name that templates know.
    pub(crate) fn template_name(self) -> &'static str {
        match self {
            Self::System | Self::Developer => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One part of a message of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// The place of an image; the pixels travel another way.
    Image,
    /// The place of a video.
    Video,
}

/// What a message says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Content {
    /// Nothing, as beside tool calls.
    #[default]
    Null,
    /// One text.
    Text(String),
    /// Several parts in order.
    Parts(Vec<Part>),
}

impl Content {
    /// All text of the content in order; media give none.
    pub fn text(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) => text.as_str(),
                    Part::Image | Part::Video => "",
                })
                .collect(),
        }
    }

    /// Whether there is an image or video in it.
    pub fn has_media(&self) -> bool {
        matches!(self, Self::Parts(parts) if parts.iter().any(|p| !matches!(p, Part::Text(_))))
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Content,
    /// The assistant's reasoning, where the caller has split it off. `Some("")`
    /// says that there was none; `None` leaves it to the template to look for
    /// thinking markers in the content.
    pub reasoning: Option<String>,
    /// Tools that the assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// Name of the tool that answers.
    pub name: Option<String>,
}

impl Message {
    /// A message with content only.
    pub fn new(role: Role, content: impl Into<Content>) -> Self {
        Self { role, content: content.into(), reasoning: None, tool_calls: Vec::new(), name: None }
    }

    /// Something that a person says.
    pub fn user(content: impl Into<Content>) -> Self {
        Self::new(Role::User, content)
    }

    /// Instructions.
    pub fn system(content: impl Into<Content>) -> Self {
        Self::new(Role::System, content)
    }

    /// Something that the model said.
    pub fn assistant(content: impl Into<Content>) -> Self {
        Self::new(Role::Assistant, content)
    }
}
