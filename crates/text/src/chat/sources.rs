//! Where a template is found in `tokenizer_config.json`.

use serde_json::Value;

use crate::error::ChatError;

pub(super) const CONFIG_FILE: &str = "tokenizer_config.json";

/// The fields of the file that templates need.
#[derive(Debug, Default)]
pub(super) struct Config {
    /// Named templates; empty when there is none.
    pub(super) templates: Vec<(String, String)>,
    /// `bos_token` and the like, which templates use as variables.
    pub(super) token_texts: Vec<(String, String)>,
}

impl Config {
    /// Reads the file; no file is an empty one.
    pub(super) fn read(text: Option<&str>) -> Result<Self, ChatError> {
        let Some(text) = text else { return Ok(Self::default()) };
        let json: Value = serde_json::from_str(text).map_err(|e| source_error(e.to_string()))?;
        let templates = match &json["chat_template"] {
            Value::Null => Vec::new(),
            Value::String(source) => vec![(super::DEFAULT.to_owned(), source.clone())],
            Value::Array(items) => items.iter().map(named).collect::<Result<_, _>>()?,
            _ => return Err(source_error("chat_template is neither a text nor a list")),
        };
        if !templates.is_empty() && !templates.iter().any(|(name, _)| name == super::DEFAULT) {
            return Err(source_error("the list of chat templates has none named \"default\""));
        }
        let token_texts = ["bos_token", "eos_token", "pad_token", "unk_token"]
            .into_iter()
            .filter_map(|name| {
                let text = json[name].as_str().or_else(|| json[name]["content"].as_str())?;
                Some((name.to_owned(), text.to_owned()))
            })
            .collect();
        Ok(Self { templates, token_texts })
    }
}

fn named(item: &Value) -> Result<(String, String), ChatError> {
    match (item["name"].as_str(), item["template"].as_str()) {
        (Some(name), Some(template)) => Ok((name.to_owned(), template.to_owned())),
        _ => Err(source_error("an entry of chat_template lacks \"name\" or \"template\"")),
    }
}

fn source_error(reason: impl Into<String>) -> ChatError {
    ChatError::Source { origin: CONFIG_FILE.to_owned(), reason: reason.into() }
}
