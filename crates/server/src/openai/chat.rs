//! `POST /v1/chat/completions`.

use super::common::{self, Common, Reasoning};
use super::{chat_answer, format, messages, tools};
use crate::app::App;
use crate::ask::{Ask, Chat, Prompt};
use crate::body::Sent;
use crate::collect::collect;
use crate::error::ApiError;
use crate::fields::{self, Refusal};
use crate::generation::Generation;
use crate::stream;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use onebit_text::Role;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// Fields of the chat API alone. `messages` and the fields of tools and formats are read by hand.
#[derive(Debug, Default, Deserialize)]
struct Fields {
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
    parallel_tool_calls: Option<bool>,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
}

const REFUSED: [Refusal; 6] = [
    Refusal { field: "audio", harmless: fields::never, why: "this server answers with text" },
    Refusal { field: "modalities", harmless: text_alone, why: "this server answers with text" },
    Refusal { field: "prediction", harmless: fields::never, why: "leave it out" },
    Refusal { field: "web_search_options", harmless: fields::never, why: "this server does not search the web" },
    Refusal { field: "verbosity", harmless: medium, why: "say in the prompt how long the answer should be" },
    Refusal { field: "moderation", harmless: fields::never, why: "leave it out" },
];

fn text_alone(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|v| v == "text"))
}

fn medium(value: &Value) -> bool {
    value == "medium"
}

/// What the answer must know of the request.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) choices: usize,
    pub(super) logprobs: bool,
    pub(super) usage: bool,
    pub(super) hide_reasoning: bool,
    /// Calls in the older form of `functions`.
    pub(super) old_functions: bool,
}

/// The handler.
pub(crate) async fn handle(State(app): State<Arc<App>>, body: Sent) -> Result<Response, ApiError> {
    let object = body.object()?;
    let (ask, wanted, common) = read(&object)?;
    // Of what has no meaning here there may be much, and the answer may take long.
    drop(object);
    let model = app.catalog.get(common.model.as_deref()).await?;
    let name = model.name.clone();
    let generation = Generation::start(&app, &model, ask).await?;
    if common.streams() {
        return stream::respond(&app, generation, chat_answer::Chunks::new(name, wanted)).await;
    }
    let (answers, totals) = collect(generation).await?;
    Ok(Json(chat_answer::whole(&name, &wanted, &answers, &totals)).into_response())
}

fn read(object: &Value) -> Result<(Ask, Wanted, Common), ApiError> {
    let common: Common = fields::read(object, &common::REFUSED)?;
    let fields: Fields = fields::read(object, &REFUSED)?;
    let reasoning: Reasoning = fields::read(object, &[])?;
    let (chat, old_functions) = conversation(object, &fields, &reasoning)?;
    let max_tokens = match fields::limit(fields.max_completion_tokens, "max_completion_tokens")? {
        None => fields::limit(fields.max_tokens, "max_tokens")?,
        newer => newer,
    };
    let logprobs = logprobs(&fields)?;
    let wanted = Wanted {
        choices: common.choices()?,
        logprobs: logprobs.is_some(),
        usage: common.wants_usage(),
        hide_reasoning: reasoning.is_hidden(),
        old_functions,
    };
    let ask = Ask {
        prompt: Prompt::Chat(Box::new(chat)),
        sampling: common.sampling()?,
        max_tokens,
        choices: wanted.choices,
        stop: common.stop()?,
        stop_tokens: common.stop_token_ids.clone().unwrap_or_default(),
        ignore_eos: common.ignore_eos == Some(true),
        logprobs,
        thinking: reasoning.wish()?,
        format: format::format(object.get("response_format"), |field| object.get(field).cloned())?,
        truncate: common.truncates()?,
    };
    Ok((ask, wanted, common))
}

fn conversation(object: &Value, fields: &Fields, reasoning: &Reasoning) -> Result<(Chat, bool), ApiError> {
    let (prefill, generation_prompt) = (fields.continue_final_message == Some(true), fields.add_generation_prompt);
    if generation_prompt == Some(false) && !prefill {
        let message = "false needs `continue_final_message`: an answer must begin or go on somewhere";
        return Err(ApiError::field("add_generation_prompt", message));
    }
    let given = |key: &str| object.get(key).filter(|v| !v.is_null());
    let asks = |key: &str| given(key).is_some_and(|v| !fields::empty(v) && v != "auto" && v != "none");
    let old = given("functions").filter(|list| !fields::empty(list));
    let (choice_of_old, list, choice) = (given("function_call"), given("tools"), given("tool_choice"));
    let tools = match old {
        Some(_) if asks("tools") || asks("tool_choice") => {
            return Err(ApiError::field("functions", "is the older form of `tools`: send one of them"));
        }
        Some(list) => tools::functions(list, choice_of_old)?,
        None if asks("function_call") => {
            return Err(ApiError::field("function_call", "needs `functions`; with `tools` it is `tool_choice`"));
        }
        None => tools::tools(list, choice, fields.parallel_tool_calls, tools::Groups::Unknown)?,
    };
    let messages = messages::messages(&object["messages"], "messages")?;
    if prefill && messages.last().is_none_or(|last| last.role != Role::Assistant) {
        return Err(ApiError::field("continue_final_message", "needs a last message of the assistant, which goes on"));
    }
    Ok((Chat { messages, tools, prefill, variables: reasoning.variables() }, old.is_some()))
}

/// A conversation out of a request that asks for no answer: to count its tokens, or to see its text.
pub(crate) fn conversation_only(object: &Value) -> Result<(Chat, crate::ask::Wish), ApiError> {
    let fields: Fields = fields::read(object, &[])?;
    let reasoning: Reasoning = fields::read(object, &[])?;
    Ok((conversation(object, &fields, &reasoning)?.0, reasoning.wish()?))
}

fn logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    match (fields.logprobs == Some(true), fields.top_logprobs) {
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::field("top_logprobs", "needs `logprobs` to be true")),
        (true, None) => Ok(Some(0)),
        (true, Some(n @ 0..=20)) => Ok(Some(n as usize)),
        (true, Some(n)) => Err(ApiError::field("top_logprobs", format!("must be from 0 to 20, got {n}"))),
    }
}
