//! JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it, which is
//! what the models saw in training.

use serde_json::Value;

/// Writes `value` with `", "` and `": "` between items, or on indented lines.
pub(crate) fn dumps(value: &Value, indent: Option<usize>) -> String {
    let mut out = String::new();
    write(value, indent, 0, &mut out);
    out
}

fn write(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) {
    match value {
        Value::Array(items) => {
            list(items.iter(), ('[', ']'), indent, depth, out, |item, out| {
                write(item, indent, depth + 1, out);
            });
        }
        Value::Object(entries) => {
            list(entries.iter(), ('{', '}'), indent, depth, out, |(key, item), out| {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                write(item, indent, depth + 1, out);
            });
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

fn list<T>(
    items: impl ExactSizeIterator<Item = T>,
    (open, close): (char, char),
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
    mut each: impl FnMut(T, &mut String),
) {
    out.push(open);
    let empty = items.len() == 0;
    for (i, item) in items.enumerate() {
        match indent {
            None if i > 0 => out.push_str(", "),
            None => {}
            Some(width) => {
                out.push_str(if i > 0 { ",\n" } else { "\n" });
                out.extend(std::iter::repeat_n(' ', width * (depth + 1)));
            }
        }
        each(item, out);
    }
    if let (Some(width), false) = (indent, empty) {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', width * depth));
    }
    out.push(close);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spaces_as_python() {
        let v = json!({"b": [1, 2.5, "é\"\n"], "a": {}, "c": [], "d": null});
        assert_eq!(dumps(&v, None), r#"{"b": [1, 2.5, "é\"\n"], "a": {}, "c": [], "d": null}"#);
    }

    #[test]
    fn indented() {
        let v = json!({"a": [1, {}], "b": []});
        assert_eq!(dumps(&v, Some(2)), "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
    }
}
