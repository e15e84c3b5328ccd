//! `POST /v1/completions`: a text goes on, without a chat template.

use super::common::{self, Common, finish_reason, timings, usage};
use crate::app::App;
use crate::ask::{Ask, Prompt};
use crate::body::Sent;
use crate::choice::{Logprob, Part, TokenText};
use crate::collect::{Answer, collect};
use crate::error::{ApiError, Dialect};
use crate::fields::{self, Refusal, kind};
use crate::generation::{Generation, Piece, Totals};
use crate::model::Model;
use crate::several::Several;
use crate::stream::{self, Frames, Writer};
use crate::{id, openai::format};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

#[derive(Debug, Default, Deserialize)]
struct Fields {
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    logprobs: Option<i64>,
    echo: Option<bool>,
    truncate_prompt_tokens: Option<i64>,
}

const REFUSED: [Refusal; 2] = [
    Refusal { field: "suffix", harmless: fields::empty, why: "text cannot be filled in; it can only go on" },
    Refusal { field: "prompt_embeds", harmless: fields::never, why: "send text or token ids" },
];

/// The tokens that OpenAI's API gives without being asked for a number.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Answers to all prompts of one request together: each takes memory before it runs.
const MOST_ANSWERS: usize = 1024;

/// The handler.
pub(crate) async fn handle(State(app): State<Arc<App>>, body: Sent) -> Result<Response, ApiError> {
    let object = body.object()?;
    let common: Common = fields::read(&object, &common::REFUSED)?;
    let fields: Fields = fields::read(&object, &REFUSED)?;
    let prompts = prompts(&object["prompt"])?;
    let logprobs = logprobs(&fields)?;
    let echo = fields.echo == Some(true);
    if echo && logprobs.is_some() {
        return Err(ApiError::field(
            "echo",
            "cannot be combined with `logprobs`: those of the prompt are not computed",
        ));
    }
    let choices = common.choices()?;
    if prompts.len() * choices > MOST_ANSWERS {
        let message = format!("{} prompts with `n` of {choices} are more than {MOST_ANSWERS} answers", prompts.len());
        return Err(ApiError::field("prompt", message));
    }
    let max_tokens = fields::limit(fields.max_completion_tokens, "max_completion_tokens")?;
    let max_tokens = match fields.max_tokens {
        Some(_) => fields::limit(fields.max_tokens, "max_tokens")?,
        None if fields.max_completion_tokens.is_some() => max_tokens,
        None => Some(DEFAULT_MAX_TOKENS),
    };
    let model = app.catalog.get(common.model.as_deref()).await?;
    let truncate = truncate(&fields, &model)? || common.truncates()?;
    let ask = Ask {
        prompt: Prompt::default(),
        sampling: common.sampling()?,
        max_tokens,
        choices,
        stop: common.stop()?,
        stop_tokens: common.stop_token_ids.clone().unwrap_or_default(),
        ignore_eos: common.ignore_eos == Some(true),
        logprobs,
        thinking: Default::default(),
        format: format::format(object.get("response_format"), |field| object.get(field).cloned())?,
        truncate,
    };
    drop(object);
    let mut generations = Vec::with_capacity(prompts.len());
    let mut echoes = Vec::new();
    for prompt in prompts {
        let prompt = match (prompt, fields.truncate_prompt_tokens) {
            (prompt, None | Some(-1)) => prompt,
            (prompt, Some(last)) => {
                let model = Arc::clone(&model);
                app.prepare(prompt.text_bytes(), move || last_tokens(&model, &prompt, last)).await?
            }
        };
        let text = if echo { prompt_text(&model, &prompt) } else { String::new() };
        echoes.extend(std::iter::repeat_n(text, choices));
        generations.push(Generation::start(&app, &model, Ask { prompt, ..ask.clone() }).await?);
    }
    let head = json!({
        "id": id::fresh("cmpl-"),
        "object": "text_completion",
        "created": id::unix_time(),
        "model": model.name,
    });
    let several = Several::new(generations, choices);
    if common.streams() {
        let offsets = vec![0; echoes.len()];
        let chunks =
            Chunks { head, usage: common.wants_usage(), echoes, offsets, logprobs: logprobs.is_some(), begun: false };
        return stream::respond(&app, several, chunks).await;
    }
    let (answers, totals) = collect(several).await?;
    Ok(Json(whole(head, &answers, &echoes, &totals, logprobs.is_some())).into_response())
}

