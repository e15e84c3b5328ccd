//! The models of one process: which there are, which are loaded, and which cannot be.

use crate::error::ApiError;
use crate::host::Host;
use crate::model::{Card, Loaded, Model, SharedModel};
use axum::http::StatusCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a model could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// Too little memory is free: it may work when another model is gone.
    NoRoom(String),
    /// It will not work later either.
    Failed(String),
}

/// Loads a model, when it is first asked for and whenever its engine had to be given up. Takes as long as it takes.
pub type Loader = Box<dyn Fn() -> Result<Loaded, LoadError> + Send + Sync>;

/// A model that can be asked for.
pub struct ModelEntry {
    name: String,
    card: Card,
    loader: Loader,
    state: Mutex<State>,
    loading: AtomicBool,
    /// When it was last asked for, by the catalogue's own count.
    used: AtomicU64,
}

enum State {
    Absent,
    Ready(SharedModel),
    Unavailable(String),
}

impl ModelEntry {
    /// A model that is loaded when it is first asked for.
    pub fn new(name: impl Into<String>, card: Card, loader: Loader) -> Self {
        Self {
            name: name.into(),
            card,
            loader,
            state: Mutex::new(State::Absent),
            loading: AtomicBool::new(false),
            used: AtomicU64::new(0),
        }
    }

    /// A model that is loaded already. The loader is for the case that its engine has to be given up.
    pub fn loaded(name: impl Into<String>, card: Card, loaded: Loaded, loader: Loader) -> Self {
        let entry = Self::new(name, card, loader);
        *entry.state() = State::Ready(Arc::new(Model::new(entry.name.clone(), loaded)));
        entry
    }

