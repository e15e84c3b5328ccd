//! The form of an answer: `response_format`, and vLLM's and llama.cpp's fields for the same.

use crate::ask::Format;
use crate::error::ApiError;
use crate::fields::{kind, text};
use onebit_text::Grammar;
use serde_json::Value;

/// Fields beside `response_format`; at most one of them all may be set.
const OTHERS: [&str; 7] =
    ["structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "grammar"];

/// Reads every field that asks for a form.
pub(crate) fn format(
    response_format: Option<&Value>,
    other: impl Fn(&str) -> Option<Value>,
) -> Result<Option<Format>, ApiError> {
    let mut found = response_format.map(|f| of_response_format(f, "response_format")).transpose()?.flatten();
    for field in OTHERS {
        let Some(value) = other(field).filter(|v| !v.is_null()) else { continue };
        let grammar = match field {
            "structured_outputs" => structured(&value)?,
            "guided_json" | "json_schema" => Some(schema(&value, field)?),
            "guided_regex" => Some(Grammar::Regex(whole_text(&value, field)?)),
            "guided_choice" => Some(choice(&value, field)?),
            _ => Some(lark(&whole_text(&value, field)?, field)?),
        };
        let Some(grammar) = grammar else { continue };
        if let Some(first) = &found {
            return Err(ApiError::field(
                field,
                format!("only one form can be asked for, and `{}` asks already", first.field),
            ));
        }
        found = Some(Format { grammar, field });
    }
    Ok(found)
}

/// `response_format`, and `text.format` of the Responses API, where the schema lies one level higher.
pub(crate) fn of_response_format(value: &Value, field: &'static str) -> Result<Option<Format>, ApiError> {
    if value.is_null() {
        return Ok(None);
    }
    let grammar = match value["type"].as_str() {
        Some("text") => return Ok(None),
        Some("json_object") => match &value["schema"] {
            Value::Null => Grammar::JsonObject,
            given => schema(given, field)?,
        },
        Some("json_schema") => {
            let holder = if value["json_schema"].is_object() { &value["json_schema"] } else { value };
            schema(&holder["schema"], field)?
        }
        Some("regex") => Grammar::Regex(text(value, "pattern", field)?.to_owned()),
        Some("grammar") => lark(text(value, "grammar", field)?, field)?,
        Some(other) => {
            let known = "text, json_object, json_schema, regex or grammar";
            return Err(ApiError::field(format!("{field}.type"), format!("must be {known}, got `{other}`")));
        }
        None => return Err(ApiError::field(format!("{field}.type"), "is missing")),
    };
    Ok(Some(Format { grammar, field }))
}

/// A JSON schema, as an object or as its text.
pub(crate) fn schema(value: &Value, field: &str) -> Result<Grammar, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(Grammar::JsonSchema(value.to_string())),
        Value::String(text) if serde_json::from_str::<Value>(text).is_ok_and(|v| v.is_object()) => {
            Ok(Grammar::JsonSchema(text.clone()))
        }
        Value::Null => Err(ApiError::field(field, "the schema is missing")),
        other => Err(ApiError::field(field, format!("expected a JSON schema, got {}", kind(other)))),
    }
}

/// vLLM's object: one of its entries is the form.
fn structured(value: &Value) -> Result<Option<Grammar>, ApiError> {
    const FIELD: &str = "structured_outputs";
    const FORMS: [&str; 5] = ["json", "regex", "choice", "grammar", "json_object"];
    // `json_object: false` asks for nothing.
    let asks = |form: &&str| value.get(*form).is_some_and(|v| !v.is_null() && (*form != "json_object" || *v != false));
    let mut asked = FORMS.into_iter().filter(asks);
    let Some(form) = asked.next() else {
        return match value.as_object().is_some_and(|fields| fields.values().all(Value::is_null)) {
            true => Ok(None),
            false => Err(ApiError::field(FIELD, "must hold json, regex, choice, grammar or json_object")),
        };
    };
    if let Some(second) = asked.next() {
        return Err(ApiError::field(
            FIELD,
            format!("only one form can be asked for, and there are {form} and {second}"),
        ));
    }
    let given = &value[form];
    match form {
        "json" => schema(given, FIELD),
        "regex" => whole_text(given, FIELD).map(Grammar::Regex),
        "choice" => choice(given, FIELD),
        "grammar" => lark(&whole_text(given, FIELD)?, FIELD),
        _ if *given == true => Ok(Grammar::JsonObject),
        _ => Err(ApiError::field(FIELD, format!("`json_object` is true or absent, got {}", kind(given)))),
    }
    .map(Some)
}

