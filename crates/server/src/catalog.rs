//! The models of one process: which there are, which are loaded, and which cannot be.

use crate::error::ApiError;
use crate::model::{Card, Loaded, ModelKind, Ready, SharedModel};
use crate::painter::Painter;
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
    Ready(Ready),
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
        *entry.state() = State::Ready(Ready::new(entry.name.clone(), loaded));
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

    /// The text model, if it is loaded and its engine is sound.
    pub(crate) fn ready(&self) -> Option<SharedModel> {
        match &*self.state() {
            State::Ready(Ready::Text(model)) if model.host.broken().is_none() => Some(Arc::clone(model)),
            _ => None,
        }
    }

    /// The source of pictures, if it is loaded and sound.
    pub(crate) fn painter(&self) -> Option<Arc<Painter>> {
        match &*self.state() {
            State::Ready(Ready::Image(painter)) if painter.broken().is_none() => Some(Arc::clone(painter)),
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
            State::Ready(model) => match model.broken() {
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
            State::Ready(model) => match model.end_of_idle() {
                Ok(end) => {
                    drop(state);
                    tracing::info!(model = self.name, "unloaded to make room");
                    end();
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
    loading: Arc<tokio::sync::Mutex<()>>,
    clock: AtomicU64,
}

impl Catalog {
    pub(crate) fn new(entries: Vec<ModelEntry>, aliases: Vec<(String, String)>, any_model: bool) -> Self {
        let entries = entries.into_iter().map(Arc::new).collect();
        Self { entries, aliases, any_model, loading: Arc::default(), clock: AtomicU64::new(1) }
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
        match self.named(asked) {
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

    /// The model with this name or alias.
    fn named(&self, asked: &str) -> Option<&Arc<ModelEntry>> {
        // Ollama's clients write out the default tag.
        let plain = asked.strip_suffix(":latest").unwrap_or(asked);
        let by_name = |name: &str| self.entries.iter().find(|e| e.name == name);
        let alias = self.aliases.iter().find(|(alias, _)| alias == asked || alias == plain);
        by_name(asked).or_else(|| by_name(plain)).or_else(|| by_name(&alias?.1))
    }

    /// The model that a request means, which must be of a kind. Where it names none, it is the first of that kind.
    fn find_kind(&self, asked: Option<&str>, kind: ModelKind) -> Result<&Arc<ModelEntry>, ApiError> {
        let found = self.find(asked)?;
        if found.card.kind == kind {
            return Ok(found);
        }
        let of_kind = || self.entries.iter().filter(|entry| entry.card.kind == kind);
        let is_named = asked.is_some_and(|name| self.named(name).is_some());
        if let Some(first) = of_kind().next().filter(|_| !is_named) {
            return Ok(first);
        }
        let can_run = |entry: &&Arc<ModelEntry>| entry.status().0 != "unavailable";
        let others: Vec<&str> = of_kind().filter(can_run).map(|entry| entry.name.as_str()).collect();
        Err(wrong_kind(found, &others))
    }

    /// The text model that a request means, loaded.
    pub(crate) async fn get(&self, asked: Option<&str>) -> Result<SharedModel, ApiError> {
        self.loaded(self.find_kind(asked, ModelKind::Text)?, ModelEntry::ready).await
    }

    /// The model for pictures that a request means, loaded, with its name.
    pub(crate) async fn get_painter(&self, asked: Option<&str>) -> Result<(String, Arc<Painter>), ApiError> {
        let entry = self.find_kind(asked, ModelKind::Image)?;
        Ok((entry.name.clone(), self.loaded(entry, ModelEntry::painter).await?))
    }

    /// What `ready` finds in a model, once it is loaded.
    async fn loaded<T>(&self, entry: &Arc<ModelEntry>, ready: fn(&ModelEntry) -> Option<T>) -> Result<T, ApiError> {
        let entry = Arc::clone(entry);
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Some(model) = ready(&entry) {
            return Ok(model);
        }
        let turn = Arc::clone(&self.loading).lock_owned().await;
        if let Some(model) = ready(&entry) {
            return Ok(model);
        }
        if let State::Unavailable(reason) = &*entry.state() {
            return Err(ApiError::unavailable(format!("the model {} is unavailable: {reason}", entry.name)));
        }
        let others: Vec<_> = self.entries.iter().filter(|e| e.name != entry.name).cloned().collect();
        let name = entry.name.clone();
        let held = Arc::clone(&entry);
        // Loading goes on though the client leaves, and keeps its turn so long: another load beside it would count on
        // the same memory.
        let loaded = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            load(&entry, others)
        });
        let loaded = loaded.await;
        loaded.unwrap_or_else(|panic| Err(ApiError::internal(format!("loading {name} failed: {panic}"))))?;
        ready(&held).ok_or_else(|| ApiError::internal(format!("{name} ended as soon as it was loaded")))
    }
}

/// The refusal of a request at the wrong door.
fn wrong_kind(found: &ModelEntry, others: &[&str]) -> ApiError {
    let (makes, door, wanted) = match found.card.kind {
        ModelKind::Image => ("makes pictures", "POST /v1/images/generations", "text"),
        ModelKind::Text => ("answers with text", "POST /v1/chat/completions", "pictures"),
    };
    let here = match others {
        [] => format!("no model of this server answers with {wanted}"),
        names => format!("for {wanted} ask {}", names.join(" or ")),
    };
    let name = &found.name;
    ApiError::field("model", format!("{name} {makes}: ask it at {door}; {here}")).code("wrong_model_kind")
}

/// Loads a model; where memory is short, those that nobody uses go first, the longest unused before the others.
fn load(entry: &ModelEntry, mut others: Vec<Arc<ModelEntry>>) -> Result<(), ApiError> {
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
    *entry.state() = State::Ready(Ready::new(entry.name.clone(), result?));
    tracing::info!(model = entry.name, seconds = started.elapsed().as_secs_f64(), "loaded");
    Ok(())
}
