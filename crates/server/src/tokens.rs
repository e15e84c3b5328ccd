//! `/tokenize`, `/detokenize`, `/apply-template`, with the fields of both vLLM and llama.cpp.

use crate::app::App;
use crate::ask::{Prompt, Wish};
use crate::body::Sent;
use crate::error::ApiError;
use crate::fields::{self, kind};
use crate::model::SharedModel;
use crate::openai::chat::conversation_only;
use crate::prepare::{prompt_text, prompt_tokens};
use axum::Json;
use axum::extract::State;
use onebit_text::Specials;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /tokenize`: ids of `content` or `prompt`, or of `messages` as the template writes them.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, body: Sent) -> Result<Json<Value>, ApiError> {
    let bytes = body.len();
    let object = body.object()?;
    let model = app.catalog.get(fields::maybe_text(&object, "model", "")?).await?;
    let context = model.context;
    let shared = Arc::clone(&model);
    let default = app.options.thinking;
    let pieces = fields::maybe_flag(&object, "with_pieces", "")? == Some(true);
    let strings = fields::maybe_flag(&object, "return_token_strs", "")? == Some(true);
    let tokens = app.prepare(bytes, move || encode(&shared, &object, default)).await?;
    let text = |id: &u32| model.text.tokenizer.decode(&[*id]);
    let ids: Value = if pieces {
        tokens.iter().map(|id| json!({"id": id, "piece": piece(&model, *id)})).collect()
    } else {
        json!(tokens)
    };
    let mut answer = json!({"tokens": ids, "count": tokens.len(), "max_model_len": context});
    if strings {
        answer["token_strs"] = tokens.iter().map(text).collect();
    }
    Ok(Json(answer))
}

/// Text, or the bytes of a token that is no whole text.
fn piece(model: &SharedModel, id: u32) -> Value {
    let bytes = model.text.tokenizer.token_bytes(id);
    match String::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(error) => json!(error.into_bytes()),
    }
}

fn encode(model: &SharedModel, object: &Value, default: Wish) -> Result<Vec<u32>, ApiError> {
    if !object["messages"].is_null() {
        let (chat, wish) = conversation_only(object)?;
        return prompt_tokens(model, &Prompt::Chat(Box::new(chat)), wish.or(default));
    }
    let (field, value) =
        if object["content"].is_null() { ("prompt", &object["prompt"]) } else { ("content", &object["content"]) };
    let text = match value {
        Value::String(text) => text,
        Value::Null => return Err(ApiError::field("prompt", "is missing; send `prompt`, `content` or `messages`")),
        other => return Err(ApiError::field(field, format!("expected text, got {}", kind(other)))),
    };
    let flag = |name: &str| fields::maybe_flag(object, name, "");
    let specials = if flag("parse_special")?.unwrap_or(true) { Specials::Parse } else { Specials::Literal };
    let tokenizer = &model.text.tokenizer;
    let add = flag("add_special_tokens")?.or(flag("add_special")?).unwrap_or(true);
    let mut tokens: Vec<u32> = tokenizer.bos_to_add().filter(|_| add).into_iter().collect();
    tokens.extend(tokenizer.encode(text, specials)?);
    Ok(tokens)
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, body: Sent) -> Result<Json<Value>, ApiError> {
    let object = body.object()?;
    let model = app.catalog.get(fields::maybe_text(&object, "model", "")?).await?;
    let ids = object["tokens"].as_array().ok_or_else(|| ApiError::field("tokens", "expected a list of token ids"))?;
    let ids: Option<Vec<u32>> = ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect();
    let ids = ids.ok_or_else(|| ApiError::field("tokens", "expected a list of token ids"))?;
    let vocab = model.text.tokenizer.vocab_size();
    if let Some(unknown) = ids.iter().find(|id| **id as usize >= vocab) {
        return Err(ApiError::field("tokens", format!("there is no token {unknown}; the last is {}", vocab - 1)));
    }
    let text = model.text.tokenizer.decode(&ids);
    Ok(Json(json!({"prompt": text, "content": text})))
}

/// `POST /apply-template`: the prompt as the model reads it.
pub(crate) async fn apply_template(State(app): State<Arc<App>>, body: Sent) -> Result<Json<Value>, ApiError> {
    let bytes = body.len();
    let object = body.object()?;
    let model = app.catalog.get(fields::maybe_text(&object, "model", "")?).await?;
    let (chat, wish) = conversation_only(&object)?;
    let wish = wish.or(app.options.thinking);
    let prompt = app.prepare(bytes, move || prompt_text(&model, &chat, wish)).await?;
    Ok(Json(json!({"prompt": prompt})))
}
