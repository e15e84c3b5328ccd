//! The server: its options, its paths, its life.

use crate::app::{App, Settings};
use crate::ask::Wish;
use crate::catalog::{Catalog, ModelEntry};
use crate::guard::{self, Guard};
use crate::metrics::Metrics;
use crate::{anthropic, connections, id, ollama, openai, page, probes, tokens};
use axum::http::HeaderValue;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use axum::{Router, response::Response};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tower_http::cors::{Any, CorsLayer};

/// How the server behaves.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Any of these opens the server; without one it is open to all that can reach it.
    pub api_keys: Vec<String>,
    /// Origins whose pages may ask, `*` for all; none for none.
    pub origins: Vec<String>,
    /// Other names of models: `(alias, name)`.
    pub aliases: Vec<(String, String)>,
    /// Unknown names mean the first model.
    pub any_model: bool,
    /// Bytes of a request's body.
    pub max_body: usize,
    /// Most requests at work or waiting, counted by prompts and pictures; more are told to come again.
    pub max_requests: usize,
    /// Reasoning where a request is silent; `None` leaves it to the model's template.
    pub think: Option<bool>,
    /// Most tokens of reasoning where a request is silent.
    pub think_budget: Option<usize>,
    /// Write prompts into the log.
    pub log_prompts: bool,
    /// Serve the page at `/`.
    pub page: bool,
    /// How long requests under way may go on once the server is to end.
    pub drain: Duration,
    /// Silence after which a stream says that it is alive.
    pub keep_alive: Duration,
    /// How long a client may be silent where it is its turn: to ask, to send the rest of a body, to read.
    pub idle: Duration,
    /// The version to tell.
    pub version: String,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            api_keys: Vec::new(),
            origins: Vec::new(),
            aliases: Vec::new(),
            any_model: false,
            max_body: 32 << 20,
            max_requests: 1024,
            think: None,
            think_budget: None,
            log_prompts: false,
            page: true,
            drain: Duration::from_secs(30),
            keep_alive: Duration::from_secs(5),
            // Longer than the minute for which proxies keep connections, so that none is closed while a proxy uses it.
            idle: Duration::from_secs(75),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// How long a streamed response waits for its first event.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the clients of requests that are cut off have to read that.
const FAREWELL: Duration = Duration::from_secs(1);

/// Threads for connections and templates. The engine has its own.
const WORKERS: usize = 2;

/// Why a server cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No model at all.
    #[error("there is no model to serve")]
    NoModel,
    /// Two models under one name.
    #[error("two models are called `{0}`; name them apart with --alias or serve one of them")]
    TwoOfOneName(String),
    /// An alias of nothing.
    #[error("--alias {alias}={model} names no model here; there are {known}")]
    UnknownAlias {
        /// The new name.
        alias: String,
        /// What it should mean.
        model: String,
        /// The models.
        known: String,
    },
    /// An alias that means something else already.
    #[error("--alias {alias}={model}: `{alias}` is {other} already")]
    TakenAlias {
        /// The new name.
        alias: String,
        /// What it should mean.
        model: String,
        /// What it means.
        other: String,
    },
    /// An origin that is none.
    #[error("--cors takes origins such as https://chat.example, or *; got `{0}`")]
    Origin(String),
    /// An empty key would open the server to everybody.
    #[error("the API key is empty")]
    EmptyKey,
    /// Counters could not be made: a fault of this program.
    #[error("the metrics cannot be set up: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Models behind HTTP.
pub struct Server {
    app: Arc<App>,
    guard: Arc<Guard>,
    page: bool,
    drain: Duration,
}

