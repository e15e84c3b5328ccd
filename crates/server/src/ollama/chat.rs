//! `POST /api/chat`: lines of JSON.

use crate::app::App;
use crate::ask::{Ask, Chat, Format, Prompt, Sampling, Wish};
use crate::body::Sent;
use crate::choice::{Part, logprobs_json};
use crate::collect::{Answer, Call, collect};
use crate::error::{ApiError, Dialect};
use crate::fields::{self, Refusal, kind, text};
use crate::generation::{Finish, Generation, Piece, Totals};
use crate::id;
use crate::model::Model;
use crate::openai::{TEXT_ONLY, schema};
use crate::stream::{self, Frames, Writer};
use crate::tools::{Tool, Tools, parameters};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use onebit_text::{Grammar, Message, Role, ToolCall};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Default, Deserialize)]
struct Fields {
    model: Option<String>,
    stream: Option<bool>,
    truncate: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    options: Option<Options>,
}

#[derive(Debug, Default, Deserialize)]
struct Options {
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<i64>,
    stop: Option<Value>,
    num_predict: Option<i64>,
    num_ctx: Option<usize>,
}

/// Fields of `options` that would change the answer.
const REFUSED_OPTIONS: [Refusal; 3] = [
    Refusal { field: "mirostat", harmless: fields::empty, why: "use temperature, top_k, top_p and min_p" },
    Refusal { field: "tfs_z", harmless: one, why: "use min_p" },
    Refusal { field: "typical_p", harmless: one, why: "use min_p" },
];

fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

