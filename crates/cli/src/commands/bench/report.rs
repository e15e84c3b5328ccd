//! What `bench` prints.

use crate::terminal::{self, BOLD, DIM, styled};
use serde_json::{Value, json};
use std::fmt::Write;

/// Repeated measurements of one thing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sample {
    sorted: Vec<f64>,
}

impl Sample {
    pub(super) fn of(mut values: Vec<f64>) -> Sample {
        values.sort_by(f64::total_cmp);
        Sample { sorted: values }
    }

    /// The middle value, or the mean of the two middle ones.
    pub(super) fn median(&self) -> Option<f64> {
        let n = self.sorted.len();
        let high = self.sorted.get(n / 2)?;
        Some(if n.is_multiple_of(2) { (self.sorted[n / 2 - 1] + high) / 2.0 } else { *high })
    }

    fn spread(&self) -> Value {
        json!({"n": self.sorted.len(), "median": self.median(), "min": self.sorted.first(), "max": self.sorted.last()})
    }

    fn text(&self, unit: &str) -> String {
        let Some(median) = self.median() else { return "not measured".to_owned() };
        let (min, max) = (self.sorted[0], self.sorted[self.sorted.len() - 1]);
        format!("{median:.2} {unit} (median of {}, {min:.2} to {max:.2})", self.sorted.len())
    }
}

/// All ops of one kind in a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Stage {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) macs: u64,
    pub(super) seconds: f64,
}

/// Several sequences that are answered in the same steps.
pub(super) struct Together {
    pub(super) sequences: usize,
    /// Tokens a second of all of them.
    pub(super) rate: Sample,
    pub(super) stages: Vec<Stage>,
}

/// Everything that was measured.
pub(super) struct Report {
    pub(super) model: String,
    pub(super) device: String,
    pub(super) activations: String,
    pub(super) kv: String,
    pub(super) prompt: usize,
    pub(super) generate: usize,
    pub(super) depth: usize,
    pub(super) rows: usize,
    pub(super) load_seconds: f64,
    /// From the start to an answer of one token to a prompt of one token.
    pub(super) first_token_seconds: f64,
    /// Tokens a second.
    pub(super) prefill: Sample,
    /// Tokens a second.
    pub(super) decode: Sample,
    /// GB/s that the device reads.
    pub(super) bandwidth: Sample,
    pub(super) weight_bytes: u64,
    pub(super) bytes_per_step: u64,
    pub(super) peak_rss: Option<u64>,
    /// Memory held while decoding after a prompt.
    pub(super) rss_after_prefill: Option<u64>,
    pub(super) together: Vec<Together>,
    pub(super) decode_stages: Vec<Stage>,
    pub(super) prefill_stages: Vec<Stage>,
}

impl Report {
    fn bytes_per_token(&self) -> f64 {
        self.bytes_per_step as f64 / self.rows as f64
    }

    /// GB/s that decoding reads.
    fn read_gbs(&self) -> Option<f64> {
        Some(self.decode.median()? * self.bytes_per_token() / 1e9)
    }

    /// Share of the device's bandwidth.
    fn share(&self) -> Option<f64> {
        Some(self.read_gbs()? / self.bandwidth.median()?)
    }

    pub(super) fn json(&self) -> Value {
        let stages = |stages: &[Stage]| -> Vec<Value> {
            let one = |s: &Stage| json!({"name": s.name, "bytes": s.bytes, "macs": s.macs, "ms": s.seconds * 1e3, "gbs": s.bytes as f64 / s.seconds / 1e9});
            stages.iter().map(one).collect()
        };
        json!({
            "model": self.model, "device": self.device, "activations": self.activations, "kv": self.kv,
            "prompt": self.prompt, "generate": self.generate, "depth": self.depth, "rows": self.rows,
            "load_s": self.load_seconds, "first_token_s": self.first_token_seconds,
            "pp_tok_s": self.prefill.median(), "tg_tok_s": self.decode.median(),
            "pp": self.prefill.spread(), "tg": self.decode.spread(),
            "read_gbs": self.read_gbs(), "bandwidth_gbs": self.bandwidth.median(), "share": self.share(),
            "bytes_per_token": self.bytes_per_token(), "weight_bytes": self.weight_bytes, "peak_rss": self.peak_rss,
            "rss_after_prefill": self.rss_after_prefill,
            "sequences": self.together.iter().map(|t| json!({"sequences": t.sequences, "tg_tok_s": t.rate.median(), "tg": t.rate.spread(), "stages": stages(&t.stages)})).collect::<Vec<_>>(),
            "stages": stages(&self.decode_stages), "prefill_stages": stages(&self.prefill_stages),
        })
    }

