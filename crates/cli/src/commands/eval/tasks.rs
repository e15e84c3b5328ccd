//! Questions with known answers: asked one by one, judged, counted.

use super::judge::{Expect, judge};
use super::stats::Share;
use crate::answer::{self, Ask, Sink};
use crate::args::Think;
use crate::prompt;
use crate::session::Session;
use crate::{side, terminal};
use anyhow::{Context, Result, anyhow, bail};
use onebit_engine::{FinishReason, SamplingParams, TextEvent};
use onebit_text::{Message, Role, ToolSpec};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Kinds of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Sums,
    Reading,
    Tools,
    Json,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Sums, Kind::Reading, Kind::Tools, Kind::Json];

    /// As task files spell it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Sums => "sums",
            Kind::Reading => "reading",
            Kind::Tools => "tools",
            Kind::Json => "json",
        }
    }
}

/// The questions of one file.
pub(super) struct TaskFile {
    pub(super) path: String,
    items: Vec<Item>,
}

struct Item {
    /// Line of the file, counted from 1.
    line: usize,
    kind: Kind,
    messages: Vec<Message>,
    /// As templates show them.
    tools: Vec<Json>,
    /// As calls are read.
    specs: Vec<ToolSpec>,
    expect: Expect,
}

/// How answers are drawn.
pub(super) struct Asking<'a> {
    pub(super) sampling: &'a SamplingParams,
    pub(super) max_tokens: Option<usize>,
    pub(super) stop: &'a [String],
    pub(super) system: Option<String>,
    pub(super) think: Option<Think>,
    /// Wrong answers to keep.
    pub(super) failures: usize,
}

/// What was measured on one file.
pub(super) struct TaskReport {
    pub(super) path: String,
    pub(super) kinds: Vec<KindReport>,
    pub(super) failures: Vec<Failure>,
    /// Tokens of all answers.
    pub(super) answer_tokens: usize,
    pub(super) seconds: f64,
}