impl Server {
    /// A server of these models. Nothing is loaded and nothing listens yet.
    ///
    /// # Errors
    /// Options that contradict each other.
    pub fn new(models: Vec<ModelEntry>, options: ServerOptions) -> Result<Server, ServerError> {
        let names: Vec<String> = models.iter().map(|m| m.name().to_owned()).collect();
        if names.is_empty() {
            return Err(ServerError::NoModel);
        }
        if let Some(twice) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            return Err(ServerError::TwoOfOneName(twice.1.clone()));
        }
        if let Some((alias, model)) = options.aliases.iter().find(|(_, model)| !names.contains(model)) {
            let known = names.join(", ");
            return Err(ServerError::UnknownAlias { alias: alias.clone(), model: model.clone(), known });
        }
        for (index, (alias, model)) in options.aliases.iter().enumerate() {
            let named = names.iter().find(|name| *name == alias);
            let earlier = options.aliases[..index].iter().find(|(other, _)| other == alias).map(|(_, of)| of);
            if let Some(other) = named.or(earlier).filter(|other| *other != model) {
                let other =
                    if named.is_some() { "a model of its own".to_owned() } else { format!("a name of {other}") };
                return Err(ServerError::TakenAlias { alias: alias.clone(), model: model.clone(), other });
            }
        }
        let is_origin = |o: &&String| *o == "*" || (o.contains("://") && HeaderValue::from_str(o).is_ok());
        if let Some(wrong) = options.origins.iter().find(|o| !is_origin(o)) {
            return Err(ServerError::Origin(wrong.clone()));
        }
        if options.api_keys.iter().any(String::is_empty) {
            return Err(ServerError::EmptyKey);
        }
        let app = App {
            catalog: Catalog::new(models, options.aliases, options.any_model),
            metrics: Metrics::new()?,
            options: Settings {
                thinking: Wish { on: options.think, budget: options.think_budget },
                log_prompts: options.log_prompts,
                max_requests: options.max_requests,
                keep_alive: options.keep_alive,
                idle: options.idle,
                max_body: options.max_body,
                patience: PATIENCE,
                version: options.version,
            },
            started: id::unix_time(),
            draining: AtomicBool::new(false),
            cut: watch::Sender::new(false),
            places: Arc::new(Semaphore::new(options.max_requests)),
            large: Arc::new(Semaphore::new(1)),
        };
        let guard = Guard { keys: options.api_keys, origins: options.origins };
        Ok(Server { app: Arc::new(app), guard: Arc::new(guard), page: options.page, drain: options.drain })
    }

    /// Serves until SIGTERM or Ctrl-C, then lets requests under way end. A second signal ends at once.
    ///
    /// # Errors
    /// When the system gives no threads or the listener fails.
    pub fn run(self, listener: std::net::TcpListener) -> std::io::Result<()> {
        let runtime = runtime()?;
        let (sender, stop) = mpsc::channel(2);
        runtime.spawn(async move {
            while signal().await.is_ok() {
                if sender.send(()).await.is_err() {
                    return;
                }
            }
        });
        self.run_on(runtime, listener, stop)
    }

    /// As [`run`](Server::run), with the first message in place of the first signal and the second of the second.
    ///
    /// # Errors
    /// As [`run`](Server::run).
    pub fn run_until(self, listener: std::net::TcpListener, stop: mpsc::Receiver<()>) -> std::io::Result<()> {
        self.run_on(runtime()?, listener, stop)
    }

    fn run_on(
        self,
        runtime: tokio::runtime::Runtime,
        listener: std::net::TcpListener,
        mut stop: mpsc::Receiver<()>,
    ) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let (app, drain, idle) = (Arc::clone(&self.app), self.drain, self.app.options.idle);
        let router = self.router();
        let result = runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let (draining, drained) = (Arc::new(tokio::sync::Notify::new()), Arc::clone(&app));
            let begun = Arc::clone(&draining);
            let (late, mut hurry) = mpsc::channel::<()>(1);
            let mut serving = std::pin::pin!(connections::serve(listener, router, idle, async move {
                stop.recv().await;
                drained.draining.store(true, Ordering::Relaxed);
                tracing::info!("no new connections; waiting for requests under way");
                begun.notify_one();
                tokio::spawn(async move {
                    stop.recv().await;
                    drop(late);
                });
            }));
            let deadline = async {
                draining.notified().await;
                tokio::select! {
                    () = tokio::time::sleep(drain) => {}
                    _ = hurry.recv() => {}
                }
            };
            tokio::select! {
                () = &mut serving => {}
                () = deadline => {
                    tracing::warn!("requests under way are cut off");
                    app.cut.send_replace(true);
                    // Running out of time is the case of clients that do not read.
                    let _ = tokio::time::timeout(FAREWELL, serving).await;
                }
            }
            Ok(())
        });
        // Connections that are left end here, and with them their requests.
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    }

    fn router(self) -> Router {
        let mut router = Router::new()
            .route("/health", get(probes::health))
            .route("/metrics", get(probes::metrics))
            .route("/props", get(probes::props))
            .route("/tokenize", post(tokens::tokenize))
            .route("/detokenize", post(tokens::detokenize))
            .route("/apply-template", post(tokens::apply_template))
            .route("/v1/models", get(openai::models::list))
            .route("/v1/models/{*name}", get(openai::models::get))
            .route("/v1/chat/completions", post(openai::chat::handle))
            .route("/v1/completions", post(openai::completions::handle))
            .route("/v1/responses", post(openai::responses::handle))
            .route("/v1/responses/input_tokens", post(openai::responses::count))
            .route("/v1/responses/{*id}", get(openai::responses::absent).delete(openai::responses::absent))
            .route("/v1/images/generations", post(openai::images::generate))
            .route("/v1/images/edits", post(openai::images::edit))
            .route("/v1/images/variations", post(openai::images::edit))
            .route("/v1/messages", post(anthropic::messages))
            .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
            .route("/api/chat", post(ollama::chat))
            .route("/api/tags", get(ollama::tags))
            .route("/api/show", post(ollama::show))
            .route("/api/ps", get(ollama::ps))
            .route("/api/version", get(ollama::version));
        if self.page {
            router = router.route("/", get(page::page));
        }
        let guard = self.guard;
        let cors = cors(&guard.origins);
        router
            .fallback(guard::no_such_path)
            .method_not_allowed_fallback(guard::wrong_method)
            .with_state(self.app)
            .layer(from_fn_with_state(Arc::clone(&guard), guard::check))
            .layer(cors)
            .layer(from_fn(sent_by))
            .layer(from_fn(guard::errors))
    }
}

/// Every response says who sent it.
async fn sent_by(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().insert("server", HeaderValue::from_static("onebit"));
    response
}

fn cors(origins: &[String]) -> CorsLayer {
    let layer = CorsLayer::new();
    if origins.is_empty() {
        return layer;
    }
    let layer = layer.allow_methods(Any).allow_headers(Any);
    if origins.iter().any(|o| o == "*") {
        return layer.allow_origin(Any);
    }
    let list: Vec<HeaderValue> = origins.iter().filter_map(|o| HeaderValue::from_str(o).ok()).collect();
    layer.allow_origin(list)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()
}

/// Waits for a signal to end.
async fn signal() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            result = tokio::signal::ctrl_c() => result,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}
