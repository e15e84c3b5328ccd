//! The real HTTP server over loopback, in front of scripts in place of engines.

mod anthropic;
mod attacks;
mod brush;
mod cancel;
mod connections;
mod fields;
mod limits;
mod logprobs;
mod ollama;
mod ops;
mod pictures;
mod prompts;
mod responses;
mod stops;
mod support;
mod tools;