/// All questions of one kind.
pub(super) struct KindReport {
    pub(super) kind: Kind,
    pub(super) scores: Vec<(&'static str, Share)>,
    /// Answers that did not end by themselves.
    pub(super) cut: usize,
}

/// A wrong answer.
pub(super) struct Failure {
    pub(super) line: usize,
    pub(super) question: String,
    pub(super) wanted: String,
    pub(super) answer: String,
}

#[derive(Deserialize)]
struct Line {
    kind: Kind,
    messages: Vec<LineMessage>,
    #[serde(default)]
    tools: Vec<Json>,
    expect: Json,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineMessage {
    role: String,
    content: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NumberWanted {
    number: Json,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextWanted {
    text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonWanted {
    json: Json,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallWanted {
    name: String,
    arguments: Json,
}

/// Reads a file of questions, at most `limit` of them.
///
/// # Errors
/// A file that cannot be read, and the first line that is no question, by its number.
pub(super) fn read(path: &Path, limit: Option<usize>) -> Result<TaskFile> {
    let name = path.display().to_string();
    let text = side::read_text(path)?.ok_or_else(|| anyhow!("{name} does not exist; check the path"))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let items: Result<Vec<Item>> = lines
        .take(limit.unwrap_or(usize::MAX))
        .map(|(i, line)| item(i + 1, line).with_context(|| format!("{name}, line {}", i + 1)))
        .collect();
    let items = items?;
    if items.is_empty() {
        bail!("{name} holds no question; wanted one JSON object a line");
    }
    Ok(TaskFile { path: name, items })
}

fn item(line: usize, text: &str) -> Result<Item> {
    let Line { kind, messages, tools, expect } = serde_json::from_str(text).map_err(|error| {
        anyhow!(r#"{error}; wanted one JSON object a line, {{"kind": ..., "messages": [...], "expect": {{...}}}}"#)
    })?;
    let messages: Result<Vec<Message>> = messages
        .into_iter()
        .map(|LineMessage { role, content }| match Role::parse(&role) {
            Some(role) => Ok(Message::new(role, content)),
            None => bail!("a message has the role `{role}`; wanted system, user, assistant or tool"),
        })
        .collect();
    let messages = messages?;
    if messages.is_empty() {
        bail!("`messages` is empty; wanted at least the question");
    }
    let expect = match kind {
        Kind::Sums => {
            let NumberWanted { number } = wanted(expect, r#"{"number": "42"}"#)?;
            Expect::Number(number.as_str().map_or_else(|| number.to_string(), str::to_owned))
        }
        Kind::Reading => Expect::Text(wanted::<TextWanted>(expect, r#"{"text": "words"}"#)?.text),
        Kind::Json => Expect::Json(wanted::<JsonWanted>(expect, r#"{"json": VALUE}"#)?.json),
        Kind::Tools => {
            let CallWanted { name, arguments } = wanted(expect, r#"{"name": "function", "arguments": {}}"#)?;
            Expect::Call { name, arguments }
        }
    };
    let specs: Result<Vec<ToolSpec>> = tools.iter().map(spec).collect();
    let specs = specs?;
    if let Expect::Call { name, .. } = &expect
        && !specs.iter().any(|spec| spec.name == *name)
    {
        bail!("`expect` wants a call of `{name}`, which is not among `tools`");
    }
    Ok(Item { line, kind, messages, tools, specs, expect })
}

fn wanted<T: DeserializeOwned>(expect: Json, form: &str) -> Result<T> {
    let got = expect.to_string();
    serde_json::from_value(expect).map_err(|error| anyhow!("`expect` is {got} ({error}); wanted {form}"))
}

/// A function definition, bare or in the wrapper of requests.
fn spec(tool: &Json) -> Result<ToolSpec> {
    let function = tool.get("function").unwrap_or(tool);
    let Some(name) = function["name"].as_str() else {
        bail!(r#"a tool has no name; wanted {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}"#);
    };
    Ok(ToolSpec { name: name.to_owned(), parameters: function["parameters"].clone() })
}

/// Asks every question of a file and judges the answers.
///
/// # Errors
/// A question that does not fit the model, and what makes the engine fail.
pub(super) fn measure(file: &TaskFile, asking: &Asking<'_>, session: &mut Session) -> Result<TaskReport> {
    let started = Instant::now();
    let bar = terminal::count_bar(&file.path, file.items.len() as u64);
    let mut judged: Vec<(&Item, Vec<bool>, bool)> = Vec::with_capacity(file.items.len());
    let (mut failures, mut answer_tokens) = (Vec::new(), 0);
    for item in &file.items {
        let completion =
            ask(item, asking, session).with_context(|| format!("{}, line {}", file.path, item.line))?.completion;
        let scores = judge(&item.expect, &item.specs, &completion.answer);
        if scores.last() != Some(&true) && failures.len() < asking.failures {
            failures.push(Failure {
                line: item.line,
                question: item.messages.last().map(|m| m.content.text()).unwrap_or_default(),
                wanted: item.expect.to_string(),
                answer: completion.answer,
            });
        }
        answer_tokens += completion.usage.completion_tokens;
        judged.push((item, scores, matches!(completion.reason, FinishReason::Length | FinishReason::ContextFull)));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let kinds = Kind::ALL.into_iter().filter_map(|kind| {
        let own: Vec<_> = judged.iter().filter(|(item, ..)| item.kind == kind).collect();
        let names = own.first()?.0.expect.scores();
        let right = |i: usize| own.iter().filter(|(_, scores, _)| scores[i]).count() as u64;
        let scores = names.iter().enumerate().map(|(i, name)| (*name, Share::of(right(i), own.len() as u64)));
        Some(KindReport { kind, scores: scores.collect(), cut: own.iter().filter(|(.., cut)| *cut).count() })
    });
    let kinds = kinds.collect();
    Ok(TaskReport { path: file.path.clone(), kinds, failures, answer_tokens, seconds: started.elapsed().as_secs_f64() })
}

fn ask(item: &Item, asking: &Asking<'_>, session: &mut Session) -> Result<answer::Answer> {
    let system = asking.system.clone().map(Message::system);
    let messages: Vec<Message> = system.into_iter().chain(item.messages.iter().cloned()).collect();
    let prepared = prompt::chat(&session.text, &messages, &item.tools, asking.think)?;
    let ask = Ask {
        sampling: asking.sampling,
        max_tokens: asking.max_tokens,
        stop: asking.stop,
        cache: false,
        patience: Duration::MAX,
    };
    answer::ask(session, prepared, &ask, &mut Unseen)
}

/// Answers are judged when they are complete.
struct Unseen;

impl Sink for Unseen {
    fn piece(&mut self, _: &TextEvent) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn long_wait(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        format!("{:#}", item(1, line).err().expect(line))
    }

    #[test]
    fn all_kinds_are_read() {
        let ask = r#""messages": [{"role": "user", "content": "?"}]"#;
        let roll = r#"{"type": "function", "function": {"name": "roll", "parameters": {}}}"#;
        for (line, wanted) in [
            (format!(r#"{{"kind": "sums", {ask}, "expect": {{"number": 42}}}}"#), "42"),
            (format!(r#"{{"kind": "sums", {ask}, "expect": {{"number": "42"}}, "id": 7}}"#), "42"),
            (format!(r#"{{"kind": "reading", {ask}, "expect": {{"text": "a b"}}}}"#), "a b"),
            (format!(r#"{{"kind": "json", {ask}, "expect": {{"json": [1]}}}}"#), "[1]"),
            (
                format!(
                    r#"{{"kind": "tools", {ask}, "tools": [{roll}], "expect": {{"name": "roll", "arguments": {{}}}}}}"#
                ),
                "roll{}",
            ),
        ] {
            let item = item(3, &line).expect(&line);
            assert_eq!((item.line, item.expect.to_string().as_str()), (3, wanted));
            assert_eq!(item.expect.scores().last(), Some(&"right"));
        }
    }

    #[test]
    fn what_is_no_question_is_refused_with_what_was_wanted() {
        let with = |kind: &str, expect: &str| {
            format!(r#"{{"kind": "{kind}", "messages": [{{"role": "user", "content": "?"}}], "expect": {expect}}}"#)
        };
        for (line, part) in [
            ("{".to_owned(), "EOF"),
            (with("maths", "{}"), "expected one of `sums`, `reading`, `tools`, `json`"),
            (with("sums", "{}"), r#"wanted {"number": "42"}"#),
            (with("reading", r#"{"text": "a", "words": 1}"#), "unknown field `words`"),
            (with("tools", r#"{"name": "roll", "arguments": {}}"#), "`roll`, which is not among `tools`"),
            (r#"{"kind": "json", "messages": [], "expect": {"json": 1}}"#.to_owned(), "`messages` is empty"),
            (with("json", r#"{"json": 1}"#).replace("user", "robot"), "role `robot`"),
            (with("json", r#"{"json": 1}"#).replace("\"content\"", "\"text\""), "unknown field `text`"),
            (with("json", r#"{"json": 1}, "tools": [{}]"#), "a tool has no name"),
        ] {
            let error = refusal(&line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
