//! What is asked: a mixture of everything that clients do, or one and the same request for measuring.

use super::{Bench, Soak};
use fastrand::Rng;
use serde_json::{Value, json};
use std::time::Duration;

/// A request, and what should become of it.
pub(super) struct Ask {
    pub(super) path: &'static str,
    pub(super) body: Value,
    pub(super) leave: Leave,
    pub(super) expect: Expect,
}

/// Whether the client waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Leave {
    No,
    /// It is gone after this time, wherever the request is then.
    After(Duration),
    /// It reads nothing for this time, and is gone then.
    Dawdle(Duration),
}

/// What an answer must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Expect {
    Answer,
    /// JSON, unless the limit of tokens cuts it short.
    Json,
    /// A call of a tool, unless the limit cuts it short.
    Call,
    /// Status 400.
    Refusal,
}

const WORDS: [&str; 24] = [
    "river", "stone", "green", "walks", "over", "the", "old", "bridge", "and", "seven", "birds", "sing", "while",
    "rain", "falls", "on", "roofs", "of", "small", "houses", "near", "a", "quiet", "sea",
];

/// Words that many requests begin with, as agents' instructions do.
const SHARED: usize = 120;

fn words(rng: &mut Rng, count: usize) -> String {
    (0..count).map(|_| WORDS[rng.usize(..WORDS.len())]).collect::<Vec<_>>().join(" ")
}

fn shared(number: u64) -> String {
    words(&mut Rng::with_seed(number), SHARED)
}

/// A count whose logarithm is uniform: short prompts are common, long ones occur.
fn log_uniform(rng: &mut Rng, most: usize) -> usize {
    ((most.max(2) as f64).ln() * rng.f64()).exp() as usize
}

/// The next request of a client that does everything.
pub(super) fn any(rng: &mut Rng, soak: &Soak) -> Ask {
    let mut messages = Vec::new();
    if rng.bool() {
        messages.push(json!({"role": "system", "content": shared(rng.u64(..4))}));
    }
    let count = log_uniform(rng, soak.words);
    messages.push(json!({"role": "user", "content": words(rng, count)}));
    let stream = rng.f32() < 0.6;
    let mut body = json!({
        "messages": messages,
        "max_tokens": rng.usize(1..=soak.tokens),
        "stream": stream,
        "temperature": if rng.bool() { 0.0 } else { 1.0 },
    });
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body["reasoning_effort"] = json!(["none", "low"][rng.usize(..2)]);
    let (mut path, mut expect) = ("/v1/chat/completions", Expect::Answer);
    match rng.u32(..100) {
        0..15 => body["tools"] = tools(),
        15..22 => {
            body["tools"] = tools();
            body["tool_choice"] = json!("required");
            expect = Expect::Call;
        }
        22..36 => {
            body["response_format"] = schema();
            expect = Expect::Json;
        }
        36..42 => body["n"] = json!(rng.usize(2..=3)),
        42..47 => body["logprobs"] = json!(true),
        47..52 => body["stop"] = json!(["e", "the "]),
        52..62 => {
            path = "/v1/completions";
            let fields = body.as_object_mut().into_iter();
            fields.for_each(|fields| fields.retain(|key, _| key != "messages" && key != "reasoning_effort"));
            body["prompt"] = json!(words(rng, count));
        }
        62..67 => {
            let wrong = [("n", json!(1000)), ("max_tokens", json!(0)), ("messages", json!([])), ("top_p", json!("a"))];
            let (field, value) = &wrong[rng.usize(..wrong.len())];
            body[*field] = value.clone();
            expect = Expect::Refusal;
        }
        _ => {}
    }
    let leave = match rng.u32(..100) {
        0..20 => Leave::After(Duration::from_millis(1 + log_uniform(rng, 4000) as u64)),
        20..23 if stream => Leave::Dawdle(Duration::from_millis(rng.u64(100..3000))),
        _ => Leave::No,
    };
    Ask { path, body, leave, expect }
}

/// The request that is measured: a prompt that no other request begins like, and an answer of a certain length.
pub(super) fn measured(bench: &Bench, number: u64) -> Ask {
    let mut rng = Rng::with_seed(bench.seed.wrapping_add(number));
    let text = format!("{number} {}", words(&mut rng, bench.words));
    let body = json!({
        "messages": [{"role": "user", "content": text}],
        "max_tokens": bench.tokens,
        "ignore_eos": true,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    Ask { path: "/v1/chat/completions", body, leave: Leave::No, expect: Expect::Answer }
}

fn tools() -> Value {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
    });
    json!([{"type": "function", "function": {"name": "weather", "description": "A forecast", "parameters": parameters}}])
}

fn schema() -> Value {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
        "required": ["name", "sure"],
        "additionalProperties": false,
    });
    json!({"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}})
}
