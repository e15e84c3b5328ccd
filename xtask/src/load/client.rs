//! One request over HTTP, timed, in the words of OpenAI's API.

use super::mix::{Ask, Expect, Leave};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};
use ureq::Agent;

/// A request that takes longer than this is a fault.
const PATIENCE: Duration = Duration::from_secs(600);

/// What became of a request.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The client left on purpose.
    pub(super) left: bool,
    /// What was not as it should be: a word for counting, and details.
    pub(super) error: Option<(String, String)>,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) completion_tokens: u64,
    /// From sending to the first piece of the answer, of streams.
    pub(super) first: Option<Duration>,
    /// From piece to piece, of streams.
    pub(super) between: Vec<Duration>,
}

/// How requests are sent: a connection for each, so that leaving closes it.
pub(super) fn agent() -> Agent {
    let config = Agent::config_builder().http_status_as_error(false).max_idle_connections(0);
    Agent::new_with_config(config.timeout_global(Some(PATIENCE)).build())
}

/// Sends a request and reads what comes back.
pub(super) fn send(agent: &Agent, base: &str, ask: &Ask) -> Outcome {
    let mut out = Outcome::default();
    let limit = match ask.leave {
        Leave::After(limit) => limit,
        Leave::No | Leave::Dawdle(_) => PATIENCE,
    };
    let begun = Instant::now();
    let request = agent.post(format!("{base}{}", ask.path)).header("content-type", "application/json");
    let sent = request.config().timeout_global(Some(limit)).build().send(ask.body.to_string());
    let response = match sent {
        Ok(response) => response,
        Err(error) => return gone(out, ask, begun, "no answer", &error.to_string()),
    };
    let status = response.status().as_u16();
    let mut reader = BufReader::new(response.into_body().into_reader());
    if let Leave::Dawdle(time) = ask.leave {
        // A client that does not read what it has asked for, and then is gone.
        std::thread::sleep(time);
        out.left = true;
        return out;
    }
    let is_stream = ask.body["stream"] == true && status == 200;
    let read = if is_stream {
        read_stream(&mut reader, ask, begun, &mut out)
    } else {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| whole(status, &text, ask, &mut out))
    };
    match read {
        Ok(()) => out,
        Err(error) => gone(out, ask, begun, "the answer broke off", &error.to_string()),
    }
}

/// An answer that did not come: as it was meant, or not.
fn gone(mut out: Outcome, ask: &Ask, begun: Instant, kind: &str, detail: &str) -> Outcome {
    match ask.leave {
        Leave::After(limit) if begun.elapsed() >= limit => out.left = true,
        _ => out.error = Some((kind.to_owned(), detail.to_owned())),
    }
    out
}

fn wrong(out: &mut Outcome, kind: impl Into<String>, detail: impl Into<String>) {
    out.error.get_or_insert((kind.into(), detail.into()));
}

fn whole(status: u16, text: &str, ask: &Ask, out: &mut Outcome) {
    let json: Value = serde_json::from_str(text).unwrap_or_default();
    match (ask.expect, status) {
        (Expect::Refusal, 400) if json["error"]["message"].is_string() => {}
        (Expect::Refusal, _) => wrong(out, format!("status {status} instead of 400"), text),
        (_, 200) => {
            usage(&json["usage"], out);
            let choice = &json["choices"][0];
            let content = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
            let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten();
            let arguments: Vec<String> =
                calls.map(|c| c["function"]["arguments"].as_str().unwrap_or_default().to_owned()).collect();
            judge(ask, choice["finish_reason"].as_str(), content, &arguments, out);
        }
        _ => wrong(out, format!("status {status}"), text),
    }
}

fn usage(usage: &Value, out: &mut Outcome) {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    out.prompt_tokens = count(&usage["prompt_tokens"]);
    out.completion_tokens = count(&usage["completion_tokens"]);
    out.cached_tokens = count(&usage["prompt_tokens_details"]["cached_tokens"]);
}

fn read_stream(reader: &mut impl BufRead, ask: &Ask, begun: Instant, out: &mut Outcome) -> std::io::Result<()> {
    let (mut content, mut arguments) = (String::new(), Vec::<String>::new());
    let (mut finish, mut done, mut last, mut pieces) = (None, false, None, 0);
    let mut line = String::new();
    while {
        line.clear();
        reader.read_line(&mut line)?
    } > 0
    {
        let Some(data) = line.trim_end().strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            wrong(out, "an event that is no JSON", data);
            continue;
        };
        if !event["error"].is_null() {
            wrong(out, "an error event", event["error"].to_string());
        }
        if event["usage"].is_object() {
            usage(&event["usage"], out);
        }
        for choice in event["choices"].as_array().into_iter().flatten() {
            let delta = &choice["delta"];
            let text = delta["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
            let is_piece = !text.is_empty() || delta["reasoning_content"].is_string() || delta["tool_calls"].is_array();
            if is_piece {
                let now = Instant::now();
                out.first.get_or_insert(now - begun);
                out.between.extend(last.map(|last| now - last));
                (last, pieces) = (Some(now), pieces + 1);
            }
            if choice["index"] == 0 {
                content.push_str(text);
                for call in delta["tool_calls"].as_array().into_iter().flatten() {
                    let index = call["index"].as_u64().unwrap_or(0) as usize;
                    arguments.resize_with(arguments.len().max(index + 1), String::new);
                    arguments[index].push_str(call["function"]["arguments"].as_str().unwrap_or_default());
                }
                finish = choice["finish_reason"].as_str().map(str::to_owned).or(finish);
            }
        }
    }
    if !done && out.error.is_none() {
        return Err(std::io::Error::other("no [DONE] at the end"));
    }
    // A server that does not count leaves the pieces, of which each is a token at least.
    out.completion_tokens = out.completion_tokens.max(pieces);
    judge(ask, finish.as_deref(), &content, &arguments, out);
    Ok(())
}

/// Whether a whole answer is what was asked for.
fn judge(ask: &Ask, finish: Option<&str>, content: &str, arguments: &[String], out: &mut Outcome) {
    if !matches!(finish, Some("stop" | "length" | "tool_calls")) {
        wrong(out, "no reason for the end", format!("{finish:?}"));
    }
    let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok();
    match ask.expect {
        Expect::Json if finish == Some("stop") && !is_json(content) => wrong(out, "an answer off its schema", content),
        Expect::Call if finish == Some("stop") => wrong(out, "no call though one was forced", content),
        _ => {}
    }
    if finish == Some("tool_calls") && !arguments.iter().all(|text| is_json(text)) {
        wrong(out, "arguments that are no JSON", format!("{arguments:?}"));
    }
}
