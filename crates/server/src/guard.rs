//! Who may ask: keys, and pages of other origins. And the last word on every error.

use crate::error::{ApiError, Dialect};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;
use subtle::{Choice, ConstantTimeEq};

/// What is asked of a request before it is looked at.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) keys: Vec<String>,
    /// Origins whose pages may ask; `*` is all.
    pub(crate) origins: Vec<String>,
}

/// Paths that are open without a key: a probe has none, and the page asks for one.
fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/health" | "/favicon.ico")
}

/// Lets a request pass, or not.
pub(crate) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    if let Err(error) = guard.check(request.uri().path(), request.headers()) {
        return error.into_response();
    }
    next.run(request).await
}

impl Guard {
    fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        if is_open(path) {
            return Ok(());
        }
        if self.keys.is_empty() {
            return self.check_origin(headers);
        }
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer =
            bearer.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        let offered = bearer.map(|(_, key)| key.trim()).or(plain);
        match offered {
            Some(key) if self.knows(key) => Ok(()),
            Some(_) => Err(unauthorized("the API key is not one of this server's")),
            None => {
                Err(unauthorized("this server wants an API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`"))
            }
        }
    }

    /// Compares with every key, in a time that depends on the lengths alone.
    fn knows(&self, offered: &str) -> bool {
        let matches = self.keys.iter().map(|key| key.as_bytes().ct_eq(offered.as_bytes()));
        matches.fold(Choice::from(0), |any, this| any | this).into()
    }

    /// A server without a key is open to every program of its machine, but not to every page in its browser. A page is
    /// let in from an allowed origin, and from this server itself under a name that nobody else can point here.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(origin) = headers.get(ORIGIN).and_then(|value| value.to_str().ok()) else { return Ok(()) };
        if self.origins.iter().any(|allowed| allowed == "*" || allowed == origin) {
            return Ok(());
        }
        let authority = origin.split_once("://").map_or(origin, |(_, rest)| rest);
        let host = headers.get(HOST).and_then(|value| value.to_str().ok());
        if host == Some(authority) && is_own_name(authority) {
            return Ok(());
        }
        let message =
            format!("pages from {origin} may not ask this server; start it with --cors {origin}, or with --api-key");
        Err(ApiError::new(StatusCode::FORBIDDEN, message))
    }
}

/// `localhost` and numbers: names in the DNS can be pointed anywhere by their owners.
fn is_own_name(authority: &str) -> bool {
    let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(host, _)| host);
    let host = bracketed.unwrap_or_else(|| authority.rsplit_once(':').map_or(authority, |(host, _)| host));
    host == "localhost" || host.parse::<IpAddr>().is_ok()
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key")
}

/// Writes the body of every error in the dialect of its path, and says it in the log.
pub(crate) async fn errors(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    let status = response.status();
    let error = match response.extensions_mut().remove::<ApiError>() {
        Some(error) => ApiError { message: shortened(error.message), ..error },
        // What the library refuses before a handler sees it, such as a name in a path that is no text.
        None if status.is_client_error() => ApiError::new(status, "the request is malformed"),
        None => return response,
    };
    tracing::info!(%method, path, status = error.status.as_u16(), error = error.message, "refused");
    // The head stays as the layers inside have made it: without their words about origins a page cannot read what was
    // wrong.
    let (mut head, told) = (response.into_parts().0, error.respond(Dialect::of_path(&path)));
    head.headers.remove(CONTENT_LENGTH);
    head.headers.extend(told.headers().clone());
    Response::from_parts(head, told.into_body())
}

/// A sentence that repeats what a client has sent, without the middle of what nobody reads: neither log nor answer
/// grows with the request.
fn shortened(message: String) -> String {
    const ENDS: usize = 1000;
    let head = message.char_indices().nth(ENDS).map(|(at, _)| at);
    let tail = message.char_indices().nth_back(ENDS).map(|(at, _)| at);
    match (head, tail) {
        (Some(head), Some(tail)) if head < tail => format!("{} ... {}", &message[..head], &message[tail..]),
        _ => message,
    }
}

/// The answer to every other path.
pub(crate) async fn no_such_path(method: Method, request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::new(
        StatusCode::NOT_FOUND,
        format!(
            "there is no {method} {path}; docs/server.md lists the paths, and most clients want a base URL that ends in /v1"
        ),
    )
}

/// The answer to a known path with another method.
pub(crate) async fn wrong_method(method: Method, request: Request) -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}", request.uri().path()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn guard(keys: &[&str], origins: &[&str]) -> Guard {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Guard { keys: own(keys), origins: own(origins) }
    }

    fn ask(guard: &Guard, headers: &[(&'static str, &'static str)]) -> Option<u16> {
        let headers = headers.iter().map(|(k, v)| (k.parse().expect("a name"), HeaderValue::from_static(v))).collect();
        guard.check("/v1/models", &headers).err().map(|e| e.status.as_u16())
    }

    #[test]
    fn keys() {
        let guard = guard(&["abc", "de"], &[]);
        assert_eq!(ask(&guard, &[("authorization", "Bearer abc")]), None);
        assert_eq!(ask(&guard, &[("authorization", "bearer de")]), None);
        assert_eq!(ask(&guard, &[("x-api-key", "de")]), None);
        for wrong in [&[][..], &[("authorization", "Bearer ab")], &[("authorization", "abc")], &[("x-api-key", "")]] {
            assert_eq!(ask(&guard, wrong), Some(401), "{wrong:?}");
        }
        assert!(guard.check("/health", &HeaderMap::new()).is_ok());
        // A page that holds a key is no stranger.
        assert_eq!(ask(&guard, &[("x-api-key", "de"), ("origin", "https://evil.example")]), None);
    }

    #[test]
    fn long_sentences_keep_their_ends() {
        let long = format!("the role `{}` is none", "é".repeat(1_000_000));
        let short = shortened(long);
        assert!(short.starts_with("the role `é") && short.ends_with("é` is none") && short.chars().count() < 2100);
        assert_eq!(shortened("é".repeat(1500)), "é".repeat(1500));
    }

    #[test]
    fn pages_of_other_origins() {
        let open = guard(&[], &["https://chat.example"]);
        assert_eq!(ask(&open, &[]), None);
        assert_eq!(ask(&open, &[("origin", "https://chat.example")]), None);
        for own in ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "192.168.0.7:8080"] {
            let origin: &'static str = format!("http://{own}").leak();
            assert_eq!(ask(&open, &[("origin", origin), ("host", own)]), None, "{own}");
        }
        assert_eq!(ask(&open, &[("origin", "https://evil.example"), ("host", "127.0.0.1:8080")]), Some(403));
        // A name that was pointed here.
        assert_eq!(ask(&open, &[("origin", "http://evil.example:8080"), ("host", "evil.example:8080")]), Some(403));
        assert_eq!(ask(&open, &[("origin", "null"), ("host", "127.0.0.1:8080")]), Some(403));
        assert_eq!(ask(&guard(&[], &["*"]), &[("origin", "https://evil.example")]), None);
    }
}
