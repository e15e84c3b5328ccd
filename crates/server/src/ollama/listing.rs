//! `/api/tags`, `/api/show`, `/api/ps`, `/api/version`.

use crate::app::App;
use crate::body::Sent;
use crate::catalog::ModelEntry;
use crate::error::ApiError;
use crate::{fields, id};
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use std::sync::Arc;

/// All models.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.catalog.entries().iter().map(|entry| entry_json(&app, entry)).collect();
    Json(json!({"models": models}))
}

/// Those that are loaded.
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Json<Value> {
    let loaded = app.catalog.entries().iter().filter_map(|entry| {
        let model = entry.ready()?;
        let mut json = entry_json(&app, entry);
        json["context_length"] = json!(model.context);
        json["size_vram"] = json!(0);
        Some(json)
    });
    Json(json!({"models": loaded.collect::<Vec<_>>()}))
}

/// One model. It is loaded for this: what it can do stands in its template.
pub(crate) async fn show(State(app): State<Arc<App>>, body: Sent) -> Result<Json<Value>, ApiError> {
    let object = body.object()?;
    // The older field is `name`.
    let asked = match fields::maybe_text(&object, "model", "")? {
        None => fields::maybe_text(&object, "name", "")?,
        model => model,
    };
    let entry = Arc::clone(app.catalog.find(asked)?);
    let model = app.catalog.get(asked).await?;
    let card = entry.card();
    let template = model.text.template.as_ref();
    let mut capabilities = vec!["completion"];
    if template.is_some_and(|t| t.tool_form().is_some()) {
        capabilities.push("tools");
    }
    if template.is_some_and(|t| t.think_markers().is_some()) {
        capabilities.push("thinking");
    }
    let architecture = if card.architecture.is_empty() { "unknown" } else { &card.architecture };
    let mut info = json!({
        "general.architecture": architecture,
        "general.parameter_count": card.parameters,
        "general.basename": entry.name(),
    });
    info[format!("{architecture}.context_length")] = json!(model.context);
    let sampling = &model.text.sampling;
    Ok(Json(json!({
        "modelfile": format!("FROM {}\n", card.path),
        "parameters": format!(
            "temperature {}\ntop_k {}\ntop_p {}\nmin_p {}\nrepeat_penalty {}",
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty
        ),
        "template": template.map(|t| t.source()).unwrap_or_default(),
        "details": details(&entry),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": id::iso(app.started),
    })))
}

/// The version of this program.
pub(crate) async fn version(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"version": app.options.version}))
}

fn entry_json(app: &App, entry: &ModelEntry) -> Value {
    json!({
        "name": entry.name(),
        "model": entry.name(),
        "modified_at": id::iso(app.started),
        "size": entry.card().bytes,
        "digest": "",
        "details": details(entry),
    })
}

fn details(entry: &ModelEntry) -> Value {
    let card = entry.card();
    json!({
        "parent_model": "",
        "format": if card.path.to_ascii_lowercase().ends_with(".gguf") { "gguf" } else { "safetensors" },
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": billions(card.parameters),
        "quantization_level": card.format,
    })
}

/// `1.7B`, `9.5M`.
fn billions(parameters: u64) -> String {
    let millions = parameters as f64 / 1e6;
    if millions >= 1000.0 { format!("{:.1}B", millions / 1e3) } else { format!("{millions:.1}M") }
}
