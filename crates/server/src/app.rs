//! What all handlers share.

use crate::ask::Wish;
use crate::catalog::Catalog;
use crate::error::ApiError;
use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// What all handlers share.
pub(crate) struct App {
    pub(crate) catalog: Catalog,
    pub(crate) metrics: Metrics,
    pub(crate) options: Settings,
    /// When the server started, in seconds since 1970.
    pub(crate) started: u64,
    /// The server has been asked to end.
    pub(crate) draining: AtomicBool,
    /// Becomes true when requests under way must end at once.
    pub(crate) cut: watch::Sender<bool>,
    /// Places for requests, at work or waiting.
    pub(crate) places: Arc<Semaphore>,
    /// The turn of large prompts.
    pub(crate) large: Arc<Semaphore>,
}

/// Bytes of text beyond which prompts are prepared one after the other. A tokenizer takes up to a hundred times the
/// size of a text while it works, which is nothing for a book and the whole memory for a crowd of the longest bodies.
const LARGE: usize = 1 << 20;

impl App {
    /// Does what takes long for a prompt with so many bytes of text, beside the threads of connections. It is done to
    /// its end though the client leaves, and keeps its turn so long.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let fault = |error: String| ApiError::internal(format!("preparing the request failed: {error}"));
        let turn = match bytes > LARGE {
            true => Some(Arc::clone(&self.large).acquire_owned().await.map_err(|e| fault(e.to_string()))?),
            false => None,
        };
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|panic| fault(panic.to_string()))?
    }

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

/// Waits until requests under way must end at once.
pub(crate) async fn cut_off(cut: &mut watch::Receiver<bool>) {
    // The sender lives as long as the server does.
    let _ = cut.wait_for(|cut| *cut).await;
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
    /// How long a client may be silent where it is its turn.
    pub(crate) idle: Duration,
    /// Most bytes of a body.
    pub(crate) max_body: usize,
    /// How long a streamed response waits for its first event, so that a request which fails at once gets a status.
    pub(crate) patience: Duration,
    pub(crate) version: String,
}