    pub(super) fn text(&self, colours: bool) -> String {
        let mut out = String::new();
        let mut line = |text: String| {
            let _ = writeln!(out, "{text}");
        };
        line(styled(&self.model, BOLD, colours));
        line(format!(
            "{}, {} activations, {} KV cache, {} of weights",
            self.device,
            self.activations,
            self.kv,
            terminal::bytes(self.weight_bytes)
        ));
        line(format!(
            "loaded in {:.2} s, first token of a one-token prompt after {:.2} s",
            self.load_seconds, self.first_token_seconds
        ));
        let at = if self.depth > 0 { format!(" at depth {}", self.depth) } else { String::new() };
        if self.prompt > 0 {
            line(format!("pp{}{at}   {}", self.prompt, self.prefill.text("tok/s")));
        }
        if self.generate > 0 {
            let rows = if self.rows > 1 { format!(", {} rows a step", self.rows) } else { String::new() };
            line(format!("tg{}{at}{rows}   {}", self.generate, self.decode.text("tok/s")));
            if let (Some(read), Some(bandwidth), Some(share)) = (self.read_gbs(), self.bandwidth.median(), self.share())
            {
                line(format!(
                    "decode reads {} a token: {read:.1} GB/s, {:.0}% of the {bandwidth:.1} GB/s that this device reads",
                    terminal::bytes(self.bytes_per_token() as u64),
                    share * 100.0
                ));
            }
        }
        for Together { sequences, rate, .. } in &self.together {
            let plural = if *sequences == 1 { "" } else { "s" };
            line(format!("{sequences} sequence{plural} at once   {}", rate.text("tok/s")));
        }
        if let Some(peak) = self.peak_rss {
            let after = self.rss_after_prefill.map(|rss| format!(", {} held after a prompt", terminal::bytes(rss)));
            line(format!("peak memory {}{}", terminal::bytes(peak), after.unwrap_or_default()));
        }
        table(&mut out, "decode step", &self.decode_stages, colours);
        for Together { sequences, stages, .. } in &self.together {
            table(&mut out, &format!("step of {sequences}"), stages, colours);
        }
        table(&mut out, "prefill chunk", &self.prefill_stages, colours);
        out
    }
}

pub(super) fn table(out: &mut String, title: &str, stages: &[Stage], colours: bool) {
    let total: f64 = stages.iter().map(|s| s.seconds).sum();
    if total <= 0.0 {
        return;
    }
    let head = format!("{title:<24}{:>12}{:>10}{:>8}{:>10}{:>11}", "bytes", "ms", "share", "GB/s", "GMAC/s");
    let _ = writeln!(out, "\n{}", styled(&head, DIM, colours));
    for s in stages {
        let per = |n: u64| if n > 0 { format!("{:.1}", n as f64 / s.seconds / 1e9) } else { String::new() };
        let bytes = if s.bytes > 0 { terminal::bytes(s.bytes) } else { String::new() };
        let share = s.seconds / total * 100.0;
        let _ = writeln!(
            out,
            "{:<24}{bytes:>12}{:>10.3}{share:>7.1}%{:>10}{:>11}",
            s.name,
            s.seconds * 1e3,
            per(s.bytes),
            per(s.macs)
        );
    }
    let _ = writeln!(out, "{:<36}{:>10.3}", "sum", total * 1e3);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(Sample::of(vec![3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(Sample::of(vec![4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(Sample::of(vec![]).median(), None);
    }

    #[test]
    fn share_is_read_over_bandwidth() {
        let report = Report {
            model: String::new(),
            device: String::new(),
            activations: String::new(),
            kv: String::new(),
            prompt: 0,
            generate: 8,
            depth: 0,
            rows: 2,
            load_seconds: 0.0,
            first_token_seconds: 0.0,
            prefill: Sample::default(),
            decode: Sample::of(vec![10.0]),
            bandwidth: Sample::of(vec![20.0]),
            weight_bytes: 0,
            bytes_per_step: 2_000_000_000,
            peak_rss: None,
            rss_after_prefill: None,
            together: Vec::new(),
            decode_stages: Vec::new(),
            prefill_stages: Vec::new(),
        };
        assert_eq!(report.share(), Some(0.5));
    }
}
