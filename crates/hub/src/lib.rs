//! Model repositories: their names, the Hugging Face cache, and downloads.
//!
//! * [`RepoRef`] is what a person writes; [`packs`] is the table of published
//!   Bonsai packs and their short names.
//! * [`Cache`] finds what is already on the disk, without the network.
//! * [`choose`] picks the files of a repository that this machine runs best.
//! * [`Client`] lists and reads; [`pull`] downloads into the cache, from where
//!   an earlier try stopped, and checks every byte.
//!
//! Nothing here ever uploads.

#![forbid(unsafe_code)]

mod cache;
mod choose;
mod client;
mod config;
mod digest;
mod error;
mod file_format;
mod listing;
mod names;
pub mod packs;
mod pull;
mod range;
mod repo_ref;

pub use cache::{Cache, Snapshot};
pub use choose::{Choice, choose};
pub use client::Client;
pub use config::HubConfig;
pub use error::HubError;
pub use file_format::WeightFormat;
pub use listing::{Listing, RepoFile};
pub use pull::{Progress, PullOptions, pull};
pub use range::RangeReader;
pub use repo_ref::RepoRef;