/// Text, token ids, or a list of either.
fn prompts(value: &Value) -> Result<Vec<Prompt>, ApiError> {
    const FIELD: &str = "prompt";
    let wrong =
        |v: &Value| ApiError::field(FIELD, format!("expected text, token ids, or a list of either, got {}", kind(v)));
    let ids = |list: &[Value]| -> Option<Vec<u32>> {
        list.iter().map(|v| v.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    match value {
        Value::Null => Err(ApiError::field(FIELD, "is missing")),
        Value::String(text) => Ok(vec![Prompt::Text(text.clone())]),
        Value::Array(list) if list.is_empty() => Err(ApiError::field(FIELD, "is empty")),
        Value::Array(list) => {
            if let Some(ids) = ids(list) {
                return Ok(vec![Prompt::Tokens(ids)]);
            }
            let one = |item: &Value| match item {
                Value::String(text) => Ok(Prompt::Text(text.clone())),
                Value::Array(inner) => ids(inner).map(Prompt::Tokens).ok_or_else(|| wrong(item)),
                other => Err(wrong(other)),
            };
            list.iter().map(one).collect()
        }
        other => Err(wrong(other)),
    }
}

fn logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    match fields.logprobs {
        None => Ok(None),
        Some(n @ 0..=20) => Ok(Some(n as usize)),
        Some(n) => Err(ApiError::field("logprobs", format!("must be from 0 to 20, got {n}"))),
    }
}

/// vLLM's -1 cuts the prompt at the context.
fn truncate(fields: &Fields, model: &Model) -> Result<bool, ApiError> {
    match fields.truncate_prompt_tokens {
        None => Ok(false),
        Some(-1) => Ok(true),
        Some(n) if n >= 1 && (n as usize) < model.context => Ok(false),
        Some(n) => {
            let message = format!("must be from 1 to {}, or -1, got {n}", model.context - 1);
            Err(ApiError::field("truncate_prompt_tokens", message))
        }
    }
}

fn last_tokens(model: &Model, prompt: &Prompt, last: i64) -> Result<Prompt, ApiError> {
    let tokens = crate::prepare::prompt_tokens(model, prompt, Default::default())?;
    let from = tokens.len().saturating_sub(usize::try_from(last).unwrap_or(usize::MAX));
    Ok(Prompt::Tokens(tokens[from..].to_vec()))
}

fn prompt_text(model: &Model, prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(tokens) => model.text.tokenizer.decode(tokens),
        Prompt::Chat(_) => String::new(),
    }
}

fn whole(mut head: Value, answers: &[Answer], echoes: &[String], totals: &Totals, logprobs: bool) -> Value {
    let one = |(index, answer): (usize, &Answer)| {
        let echo = echoes.get(index).map_or("", String::as_str);
        json!({
            "index": index,
            "text": format!("{echo}{}", answer.text),
            "logprobs": if logprobs { legacy(&answer.logprobs, 0) } else { Value::Null },
            "finish_reason": finish_reason(&answer.finish),
        })
    };
    head["choices"] = answers.iter().enumerate().map(one).collect();
    head["usage"] = usage(totals);
    head["timings"] = timings(totals);
    head
}

/// Log-probabilities in the form of this older API: parallel lists, and where in the text each token begins.
fn legacy(logprobs: &[Logprob], mut offset: usize) -> Value {
    let mut offsets = Vec::with_capacity(logprobs.len());
    for entry in logprobs {
        offsets.push(offset);
        offset += entry.token.text().chars().count();
    }
    let top = |entry: &Logprob| {
        let pairs = entry.top.iter().chain([&entry.token]).map(|t: &TokenText| (t.text(), json!(t.logprob)));
        Value::Object(pairs.collect::<Map<_, _>>())
    };
    json!({
        "tokens": logprobs.iter().map(|l| l.token.text()).collect::<Vec<_>>(),
        "token_logprobs": logprobs.iter().map(|l| l.token.logprob).collect::<Vec<_>>(),
        "top_logprobs": logprobs.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

struct Chunks {
    head: Value,
    usage: bool,
    echoes: Vec<String>,
    /// Letters sent so far, of each answer.
    offsets: Vec<usize>,
    logprobs: bool,
    begun: bool,
}

impl Chunks {
    fn chunk(&mut self, choice: usize, text: &str, logprobs: &[Logprob], finish: Option<&'static str>) -> Value {
        let mut chunk = self.head.clone();
        let offset = self.offsets.get_mut(choice);
        let start = offset.as_ref().map_or(0, |offset| **offset);
        if let Some(offset) = offset {
            *offset += text.chars().count();
        }
        let logprobs = if self.logprobs && !logprobs.is_empty() { legacy(logprobs, start) } else { Value::Null };
        chunk["choices"] = json!([{"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish}]);
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

impl Writer for Chunks {
    fn write(&mut self, piece: Piece, out: &mut Frames) {
        if !self.begun && !matches!(piece, Piece::Failed(_)) {
            self.begun = true;
            for (choice, echo) in std::mem::take(&mut self.echoes).into_iter().enumerate() {
                if !echo.is_empty() {
                    out.data(&self.chunk(choice, &echo, &[], None));
                }
            }
        }
        match piece {
            Piece::Prefill { done, total } => out.comment(&format!("prefill {done}/{total}")),
            Piece::Part { choice, part: Part::Text(text, logprobs) } => {
                out.data(&self.chunk(choice, &text, &logprobs, None));
            }
            // A text without template and tools has neither reasoning nor calls.
            Piece::Part { .. } => {}
            Piece::End { choice, finish, logprobs } => {
                out.data(&self.chunk(choice, "", &logprobs, Some(finish_reason(&finish))));
            }
            Piece::Done(totals) => {
                if self.usage {
                    let mut last = self.head.clone();
                    last["choices"] = json!([]);
                    last["usage"] = usage(&totals);
                    last["timings"] = timings(&totals);
                    out.data(&last);
                }
                out.done();
            }
            Piece::Failed(error) => {
                out.data(&error.body(Dialect::OpenAi));
                out.done();
            }
        }
    }

    fn alive(&self, out: &mut Frames) {
        out.comment("keep-alive");
    }
}
