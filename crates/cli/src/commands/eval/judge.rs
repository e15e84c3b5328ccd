//! Whether an answer is right.

use onebit_text::{ToolCall, ToolPiece, ToolSpec, ToolSplitter};
use serde_json::Value as Json;

/// What a right answer is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expect {
    /// The last number of the answer.
    Number(String),
    /// Words that the answer holds.
    Text(String),
    /// The answer as JSON.
    Json(Json),
    /// The one call that the answer makes.
    Call {
        /// Name of the function.
        name: String,
        /// Its arguments.
        arguments: Json,
    },
}

impl Expect {
    /// What is scored, in the order of [`judge`]; the last is whether the answer is right.
    pub(super) fn scores(&self) -> &'static [&'static str] {
        match self {
            Expect::Number(_) | Expect::Text(_) => &["right"],
            Expect::Json(_) => &["parses", "right"],
            Expect::Call { .. } => &["well_formed", "offered", "right"],
        }
    }
}

impl std::fmt::Display for Expect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Expect::Number(text) | Expect::Text(text) => f.write_str(text),
            Expect::Json(json) => write!(f, "{json}"),
            Expect::Call { name, arguments } => write!(f, "{name}{arguments}"),
        }
    }
}

/// Every score of an answer. `tools` are those that the model was offered.
pub(super) fn judge(expect: &Expect, tools: &[ToolSpec], answer: &str) -> Vec<bool> {
    match expect {
        Expect::Number(wanted) => vec![last_number(answer).is_some_and(|n| Some(n) == last_number(wanted))],
        Expect::Text(wanted) => vec![holds_words(answer, wanted)],
        Expect::Json(wanted) => {
            let parsed: Option<Json> = serde_json::from_str(answer.trim()).ok();
            vec![parsed.is_some(), parsed.is_some_and(|json| same(&json, wanted))]
        }
        Expect::Call { name, arguments } => {
            let well_formed = calls(ToolSplitter::of_any_tool(), answer).is_some();
            let offered = calls(ToolSplitter::new(tools.to_vec()), answer);
            let is_right = |call: &ToolCall| call.name == *name && same(&call.arguments, arguments);
            let right = matches!(offered.as_deref(), Some([call]) if is_right(call));
            vec![well_formed, offered.is_some(), right]
        }
    }
}

/// The calls of an answer; `None` when it makes none, or one of them cannot be read.
fn calls(mut splitter: ToolSplitter, answer: &str) -> Option<Vec<ToolCall>> {
    let mut pieces = splitter.push(answer);
    pieces.extend(splitter.finish());
    let mut calls = Vec::new();
    for piece in pieces {
        match piece {
            ToolPiece::Call(call) => calls.push(call),
            // A marker that is left as text opens a call that could not be read.
            ToolPiece::Text(text) if text.contains("<tool_call>") => return None,
            ToolPiece::Text(_) | ToolPiece::Part(_) => {}
        }
    }
    (!calls.is_empty()).then_some(calls)
}

/// The last number of a text in a form that can be compared: no separators of thousands, no zeros that mean nothing.
fn last_number(text: &str) -> Option<String> {
    let chars: Vec<char> = text.chars().collect();
    let digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    let (mut last, mut at) = (None, 0);
    while at < chars.len() {
        if !digit(at) {
            at += 1;
            continue;
        }
        let is_sign = at > 0 && matches!(chars[at - 1], '-' | '\u{2212}');
        // `12-5` is no negative number.
        let negative = is_sign && !(at > 1 && (chars[at - 2].is_alphanumeric() || chars[at - 2] == ')'));
        let (mut whole, mut fraction) = (String::new(), String::new());
        loop {
            let thousands = chars.get(at) == Some(&',') && (1..=3).all(|i| digit(at + i)) && !digit(at + 4);
            if digit(at) {
                whole.push(chars[at]);
            } else if !thousands {
                break;
            }
            at += 1;
        }
        if chars.get(at) == Some(&'.') && digit(at + 1) {
            at += 1;
            while digit(at) {
                fraction.push(chars[at]);
                at += 1;
            }
        }
        last = Some(plain(negative, &whole, &fraction));
    }
    last
}

