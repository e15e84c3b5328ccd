//! Ollama's API, as far as chat clients use it.

mod chat;
mod listing;

pub(crate) use chat::handle as chat;
pub(crate) use listing::{ps, show, tags, version};
