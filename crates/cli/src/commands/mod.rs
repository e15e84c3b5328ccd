//! One file, or folder, for each command.

pub mod bench;
pub mod chat;
pub mod completions;
pub mod convert;
pub mod doctor;
pub mod eval;
pub mod image;
pub mod info;
pub mod logits;
pub mod models;
pub mod pull;
pub mod run;
pub mod serve;
