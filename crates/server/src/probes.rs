//! What tells about the server itself: health, metrics, properties. None of it waits for an engine.

use crate::app::App;
use crate::error::ApiError;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `GET /health`: 200 while requests are taken, busy or not; 503 when the server is about to end or nothing can run.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let states: Vec<_> = app.catalog.entries().iter().map(|entry| entry.status().0).collect();
    let status = if app.draining.load(Ordering::Relaxed) {
        "draining"
    } else if states.iter().all(|state| *state == "unavailable") {
        "unavailable"
    } else {
        "ok"
    };
    let code = if status == "ok" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(json!({"status": status}))).into_response()
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let text = app.metrics.text(&app.catalog).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// `GET /props`: what the page and other clients want to know, with llama.cpp's names where it has them.
pub(crate) async fn props(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app
        .catalog
        .entries()
        .iter()
        .map(|entry| {
            let (status, reason) = entry.status();
            let model = entry.ready();
            let template = model.as_ref().and_then(|m| m.text.template.as_ref());
            let stats = model.as_ref().map(|m| m.host.stats());
            let painter = entry.painter();
            json!({
                "name": entry.name(),
                "kind": entry.card().kind.as_str(),
                "aliases": app.catalog.aliases_of(entry.name()),
                "status": status,
                "reason": reason,
                "model_path": entry.card().path,
                "n_ctx": model.as_ref().map(|m| m.context),
                "n_ctx_train": entry.card().trained_context,
                "thinks": template.map(|t| t.think_markers().is_some()),
                "takes_tools": template.map(|t| t.tool_form().is_some()),
                "chat_template": template.map(|t| t.source()),
                "sampling": model.as_ref().map(|m| json!({
                    "temperature": short(m.text.sampling.temperature),
                    "top_k": m.text.sampling.top_k,
                    "top_p": short(m.text.sampling.top_p),
                    "min_p": short(m.text.sampling.min_p),
                    "repeat_penalty": short(m.text.sampling.repetition_penalty),
                })),
                "pictures": painter.as_ref().map(|p| json!({
                    "width": p.defaults.width,
                    "height": p.defaults.height,
                    "steps": p.defaults.steps,
                    "guidance": short(p.defaults.guidance),
                })),
                "requests_running": stats.map(|s| s.running),
                "requests_waiting": stats.map(|s| s.waiting).or(painter.map(|p| p.waiting())),
            })
        })
        .collect();
    let first = models.first().cloned().unwrap_or_default();
    Json(json!({
        "build_info": format!("onebit {}", app.options.version),
        "model_path": first["model_path"],
        "chat_template": first["chat_template"],
        "default_generation_settings": {"n_ctx": first["n_ctx"], "params": first["sampling"]},
        "modalities": {"vision": false, "audio": false},
        "models": models,
    }))
}

/// An f32 as the decimal that a person wrote.
fn short(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, |v| json!(v))
}