/// The handler.
pub(crate) async fn handle(State(app): State<Arc<App>>, body: Sent) -> Result<Response, ApiError> {
    let started = Instant::now();
    let object = body.object()?;
    let fields: Fields = fields::read(&object, &[])?;
    fields::read::<Value>(&object["options"], &REFUSED_OPTIONS)?;
    let model = app.catalog.get(fields.model.as_deref()).await?;
    let loaded = started.elapsed();
    if fields::items(&object["messages"], "messages")?.is_empty() {
        // Clients load a model in advance with an empty request.
        let head = head(&fields.model, &model);
        let done = json!({"message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "load"});
        return Ok(Json(joined(head, done)).into_response());
    }
    let ask = ask(&object, &fields, &model)?;
    drop(object);
    let lines = Lines {
        head: head(&fields.model, &model),
        started,
        loaded,
        finish: Finish::Stop,
        call: None,
        logprobs: ask.logprobs.is_some(),
    };
    let generation = Generation::start(&app, &model, ask).await?;
    if fields.stream != Some(false) {
        return stream::respond(&app, generation, lines).await;
    }
    let (answers, totals) = collect(generation).await?;
    let answer = answers.into_iter().next().ok_or_else(|| ApiError::internal("the engine gave no answer"))?;
    Ok(Json(lines.whole(&answer, &totals)).into_response())
}

fn head(asked: &Option<String>, model: &Model) -> Value {
    json!({"model": asked.as_deref().unwrap_or(&model.name), "created_at": id::iso_time()})
}

fn joined(mut head: Value, rest: Value) -> Value {
    for (key, value) in rest.as_object().into_iter().flatten() {
        head[key] = value.clone();
    }
    head
}

fn ask(object: &Value, fields: &Fields, model: &Model) -> Result<Ask, ApiError> {
    let none = Options::default();
    let options = fields.options.as_ref().unwrap_or(&none);
    if let Some(wanted) = options.num_ctx.filter(|n| *n > model.context) {
        let message =
            format!("{wanted} tokens were asked for, and the context of {} has {}", model.name, model.context);
        return Err(ApiError::field("options.num_ctx", message));
    }
    let logprobs = match (fields.logprobs == Some(true), fields.top_logprobs) {
        (true, None) => Some(0),
        (true, Some(n @ 0..=20)) => Some(n as usize),
        (true, Some(n)) => return Err(ApiError::field("top_logprobs", format!("must be from 0 to 20, got {n}"))),
        (false, None | Some(0)) => None,
        (false, Some(_)) => return Err(ApiError::field("top_logprobs", "needs `logprobs` to be true")),
    };
    Ok(Ask {
        prompt: Prompt::Chat(Box::new(Chat {
            messages: messages(&object["messages"])?,
            tools: tools(&object["tools"])?,
            ..Chat::default()
        })),
        sampling: Sampling {
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: options.top_p,
            min_p: options.min_p,
            repetition_penalty: options.repeat_penalty,
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            penalty_window: options.repeat_last_n,
            logit_bias: Vec::new(),
            seed: options.seed,
        },
        // -2 fills the context.
        max_tokens: fields::limit(options.num_predict.filter(|n| *n != -2), "options.num_predict")?,
        stop: fields::stops(fields::texts(options.stop.as_ref(), "options.stop")?, "options.stop")?,
        logprobs,
        thinking: think(&object["think"])?,
        format: format(&object["format"])?,
        truncate: fields.truncate == Some(true),
        ..Ask::default()
    })
}

fn think(value: &Value) -> Result<Wish, ApiError> {
    match value {
        Value::Null => Ok(Wish::default()),
        Value::Bool(on) => Ok(Wish::switch(Some(*on))),
        Value::String(effort) => Wish::effort(Some(effort), "think"),
        other => Err(ApiError::field("think", format!("expected true, false or an effort, got {}", kind(other)))),
    }
}

fn format(value: &Value) -> Result<Option<Format>, ApiError> {
    let grammar = match value {
        Value::Null => return Ok(None),
        Value::String(word) if word.is_empty() => return Ok(None),
        Value::String(word) if word == "json" => Grammar::JsonObject,
        other => schema(other, "format")?,
    };
    Ok(Some(Format { grammar, field: "format" }))
}

fn messages(list: &Value) -> Result<Vec<Message>, ApiError> {
    let one = |(index, item): (usize, &Value)| {
        let path = format!("messages[{index}]");
        let role = text(item, "role", &path)?;
        let role = Role::parse(role).ok_or_else(|| {
            ApiError::field(format!("{path}.role"), format!("must be system, user, assistant or tool, got `{role}`"))
        })?;
        let images = format!("{path}.images");
        if !fields::items(&item["images"], &images)?.is_empty() {
            return Err(ApiError::field(images, TEXT_ONLY));
        }
        let inside = format!("{path}.");
        let mut message = Message::new(role, fields::maybe_text(item, "content", &inside)?.unwrap_or_default());
        message.name = fields::maybe_text(item, "tool_name", &inside)?.map(str::to_owned);
        if role == Role::Assistant {
            message.reasoning = fields::maybe_text(item, "thinking", &inside)?.map(str::to_owned);
            for (at, call) in fields::items(&item["tool_calls"], &format!("{path}.tool_calls"))?.iter().enumerate() {
                let path = format!("{path}.tool_calls[{at}].function");
                let function = &call["function"];
                let name = text(function, "name", &path)?.to_owned();
                message.tool_calls.push(ToolCall { name, arguments: function["arguments"].clone() });
            }
        }
        Ok(message)
    };
    fields::items(list, "messages")?.iter().enumerate().map(one).collect()
}

fn tools(list: &Value) -> Result<Tools, ApiError> {
    let one = |(index, item): (usize, &Value)| {
        let path = format!("tools[{index}].function");
        let function = &item["function"];
        Ok(Tool {
            name: text(function, "name", &path)?.to_owned(),
            description: fields::maybe_text(function, "description", &format!("{path}."))?.map(str::to_owned),
            parameters: parameters(&function["parameters"], &format!("{path}.parameters"))?,
            strict: false,
        })
    };
    let specs = fields::items(list, "tools")?.iter().enumerate().map(one).collect::<Result<_, ApiError>>()?;
    let tools = Tools { specs, ..Tools::default() };
    tools.check("tools", "tools")?;
    Ok(tools)
}

/// The answer as lines, and as one object.
struct Lines {
    head: Value,
    started: Instant,
    loaded: Duration,
    finish: Finish,
    /// A call is sent when it is complete.
    call: Option<Call>,
    logprobs: bool,
}

impl Lines {
    fn line(&self, rest: Value) -> Value {
        let mut head = self.head.clone();
        head["created_at"] = json!(id::iso_time());
        joined(head, rest)
    }

    fn whole(&self, answer: &Answer, totals: &Totals) -> Value {
        let mut message = json!({"role": "assistant", "content": answer.text});
        if !answer.reasoning.is_empty() {
            message["thinking"] = json!(answer.reasoning);
        }
        if !answer.calls.is_empty() {
            message["tool_calls"] = answer.calls.iter().map(call_json).collect();
        }
        let mut whole = self.line(json!({"message": message}));
        if self.logprobs {
            whole["logprobs"] = logprobs_json(&answer.logprobs);
        }
        joined(whole, self.end(&answer.finish, totals))
    }

    fn end(&self, finish: &Finish, totals: &Totals) -> Value {
        let reason = if matches!(finish, Finish::Length | Finish::ContextFull) { "length" } else { "stop" };
        json!({
            "done": true,
            "done_reason": reason,
            "total_duration": nanos(self.started.elapsed()),
            "load_duration": nanos(self.loaded),
            "prompt_eval_count": totals.prompt_tokens,
            "prompt_eval_duration": nanos(totals.prefill),
            "eval_count": totals.completion_tokens,
            "eval_duration": nanos(totals.decode),
        })
    }

    fn message(&self, message: Value, out: &mut Frames) {
        let mut whole = json!({"role": "assistant", "content": ""});
        for (key, value) in message.as_object().into_iter().flatten() {
            whole[key] = value.clone();
        }
        out.line(&self.line(json!({"message": whole, "done": false})));
    }

    fn part(&mut self, part: Part, out: &mut Frames) {
        match part {
            Part::Reasoning(text) => self.message(json!({"thinking": text}), out),
            Part::Text(text, logprobs) => {
                let mut line = self.line(json!({"message": {"role": "assistant", "content": text}, "done": false}));
                if self.logprobs {
                    line["logprobs"] = logprobs_json(&logprobs);
                }
                out.line(&line);
            }
            Part::CallBegin { id, name, .. } => self.call = Some(Call { id, name, arguments: String::new() }),
            Part::CallArguments { text, .. } => {
                if let Some(call) = &mut self.call {
                    call.arguments.push_str(&text);
                }
            }
            Part::CallEnd { .. } => {
                if let Some(call) = self.call.take() {
                    self.message(json!({"tool_calls": [call_json(&call)]}), out);
                }
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn call_json(call: &Call) -> Value {
    // A call that was cut short has no arguments that could be used, and must not look as if it had.
    let arguments: Value =
        serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({"INVALID_JSON": call.arguments}));
    json!({"id": call.id, "function": {"name": call.name, "arguments": arguments}})
}

impl Writer for Lines {
    fn write(&mut self, piece: Piece, out: &mut Frames) {
        match piece {
            Piece::Prefill { .. } => {}
            Piece::Part { part, .. } => self.part(part, out),
            Piece::End { finish, .. } => self.finish = finish,
            Piece::Done(totals) => {
                let end = self.end(&self.finish, &totals);
                let empty = json!({"message": {"role": "assistant", "content": ""}});
                out.line(&joined(self.line(empty), end));
            }
            Piece::Failed(error) => out.line(&error.body(Dialect::Ollama)),
        }
    }

    /// This form has no sign of life without meaning.
    fn alive(&self, _: &mut Frames) {}

    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }
}
