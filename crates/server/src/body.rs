//! The body of a request.

use crate::app::App;
use crate::error::ApiError;
use crate::fields;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use futures_util::StreamExt;
use serde_json::Value;
use std::ops::Deref;
use std::sync::Arc;

/// A whole body, within the limit of the server.
pub(crate) struct Sent(Vec<u8>);

impl Sent {
    /// The JSON object that it holds. The text is given up: a request may wait for long, and its body with it.
    pub(crate) fn object(self) -> Result<Value, ApiError> {
        fields::object(&self)
    }
}

impl Deref for Sent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The refusal of a body beyond the limit.
fn too_large(most: usize) -> ApiError {
    let message = format!("the body is larger than {most} bytes; --max-body sets another limit");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

impl FromRequest<Arc<App>> for Sent {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let (most, idle) = (app.options.max_body, app.options.idle);
        let coding = request.headers().get(CONTENT_ENCODING).filter(|coding| *coding != "identity");
        if let Some(coding) = coding {
            let message = format!("bodies are read as they come, and this one is in {coding:?}; send it uncompressed");
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        // One that says it is too long is not waited for.
        let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > most as u64) {
            return Err(too_large(most));
        }
        let mut pieces = request.into_body().into_data_stream();
        let mut body = Vec::new();
        loop {
            let piece = match tokio::time::timeout(idle, pieces.next()).await {
                Ok(None) => return Ok(Self(body)),
                Ok(Some(piece)) => piece.map_err(|error| ApiError::bad(format!("the body cannot be read: {error}")))?,
                Err(_) => {
                    let message = format!(
                        "nothing more of the body has come for {} seconds; --idle sets another limit",
                        idle.as_secs()
                    );
                    return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message));
                }
            };
            if body.len() + piece.len() > most {
                return Err(too_large(most));
            }
            body.extend_from_slice(&piece);
        }
    }
}
