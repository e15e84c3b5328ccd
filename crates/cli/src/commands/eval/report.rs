//! What `eval` prints: a JSON object with stable names, or tables.

use super::stats::{Interval, Mean, Share};
use super::tasks::{Asking, Failure, TaskReport};
use super::text::{Against, Cut, Quality, TextReport};
use crate::answer::number;
use crate::args::Think;
use crate::session::Session;
use crate::{sampling, terminal};
use serde_json::{Value as Json, json};
use std::path::Path;

/// Which model ran, and how.
pub(super) struct Setting {
    name: String,
    device: String,
    activations: String,
    kv: String,
    context: usize,
}

/// Everything that was measured.
pub(super) struct Report<'a> {
    pub(super) model: Setting,
    pub(super) reference: Option<Setting>,
    pub(super) cut: Cut<'a>,
    pub(super) asking: &'a Asking<'a>,
    pub(super) texts: Vec<TextReport>,
    pub(super) tasks: Vec<TaskReport>,
}

impl Setting {
    pub(super) fn of(session: &Session) -> Setting {
        Setting {
            name: session.name.clone(),
            device: session.device.clone(),
            activations: session.engine.activations().to_string(),
            kv: session.engine.options().kv.to_string(),
            context: session.plan.context,
        }
    }

    fn json(&self) -> Json {
        json!({
            "name": self.name, "device": self.device, "activations": self.activations, "kv": self.kv,
            "context": self.context,
        })
    }

    fn text(&self) -> String {
        format!("{} ({}, {} activations, {} KV cache)", self.name, self.device, self.activations, self.kv)
    }
}

