//! The page at `/`: one document without anything from elsewhere.

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::response::{Html, IntoResponse, Response};

const PAGE: &str = include_str!("page/index.html");

/// Nothing is fetched but from this server, and nobody frames it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The handler.
pub(crate) async fn page() -> Response {
    let headers = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_TYPE, "text/html; charset=utf-8"),
    ];
    (headers, Html(PAGE)).into_response()
}
