//! The program as a user meets it: every command, bad usage, bad files, a hub.

mod bad_files;
mod builtin;
mod chat;
mod convert;
mod doctor;
mod eval;
mod hub;
mod image;
mod info;
mod kept;
mod published;
mod quality;
mod refusals;
mod run;
mod serve;
mod serve_crowds;
mod shapes;
mod support;
mod usage;
