//! What all handlers share.

use crate::ask::Wish;
use crate::catalog::Catalog;
use crate::error::ApiError;
use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What all handlers share.
pub(crate) struct App {
    pub(crate) catalog: Catalog,
    pub(crate) metrics: Metrics,
    pub(crate) options: Settings,
    /// When the server started, in seconds since 1970.
    pub(crate) started: u64,
    /// The server has been asked to end.
    pub(crate) draining: AtomicBool,
    /// Places for requests, at work or waiting.
    pub(crate) places: Arc<Semaphore>,
}

impl App {
    /// A place for one prompt or one picture, given back when dropped.
    ///
    /// # Errors
    /// When all are taken: a queue without an end would only hold memory for clients that have long left.
    pub(crate) fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let most = self.options.max_requests;
            ApiError::unavailable(format!(
                "{most} requests are at work or waiting; try again, or start with a higher --max-requests"
            ))
        })
    }
}

/// Settings that requests see.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// About reasoning, where a request is silent.
    pub(crate) thinking: Wish,
    pub(crate) log_prompts: bool,
    /// Most requests at work or waiting.
    pub(crate) max_requests: usize,
    /// Silence after which a stream says that it is alive.
    pub(crate) keep_alive: Duration,
    /// How long a streamed response waits for its first event, so that a request which fails at once gets a status.
    pub(crate) patience: Duration,
    pub(crate) version: String,
}
