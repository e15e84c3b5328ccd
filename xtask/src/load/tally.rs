//! What many requests came to.

use super::client::Outcome;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Details that are shown of an error of one kind.
const SHOWN: usize = 300;

/// Sums and times.
#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: u64,
    left: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
    /// Kind of error, how often, and the first one's details.
    errors: BTreeMap<String, (u64, String)>,
    first: Vec<Duration>,
    between: Vec<Duration>,
}

impl Tally {
    pub(super) fn add(&mut self, outcome: Outcome) {
        self.requests += 1;
        self.left += u64::from(outcome.left);
        self.prompt_tokens += outcome.prompt_tokens;
        self.cached_tokens += outcome.cached_tokens;
        self.completion_tokens += outcome.completion_tokens;
        self.first.extend(outcome.first);
        self.between.extend(outcome.between);
        if let Some((kind, detail)) = outcome.error {
            let detail = detail.chars().take(SHOWN).collect();
            self.errors.entry(kind).or_insert((0, detail)).0 += 1;
        }
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// How many errors, of all kinds.
    pub(super) fn errors(&self) -> u64 {
        self.errors.values().map(|(count, _)| count).sum()
    }

    /// Everything, over a time.
    pub(super) fn json(&mut self, time: Duration) -> Value {
        let seconds = time.as_secs_f64();
        let errors: serde_json::Map<String, Value> = (self.errors.iter())
            .map(|(kind, (count, detail))| (kind.clone(), json!({"count": count, "first": detail})))
            .collect();
        json!({
            "requests": self.requests,
            "left_on_purpose": self.left,
            "errors": errors,
            "seconds": rounded(seconds),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "completion_tok_s": rounded(self.completion_tokens as f64 / seconds),
            "first_token_ms": percentiles(&mut self.first),
            "between_tokens_ms": percentiles(&mut self.between),
        })
    }
}

/// The median and the 99th percentile by the nearest rank, and how many there were.
fn percentiles(times: &mut [Duration]) -> Value {
    times.sort_unstable();
    let at = |percent: usize| {
        let rank = (times.len() * percent).div_ceil(100).max(1);
        times.get(rank - 1).map(|time| rounded(time.as_secs_f64() * 1e3))
    };
    json!({"p50": at(50), "p99": at(99), "n": times.len()})
}

/// To three decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let mut times: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentiles(&mut times), json!({"p50": 100.0, "p99": 198.0, "n": 200}));
        assert_eq!(percentiles(&mut times[..1]), json!({"p50": 1.0, "p99": 1.0, "n": 1}));
        assert_eq!(percentiles(&mut []), json!({"p50": null, "p99": null, "n": 0}));
    }

    #[test]
    fn errors_are_counted_by_kind() {
        let mut tally = Tally::default();
        for detail in ["a", "b"] {
            tally.add(Outcome { error: Some(("status 500".into(), detail.into())), ..Outcome::default() });
        }
        tally.add(Outcome { left: true, ..Outcome::default() });
        let json = tally.json(Duration::from_secs(2));
        assert_eq!((&json["requests"], &json["left_on_purpose"]), (&json!(3), &json!(1)));
        assert_eq!(json["errors"], json!({"status 500": {"count": 2, "first": "a"}}));
        assert_eq!(tally.errors(), 2);
    }
}
