//! Reading the body of one tool call, in either of its two forms.

use serde_json::{Map, Value};

use crate::tools::{ToolCall, ToolSpec};

pub(crate) const FUNCTION: &str = "<function=";
pub(crate) const FUNCTION_END: &str = "</function>";
pub(crate) const PARAMETER: &str = "<parameter=";
pub(crate) const PARAMETER_END: &str = "</parameter>";

/// What a body, up to some closing marker, turned out to be.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    Call(ToolCall),
    /// The closing marker was inside a value: the body goes on behind it.
    Unfinished,
    Malformed,
}

/// Whether a body that begins so can become a call.
pub(crate) fn may_begin(body: &str) -> bool {
    let body = body.trim_start();
    body.is_empty() || body.starts_with('{') || body.starts_with(FUNCTION) || FUNCTION.starts_with(body)
}

/// Reads a body that ends where a closing marker was found. `None` for `tools` lets a call name any.
pub(crate) fn parse(body: &str, tools: Option<&Vec<ToolSpec>>) -> Verdict {
    let known: &[ToolSpec] = tools.map_or(&[], Vec::as_slice);
    let verdict = if body.trim_start().starts_with('{') { json(body) } else { tags(body, known) };
    match verdict {
        Verdict::Call(call) if tools.is_some() && !known.iter().any(|t| t.name == call.name) => Verdict::Malformed,
        other => other,
    }
}

fn json(body: &str) -> Verdict {
    if ends_in_string(body) {
        return Verdict::Unfinished;
    }
    let Ok(Value::Object(mut object)) = serde_json::from_str(body) else {
        return Verdict::Malformed;
    };
    let Some(Value::String(name)) = object.remove("name") else { return Verdict::Malformed };
    let arguments = match object.remove("arguments").or_else(|| object.remove("parameters")) {
        None | Some(Value::Null) => Some(Value::Object(Map::new())),
        Some(Value::String(text)) => object_in(&text),
        Some(value @ Value::Object(_)) => Some(value),
        Some(_) => None,
    };
    match arguments {
        Some(arguments) => Verdict::Call(ToolCall { name, arguments }),
        None => Verdict::Malformed,
    }
}

/// The JSON object that a text is, if it is one.
pub(crate) fn object_in(text: &str) -> Option<Value> {
    serde_json::from_str::<Value>(text).ok().filter(Value::is_object)
}

/// Whether a JSON text stops between two quotes.
fn ends_in_string(text: &str) -> bool {
    let (mut inside, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            _ => {}
        }
    }
    inside
}

fn tags(body: &str, tools: &[ToolSpec]) -> Verdict {
    let Some((name, mut rest)) = body.trim_start().strip_prefix(FUNCTION).and_then(|r| r.split_once('>')) else {
        return Verdict::Malformed;
    };
    let name = name.trim();
    let schema = tools.iter().find(|t| t.name == name).map(|t| &t.parameters["properties"]);
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(tail) = rest.strip_prefix(FUNCTION_END) {
            return if tail.trim().is_empty() {
                let arguments = Value::Object(arguments);
                Verdict::Call(ToolCall { name: name.to_owned(), arguments })
            } else {
                Verdict::Malformed
            };
        }
        let Some((key, tail)) = rest.strip_prefix(PARAMETER).and_then(|r| r.split_once('>')) else {
            return Verdict::Malformed;
        };
        let Some(end) = value_end(tail) else { return Verdict::Unfinished };
        let key = key.trim();
        let value = without_frame(&tail[..end]);
        arguments.insert(key.to_owned(), typed(value, schema.map(|s| &s[key])));
        rest = &tail[end + PARAMETER_END.len()..];
    }
}

/// Where a value ends: at the first end tag that is followed by another
/// parameter or the end of the function, for the value may contain the tag.
fn value_end(text: &str) -> Option<usize> {
    text.match_indices(PARAMETER_END).map(|(at, _)| at).find(|at| {
        let after = text[at + PARAMETER_END.len()..].trim_start();
        after.starts_with(PARAMETER) || after.starts_with(FUNCTION_END)
    })
}

/// The value without the line breaks that frame it.
pub(crate) fn without_frame(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

/// A value in the type that its schema allows; text when none fits.
pub(crate) fn typed(text: &str, schema: Option<&Value>) -> Value {
    let mut types = Vec::new();
    collect_types(schema.unwrap_or(&Value::Null), &mut types);
    types.iter().find_map(|name| as_type(text, name)).unwrap_or_else(|| Value::String(text.into()))
}

/// Whether a schema allows a value that is no text.
pub(crate) fn may_be_other_than_text(schema: &Value) -> bool {
    let mut types = Vec::new();
    collect_types(schema, &mut types);
    types.iter().any(|name| *name != "string")
}

fn collect_types<'a>(schema: &'a Value, out: &mut Vec<&'a str>) {
    match &schema["type"] {
        Value::String(one) => out.push(one),
        Value::Array(several) => out.extend(several.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for key in ["anyOf", "oneOf"] {
        for choice in schema[key].as_array().into_iter().flatten() {
            collect_types(choice, out);
        }
    }
}

fn as_type(text: &str, name: &str) -> Option<Value> {
    let text = text.trim();
    let parsed = || serde_json::from_str::<Value>(text).ok();
    match name {
        "integer" => parsed().filter(|v| v.is_i64() || v.is_u64()),
        "number" => parsed().filter(Value::is_number),
        "object" => parsed().filter(Value::is_object),
        "array" => parsed().filter(Value::is_array),
        // The templates show these values as Python does.
        "boolean" => match text {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            _ => None,
        },
        "null" => matches!(text, "null" | "None").then_some(Value::Null),
        _ => None,
    }
}