/// One of these texts. As a regular expression, since a grammar with thousands of alternatives goes beyond its parser.
fn choice(value: &Value, field: &str) -> Result<Grammar, ApiError> {
    let words: Option<Vec<String>> =
        value.as_array().and_then(|list| list.iter().map(|v| v.as_str().map(verbatim)).collect());
    match words {
        Some(words) if !words.is_empty() => Ok(Grammar::Regex(words.join("|"))),
        _ => Err(ApiError::field(field, "expected a list of texts to choose from")),
    }
}

/// A regular expression of this text alone.
fn verbatim(text: &str) -> String {
    let mut regex = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' => regex.push_str("\\n"),
            '\r' => regex.push_str("\\r"),
            _ if "\\.+*?()|[]{}^$#&-~".contains(letter) => regex.extend(['\\', letter]),
            _ => regex.push(letter),
        }
    }
    regex
}

fn lark(text: &str, field: &str) -> Result<Grammar, ApiError> {
    if text.contains("::=") {
        let message = "this is a GBNF grammar, and Lark is wanted: `name: \"text\" | /regex/` with a rule `start`";
        return Err(ApiError::field(field, message));
    }
    Ok(Grammar::Lark(text.to_owned()))
}

fn whole_text(value: &Value, field: &str) -> Result<String, ApiError> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| ApiError::field(field, format!("expected text, got {}", kind(value))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(response_format: Value, others: Value) -> Result<Option<Grammar>, ApiError> {
        let found = format(Some(&response_format), |field| others.get(field).cloned())?;
        Ok(found.map(|f| f.grammar))
    }

    #[test]
    fn every_spelling() {
        let person = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let as_schema = Ok(Some(Grammar::JsonSchema(person.to_string())));
        assert_eq!(
            read(json!({"type": "json_schema", "json_schema": {"name": "p", "schema": person}}), json!({})),
            as_schema
        );
        assert_eq!(read(Value::Null, json!({"guided_json": person})), as_schema);
        assert_eq!(
            read(json!({"type": "text"}), json!({"structured_outputs": {"json": person, "regex": null}})),
            as_schema
        );
        assert_eq!(
            read(Value::Null, json!({"guided_choice": ["a.b", "c\"\n/"]})),
            Ok(Some(Grammar::Regex("a\\.b|c\"\\n/".into())))
        );
        assert_eq!(read(json!({"type": "regex", "pattern": "a+"}), json!({})), Ok(Some(Grammar::Regex("a+".into()))));
        assert_eq!(read(Value::Null, json!({"grammar": null})), Ok(None));
        let one_of_two = json!({"structured_outputs": {"regex": "a+", "json_object": false}});
        assert_eq!(read(Value::Null, one_of_two), Ok(Some(Grammar::Regex("a+".into()))));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        let object = json!({"type": "json_object"});
        for (response_format, others) in [
            (json!({"type": "yaml"}), json!({})),
            (json!({}), json!({})),
            (json!({"type": "json_schema", "json_schema": {}}), json!({})),
            (object.clone(), json!({"guided_regex": "a"})),
            (Value::Null, json!({"grammar": "root ::= \"a\""})),
            (Value::Null, json!({"structured_outputs": {"yaml": true}})),
            (Value::Null, json!({"structured_outputs": {"regex": "a", "choice": ["a"]}})),
            (Value::Null, json!({"structured_outputs": {"json_object": "yes"}})),
            (Value::Null, json!({"structured_outputs": {"regex": false}})),
            (Value::Null, json!({"guided_choice": []})),
        ] {
            assert!(read(response_format.clone(), others.clone()).is_err(), "{response_format} {others}");
        }
        assert!(read(object, json!({})).is_ok());
    }
}
