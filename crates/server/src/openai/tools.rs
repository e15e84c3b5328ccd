//! Tools and the choice between them, as OpenAI's two APIs write them.

use super::namespaces::joined;
use crate::error::ApiError;
use crate::fields::{items, kind, maybe_flag, maybe_text, text};
use crate::tools::{Tool, ToolChoice, Tools, parameters};
use serde_json::Value;

/// Tools that run on their maker's servers. They are left out, with a line in the log: clients list them by default.
const HOSTED: [&str; 11] = [
    "web_search",
    "web_search_preview",
    "web_search_2025_08_26",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "image_generation",
    "mcp",
    "tool_search",
    "computer",
    "computer_use_preview",
];

/// Whether an API has tools in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Groups {
    Allowed,
    Unknown,
}

/// Reads `tools` and `tool_choice`.
pub(crate) fn tools(
    list: Option<&Value>,
    choice: Option<&Value>,
    parallel: Option<bool>,
    groups: Groups,
) -> Result<Tools, ApiError> {
    let mut tools = Tools { one_call: parallel == Some(false), ..Tools::default() };
    match list {
        None | Some(Value::Null) => {}
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("tools[{index}]");
                match item["type"].as_str() {
                    Some("function") | None => tools.specs.push(function(item, &path)?),
                    Some("namespace") if groups == Groups::Allowed => tools.specs.extend(group(item, &path)?),
                    Some(hosted) if HOSTED.contains(&hosted) => tools.dropped.push(hosted.to_owned()),
                    Some(other) => {
                        let message = format!("must be `function`, got `{other}`, which this server cannot offer");
                        return Err(ApiError::field(format!("{path}.type"), message));
                    }
                }
            }
        }
        Some(other) => return Err(ApiError::field("tools", format!("expected a list, got {}", kind(other)))),
    }
    if let Some(choice) = choice {
        read_choice(choice, &mut tools)?;
    }
    // A choice among nothing but hosted tools has nothing to choose from.
    if tools.specs.is_empty() && tools.choice != ToolChoice::Required && tools.allowed.is_none() {
        return match tools.choice {
            ToolChoice::Named(name) => Err(ApiError::field("tool_choice", format!("there is no tool `{name}`"))),
            _ => Ok(Tools { choice: ToolChoice::Auto, ..tools }),
        };
    }
    tools.check("tools", "tool_choice")?;
    Ok(tools)
}

/// The older `functions` and `function_call`.
pub(crate) fn functions(list: &Value, choice: Option<&Value>) -> Result<Tools, ApiError> {
    let items =
        list.as_array().ok_or_else(|| ApiError::field("functions", format!("expected a list, got {}", kind(list))))?;
    let numbered = items.iter().enumerate();
    let specs = numbered.map(|(i, f)| function(f, &format!("functions[{i}]"))).collect::<Result<_, _>>()?;
    let choice = match choice {
        None | Some(Value::Null) => ToolChoice::Auto,
        Some(Value::String(word)) => word_choice(word, "function_call")?,
        Some(named) => ToolChoice::Named(text(named, "name", "function_call")?.to_owned()),
    };
    let tools = Tools { specs, choice, one_call: true, ..Tools::default() };
    tools.check("functions", "function_call")?;
    Ok(tools)
}

/// A function, in an object of its own or beside its type.
fn function(item: &Value, path: &str) -> Result<Tool, ApiError> {
    let (function, path) = match &item["function"] {
        Value::Null => (item, path.to_owned()),
        function => (function, format!("{path}.function")),
    };
    Ok(Tool {
        name: text(function, "name", &path)?.to_owned(),
        description: maybe_text(function, "description", &format!("{path}."))?.map(str::to_owned),
        parameters: parameters(&function["parameters"], &format!("{path}.parameters"))?,
        strict: maybe_flag(function, "strict", &format!("{path}."))? == Some(true),
    })
}

/// The tools of a group. What is said about the group stands before what is said about the first of them.
fn group(item: &Value, path: &str) -> Result<Vec<Tool>, ApiError> {
    let inside = format!("{path}.");
    let namespace = text(item, "name", path)?;
    let mut about = maybe_text(item, "description", &inside)?;
    let mut tools = Vec::new();
    for (index, item) in items(&item["tools"], &format!("{path}.tools"))?.iter().enumerate() {
        let path = format!("{path}.tools[{index}]");
        if !matches!(item["type"].as_str(), Some("function") | None) {
            let message = format!("must be `function`, got `{}`", item["type"].as_str().unwrap_or_default());
            return Err(ApiError::field(format!("{path}.type"), message));
        }
        let tool = function(item, &path)?;
        let said = [about.take(), tool.description.as_deref()].into_iter().flatten().collect::<Vec<_>>().join("\n\n");
        let description = Some(said).filter(|said| !said.is_empty());
        tools.push(Tool { name: joined(Some(namespace), &tool.name), description, ..tool });
    }
    Ok(tools)
}

