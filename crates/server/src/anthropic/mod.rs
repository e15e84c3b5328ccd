//! Anthropic's Messages API.

mod answer;
mod request;

use crate::app::App;
use crate::ask::Prompt;
use crate::collect::collect;
use crate::error::ApiError;
use crate::fields;
use crate::generation::Generation;
use crate::stream;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /v1/messages`.
pub(crate) async fn messages(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let request = request::read(&fields::object(&body)?)?;
    let model = app.catalog.get(request.model.as_deref()).await?;
    let name = model.name.clone();
    let generation = Generation::start(&app, &model, request.ask).await?;
    if request.stream {
        let events = answer::Events::new(name, generation.prompt_tokens(), request.show_reasoning);
        return stream::respond(&app, generation, events).await;
    }
    let (answers, totals) = collect(generation).await?;
    let answer = answers.first().ok_or_else(|| ApiError::internal("the engine gave no answer"))?;
    Ok(Json(answer::whole(&name, answer, &totals, request.show_reasoning)).into_response())
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let request = request::read(&fields::object(&body)?)?;
    let model = app.catalog.get(request.model.as_deref()).await?;
    let Prompt::Chat(chat) = request.ask.prompt else { return Err(ApiError::bad("`messages` is missing")) };
    let wish = request.ask.thinking;
    let counting =
        tokio::task::spawn_blocking(move || crate::prepare::prompt_tokens(&model, &Prompt::Chat(chat), wish));
    let tokens = counting.await.map_err(|panic| ApiError::internal(panic.to_string()))??;
    Ok(Json(json!({"input_tokens": tokens.len()})))
}
