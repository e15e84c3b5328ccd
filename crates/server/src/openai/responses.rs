//! `POST /v1/responses`, without memory: every request brings its whole conversation.

use super::common::{self, Common};
use super::responses_answer::{Echo, whole};
use super::responses_stream::Events;
use super::tools::Groups;
use super::{format, responses_input, tools};
use crate::app::App;
use crate::ask::{Ask, Chat, Prompt, Wish};
use crate::body::Sent;
use crate::collect::collect;
use crate::error::ApiError;
use crate::fields::{self, Refusal};
use crate::generation::Generation;
use crate::prepare::prompt_tokens;
use crate::stream;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

#[derive(Debug, Default, Deserialize)]
struct Fields {
    instructions: Option<String>,
    max_output_tokens: Option<i64>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    include: Option<Vec<String>>,
    top_logprobs: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
struct Reasoning {
    effort: Option<String>,
}

const STATELESS: &str = "this server stores nothing; send the whole conversation as `input`";

const REFUSED: [Refusal; 5] = [
    Refusal { field: "previous_response_id", harmless: fields::empty, why: STATELESS },
    Refusal { field: "conversation", harmless: fields::empty, why: STATELESS },
    Refusal { field: "background", harmless: fields::empty, why: STATELESS },
    Refusal { field: "prompt", harmless: fields::empty, why: "send `instructions` and `input`" },
    Refusal { field: "n", harmless: one, why: "this API gives one answer" },
];

fn one(value: &Value) -> bool {
    value == 1
}

/// The handler.
pub(crate) async fn handle(State(app): State<Arc<App>>, body: Sent) -> Result<Response, ApiError> {
    let object = body.object()?;
    let common: Common = fields::read(&object, &common::REFUSED)?;
    let fields: Fields = fields::read(&object, &REFUSED)?;
    let logprobs = logprobs(&fields)?;
    let (chat, thinking) = conversation(&object, &fields)?;
    let text = &object["text"];
    if !text.is_null() && !text.is_object() {
        return Err(ApiError::field("text", format!("expected an object, got {}", fields::kind(text))));
    }
    if text["verbosity"].as_str().is_some_and(|word| word != "medium") {
        return Err(ApiError::field(
            "text.verbosity",
            "is not supported; say in the prompt how long the answer should be",
        ));
    }
    let ask = Ask {
        prompt: Prompt::Chat(Box::new(chat)),
        sampling: common.sampling()?,
        max_tokens: fields::limit(fields.max_output_tokens, "max_output_tokens")?,
        choices: 1,
        stop: common.stop()?,
        stop_tokens: common.stop_token_ids.clone().unwrap_or_default(),
        ignore_eos: common.ignore_eos == Some(true),
        logprobs,
        thinking,
        format: format::of_response_format(&text["format"], "text.format")?,
        truncate: common.truncates()?,
    };
    let model = app.catalog.get(common.model.as_deref()).await?;
    let echo = Echo::new(&object, &model.name, logprobs.is_some());
    drop(object);
    let generation = Generation::start(&app, &model, ask).await?;
    if common.streams() {
        return stream::respond(&app, generation, Events::new(echo)).await;
    }
    let (answers, totals) = collect(generation).await?;
    let answer = answers.first().ok_or_else(|| ApiError::internal("the engine gave no answer"))?;
    Ok(Json(whole(&echo, answer, &totals)).into_response())
}

/// `POST /v1/responses/input_tokens`: the tokens of a request that is not run.
pub(crate) async fn count(State(app): State<Arc<App>>, body: Sent) -> Result<Json<Value>, ApiError> {
    let object = body.object()?;
    let common: Common = fields::read(&object, &common::REFUSED)?;
    let fields: Fields = fields::read(&object, &REFUSED)?;
    let (chat, wish) = conversation(&object, &fields)?;
    let model = app.catalog.get(common.model.as_deref()).await?;
    let wish = wish.or(app.options.thinking);
    let prompt = Prompt::Chat(Box::new(chat));
    let tokens = app.prepare(prompt.text_bytes(), move || prompt_tokens(&model, &prompt, wish)).await?;
    Ok(Json(serde_json::json!({"object": "response.input_tokens", "input_tokens": tokens.len()})))
}

/// Looking for a stored response finds none.
pub(crate) async fn absent(Path(id): Path<String>) -> ApiError {
    let id = id.split('/').next().unwrap_or_default();
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no response `{id}`: {STATELESS}"))
}

fn conversation(object: &Value, fields: &Fields) -> Result<(Chat, Wish), ApiError> {
    let messages = responses_input::messages(&object["input"], fields.instructions.as_deref())?;
    let given = |key: &str| object.get(key).filter(|v| !v.is_null());
    let tools = tools::tools(given("tools"), given("tool_choice"), fields.parallel_tool_calls, Groups::Allowed)?;
    let effort = fields.reasoning.as_ref().and_then(|r| r.effort.as_deref());
    let wish = Wish::effort(effort, "reasoning.effort")?;
    Ok((Chat { messages, tools, ..Chat::default() }, wish))
}

fn logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.include.iter().flatten().any(|name| name == "message.output_text.logprobs");
    match (wanted, fields.top_logprobs) {
        (false, None | Some(0)) => Ok(None),
        (true, None) => Ok(Some(0)),
        (_, Some(n @ 0..=20)) => Ok(Some(n as usize)),
        (_, Some(n)) => Err(ApiError::field("top_logprobs", format!("must be from 0 to 20, got {n}"))),
    }
}
