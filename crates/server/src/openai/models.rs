//! `GET /v1/models`, in a form that both OpenAI's and Anthropic's clients read.

use crate::app::App;
use crate::catalog::ModelEntry;
use crate::error::ApiError;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

/// All models, those that cannot run included, each with its state.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.catalog.entries().iter().map(|entry| one(&app, entry)).collect();
    Json(json!({
        "object": "list",
        "has_more": false,
        "first_id": models.first().map(|m| &m["id"]),
        "last_id": models.last().map(|m| &m["id"]),
        "data": models,
    }))
}

/// One model, by its name or another that it answers to.
pub(crate) async fn get(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    Ok(Json(one(&app, app.catalog.find(Some(&name))?)))
}

fn one(app: &App, entry: &Arc<ModelEntry>) -> Value {
    let (status, reason) = entry.status();
    let card = entry.card();
    let context = entry.ready().map(|model| model.context);
    json!({
        "id": entry.name(),
        "object": "model",
        "type": "model",
        "display_name": entry.name(),
        "created": app.started,
        "created_at": crate::id::iso(app.started),
        "owned_by": "onebit",
        "kind": card.kind.as_str(),
        "max_model_len": context,
        "aliases": app.catalog.aliases_of(entry.name()),
        "status": {"value": status, "reason": reason},
        "meta": {
            "architecture": card.architecture,
            "n_params": card.parameters,
            "size": card.bytes,
            "format": card.format,
            "n_ctx_train": card.trained_context,
        },
    })
}
