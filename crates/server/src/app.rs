//! What all handlers share.

use crate::ask::Wish;
use crate::catalog::Catalog;
use crate::metrics::Metrics;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What all handlers share.
pub(crate) struct App {
    pub(crate) catalog: Catalog,
    pub(crate) metrics: Metrics,
    pub(crate) options: Settings,
    /// When the server started, in seconds since 1970.
    pub(crate) started: u64,
    /// The server has been asked to end.
    pub(crate) draining: AtomicBool,
}

/// Settings that requests see.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// About reasoning, where a request is silent.
    pub(crate) thinking: Wish,
    pub(crate) log_prompts: bool,
    /// Silence after which a stream says that it is alive.
    pub(crate) keep_alive: Duration,
    /// How long a streamed response waits for its first event, so that a request which fails at once gets a status.
    pub(crate) patience: Duration,
    pub(crate) version: String,
}
