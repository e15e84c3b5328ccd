//! Everything against folders and servers on this machine, never the internet.

#[cfg(unix)]
mod cache;
mod pull;
mod range;
mod server;
