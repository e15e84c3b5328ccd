//! Reading a request's fields: what is unknown is passed over, null is absent, and what is wrong is named.

use crate::error::ApiError;
use serde::Deserialize;
use serde_json::Value;

/// A documented field that is not supported.
pub(crate) struct Refusal {
    /// Its name.
    pub(crate) field: &'static str,
    /// Values that ask for nothing.
    pub(crate) harmless: fn(&Value) -> bool,
    /// What to do instead.
    pub(crate) why: &'static str,
}

/// No value but null asks for nothing.
pub(crate) fn never(_: &Value) -> bool {
    false
}

/// False, zero, and everything empty ask for nothing.
pub(crate) fn empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}

/// The JSON object of a request's body.
pub(crate) fn object(body: &[u8]) -> Result<Value, ApiError> {
    if body.is_empty() {
        return Err(ApiError::bad("the body is empty; send a JSON object"));
    }
    match serde_json::from_slice(body) {
        Ok(object @ Value::Object(_)) => Ok(object),
        Ok(other) => Err(ApiError::bad(format!("the body must be a JSON object, got {}", kind(&other)))),
        Err(error) => Err(ApiError::bad(format!("the body is not valid JSON: {error}"))),
    }
}

/// Reads an object as `T`, after the fields that are refused.
pub(crate) fn read<'a, T: Deserialize<'a>>(object: &'a Value, refused: &[Refusal]) -> Result<T, ApiError> {
    for Refusal { field, harmless, why } in refused {
        if object.get(*field).is_some_and(|value| !value.is_null() && !harmless(value)) {
            return Err(ApiError::field(*field, format!("is not supported; {why}")));
        }
    }
    serde_path_to_error::deserialize(object).map_err(|error| {
        let path = error.path().to_string();
        ApiError::field(path, in_words(&error.inner().to_string()))
    })
}

/// The parser's words without names of Rust types.
fn in_words(message: &str) -> String {
    if let Some((number, _)) = message.strip_prefix("invalid value: integer ").and_then(|rest| rest.split_once(", ")) {
        return format!("{number} is out of range");
    }
    let words = [
        ("expected f32", "expected a number"),
        ("expected f64", "expected a number"),
        ("expected u32", "expected a whole number"),
        ("expected u64", "expected a whole number"),
        ("expected i64", "expected a whole number"),
        ("expected usize", "expected a whole number"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected an object"),
    ];
    let mut message = message.to_owned();
    for (from, to) in words {
        message = message.replace(from, to);
    }
    match message.find("expected struct ") {
        Some(at) => format!("{}expected an object", &message[..at]),
        None => message,
    }
}

/// What a value is, in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A text that must be there.
pub(crate) fn text<'a>(object: &'a Value, key: &str, path: &str) -> Result<&'a str, ApiError> {
    match &object[key] {
        Value::String(text) => Ok(text),
        Value::Null => Err(ApiError::field(format!("{path}.{key}"), "is missing")),
        other => Err(ApiError::field(format!("{path}.{key}"), format!("expected text, got {}", kind(other)))),
    }
}

/// A text that may be absent. `path` is where the object stands, with a point behind it.
pub(crate) fn maybe_text<'a>(object: &'a Value, key: &str, path: &str) -> Result<Option<&'a str>, ApiError> {
    match &object[key] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        other => Err(ApiError::field(format!("{path}{key}"), format!("expected text, got {}", kind(other)))),
    }
}

/// A switch that may be absent, as [`maybe_text`].
pub(crate) fn maybe_flag(object: &Value, key: &str, path: &str) -> Result<Option<bool>, ApiError> {
    match &object[key] {
        Value::Null => Ok(None),
        Value::Bool(on) => Ok(Some(*on)),
        other => Err(ApiError::field(format!("{path}{key}"), format!("expected true or false, got {}", kind(other)))),
    }
}

/// The items of a list; what is absent has none.
pub(crate) fn items<'a>(value: &'a Value, path: &str) -> Result<&'a [Value], ApiError> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(items) => Ok(items),
        other => Err(ApiError::field(path, format!("expected a list, got {}", kind(other)))),
    }
}

/// One text or a list of them.
pub(crate) fn texts(value: Option<&Value>, path: &str) -> Result<Vec<String>, ApiError> {
    let wrong = |value: &Value| ApiError::field(path, format!("expected text or a list of texts, got {}", kind(value)));
    let one = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| wrong(value));
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(one).collect(),
        Some(value) => Ok(vec![one(value)?]),
    }
}

/// Most stop strings of a request, and their bytes together. Every answer looks for each of them behind every token.
const MOST_STOPS: usize = 256;
const MOST_STOP_BYTES: usize = 64 << 10;

/// Texts that end an answer.
pub(crate) fn stops(texts: Vec<String>, path: &str) -> Result<Vec<String>, ApiError> {
    if let Some(index) = texts.iter().position(String::is_empty) {
        return Err(ApiError::field(path, format!("text {index} is empty: leave it out")));
    }
    let bytes: usize = texts.iter().map(String::len).sum();
    if texts.len() > MOST_STOPS || bytes > MOST_STOP_BYTES {
        let message = format!(
            "at most {MOST_STOPS} texts of {MOST_STOP_BYTES} bytes together, got {} of {bytes} bytes",
            texts.len()
        );
        return Err(ApiError::field(path, message));
    }
    Ok(texts)
}

/// A limit of tokens: -1 is none, as several clients write it.
pub(crate) fn limit(value: Option<i64>, name: &str) -> Result<Option<usize>, ApiError> {
    match value {
        None | Some(-1) => Ok(None),
        Some(n) if n >= 1 => Ok(usize::try_from(n).ok()),
        Some(n) => Err(ApiError::field(name, format!("must be at least 1, or -1 for no limit, got {n}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Wanted {
        temperature: Option<f32>,
        max_tokens: Option<i64>,
    }

    fn wanted(json: Value) -> Result<Wanted, ApiError> {
        let refused = [Refusal { field: "audio", harmless: empty, why: "ask for text" }];
        read(&object(json.to_string().as_bytes())?, &refused)
    }

    #[test]
    fn null_is_absent_and_unknown_is_passed_over() {
        let read = wanted(json!({"temperature": null, "max_tokens": 3, "opts": {"x": 1}, "audio": null}));
        assert_eq!(read, Ok(Wanted { temperature: None, max_tokens: Some(3) }));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = wanted(json!({"temperature": "hot"})).expect_err("no number");
        assert_eq!(error.param.as_deref(), Some("temperature"));
        assert!(error.message.ends_with("expected a number"), "{}", error.message);
        let error = wanted(json!({"audio": {"voice": "x"}})).expect_err("refused");
        assert_eq!(error.message, "`audio`: is not supported; ask for text");
        let error = wanted(json!({"max_tokens": u64::MAX})).expect_err("more than any limit");
        assert_eq!(error.message, format!("`max_tokens`: `{}` is out of range", u64::MAX));
        assert!(object(b"[1]").is_err() && object(b"{").is_err());
        assert!(object(b"").is_err_and(|error| error.message.contains("empty")));
    }
}
