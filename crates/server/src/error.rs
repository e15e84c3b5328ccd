//! What went wrong with a request, as one sentence, and the form that each dialect gives it.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use onebit_engine::EngineError;
use onebit_text::{ChatError, ConstraintError, StopError, TokenizerError};
use serde_json::{Value, json};

/// Whose API a path belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    pub(crate) fn of_path(path: &str) -> Self {
        if path.starts_with("/v1/messages") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }
}

/// A refused or failed request.
///
/// As a response it carries itself along, and the outermost layer writes its body in the dialect of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field that is wrong, as the client spells it.
    pub(crate) param: Option<String>,
    /// A word for programs, where the field has one.
    pub(crate) code: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// A field that cannot be honoured.
    pub(crate) fn field(param: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let param = param.into();
        Self { message: format!("`{param}`: {message}"), param: Some(param), ..Self::bad("") }
    }

    /// A request that cannot be honoured.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A fault of this server or of the machine that it runs on.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Something that may work later.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The word that OpenAI's and Anthropic's clients choose an exception class by.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        }
    }

    /// The body of the response, and the data of an error event in a stream.
    pub(crate) fn body(&self, dialect: Dialect) -> Value {
        let Self { message, param, code, .. } = self;
        match dialect {
            Dialect::OpenAi => json!({
                "error": {"message": message, "type": self.kind(), "param": param, "code": code}
            }),
            Dialect::Anthropic => json!({
                "type": "error",
                "error": {"type": self.kind(), "message": message},
            }),
            Dialect::Ollama => json!({"error": message}),
        }
    }

    /// The response in a dialect.
    pub(crate) fn respond(&self, dialect: Dialect) -> Response {
        (self.status, Json(self.body(dialect))).into_response()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::Parameter { name, .. } => Self { param: Some(name.to_owned()), ..Self::bad(message) },
            EngineError::UnknownToken { name, .. } => Self { param: Some(name.to_owned()), ..Self::bad(message) },
            EngineError::EmptyPrompt | EngineError::Stop(_) | EngineError::Constraint(_) => Self::bad(message),
            EngineError::PromptTooLong { .. } | EngineError::TooManyTokens { .. } => {
                Self::bad(message).code("context_length_exceeded")
            }
            _ => Self::internal(message),
        }
    }
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        let message = error.to_string();
        match error {
            ChatError::Refused { .. }
            | ChatError::MediaUnsupported { .. }
            | ChatError::MediaInSystem { .. }
            | ChatError::ToolArguments { .. }
            | ChatError::NoMarker => Self { param: Some("messages".to_owned()), ..Self::bad(message) },
            _ => Self::internal(message),
        }
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> Self {
        Self::internal(error.to_string())
    }
}

impl From<StopError> for ApiError {
    fn from(error: StopError) -> Self {
        Self::field("stop", error)
    }
}

impl From<ConstraintError> for ApiError {
    fn from(error: ConstraintError) -> Self {
        Self::bad(error.to_string())
    }
}
