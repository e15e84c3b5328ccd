//! Anthropic's Messages API.

mod answer;
mod request;

use crate::app::App;
use crate::body::Sent;
use crate::collect::collect;
use crate::error::ApiError;
use crate::fields;
use crate::generation::Generation;
use crate::prepare::prompt_tokens;
use crate::stream;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /v1/messages`.
pub(crate) async fn messages(State(app): State<Arc<App>>, body: Sent) -> Result<Response, ApiError> {
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
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, body: Sent) -> Result<Json<Value>, ApiError> {
    let request = request::read(&fields::object(&body)?)?;
    let model = app.catalog.get(request.model.as_deref()).await?;
    let (prompt, wish) = (request.ask.prompt, request.ask.thinking);
    let tokens = app.prepare(prompt.text_bytes(), move || prompt_tokens(&model, &prompt, wish)).await?;
    Ok(Json(json!({"input_tokens": tokens.len()})))
}
