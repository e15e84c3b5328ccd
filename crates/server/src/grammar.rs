//! Grammars for answers that must be calls, or may be nothing else than calls and a given form.
//!
//! The language is llguidance's dialect of Lark: `%json` holds a JSON schema, and a name in angle brackets is a special
//! token.

use crate::tools::Tool;
use onebit_text::{Grammar, Tokenizer, ToolForm, json_rule};
use serde_json::{Value, json};
use std::fmt::Write;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What may come beside calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Beside<'a> {
    /// Nothing: a call must come.
    Nothing,
    /// Any text before them.
    Text,
    /// An answer of this form instead of them.
    Form(&'a Grammar),
}

/// A grammar of calls.
pub(crate) struct Calls<'a> {
    pub(crate) form: ToolForm,
    pub(crate) tools: &'a [&'a Tool],
    pub(crate) one: bool,
    pub(crate) beside: Beside<'a>,
    /// The answer follows a block of reasoning, which models end with line breaks.
    pub(crate) after_reasoning: bool,
}

impl Calls<'_> {
    /// The grammar, or `None` where a given form cannot be part of another grammar.
    pub(crate) fn grammar(&self, tokenizer: &Tokenizer) -> Option<Grammar> {
        let mut rules = String::new();
        let calls = if self.one { "call" } else { "call (\"\\n\" call)*" };
        let start = match self.beside {
            Beside::Nothing => calls.to_owned(),
            Beside::Text => {
                rules.push_str("text: /(?s:.*)/\n");
                format!("text | text {calls}")
            }
            Beside::Form(grammar) => {
                writeln!(rules, "form: {}", embedded(grammar)?).ok()?;
                format!("form | {calls}")
            }
        };
        let names: Vec<String> = (0..self.tools.len()).map(|i| format!("call{i}")).collect();
        writeln!(
            rules,
            "call: {} \"\\n\" ({}) {}",
            marker(OPEN, tokenizer),
            names.join(" | "),
            marker(CLOSE, tokenizer)
        )
        .ok()?;
        for (index, tool) in self.tools.iter().enumerate() {
            match self.form {
                ToolForm::Json => json_call(index, tool, &mut rules),
                ToolForm::Tags => tags_call(index, tool, &mut rules),
            }
        }
        Some(Grammar::Lark(format!("start: {}({start})\n{rules}", breaks(self.after_reasoning))))
    }
}

/// A form alone, with room for the line breaks behind reasoning.
pub(crate) fn after_reasoning(grammar: &Grammar) -> Option<Grammar> {
    Some(Grammar::Lark(format!("start: {}form\nform: {}\n", breaks(true), embedded(grammar)?)))
}

fn breaks(wanted: bool) -> &'static str {
    if wanted { "/\\n{0,2}/ " } else { "" }
}

/// A grammar as the body of a rule.
fn embedded(grammar: &Grammar) -> Option<String> {
    match grammar {
        Grammar::JsonObject => Some(json_rule(json!({"type": "object"}))),
        // What is no JSON is refused with the grammar, where its fault is told.
        Grammar::JsonSchema(schema) => {
            Some(serde_json::from_str(schema).map_or_else(|_| format!("%json {schema}"), json_rule))
        }
        Grammar::Regex(regex) => Some(format!("/{}/", regex.replace('/', "\\/"))),
        Grammar::Lark(_) => None,
    }
}

/// A marker is one token where the tokenizer has it, else its letters.
fn marker(text: &str, tokenizer: &Tokenizer) -> String {
    if tokenizer.id_of(text).is_some() { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn json_call(index: usize, tool: &Tool, rules: &mut String) {
    let head = quoted(&format!("{{\"name\": {}, \"arguments\": ", Value::from(tool.name.as_str())));
    let schema = json_rule(object_schema(&tool.parameters));
    rules.push_str(&format!("call{index}: {head} arguments{index} \"}}\\n\"\narguments{index}: {schema}\n"));
}

fn tags_call(index: usize, tool: &Tool, rules: &mut String) {
    let schema = object_schema(&tool.parameters);
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut body = quoted(&format!("<function={}>\n", tool.name));
    for (at, (key, property)) in schema["properties"].as_object().into_iter().flatten().enumerate() {
        let name = format!("value{index}x{at}");
        let optional = if required.contains(&key.as_str()) { "" } else { "?" };
        body.push_str(&format!(" ({} {name}){optional}", quoted(&format!("<parameter={key}>\n"))));
        rules.push_str(&value_rule(&name, property, &schema));
    }
    rules.push_str(&format!("call{index}: {body} \"</function>\\n\"\n"));
}

/// A value with its closing tag.
fn value_rule(name: &str, property: &Value, root: &Value) -> String {
    const END: &str = "\"\\n</parameter>\\n\"";
    let words = property["enum"].as_array().map(|list| list.iter().filter_map(Value::as_str).collect::<Vec<_>>());
    let types: Vec<&str> = match &property["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_reference = property.get("$ref").is_some();
    match words {
        Some(words) if !words.is_empty() && types == ["string"] => {
            let choices: Vec<String> = words.into_iter().map(quoted).collect();
            format!("{name}: ({}) {END}\n", choices.join(" | "))
        }
        _ if is_reference || (!types.is_empty() && !types.contains(&"string")) => {
            let mut schema = property.clone();
            for key in ["$defs", "definitions"] {
                if let (Some(definitions), Some(object)) = (root.get(key), schema.as_object_mut()) {
                    object.insert(key.to_owned(), definitions.clone());
                }
            }
            format!("{name}: {name}json {END}\n{name}json: {}\n", json_rule(schema))
        }
        _ => format!("{name}[suffix={END}]: /(?s:.*)/\n"),
    }
}

/// The schema of a tool's arguments; a tool without one takes none that we know.
fn object_schema(parameters: &Value) -> Value {
    match parameters {
        Value::Object(entries) if !entries.is_empty() => parameters.clone(),
        _ => json!({"type": "object"}),
    }
}
