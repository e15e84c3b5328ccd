//! HTTP in front of the engine: the APIs of OpenAI, Anthropic and Ollama, metrics, and a page to chat on.
//!
//! * [`Server`] serves [`ModelEntry`]s; each is loaded when it is first asked for and then stepped by a thread of its
//!   own, which owns a [`TokenSource`]: an engine, or a script in tests. A model for pictures has a [`PictureSource`].
//! * Every dialect's request becomes one inner form, that one a request of the engine, and the tokens that come back
//!   one kind of pieces, which each dialect writes in its own events. So all dialects have the same powers.
//!
//! The only crate with wire types. It opens no file and names no model.

#![forbid(unsafe_code)]

mod anthropic;
mod app;
mod ask;
mod body;
mod catalog;
mod choice;
mod collect;
mod connections;
mod engine_source;
mod error;
mod fields;
mod generation;
mod grammar;
mod guard;
mod host;
mod id;
mod metrics;
mod model;
mod ollama;
mod openai;
mod page;
mod painter;
mod picture;
mod prepare;
mod probes;
mod server;
mod several;
mod socket;
mod stream;
mod tokens;
mod tools;

pub use catalog::{LoadError, Loader, ModelEntry};
pub use host::{Progress, TokenSource};
pub use model::{Card, Loaded, ModelKind, ModelText};
pub use picture::{Picture, PictureCheck, PictureDefaults, PictureError, PictureOrder, PictureSource, PictureStage};
pub use server::{Server, ServerError, ServerOptions};
