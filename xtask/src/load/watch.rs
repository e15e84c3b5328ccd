//! The server seen from outside: its memory, and what it still holds.

use anyhow::{Context, Result};
use std::time::{Duration, Instant};
use ureq::Agent;

/// Metrics that are zero when nobody is served: name, and a label that the line must have.
const HELD: [(&str, &str); 4] = [
    ("vllm:num_requests_running", ""),
    ("vllm:num_requests_waiting", ""),
    ("vllm:kv_cache_usage_perc", ""),
    ("onebit:state_slots", "use=\"running\""),
];

/// Requests whose clients are gone end within this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Resident memory of a process in megabytes.
pub(super) fn memory(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("{path}: the server is gone, or no Linux"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse().context("VmRSS is no number")?;
    Ok(kib * 1024.0 / 1e6)
}

/// How much memory grew: the most of the last quarter of the samples over the most of the first; there are four at least.
pub(super) fn growth(samples: &[f64]) -> f64 {
    let quarter = samples.len() / 4;
    let most = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
    most(&samples[samples.len() - quarter..]) - most(&samples[..quarter])
}

/// What is held though nobody asks for anything, once the server has had its time: names with their values.
pub(super) fn held(agent: &Agent, base: &str) -> Result<Vec<(String, f64)>> {
    let begun = Instant::now();
    loop {
        let mut response = agent.get(format!("{base}/metrics")).call().context("/metrics does not answer")?;
        let held = nonzero(&response.body_mut().read_to_string()?);
        if held.is_empty() || begun.elapsed() > PATIENCE {
            return Ok(held);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn nonzero(metrics: &str) -> Vec<(String, f64)> {
    let lines = metrics.lines().filter(|line| HELD.iter().any(|(name, label)| is(line, name) && line.contains(label)));
    let values = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    values.filter(|(_, value)| *value != 0.0).collect()
}

fn is(line: &str, name: &str) -> bool {
    line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_found() {
        let text = "# HELP vllm:num_requests_running x\nvllm:num_requests_running{model_name=\"a\"} 0\n\
            vllm:num_requests_running_else 3\nonebit:state_slots{model_name=\"a\",use=\"all\"} 9\n\
            onebit:state_slots{model_name=\"a\",use=\"running\"} 2\nvllm:kv_cache_usage_perc{model_name=\"a\"} 0.25\n";
        let names: Vec<(String, f64)> = nonzero(text);
        assert_eq!(names.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [2.0, 0.25]);
    }

    #[test]
    fn growth_is_between_the_first_quarter_and_the_last() {
        assert_eq!(growth(&[509.0, 510.0, 600.0, 505.0, 511.0, 512.0, 513.0, 509.0]), 3.0);
        assert_eq!(growth(&[3.0, 1.0, 1.0, 2.0]), -1.0);
    }
}
