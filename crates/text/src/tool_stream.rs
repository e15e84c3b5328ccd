//! A long tool call, handed out while the model still writes it.
//!
//! What comes out is the JSON text of the arguments. Of the JSON form that is the model's own text; of the tag form it
//! is written here, with every value in the type that the schema gives it.

use serde_json::Value;

use crate::hold::open_tail;
use crate::tool_parse::{self, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END};
use crate::tools::{CLOSE, CallPart, ToolSpec};

/// A call whose name is known and offered, and whose arguments have begun.
///
/// From here on it is a call: if its end is missing or malformed, the arguments are as broken as the model wrote them,
/// which their reader sees when parsing.
#[derive(Debug, Clone)]
pub(crate) struct CallStream {
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    Json {
        scan: JsonScan,
    },
    Tags {
        schema: Value,
        place: Place,
        any: bool,
    },
    /// The arguments are complete; everything up to the closing marker is skipped.
    Over,
}

/// Where a tag-form call stands.
#[derive(Debug, Clone)]
enum Place {
    Between,
    /// Inside a string value that is handed out as it comes. The line break that frames it is gone when `begun`.
    Text {
        begun: bool,
    },
    /// Inside a value of another type, which is read as a whole.
    Whole {
        key: String,
    },
}

/// How far a text got.
enum Progress {
    /// So many bytes are done with; go on.
    Took(usize),
    /// More text is needed.
    Wait,
    /// The call ends behind so many bytes.
    End(usize),
}

impl CallStream {
    /// Starts on the beginning of a body; `None` when it is not, or not yet, certain that this is a call of an offered
    /// tool. Returns how many bytes of the body are done with.
    pub(crate) fn begin(body: &str, tools: &[ToolSpec]) -> Option<(Self, String, usize)> {
        json_head(body, tools).or_else(|| tags_head(body, tools))
    }

    /// Takes what it can from the front of `held`. Returns the bytes taken, and whether the call has ended.
    pub(crate) fn push(&mut self, held: &str, out: &mut Vec<CallPart>) -> (usize, bool) {
        let mut taken = 0;
        loop {
            let rest = &held[taken..];
            let mut text = String::new();
            let progress = match &mut self.form {
                Form::Json { scan } => scan.push(rest, &mut text),
                Form::Tags { schema, place, any } => tags(schema, place, any, rest, &mut text),
                Form::Over => match rest.find(CLOSE) {
                    Some(at) => Progress::End(at + CLOSE.len()),
                    None => Progress::Took(rest.len() - open_tail(rest, CLOSE)),
                },
            };
            if !text.is_empty() {
                out.push(CallPart::Arguments(text));
            }
            match progress {
                Progress::Took(0) | Progress::Wait => return (taken, false),
                Progress::Took(bytes) => {
                    taken += bytes;
                    if matches!(&self.form, Form::Json { scan } if scan.is_over())
                        || matches!(&self.form, Form::Tags { place: Place::Between, .. } if rest[..bytes].ends_with(FUNCTION_END))
                    {
                        self.form = Form::Over;
                    }
                }
                Progress::End(bytes) => return (taken + bytes, true),
            }
        }
    }
}

/// `{"name": "NAME", "arguments": {`
fn json_head(body: &str, tools: &[ToolSpec]) -> Option<(CallStream, String, usize)> {
    let rest = token(token(token(body, "{")?, "\"name\"")?, ":")?;
    let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
    let name = names.next()?.ok()?;
    let rest = token(&rest[names.byte_offset()..], ",")?;
    let rest = token(rest, "\"arguments\"").or_else(|| token(rest, "\"parameters\""))?;
    let rest = token(rest, ":")?.trim_start();
    if !rest.starts_with('{') || !tools.iter().any(|tool| tool.name == name) {
        return None;
    }
    Some((CallStream { form: Form::Json { scan: JsonScan::default() } }, name, body.len() - rest.len()))
}

/// What follows a token, white space before it skipped.
fn token<'a>(text: &'a str, token: &str) -> Option<&'a str> {
    text.trim_start().strip_prefix(token)
}

/// `<function=NAME>`
fn tags_head(body: &str, tools: &[ToolSpec]) -> Option<(CallStream, String, usize)> {
    let (name, rest) = body.trim_start().strip_prefix(FUNCTION)?.split_once('>')?;
    let tool = tools.iter().find(|tool| tool.name == name.trim())?;
    let form = Form::Tags { schema: tool.parameters["properties"].clone(), place: Place::Between, any: false };
    Some((CallStream { form }, tool.name.clone(), body.len() - rest.len()))
}

/// Finds the end of a JSON object.
#[derive(Debug, Clone, Default)]
struct JsonScan {
    depth: usize,
    begun: bool,
    in_string: bool,
    escaped: bool,
}

impl JsonScan {
    fn is_over(&self) -> bool {
        self.begun && self.depth == 0
    }

