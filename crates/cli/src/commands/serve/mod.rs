//! `onebit serve`: models behind HTTP.
//!
//! | file | idea |
//! |---|---|
//! | `models` | from words to models that are loaded now or later |
//! | `layout` | how memory is shared between weights, sequences and what they leave |
//! | `pictures` | image models as sources of pictures |
//! | `start` | what is said at the start |

mod layout;
mod models;
mod pictures;
mod start;

use crate::Usage;
use crate::args::{LogFormat, ServeArgs, Think};
use crate::terminal::{self, say};
use anyhow::{Context, Result, anyhow};
use onebit_server::{Server, ServerOptions};
use std::net::TcpListener;
use std::time::Duration;

/// Runs the command.
///
/// # Errors
/// A model that does not run, a port that is taken, options that contradict each other.
pub fn run(args: &ServeArgs) -> Result<()> {
    let listen = &args.listen;
    let address = (listen.host, listen.port);
    // Before anything is loaded: a port that is taken should not cost a minute.
    let listener = TcpListener::bind(address).with_context(|| {
        format!(
            "cannot listen on {}:{}; choose another --port, or end the program that has it",
            listen.host, listen.port
        )
    })?;
    let local = listener.local_addr()?;
    // Every client is an open file. Where the limit cannot be raised, those beyond it wait.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    log_to_stderr(listen.log_format);
    let entries = models::entries(args)?;
    let options = ServerOptions {
        api_keys: listen.api_key.clone(),
        origins: listen.cors.clone(),
        aliases: args.alias.clone(),
        any_model: args.any_model,
        max_body: listen.max_body as usize * 1_000_000,
        max_requests: listen.max_requests as usize,
        think: args.think.map(|think| think != Think::Off),
        think_budget: match args.think {
            Some(Think::Budget(tokens)) => Some(tokens),
            _ => None,
        },
        log_prompts: listen.log_prompts,
        page: !listen.no_page,
        drain: Duration::from_secs(listen.drain),
        idle: Duration::from_secs(listen.idle.into()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..ServerOptions::default()
    };
    let server = Server::new(entries, options).map_err(|e| anyhow!(Usage(e.to_string())))?;
    if !listen.host.is_loopback() && listen.api_key.is_empty() {
        say(&format!(
            "warning: everybody who reaches {} can use this server; --api-key KEY asks for a key",
            listen.host
        ));
    }
    let link = format!("http://{local}");
    say(&format!("listening on {}", terminal::styled(&link, terminal::BOLD, terminal::stderr_colours())));
    Ok(server.run(listener)?)
}

fn log_to_stderr(format: LogFormat) {
    // A log that cannot be written, on a full disk or into a pipe that nobody reads, is lost, and nothing else:
    // complaints about it would go the same way, and end the request that they come from.
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_target(false)
        .with_max_level(tracing::Level::INFO);
    // A second subscriber in one process would be a fault of this program, and costs the log only.
    let _ = match format {
        LogFormat::Text => log.with_ansi(terminal::stderr_colours()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).try_init(),
    };
}
