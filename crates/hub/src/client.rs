//! Talking to the hub over HTTP.

use std::io::Read;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{Response, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body};

use crate::config::HubConfig;
use crate::error::HubError;
use crate::listing::{Listing, ListingFault};
use crate::names::percent_encode;
use crate::repo_ref::RepoRef;

const MAX_REDIRECTS: usize = 10;
/// A list of files is small; a longer answer is not one.
const MAX_LISTING: u64 = 32 << 20;

/// A connection to one hub.
///
/// The token goes to the hub's own address only: redirects are followed here,
/// and one that leads elsewhere is asked without it.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    offline: bool,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

/// An answer to a request for a file, after all redirects.
pub(crate) struct FileAnswer {
    pub(crate) status: u16,
    /// First byte and full size, from `Content-Range`.
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) length: Option<u64>,
    /// Checksum that the hub itself named before redirecting.
    pub(crate) linked_etag: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Box<dyn Read>,
}

impl Client {
    /// For the hub of this configuration. Opens no connection yet.
    pub fn new(config: &HubConfig) -> Self {
        let tls = if cfg!(any(target_os = "macos", windows)) {
            TlsConfig::builder().provider(TlsProvider::NativeTls).root_certs(RootCerts::PlatformVerifier).build()
        } else {
            TlsConfig::builder().build()
        };
        let mut builder = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("onebit/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)));
        if is_loopback(&config.endpoint) {
            builder = builder.proxy(None);
        }
        Self {
            agent: builder.build().new_agent(),
            endpoint: config.endpoint.clone(),
            token: config.token.clone(),
            offline: config.offline,
        }
    }

    /// The files of a repository at its revision.
    pub fn list(&self, repo: &RepoRef) -> Result<Listing, HubError> {
        let what = format!("the file list of {}", repo.id());
        let revision = percent_encode(repo.revision_or_main(), false);
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, repo.id());
        let (mut answer, _) = self.get(&url, &what, None)?;
        self.check_status(answer.status(), repo, &format!("{}@{}", repo.id(), repo.revision_or_main()))?;
        let bytes = answer
            .body_mut()
            .with_config()
            .limit(MAX_LISTING)
            .read_to_vec()
            .map_err(|e| self.network_error(&what, &e))?;
        let fault = |reason: String| HubError::Answer { what: what.clone(), reason, endpoint: self.endpoint.clone() };
        let json: Value = serde_json::from_slice(&bytes).map_err(|e| fault(e.to_string()))?;
        Listing::read(&json, &repo.id()).map_err(|f| match f {
            ListingFault::Shape(reason) => fault(reason.to_owned()),
            ListingFault::Name(error) => error,
        })
    }