impl Report<'_> {
    /// The names are documented in `docs/eval.md`.
    pub(super) fn json(&self) -> Json {
        let Asking { sampling, max_tokens, think, system, .. } = self.asking;
        json!({
            "model": self.model.json(),
            "reference": self.reference.as_ref().map(Setting::json),
            "window": self.cut.window,
            "stride": self.cut.stride,
            "separator": self.cut.separator,
            "texts": self.texts.iter().map(text_json).collect::<Vec<_>>(),
            "answers": {
                "temperature": number(sampling.temperature),
                "top_k": sampling.top_k,
                "top_p": number(sampling.top_p),
                "min_p": number(sampling.min_p),
                "repeat_penalty": number(sampling.repetition_penalty),
                "presence_penalty": number(sampling.presence_penalty),
                "frequency_penalty": number(sampling.frequency_penalty),
                "seed": (sampling.temperature > 0.0).then_some(sampling.seed),
                "max_tokens": max_tokens,
                "think": think.map(think_name),
                "system": system,
            },
            "tasks": self.tasks.iter().map(task_json).collect::<Vec<_>>(),
        })
    }

    /// Tables for people.
    pub(super) fn text(&self, colours: bool) -> String {
        let bold = |line: &str| terminal::styled(line, terminal::BOLD, colours);
        let mut out = format!("MODEL   {}\n", self.model.text());
        if let Some(reference) = &self.reference {
            out += &format!("MODEL2  {}\n", reference.text());
        }
        if !self.texts.is_empty() {
            out += &format!("\n{}\n", self.about_texts());
            out += &table(&self.quality_rows(), &bold);
        }
        if self.reference.is_some() {
            out += "\nKL(MODEL2 || MODEL) in nats a token: what is lost when MODEL stands in for MODEL2\n";
            out += &table(&self.distance_rows(), &bold);
        }
        if !self.tasks.is_empty() {
            out += &format!("\nanswers: {}\n", self.about_answers());
            out += &table(&self.score_rows(), &bold);
            for task in &self.tasks {
                task.failures.iter().for_each(|failure| out += &failure_text(&task.path, failure));
            }
        }
        out
    }

    fn about_texts(&self) -> String {
        let Cut { window, stride, .. } = self.cut;
        let overlap = if stride < window {
            format!(", {} apart; shared tokens count once", terminal::count(stride as u64))
        } else {
            String::new()
        };
        format!("windows of {} tokens{overlap}; loss in nats a token", terminal::count(window as u64))
    }

    fn about_answers(&self) -> String {
        let Asking { sampling, max_tokens, think, .. } = self.asking;
        let most = max_tokens.map(|n| format!(", at most {n} tokens")).unwrap_or_default();
        let think = think.map(|t| format!(", think {}", think_name(t))).unwrap_or_default();
        format!("{}{most}{think}; Wilson intervals", sampling::describe(sampling))
    }

    fn quality_rows(&self) -> Vec<Vec<String>> {
        let mut rows =
            vec![row(["text", "model", "tokens", "loss", "perplexity", "95%", "bits/byte", "top-1", "95%", "over"])];
        for text in &self.texts {
            let over = match text.units {
                Some("documents") => format!("{} documents", text.documents),
                Some(_) => format!("{} windows", text.windows),
                None => "too few windows".to_owned(),
            };
            let mut add = |who: &str, quality: &Quality| {
                let Quality { loss, top1, .. } = quality;
                let perplexities =
                    |(low, high): Interval| format!("{} - {}", significant(low.exp()), significant(high.exp()));
                rows.push(vec![
                    file_name(&text.path),
                    who.to_owned(),
                    terminal::count(text.tokens),
                    format!("{:.4}", loss.mean),
                    significant(loss.mean.exp()),
                    loss.interval.map_or_else(dash, perplexities),
                    bits_per_byte(quality, text.bytes).map_or_else(dash, |bits| format!("{bits:.4}")),
                    format!("{:.4}", top1.share()),
                    range(top1.interval, 3),
                    over.clone(),
                ]);
            };
            add("MODEL", &text.model);
            text.against.iter().for_each(|against| add("MODEL2", &against.model));
        }
        rows
    }

    fn distance_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(["text", "mean KL", "95%", "largest KL", "where", "same top-1", "95%"])];
        for text in &self.texts {
            let Some(Against { kl, largest, agreement, .. }) = &text.against else { continue };
            let place = if largest.document == 0 {
                dash()
            } else {
                format!("document {}, token {}", largest.document, largest.token)
            };
            rows.push(vec![
                file_name(&text.path),
                format!("{:.6}", kl.mean),
                range(kl.interval, 6),
                format!("{:.4}", largest.kl),
                place,
                format!("{:.4}", agreement.share()),
                range(agreement.interval, 4),
            ]);
        }
        rows
    }

    fn score_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(["tasks", "kind", "score", "right", "of", "share", "95%", "cut off"])];
        for task in &self.tasks {
            for kind in &task.kinds {
                for (name, share) in &kind.scores {
                    rows.push(vec![
                        file_name(&task.path),
                        kind.kind.name().to_owned(),
                        name.replace('_', " "),
                        share.right.to_string(),
                        share.n.to_string(),
                        format!("{:.3}", share.share()),
                        range(share.interval, 3),
                        kind.cut.to_string(),
                    ]);
                }
            }
        }
        rows
    }
}

fn think_name(think: Think) -> String {
    match think {
        Think::On => "on".to_owned(),
        Think::Off => "off".to_owned(),
        Think::Budget(n) => n.to_string(),
    }
}

fn bits_per_byte(quality: &Quality, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| quality.total / std::f64::consts::LN_2 / bytes as f64)
}

fn text_json(text: &TextReport) -> Json {
    json!({
        "file": text.path,
        "documents": text.documents,
        "windows": text.windows,
        "interval_units": text.units,
        "tokens": text.tokens,
        "bytes": text.bytes,
        "model": quality_json(&text.model, text.bytes),
        "reference": text.against.as_ref().map(|a| quality_json(&a.model, text.bytes)),
        "kl": text.against.as_ref().map(|a| mean_json(&a.kl)),
        "largest_kl": text.against.as_ref().map(|a| json!({
            "value": a.largest.kl, "document": a.largest.document, "token": a.largest.token,
        })),
        "agreement": text.against.as_ref().map(|a| share_json(&a.agreement)),
        "seconds": text.seconds,
        "tokens_per_second": text.tokens as f64 / text.seconds,
    })
}