/// `-007`, `50` as `-7.5`.
fn plain(negative: bool, whole: &str, fraction: &str) -> String {
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let whole = if whole.is_empty() { "0" } else { whole };
    let text = if fraction.is_empty() { whole.to_owned() } else { format!("{whole}.{fraction}") };
    if negative && text != "0" { format!("-{text}") } else { text }
}

/// Whether the words stand in the text one after the other, letter case and punctuation aside.
fn holds_words(text: &str, wanted: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let parts = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        parts.map(str::to_lowercase).collect()
    };
    let (text, wanted) = (words(text), words(wanted));
    !wanted.is_empty() && text.windows(wanted.len()).any(|words| words == wanted)
}

/// Equal values; the order of keys and the spelling of numbers (1 and 1.0) do not count.
fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Json::Array(a), Json::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_number_counts() {
        let right = |answer: &str, wanted: &str| judge(&Expect::Number(wanted.to_owned()), &[], answer) == [true];
        for (answer, wanted) in [
            ("23 + 19 = 42", "42"),
            ("The answer is 42.", "42"),
            ("$1,234,567 in all", "1234567"),
            ("3,4", "4"),
            ("007", "7"),
            ("it is 0.50", "0.5"),
            ("-3 degrees", "-3"),
            ("\u{2212}3", "-3"),
            ("12-5", "5"),
            ("-0", "0"),
        ] {
            assert!(right(answer, wanted), "{answer}");
        }
        for (answer, wanted) in [("", "0"), ("none", "0"), ("42 of 50", "42"), ("3", "-3"), ("4.25", "4")] {
            assert!(!right(answer, wanted), "{answer}");
        }
    }

    #[test]
    fn words_in_order_and_whole() {
        let right = |answer: &str, wanted: &str| judge(&Expect::Text(wanted.to_owned()), &[], answer) == [true];
        assert!(right("It is Under the\nTREE.", "under the tree"));
        assert!(right("At seven o'clock", "seven o'clock"));
        assert!(!right("catalogue", "cat"));
        assert!(!right("the big tree", "the tree"));
        assert!(!right("anything", "..."));
    }

    #[test]
    fn json_is_compared_by_value() {
        let judged = |answer: &str| judge(&Expect::Json(json!({"a": 1, "b": ["x", null]})), &[], answer);
        assert_eq!(judged(" {\"b\": [\"x\", null], \"a\": 1.0}\n"), [true, true]);
        assert_eq!(judged("{\"a\": 1}"), [true, false]);
        assert_eq!(judged("{\"a\": 1, \"b\": [null, \"x\"]}"), [true, false]);
        assert_eq!(judged("```{}```"), [false, false]);
        assert_eq!(judged("{\"a\": 1} and more"), [false, false]);
    }

    #[test]
    fn calls_are_well_formed_and_right_or_not() {
        let parameters = json!({"type": "object", "properties": {"dice": {"type": "integer"}}});
        let tools = ["roll", "flip"].map(|name| ToolSpec { name: name.to_owned(), parameters: parameters.clone() });
        let expect = Expect::Call { name: "roll".to_owned(), arguments: json!({"dice": 2}) };
        let judged = |answer: &str| judge(&expect, &tools, answer);
        let call = |name: &str, dice: &str| {
            format!("<tool_call>\n<function={name}>\n<parameter=dice>\n{dice}\n</parameter>\n</function>\n</tool_call>")
        };
        let [right, offered, well_formed, none] =
            [[true, true, true], [true, true, false], [true, false, false], [false, false, false]];
        assert_eq!(judged(&call("roll", "2")), right);
        assert_eq!(judged(&format!("Let me roll.\n{}", call("roll", "2"))), right);
        assert_eq!(judged("<tool_call>{\"name\": \"roll\", \"arguments\": {\"dice\": 2}}</tool_call>"), right);
        assert_eq!(judged(&call("roll", "3")), offered);
        assert_eq!(judged(&call("flip", "2")), offered);
        assert_eq!(judged(&call("roll", "2").repeat(2)), offered);
        assert_eq!(judged(&call("jump", "2")), well_formed);
        // One that does not end, one followed by a broken one, none.
        assert_eq!(judged("<tool_call>\n<function=roll>\n"), none);
        assert_eq!(judged(&format!("{}\n<tool_call>\n{{", call("roll", "2"))), none);
        assert_eq!(judged("I rolled 2."), none);
    }
}