    /// A file from byte `from` on, to `to` inclusive or its end.
    pub(crate) fn open_file(
        &self,
        repo: &RepoRef,
        revision: &str,
        name: &str,
        range: Option<(u64, Option<u64>)>,
    ) -> Result<FileAnswer, HubError> {
        let what = format!("{name} of {}", repo.id());
        let url = format!(
            "{}/{}/resolve/{}/{}",
            self.endpoint,
            repo.id(),
            percent_encode(revision, false),
            percent_encode(name, true)
        );
        let range = range.map(|(from, to)| match to {
            Some(to) => format!("bytes={from}-{to}"),
            None => format!("bytes={from}-"),
        });
        let (answer, linked_etag) = self.get(&url, &what, range.as_deref())?;
        let header = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok());
        Ok(FileAnswer {
            status: answer.status().as_u16(),
            range: header("content-range").and_then(content_range),
            length: header("content-length").and_then(|v| v.parse().ok()),
            retry_after: header("retry-after").and_then(|v| v.parse().ok()).map(Duration::from_secs),
            linked_etag,
            body: Box::new(answer.into_body().into_reader()),
        })
    }

    /// Follows redirects. Also gives the checksum that the hub names on the way.
    fn get(&self, url: &str, what: &str, range: Option<&str>) -> Result<(Response<Body>, Option<String>), HubError> {
        if self.offline {
            return Err(HubError::Offline { what: what.to_owned() });
        }
        let broken =
            |reason: String| HubError::Network { what: what.to_owned(), reason, endpoint: self.endpoint.clone() };
        let home =
            Origin::of(&self.endpoint).ok_or_else(|| broken("HF_ENDPOINT is not an http or https address".into()))?;
        let mut url = url.to_owned();
        let mut linked_etag = None;
        for _ in 0..MAX_REDIRECTS {
            let here = Origin::of(&url).ok_or_else(|| broken(format!("{url} is no address")))?;
            if home.https && !here.https {
                return Err(broken(format!("it was redirected to {}, which is not encrypted", here.host)));
            }
            let mut request = self.agent.get(&url);
            if let (Some(token), true) = (&self.token, here == home) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header("range", range);
            }
            let answer = request.call().map_err(|e| self.network_error(what, &e))?;
            let header = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok());
            if here == home && linked_etag.is_none() {
                linked_etag = header("x-linked-etag").map(|tag| tag.trim_matches('"').to_owned());
            }
            if !answer.status().is_redirection() {
                return Ok((answer, linked_etag));
            }
            let target = header("location").ok_or_else(|| broken("a redirect leads nowhere".into()))?;
            url = here.join(target);
        }
        Err(broken(format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// Statuses that no second try would change, as sentences.
    pub(crate) fn check_status(&self, status: StatusCode, repo: &RepoRef, what: &str) -> Result<(), HubError> {
        let what = what.to_owned();
        Err(match status.as_u16() {
            200..=299 => return Ok(()),
            401 => HubError::Unauthorized { repo: repo.id(), has_token: self.token.is_some() },
            403 => HubError::Forbidden { repo: repo.id() },
            404 => HubError::NotFound { what },
            429 => HubError::RateLimited { what },
            status => HubError::Status { status, what },
        })
    }

    pub(crate) fn network_error(&self, what: &str, error: &dyn std::fmt::Display) -> HubError {
        HubError::Network { what: what.to_owned(), reason: error.to_string(), endpoint: self.endpoint.clone() }
    }
}

/// What decides who gets the token: scheme, host and port.
#[derive(PartialEq, Eq)]
struct Origin {
    https: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        Some(Self { https, host: uri.host()?.to_ascii_lowercase(), port })
    }

    /// A redirect's target, which may be a path on the same host.
    fn join(&self, target: &str) -> String {
        let scheme = if self.https { "https" } else { "http" };
        if target.contains("://") {
            target.to_owned()
        } else if let Some(rest) = target.strip_prefix("//") {
            format!("{scheme}://{rest}")
        } else {
            let path = target.trim_start_matches('/');
            format!("{scheme}://{}:{}/{path}", self.host, self.port)
        }
    }
}

fn is_loopback(endpoint: &str) -> bool {
    Origin::of(endpoint).is_some_and(|o| matches!(o.host.as_str(), "localhost" | "127.0.0.1" | "[::1]"))
}

/// First byte and full size out of `bytes 5-9/10`.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, size.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        let home = Origin::of("https://hub.example").expect("valid");
        assert!(home == Origin::of("https://HUB.example:443/a/b").expect("valid"));
        for other in ["http://hub.example", "https://hub.example:8443", "https://cdn.example"] {
            assert!(home != Origin::of(other).expect("valid"), "{other}");
        }
        assert!(Origin::of("ftp://hub.example").is_none());
        assert!(Origin::of("hub.example").is_none());
    }

    #[test]
    fn redirect_targets() {
        let home = Origin::of("http://h:8000").expect("valid");
        assert_eq!(home.join("/a/b?c"), "http://h:8000/a/b?c");
        assert_eq!(home.join("//cdn/a"), "http://cdn/a");
        assert_eq!(home.join("https://cdn/a"), "https://cdn/a");
    }

    #[test]
    fn content_ranges() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, 10)));
        assert_eq!(content_range("bytes */10"), None);
        assert_eq!(content_range("bytes 5-9/*"), None);
    }
}