    fn push(&mut self, rest: &str, text: &mut String) -> Progress {
        for (at, byte) in rest.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => {
                    self.depth += 1;
                    self.begun = true;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        text.push_str(&rest[..=at]);
                        return Progress::Took(at + 1);
                    }
                }
                b'<' if rest[at..].starts_with(CLOSE) => {
                    text.push_str(&rest[..at]);
                    return Progress::End(at + CLOSE.len());
                }
                b'<' if CLOSE.starts_with(&rest[at..]) => {
                    text.push_str(&rest[..at]);
                    return if at == 0 { Progress::Wait } else { Progress::Took(at) };
                }
                _ => {}
            }
        }
        text.push_str(rest);
        Progress::Took(rest.len())
    }
}

/// One decision inside a tag-form call.
fn tags(schema: &Value, place: &mut Place, any: &mut bool, rest: &str, text: &mut String) -> Progress {
    match place {
        Place::Between => between(schema, place, any, rest, text),
        Place::Text { begun } => {
            if !*begun {
                if rest.is_empty() {
                    return Progress::Wait;
                }
                *begun = true;
                if rest.starts_with('\n') {
                    return Progress::Took(1);
                }
            }
            match value_end(rest) {
                End::At(end) => {
                    let value = rest[..end].strip_suffix('\n').unwrap_or(&rest[..end]);
                    escape(value, text);
                    text.push('"');
                    *place = Place::Between;
                    Progress::Took(end + PARAMETER_END.len())
                }
                End::NotBefore(certain) => {
                    escape(&rest[..certain], text);
                    Progress::Took(certain)
                }
            }
        }
        Place::Whole { key } => match value_end(rest) {
            End::At(end) => {
                let value = tool_parse::typed(tool_parse::without_frame(&rest[..end]), Some(&schema[key.as_str()]));
                text.push_str(&value.to_string());
                *place = Place::Between;
                Progress::Took(end + PARAMETER_END.len())
            }
            End::NotBefore(_) => Progress::Wait,
        },
    }
}

fn between(schema: &Value, place: &mut Place, any: &mut bool, rest: &str, text: &mut String) -> Progress {
    let trimmed = rest.trim_start();
    let space = rest.len() - trimmed.len();
    if trimmed.is_empty() {
        return Progress::Took(space);
    }
    if trimmed.starts_with(FUNCTION_END) {
        text.push_str(if *any { "}" } else { "{}" });
        return Progress::Took(space + FUNCTION_END.len());
    }
    if trimmed.starts_with(CLOSE) {
        return Progress::End(space + CLOSE.len());
    }
    if let Some(after) = trimmed.strip_prefix(PARAMETER) {
        let Some((key, value)) = after.split_once('>') else { return Progress::Wait };
        let key = key.trim();
        text.push_str(if *any { ", " } else { "{" });
        text.push_str(&Value::from(key).to_string());
        text.push_str(": ");
        *any = true;
        *place = if tool_parse::may_be_other_than_text(&schema[key]) {
            Place::Whole { key: key.to_owned() }
        } else {
            text.push('"');
            Place::Text { begun: false }
        };
        return Progress::Took(rest.len() - value.len());
    }
    let may_become = [PARAMETER, FUNCTION_END, CLOSE].iter().any(|marker| marker.starts_with(trimmed));
    // Anything else stands between two values and belongs to neither.
    if may_become { Progress::Wait } else { Progress::Took(space + trimmed.chars().next().map_or(0, char::len_utf8)) }
}

/// Where a value may end.
enum End {
    At(usize),
    /// So many bytes are certainly inside it.
    NotBefore(usize),
}

/// The rule of [`tool_parse`], for a text that goes on.
fn value_end(rest: &str) -> End {
    for (at, _) in rest.match_indices(PARAMETER_END) {
        let after = rest[at + PARAMETER_END.len()..].trim_start();
        if after.starts_with(PARAMETER) || after.starts_with(FUNCTION_END) {
            return End::At(at);
        }
        if PARAMETER.starts_with(after) || FUNCTION_END.starts_with(after) {
            return End::NotBefore(before_break(rest, at));
        }
    }
    let certain = rest.len() - open_tail(rest, PARAMETER_END);
    End::NotBefore(before_break(rest, certain))
}

/// The line break before a closing tag frames the value.
fn before_break(rest: &str, at: usize) -> usize {
    if rest[..at].ends_with('\n') { at - 1 } else { at }
}

fn escape(value: &str, text: &mut String) {
    let quoted = Value::from(value).to_string();
    text.push_str(&quoted[1..quoted.len() - 1]);
}

#[cfg(test)]
mod tests {
    use crate::tools::{CallPart, ToolPiece, ToolSpec, ToolSplitter};
    use serde_json::{Value, json};

