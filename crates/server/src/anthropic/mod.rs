//! Anthropic's Messages API.

mod answer;
mod request;

use crate::app::App;
use crate::ask::Ask;
use crate::body::Sent;
use crate::collect::collect;
use crate::error::ApiError;
use crate::generation::Generation;
use crate::prepare::prompt_tokens;
use crate::stream::respond;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /v1/messages`.
pub(crate) async fn messages(State(app): State<Arc<App>>, body: Sent) -> Result<Response, ApiError> {
    let request = request::read(&body.object()?)?;
    let model = app.catalog.get(request.model.as_deref()).await?;
    let name = model.name.clone();
    let (stream, show_reasoning) = (request.stream, request.show_reasoning);
    let generation = Generation::start(&app, &model, request.asked_of(&model)).await?;
    if stream {
        let events = answer::Events::new(name, generation.prompt_tokens(), show_reasoning);
        return respond(&app, generation, events).await;
    }
    let (answers, totals) = collect(generation).await?;
    let answer = answers.first().ok_or_else(|| ApiError::internal("the engine gave no answer"))?;
    Ok(Json(answer::whole(&name, answer, &totals, show_reasoning)).into_response())
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, body: Sent) -> Result<Json<Value>, ApiError> {
    let request = request::read(&body.object()?)?;
    let model = app.catalog.get(request.model.as_deref()).await?;
    let Ask { prompt, thinking: wish, .. } = request.asked_of(&model);
    let tokens = app.prepare(prompt.text_bytes(), move || prompt_tokens(&model, &prompt, wish)).await?;
    Ok(Json(json!({"input_tokens": tokens.len()})))
}
