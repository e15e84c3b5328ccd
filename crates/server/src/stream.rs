//! Streamed responses: server-sent events, and lines of JSON.

use crate::app::App;
use crate::error::ApiError;
use crate::generation::{Generation, Piece};
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use futures_util::stream::{Stream, unfold};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

/// Writes the pieces of a generation in one dialect.
pub(crate) trait Writer: Send + 'static {
    /// What a piece becomes on the wire.
    fn write(&mut self, piece: Piece, out: &mut Frames);

    /// Sent after a time of silence.
    fn alive(&self, out: &mut Frames);

    /// The type of the body.
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }
}

/// Pieces of a response's body, each flushed by itself.
#[derive(Default)]
pub(crate) struct Frames(VecDeque<Bytes>);

impl Frames {
    /// An event without a name.
    pub(crate) fn data(&mut self, data: &Value) {
        self.0.push_back(Bytes::from(format!("data: {data}\n\n")));
    }

    /// An event with a name.
    pub(crate) fn event(&mut self, name: &str, data: &Value) {
        self.0.push_back(Bytes::from(format!("event: {name}\ndata: {data}\n\n")));
    }

    /// The end marker of OpenAI's streams.
    pub(crate) fn done(&mut self) {
        self.0.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }

    /// A comment, which clients skip.
    pub(crate) fn comment(&mut self, text: &str) {
        self.0.push_back(Bytes::from(format!(": {text}\n\n")));
    }

    /// The next piece.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        self.0.pop_front()
    }

    /// A line of JSON.
    pub(crate) fn line(&mut self, data: &Value) {
        self.0.push_back(Bytes::from(format!("{data}\n")));
    }
}

/// A source of pieces: one generation, or several one beside the other.
pub(crate) trait Pieces: Send + 'static {
    fn next(&mut self) -> impl Future<Output = Option<Piece>> + Send;
}

impl Pieces for Generation {
    fn next(&mut self) -> impl Future<Output = Option<Piece>> + Send {
        Generation::next(self)
    }
}

/// Answers with a stream. What fails before anything has been said becomes a status; later it is an event.
pub(crate) async fn respond(app: &App, mut pieces: impl Pieces, mut writer: impl Writer) -> Result<Response, ApiError> {
    let mut early = VecDeque::new();
    let first = async {
        while let Some(piece) = pieces.next().await {
            let prefill = matches!(piece, Piece::Prefill { .. });
            early.push_back(piece);
            if !prefill {
                break;
            }
        }
    };
    // Running out of patience is the usual case of a long prompt.
    let _ = tokio::time::timeout(app.options.patience, first).await;
    if let Some(Piece::Failed(error)) = early.back() {
        return Err(error.clone());
    }
    let mut frames = Frames::default();
    early.into_iter().for_each(|piece| writer.write(piece, &mut frames));
    let content_type = writer.content_type();
    Ok(streamed(content_type, body(pieces, writer, frames, app.options.keep_alive)))
}

/// A response whose body comes piece by piece.
pub(crate) fn streamed(
    content_type: &'static str,
    body: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
) -> Response {
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx must pass tokens on as they come.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn body(
    pieces: impl Pieces,
    writer: impl Writer,
    frames: Frames,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    unfold((pieces, writer, frames), move |(mut pieces, mut writer, mut frames)| async move {
        loop {
            if let Some(frame) = frames.pop() {
                return Some((Ok(frame), (pieces, writer, frames)));
            }
            match tokio::time::timeout(keep_alive, pieces.next()).await {
                Ok(Some(piece)) => writer.write(piece, &mut frames),
                Ok(None) => return None,
                Err(_) => writer.alive(&mut frames),
            }
        }
    })
}
