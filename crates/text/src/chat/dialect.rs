//! The Jinja dialect that chat templates are written in: Python's.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value as Jinja, escape_formatter};
use serde_json::Value;

use crate::error::ChatError;
use crate::json_python;

/// Steps that one rendering may take: far more than a long conversation needs,
/// and an end for a template that loops on.
const FUEL: u64 = 10_000_000;

/// An environment with the functions and the formatting that templates expect.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(|out, state, value| match python_word(value) {
        Some(word) => Ok(out.write_str(word)?),
        None => escape_formatter(out, state, value),
    });
    env.add_filter("string", |value: &Jinja| match python_word(value) {
        Some(word) => Jinja::from(word),
        None => Jinja::from(value.to_string()),
    });
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    Ok(env)
}

/// Values whose Python text differs from Jinja's here.
fn python_word(value: &Jinja) -> Option<&'static str> {
    match value.kind() {
        ValueKind::None => Some("None"),
        ValueKind::Bool if value.is_true() => Some("True"),
        ValueKind::Bool => Some("False"),
        _ => None,
    }
}

fn tojson(value: &Jinja, options: Kwargs) -> Result<Jinja, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let json = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, "a value is not JSON").with_source(e))?;
    Ok(Jinja::from(json_python::dumps(&json, indent)))
}

/// A template's own refusal.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// A `strftime_now` function for a fixed time or the clock's.
pub(super) fn strftime_now(now: Option<i64>) -> Jinja {
    Jinja::from_function(move |format: String| -> Result<String, Error> {
        let invalid = |e: jiff::Error| Error::new(ErrorKind::InvalidOperation, e.to_string());
        let time = match now {
            Some(seconds) => {
                jiff::Timestamp::from_second(seconds).map_err(invalid)?.to_zoned_datetime(jiff::tz::TimeZone::UTC)
            }
            None => jiff::ZonedDateTime::now(),
        };
        jiff::fmt::strtime::format(&format, &time).map_err(invalid)
    })
}

/// JSON as template values, objects in their own order.
pub(super) fn to_jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(b) => Jinja::from(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Jinja::from(i),
            (None, Some(u)) => Jinja::from(u),
            _ => Jinja::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(s) => Jinja::from(s.as_str()),
        Value::Array(items) => items.iter().map(to_jinja).collect(),
        Value::Object(entries) => Jinja::from_pairs(entries.iter().map(|(k, v)| (k.as_str(), to_jinja(v)))),
    }
}

/// The engine's words without its source listing.
pub(super) fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// A failed rendering as one error: the template's refusal, or its fault.
pub(super) fn render_error(error: &Error, origin: &str) -> ChatError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return ChatError::Refused { message: message.clone() };
        }
        cause = current.source();
    }
    ChatError::Render { origin: origin.to_owned(), line: error.line().unwrap_or(0), reason: reason(error) }
}