fn word_choice(word: &str, field: &str) -> Result<ToolChoice, ApiError> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" | "any" => Ok(ToolChoice::Required),
        other => Err(ApiError::field(field, format!("must be auto, none, required or a tool, got `{other}`"))),
    }
}

fn read_choice(choice: &Value, tools: &mut Tools) -> Result<(), ApiError> {
    const FIELD: &str = "tool_choice";
    match choice {
        Value::Null => {}
        Value::String(word) => tools.choice = word_choice(word, FIELD)?,
        Value::Object(_) => match choice["type"].as_str() {
            Some("function") | None => {
                let named = if choice["function"].is_object() { &choice["function"] } else { choice };
                let namespace = maybe_text(named, "namespace", "tool_choice.")?;
                tools.choice = ToolChoice::Named(joined(namespace, text(named, "name", FIELD)?));
            }
            Some("allowed_tools") => {
                // The chat API wraps the list once more.
                let of = if choice["allowed_tools"].is_object() { &choice["allowed_tools"] } else { choice };
                tools.choice = word_choice(of["mode"].as_str().unwrap_or("auto"), FIELD)?;
                let name = |tool: &Value| {
                    let named = if tool["function"].is_object() { &tool["function"] } else { tool };
                    Some(joined(named["namespace"].as_str(), named["name"].as_str()?))
                };
                tools.allowed = Some(of["tools"].as_array().into_iter().flatten().filter_map(name).collect());
            }
            Some(other) => {
                return Err(ApiError::field(
                    FIELD,
                    format!("a choice of type `{other}` cannot be offered by this server"),
                ));
            }
        },
        other => return Err(ApiError::field(FIELD, format!("expected a word or a tool, got {}", kind(other)))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn weather() -> Value {
        json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}})
    }

    #[test]
    fn choices() {
        let list = json!([weather(), {"type": "web_search"}, {"type": "function", "name": "now"}]);
        let read = |choice: Value| tools(Some(&list), Some(&choice), None, Groups::Unknown);
        let all = read(Value::Null).expect("auto");
        assert_eq!((all.specs.len(), all.dropped.as_slice()), (2, &["web_search".to_owned()][..]));
        assert_eq!(read(json!("none")).map(|t| t.to_find().len()).ok(), Some(0));
        assert!(read(json!("required")).is_ok_and(|t| t.is_forced()));
        let named = read(json!({"type": "function", "function": {"name": "now"}})).expect("one of them");
        assert_eq!(named.to_find()[0].name, "now");
        let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [weather()]}});
        assert_eq!(read(allowed).map(|t| t.to_find().len()).ok(), Some(1));
        for bad in [json!("maybe"), json!({"type": "function", "name": "rm"}), json!(5), json!({"type": "custom"})] {
            assert_eq!(read(bad).map_err(|e| e.param).err(), Some(Some("tool_choice".to_owned())));
        }
    }

    #[test]
    fn groups() {
        let mail = json!({"type": "namespace", "name": "mail", "description": "Letters.", "tools": [
            {"type": "function", "name": "send", "description": "Sends."}, {"type": "function", "name": "read"}]});
        let list = json!([weather(), mail]);
        let read = tools(
            Some(&list),
            Some(&json!({"type": "function", "namespace": "mail", "name": "read"})),
            None,
            Groups::Allowed,
        );
        let read = read.expect("one of a group");
        let names: Vec<&str> = read.specs.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["weather", "mail__send", "mail__read"]);
        assert_eq!(read.specs[1].description.as_deref(), Some("Letters.\n\nSends."));
        assert_eq!((read.specs[2].description.as_deref(), read.to_find()[0].name.as_str()), (None, "mail__read"));
        let wrong = |list: Value, groups| tools(Some(&list), None, None, groups).map_err(|e| e.param).err().flatten();
        assert_eq!(wrong(list, Groups::Unknown).as_deref(), Some("tools[1].type"));
        let custom = json!([{"type": "namespace", "name": "a", "tools": [{"type": "custom", "name": "b"}]}]);
        assert_eq!(wrong(custom, Groups::Allowed).as_deref(), Some("tools[0].tools[0].type"));
        let twice = json!([mail, {"type": "function", "name": "mail__read"}]);
        assert_eq!(wrong(twice, Groups::Allowed).as_deref(), Some("tools[2]"));
    }

    #[test]
    fn lists() {
        assert!(tools(Some(&json!([])), Some(&json!("auto")), None, Groups::Unknown).is_ok_and(|t| t.specs.is_empty()));
        assert!(tools(Some(&json!([])), Some(&json!("required")), None, Groups::Unknown).is_err());
        let custom = json!([{"type": "custom", "name": "x"}]);
        let error = tools(Some(&custom), None, None, Groups::Allowed).expect_err("refused");
        assert_eq!(error.param.as_deref(), Some("tools[0].type"));
        let twice = json!([weather(), weather()]);
        assert!(tools(Some(&twice), None, None, Groups::Unknown).is_err());
        let old = functions(&json!([{"name": "now"}]), Some(&json!({"name": "now"}))).expect("the older form");
        assert!(old.is_forced() && old.one_call);
    }
}