    /// A model that is listed with the reason why it cannot run.
    pub fn unavailable(name: impl Into<String>, card: Card, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        let again = reason.clone();
        let entry = Self::new(name, card, Box::new(move || Err(LoadError::Failed(again.clone()))));
        *entry.state() = State::Unavailable(reason);
        entry
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model, if it is loaded and its engine is sound.
    pub(crate) fn ready(&self) -> Option<SharedModel> {
        match &*self.state() {
            State::Ready(model) if model.host.broken().is_none() => Some(Arc::clone(model)),
            _ => None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn card(&self) -> &Card {
        &self.card
    }

    /// `loaded`, `loading`, `available` or `unavailable`, and the reason for the last.
    pub(crate) fn status(&self) -> (&'static str, Option<String>) {
        match &*self.state() {
            State::Ready(model) => match model.host.broken() {
                None => ("loaded", None),
                Some(fault) => ("available", Some(fault)),
            },
            State::Unavailable(reason) => ("unavailable", Some(reason.clone())),
            State::Absent if self.loading.load(Ordering::Relaxed) => ("loading", None),
            State::Absent => ("available", None),
        }
    }

    /// Gives up the model if nobody uses it. Blocks until its memory is free.
    fn unload_if_idle(&self) -> bool {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Absent) {
            State::Ready(model) => match Arc::try_unwrap(model) {
                Ok(model) => {
                    drop(state);
                    tracing::info!(model = self.name, "unloaded to make room");
                    Host::end(model.host);
                    true
                }
                Err(model) => {
                    *state = State::Ready(model);
                    false
                }
            },
            other => {
                *state = other;
                false
            }
        }
    }
}

/// All models, and the names that they answer to.
pub(crate) struct Catalog {
    entries: Vec<Arc<ModelEntry>>,
    aliases: Vec<(String, String)>,
    any_model: bool,
    /// One model is loaded at a time.
    loading: tokio::sync::Mutex<()>,
    clock: AtomicU64,
}

impl Catalog {
    pub(crate) fn new(entries: Vec<ModelEntry>, aliases: Vec<(String, String)>, any_model: bool) -> Self {
        let entries = entries.into_iter().map(Arc::new).collect();
        Self { entries, aliases, any_model, loading: tokio::sync::Mutex::new(()), clock: AtomicU64::new(1) }
    }

    pub(crate) fn entries(&self) -> &[Arc<ModelEntry>] {
        &self.entries
    }

    /// Other names of a model.
    pub(crate) fn aliases_of(&self, name: &str) -> Vec<&str> {
        self.aliases.iter().filter(|(_, of)| of == name).map(|(alias, _)| alias.as_str()).collect()
    }

    /// The model that a request means. Without a name it is the first.
    pub(crate) fn find(&self, asked: Option<&str>) -> Result<&Arc<ModelEntry>, ApiError> {
        let first = || self.entries.first().ok_or_else(|| ApiError::unavailable("this server has no model"));
        let Some(asked) = asked.filter(|name| !name.is_empty()) else { return first() };
        // Ollama's clients write out the default tag.
        let plain = asked.strip_suffix(":latest").unwrap_or(asked);
        let by_name = |name: &str| self.entries.iter().find(|e| e.name == name);
        let alias = self.aliases.iter().find(|(alias, _)| alias == asked || alias == plain);
        let found = by_name(asked).or_else(|| by_name(plain)).or_else(|| by_name(&alias?.1));
        match found {
            Some(entry) => Ok(entry),
            None if self.any_model => first(),
            None => {
                let known: Vec<&str> = self.entries.iter().map(|e| e.name.as_str()).collect();
                let message = format!(
                    "there is no model `{asked}` here; ask for {}, or start the server with --alias {asked}={} or --any-model",
                    known.join(" or "),
                    known.first().unwrap_or(&"NAME")
                );
                let error = ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found");
                Err(ApiError { param: Some("model".to_owned()), ..error })
            }
        }
    }

    /// The model that a request means, loaded.
    pub(crate) async fn get(&self, asked: Option<&str>) -> Result<SharedModel, ApiError> {
        let entry = Arc::clone(self.find(asked)?);
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Some(model) = entry.ready() {
            return Ok(model);
        }
        let _one_at_a_time = self.loading.lock().await;
        if let Some(model) = entry.ready() {
            return Ok(model);
        }
        if let State::Unavailable(reason) = &*entry.state() {
            return Err(ApiError::unavailable(format!("the model {} is unavailable: {reason}", entry.name)));
        }
        let others: Vec<_> = self.entries.iter().filter(|e| e.name != entry.name).cloned().collect();
        let name = entry.name.clone();
        let loaded = tokio::task::spawn_blocking(move || load(&entry, others)).await;
        loaded.unwrap_or_else(|panic| Err(ApiError::internal(format!("loading {name} failed: {panic}"))))
    }
}

/// Loads a model; where memory is short, those that nobody uses go first, the longest unused before the others.
fn load(entry: &ModelEntry, mut others: Vec<Arc<ModelEntry>>) -> Result<SharedModel, ApiError> {
    others.sort_by_key(|e| e.used.load(Ordering::Relaxed));
    let mut others = others.into_iter();
    entry.loading.store(true, Ordering::Relaxed);
    let started = std::time::Instant::now();
    *entry.state() = State::Absent;
    let result = loop {
        match (entry.loader)() {
            Ok(loaded) => break Ok(loaded),
            Err(LoadError::NoRoom(reason)) => {
                if !others.any(|other| other.unload_if_idle()) {
                    break Err(ApiError::unavailable(format!(
                        "the model {} cannot be loaded now: {reason}",
                        entry.name
                    )));
                }
            }
            Err(LoadError::Failed(reason)) => {
                *entry.state() = State::Unavailable(reason.clone());
                break Err(ApiError::unavailable(format!("the model {} is unavailable: {reason}", entry.name)));
            }
        }
    };
    entry.loading.store(false, Ordering::Relaxed);
    let model = Arc::new(Model::new(entry.name.clone(), result?));
    tracing::info!(model = entry.name, seconds = started.elapsed().as_secs_f64(), "loaded");
    *entry.state() = State::Ready(Arc::clone(&model));
    Ok(model)
}