    fn tools() -> Vec<ToolSpec> {
        let properties =
            json!({"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}});
        vec![ToolSpec { name: "write".into(), parameters: json!({"type": "object", "properties": properties}) }]
    }

    /// Text, and the calls as name, arguments and number of pieces.
    fn split(text: &str, cuts: &[usize]) -> (String, Vec<(String, String)>, usize) {
        let mut splitter = ToolSplitter::new(tools()).streaming(40);
        let mut pieces = Vec::new();
        let mut from = 0;
        for &cut in cuts.iter().chain([&text.len()]) {
            pieces.extend(splitter.push(&text[from..cut]));
            from = cut;
        }
        pieces.extend(splitter.finish());
        let (mut said, mut calls, mut parts, mut open) = (String::new(), Vec::new(), 0, false);
        for piece in pieces {
            match piece {
                ToolPiece::Text(text) => said.push_str(&text),
                ToolPiece::Call(call) => calls.push((call.name, call.arguments.to_string())),
                ToolPiece::Part(CallPart::Begin(name)) => {
                    open = true;
                    calls.push((name, String::new()));
                }
                ToolPiece::Part(CallPart::Arguments(text)) => {
                    assert!(open, "arguments outside a call");
                    parts += 1;
                    calls.last_mut().expect("a call has begun").1.push_str(&text);
                }
                ToolPiece::Part(CallPart::End) => open = false,
            }
        }
        assert!(!open, "a call has no end");
        (said, calls, parts)
    }

    /// The same however the text is cut.
    #[track_caller]
    fn check(text: &str, said: &str, calls: &[(&str, &str)]) {
        let wanted: Vec<(String, String)> = calls.iter().map(|(n, a)| ((*n).into(), (*a).into())).collect();
        let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let one = |cuts: &[usize]| {
            let (text, calls, _) = split(text, cuts);
            assert_eq!((text.as_str(), &calls), (said, &wanted), "cut at {cuts:?}");
        };
        one(&[]);
        one(&borders);
        borders.iter().for_each(|cut| one(&[*cut]));
    }

    #[test]
    fn json_form_comes_as_the_model_wrote_it() {
        let arguments = r#"{"path": "a.rs", "content": "fn main() {}\n\"</tool_call>\"", "deep": [{"x": 1}]}"#;
        let text =
            format!("Writing.\n<tool_call>\n{{\"name\": \"write\", \"arguments\": {arguments}}}\n</tool_call>\nDone");
        check(&text, "Writing.Done", &[("write", arguments)]);
    }

    #[test]
    fn tag_form_becomes_json_on_the_way() {
        let text = "<tool_call>\n<function=write>\n<parameter=path>\na.rs\n</parameter>\n<parameter=content>\n\nlet s = \"é</parameter>\";\n\n</parameter>\n<parameter=mode>\n420\n</parameter>\n</function>\n</tool_call>";
        let wanted = r#"{"path": "a.rs", "content": "\nlet s = \"é</parameter>\";\n", "mode": 420}"#;
        check(text, "", &[("write", wanted)]);
        let parsed: Value = serde_json::from_str(wanted).expect("valid");
        assert_eq!(parsed["content"], "\nlet s = \"é</parameter>\";\n");
    }

    #[test]
    fn a_long_value_comes_in_pieces_and_a_short_call_whole() {
        let long =
            "<tool_call><function=write><parameter=content>\nabcdefghijklmnop\n</parameter></function></tool_call>";
        let borders: Vec<usize> = (1..long.len()).collect();
        assert!(split(long, &borders).2 > 10);
        let short = r#"<tool_call>{"name": "write"}</tool_call>"#;
        assert_eq!(split(short, &[]), (String::new(), vec![("write".into(), "{}".into())], 0));
    }

    #[test]
    fn without_arguments() {
        check("<tool_call>\n<function=write>\n           </function>\n</tool_call>x", "x", &[("write", "{}")]);
    }

    #[test]
    fn a_broken_end_leaves_broken_arguments() {
        let open = r#"<tool_call>{"name": "write", "arguments": {"path": "a"#;
        check(open, "", &[("write", r#"{"path": "a"#)]);
        let closed = r#"<tool_call>{"name": "write", "arguments": {"path": 1</tool_call> b"#;
        check(closed, "b", &[("write", r#"{"path": 1"#)]);
        // The arguments are whole; the brace that is missing behind them takes nothing away.
        let brace = r#"<tool_call>{"name": "write", "arguments": {"path": 1}</tool_call>b"#;
        check(brace, "b", &[("write", r#"{"path": 1}"#)]);
        let tags = "<tool_call><function=write><parameter=path>\nabcdefgh";
        check(tags, "", &[("write", r#"{"path": "abcdefgh"#)]);
    }

    #[test]
    fn other_tools_and_other_orders_are_read_as_a_whole() {
        let text = r#"<tool_call>{"arguments": {"path": "abcdefghijkl"}, "name": "write"}</tool_call>"#;
        check(text, "", &[("write", r#"{"path":"abcdefghijkl"}"#)]);
        let unknown = r#"<tool_call>{"name": "remove", "arguments": {"path": "abc"}}</tool_call>"#;
        check(unknown, unknown, &[]);
        let bad = "<tool_call>{\"name\": \"write\", \"arg</tool_call>";
        check(bad, bad, &[]);
    }
}
