//! `cargo xtask load`: many clients at once, against a server that runs.
//!
//! `soak` does what clients do, good and bad, and says what went wrong; `bench` measures one kind of request, against any
//! server that speaks OpenAI's API.

mod client;
mod mix;
mod tally;
mod watch;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser};
use client::Outcome;
use fastrand::Rng;
use mix::Ask;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tally::Tally;

/// What is to be done.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask load", no_binary_name = true, disable_help_subcommand = true)]
enum Load {
    /// Everything that clients do, for some minutes; fails for errors, for memory that grows, and for what is not freed
    Soak(Soak),
    /// One kind of request, measured: tokens per second, and times to and between tokens
    Bench(Bench),
}

/// A mixture of requests.
#[derive(Debug, Args)]
struct Soak {
    /// Where the server listens, without /v1
    url: String,
    /// Clients at a time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    clients: u64,
    /// Requests before the time begins, to fill caches [default: four for each client]
    #[arg(long)]
    warm_up: Option<u64>,
    /// Minutes
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// The server's process, to watch its memory
    #[arg(long)]
    pid: Option<u32>,
    /// Megabytes that memory may grow from the first quarter of the time to the last
    #[arg(long, default_value_t = 32.0)]
    growth: f64,
    /// Most words of a prompt beside the shared ones
    #[arg(long, default_value_t = 600)]
    words: usize,
    /// Most tokens of an answer
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Begins the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the result here
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The same kind of request, again and again.
#[derive(Debug, Args)]
struct Bench {
    /// Where the server listens, without /v1
    url: String,
    /// Clients at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    clients: u64,
    /// Requests in all
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    requests: u64,
    /// Words of a prompt; the result says how many tokens they were
    #[arg(long, default_value_t = 128)]
    words: usize,
    /// Tokens of an answer
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// Begins the random words
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the result here
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    match Load::try_parse_from(words) {
        Ok(Load::Soak(soak)) => self::soak(&soak),
        Ok(Load::Bench(bench)) => self::bench(&bench),
        Err(error) => error.exit(),
    }
}

/// Sends what `next` gives for each number, from so many threads, until it gives nothing; `tick` runs every second.
fn drive(
    url: &str,
    clients: u64,
    next: impl Fn(u64, &mut Rng) -> Option<Ask> + Sync,
    seed: u64,
    mut tick: impl FnMut(&Tally) -> Result<()>,
) -> Result<(Tally, Duration)> {
    let (agent, number, begun) = (client::agent(), AtomicU64::new(0), Instant::now());
    let base = url.trim_end_matches('/');
    agent.get(format!("{base}/v1/models")).call().with_context(|| format!("no server answers at {base}"))?;
    let mut tally = Tally::default();
    let (sender, outcomes) = channel::<Outcome>();
    let faults = std::thread::scope(|scope| {
        for client in 0..clients {
            let (sender, agent, number, next) = (sender.clone(), &agent, &number, &next);
            let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9).wrapping_add(client));
            scope.spawn(move || {
                while let Some(ask) = next(number.fetch_add(1, Ordering::Relaxed), &mut rng) {
                    let outcome = client::send(agent, base, &ask);
                    let failed = outcome.error.is_some();
                    if sender.send(outcome).is_err() {
                        return;
                    }
                    if failed {
                        // A server that is gone should not be asked a million times.
                        std::thread::sleep(Duration::from_millis(200));
                    }
                }
            });
        }
        drop(sender);
        let (mut fault, mut ticked) = (Ok(()), Instant::now());
        loop {
            match outcomes.recv_timeout(Duration::from_millis(100)) {
                Ok(outcome) => tally.add(outcome),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return fault,
            }
            if ticked.elapsed() >= Duration::from_secs(1) && fault.is_ok() {
                ticked = Instant::now();
                fault = tick(&tally);
            }
        }
    });
    faults?;
    Ok((tally, begun.elapsed()))
}

fn soak(soak: &Soak) -> Result<()> {
    let begun = Instant::now();
    let time = Duration::from_secs_f64(soak.minutes * 60.0);
    let warm_up = soak.warm_up.unwrap_or(4 * soak.clients);
    let warm = OnceLock::<Instant>::new();
    let is_on = || warm.get().is_none_or(|warm| warm.elapsed() < time);
    let next = |_, rng: &mut Rng| is_on().then(|| mix::any(rng, soak));
    let mut memory = Vec::new();
    let mut said = Instant::now();
    let tick = |tally: &Tally| {
        if tally.requests() >= warm_up {
            warm.get_or_init(Instant::now);
        }
        // Only while the load is on: what is freed at the end would hide what grew.
        if let Some(pid) = soak.pid.filter(|_| warm.get().is_some() && is_on()) {
            memory.push(watch::memory(pid)?);
        }
        if said.elapsed() >= Duration::from_secs(30) {
            said = Instant::now();
            let now = memory.last().map_or(String::new(), |mb| format!(", {mb:.0} MB"));
            let (seconds, requests, errors) = (begun.elapsed().as_secs(), tally.requests(), tally.errors());
            eprintln!("{seconds} s: {requests} requests, {errors} errors{now}");
        }
        Ok(())
    };
    let (mut tally, took) = drive(&soak.url, soak.clients, next, soak.seed, tick)?;
    let held = watch::held(&client::agent(), soak.url.trim_end_matches('/'))?;
    let growth = (memory.len() >= 4).then(|| watch::growth(&memory));
    let mut result = tally.json(took);
    result["clients"] = json!(soak.clients);
    result["warm_up"] = json!(warm_up);
    result["held_at_the_end"] = held.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    result["memory_mb"] = json!({
        "first": memory.first(), "last": memory.last(), "most": memory.iter().copied().reduce(f64::max),
        "growth": growth, "allowed": soak.growth,
    });
    tell(&result, soak.out.as_ref())?;
    let mut faults = Vec::new();
    if tally.errors() > 0 {
        faults.push(format!("{} errors", tally.errors()));
    }
    if !held.is_empty() {
        faults.push(format!("held though nobody is served: {held:?}"));
    }
    match growth {
        Some(growth) if growth > soak.growth => faults.push(format!("memory grew by {growth:.1} MB")),
        None if soak.pid.is_some() => faults.push("too short a time to tell whether memory grows".to_owned()),
        None => eprintln!("memory was not watched: --pid PID names the server's process"),
        Some(_) => {}
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("; "));
    }
    Ok(())
}

fn bench(bench: &Bench) -> Result<()> {
    let next = |number: u64, _: &mut Rng| (number < bench.requests).then(|| mix::measured(bench, number));
    let (mut tally, took) = drive(&bench.url, bench.clients, next, bench.seed, |_| Ok(()))?;
    let mut result = tally.json(took);
    result["clients"] = json!(bench.clients);
    result["words"] = json!(bench.words);
    result["tokens"] = json!(bench.tokens);
    tell(&result, bench.out.as_ref())?;
    if tally.errors() > 0 {
        bail!("{} errors", tally.errors());
    }
    Ok(())
}

fn tell(result: &Value, out: Option<&PathBuf>) -> Result<()> {
    let text = serde_json::to_string_pretty(result)?;
    println!("{text}");
    if let Some(path) = out {
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        assert!(matches!(
            Load::try_parse_from(["bench", "http://127.0.0.1:1", "--clients", "8"]),
            Ok(Load::Bench(Bench { clients: 8, requests: 16, .. }))
        ));
        assert!(Load::try_parse_from(["soak"]).is_err());
        assert!(Load::try_parse_from(["soak", "http://127.0.0.1:1", "--clients", "0"]).is_err());
    }
}
