//! OpenAI's APIs.

pub(crate) mod chat;
mod chat_answer;
mod common;
pub(crate) mod completions;
mod format;
pub(crate) mod images;
mod messages;
pub(crate) mod models;
mod namespaces;
pub(crate) mod responses;
mod responses_answer;
mod responses_input;
mod responses_stream;
mod tools;

pub(crate) use format::schema;
pub(crate) use messages::TEXT_ONLY;
