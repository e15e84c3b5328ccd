//! Tools that the model may call, and how free it is to call them.

use crate::error::ApiError;
use crate::fields::kind;
use onebit_text::ToolSpec;
use serde_json::{Value, json};

/// The tools of a conversation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tools {
    /// Every tool, which the template shows.
    pub(crate) specs: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// Only these may be called, out of those that are shown.
    pub(crate) allowed: Option<Vec<String>>,
    /// The answer ends with its first call.
    pub(crate) one_call: bool,
    /// Tools that this server cannot offer and has left out, for the log.
    pub(crate) dropped: Vec<String>,
}

/// One tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON schema of the arguments.
    pub(crate) parameters: Value,
    /// The arguments must keep to the schema.
    pub(crate) strict: bool,
}

/// The schema of a tool's arguments; without one it takes none.
pub(crate) fn parameters(schema: &Value, path: &str) -> Result<Value, ApiError> {
    match schema {
        Value::Null => Ok(json!({"type": "object", "properties": {}})),
        Value::Object(_) => Ok(schema.clone()),
        other => Err(ApiError::field(path, format!("expected a JSON schema, got {}", kind(other)))),
    }
}

/// How free the model is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    #[default]
    Auto,
    None,
    /// At least one call, of any tool.
    Required,
    /// This tool.
    Named(String),
}

impl Tools {
    /// As requests carry them, which is also as templates know them.
    pub(crate) fn for_template(&self) -> Vec<Value> {
        let one = |tool: &Tool| {
            let mut function = json!({"name": tool.name});
            if let Some(description) = &tool.description {
                function["description"] = json!(description);
            }
            function["parameters"] = tool.parameters.clone();
            json!({"type": "function", "function": function})
        };
        self.specs.iter().map(one).collect()
    }

    /// Those that a call may name.
    pub(crate) fn callable(&self) -> Vec<&Tool> {
        let may = |tool: &&Tool| match &self.choice {
            ToolChoice::None => false,
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Auto | ToolChoice::Required => {
                self.allowed.as_ref().is_none_or(|names| names.contains(&tool.name))
            }
        };
        self.specs.iter().filter(may).collect()
    }

    /// What looks for calls in the answer must know.
    pub(crate) fn to_find(&self) -> Vec<ToolSpec> {
        let spec = |tool: &&Tool| ToolSpec { name: tool.name.clone(), parameters: tool.parameters.clone() };
        self.callable().iter().map(spec).collect()
    }

    /// A call must come.
    pub(crate) fn is_forced(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// Fails for a choice that the tools cannot satisfy.
    pub(crate) fn check(&self, tools: &str, choice: &str) -> Result<(), ApiError> {
        let names = || self.specs.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join(", ");
        for (index, tool) in self.specs.iter().enumerate() {
            if tool.name.is_empty() || tool.name.chars().any(|c| c.is_whitespace() || "<>\"'\\{}=".contains(c)) {
                let message = format!("a tool's name must be a word, got `{}`", tool.name);
                return Err(ApiError::field(format!("{tools}[{index}]"), message));
            }
            if self.specs[..index].iter().any(|other| other.name == tool.name) {
                return Err(ApiError::field(format!("{tools}[{index}]"), format!("a second tool `{}`", tool.name)));
            }
        }
        let known = |name: &String| self.specs.iter().any(|t| t.name == *name);
        if let ToolChoice::Named(name) = &self.choice
            && !known(name)
        {
            return Err(ApiError::field(choice, format!("there is no tool `{name}`; there are {}", names())));
        }
        if let Some(unknown) = self.allowed.iter().flatten().find(|name| !known(name)) {
            return Err(ApiError::field(choice, format!("there is no tool `{unknown}`; there are {}", names())));
        }
        if self.is_forced() && self.callable().is_empty() {
            return Err(ApiError::field(choice, "asks for a call, but there is no tool to call"));
        }
        Ok(())
    }
}