fn quality_json(quality: &Quality, bytes: u64) -> Json {
    let Mean { mean, interval } = quality.loss;
    let perplexity = Mean { mean: mean.exp(), interval: interval.map(|(low, high)| (low.exp(), high.exp())) };
    json!({
        "loss": mean_json(&quality.loss),
        "perplexity": mean_json(&perplexity),
        "bits_per_byte": bits_per_byte(quality, bytes),
        "top1": share_json(&quality.top1),
    })
}

fn mean_json(mean: &Mean) -> Json {
    json!({"value": mean.mean, "low": mean.interval.map(|i| i.0), "high": mean.interval.map(|i| i.1)})
}

fn share_json(share: &Share) -> Json {
    json!({
        "value": share.share(), "right": share.right, "of": share.n,
        "low": share.interval.map(|i| i.0), "high": share.interval.map(|i| i.1),
    })
}

fn task_json(task: &TaskReport) -> Json {
    let kinds = task.kinds.iter().map(|kind| {
        let scores = kind.scores.iter().map(|(name, share)| ((*name).to_owned(), share_json(share)));
        json!({"kind": kind.kind.name(), "scores": Json::Object(scores.collect()), "cut_off": kind.cut})
    });
    let failures = task
        .failures
        .iter()
        .map(|f| json!({"line": f.line, "question": f.question, "wanted": f.wanted, "answer": f.answer}));
    json!({
        "file": task.path,
        "kinds": kinds.collect::<Vec<_>>(),
        "failures": failures.collect::<Vec<_>>(),
        "answer_tokens": task.answer_tokens,
        "seconds": task.seconds,
    })
}

fn failure_text(path: &str, failure: &Failure) -> String {
    let indented = |text: &str| terminal::visible(text.trim()).replace('\n', "\n          ");
    format!(
        "\n{path}, line {}\n  asked   {}\n  wanted  {}\n  got     {}\n",
        failure.line,
        indented(&failure.question),
        indented(&failure.wanted),
        indented(&failure.answer)
    )
}

/// The last part of a path: what tables have room for.
fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

fn dash() -> String {
    "-".to_owned()
}

fn range(interval: Option<Interval>, digits: usize) -> String {
    interval.map_or_else(dash, |(low, high)| format!("{low:.digits$} - {high:.digits$}"))
}

/// Four digits that matter.
fn significant(value: f64) -> String {
    let digits = (3 - value.abs().max(1.0).log10().floor() as i64).max(0) as usize;
    format!("{value:.digits$}")
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Columns as wide as their longest cell; numbers to the right, words to the left.
fn table(rows: &[Vec<String>], head: &dyn Fn(&str) -> String) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let is_number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let right: Vec<bool> = (0..columns).map(|c| rows.iter().skip(1).all(|row| is_number(&row[c]))).collect();
    let mut out = String::new();
    for (i, row) in rows.iter().enumerate() {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column);
            if right[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        out += &if i == 0 { head(line) } else { line.to_owned() };
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_that_matter() {
        assert_eq!(
            [5.25, 26.812, 500.04, 12_345.6, 1.0].map(significant),
            ["5.250", "26.81", "500.0", "12346", "1.000"]
        );
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [row(["text", "tokens", "where"]), row(["a.txt", "5", "-"]), row(["b", "5,164", "document 3"])];
        let text = table(&rows, &str::to_owned);
        assert_eq!(text, "text   tokens  where\na.txt       5  -\nb       5,164  document 3\n");
    }
}
