//! Perplexity of texts, and how far a second model is away.

use super::stats::{LEAST_UNITS, Mean, Share};
use super::windows::{Document, Window, documents, windows};
use crate::session::Session;
use crate::terminal;
use anyhow::{Context, Result, bail};
use onebit_engine::{Engine, Scorer};
use onebit_text::Tokenizer;
use std::ops::AddAssign;
use std::time::Instant;

/// From so many documents on they are the units of intervals; else windows are.
const MANY_DOCUMENTS: usize = 20;

/// How texts are cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut<'a> {
    pub(super) window: usize,
    pub(super) stride: usize,
    pub(super) separator: &'a str,
    /// Most windows of one text.
    pub(super) limit: Option<usize>,
}

/// A text by name.
pub(super) struct Text {
    pub(super) path: String,
    pub(super) text: String,
}

/// What was measured on one text.
pub(super) struct TextReport {
    pub(super) path: String,
    pub(super) documents: usize,
    pub(super) windows: usize,
    /// What the intervals take as one observation.
    pub(super) units: Option<&'static str>,
    /// Tokens that were predicted.
    pub(super) tokens: u64,
    /// Bytes of text that they stand for; separators have none.
    pub(super) bytes: u64,
    pub(super) model: Quality,
    pub(super) against: Option<Against>,
    pub(super) seconds: f64,
}

/// How well a model predicts.
pub(super) struct Quality {
    /// Nats a token.
    pub(super) loss: Mean,
    /// Nats in all.
    pub(super) total: f64,
    pub(super) top1: Share,
}

/// The second model, and the distance to it.
pub(super) struct Against {
    pub(super) model: Quality,
    /// Nats a token.
    pub(super) kl: Mean,
    pub(super) largest: Largest,
    /// The same likeliest token.
    pub(super) agreement: Share,
}

/// Where the two models differ most.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Largest {
    /// Nats.
    pub(super) kl: f64,
    /// Document, counted from 1.
    pub(super) document: usize,
    /// Token of the document, counted from 0, that the distributions are about.
    pub(super) token: usize,
}

/// Sums over the tokens of a window.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    tokens: u64,
    bytes: u64,
    loss: f64,
    hits: u64,
    reference_loss: f64,
    reference_hits: u64,
    kl: f64,
    agreements: u64,
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Sums) {
        self.tokens += other.tokens;
        self.bytes += other.bytes;
        self.loss += other.loss;
        self.hits += other.hits;
        self.reference_loss += other.reference_loss;
        self.reference_hits += other.reference_hits;
        self.kl += other.kl;
        self.agreements += other.agreements;
    }
}

/// Measures one text.
///
/// # Errors
/// A text without a token to predict, logits that are no numbers, and faults of the device.
pub(super) fn measure(
    text: &Text,
    cut: &Cut<'_>,
    session: &mut Session,
    reference: Option<&mut Session>,
) -> Result<TextReport> {
    let started = Instant::now();
    let tokenizer = &session.text.tokenizer;
    let documents = documents(&text.text, cut.separator, tokenizer).with_context(|| text.path.clone())?;
    let mut windows = windows(&documents, cut.window, cut.stride);
    windows.truncate(cut.limit.unwrap_or(usize::MAX));
    let Some(last) = windows.last() else {
        bail!("{} has no token to predict; give a text of at least a few words", text.path);
    };
    let measured = last.document + 1;

    let mut against = reference.map(|reference| &mut reference.engine);
    let rows = against.as_ref().map_or(usize::MAX, |engine| engine.scorer_rows()).min(session.engine.scorer_rows());
    let mut pair = Pair {
        model: session.engine.scorer(rows)?,
        reference: against.as_mut().map(|engine: &mut &mut Engine| engine.scorer(rows)).transpose()?,
        tokenizer,
        separator: tokenizer.id_of(cut.separator),
        largest: Largest::default(),
    };
    let bar = terminal::count_bar(&text.path, windows.iter().map(|w| (w.end - w.counted) as u64).sum());
    let mut sums = Vec::with_capacity(windows.len());
    for window in &windows {
        let name =
            || format!("{}, document {}, window that starts at token {}", text.path, window.document + 1, window.start);
        sums.push(pair.score(&documents[window.document], window, &bar).with_context(name)?);
    }
    bar.finish_and_clear();
    let largest = pair.largest;

    let (units, name) = units(&windows, &sums);
    let all = units.iter().fold(Sums::default(), |mut all, unit| {
        all += *unit;
        all
    });
    let mean =
        |value: fn(&Sums) -> f64| Mean::of_units(&units.iter().map(|u| (value(u), u.tokens)).collect::<Vec<_>>());
    let share =
        |value: fn(&Sums) -> u64| Share::of_units(&units.iter().map(|u| (value(u), u.tokens)).collect::<Vec<_>>());
    Ok(TextReport {
        path: text.path.clone(),
        documents: measured,
        windows: windows.len(),
        units: name,
        tokens: all.tokens,
        bytes: all.bytes,
        model: Quality { loss: mean(|u| u.loss), total: all.loss, top1: share(|u| u.hits) },
        against: pair.reference.is_some().then(|| Against {
            model: Quality {
                loss: mean(|u| u.reference_loss),
                total: all.reference_loss,
                top1: share(|u| u.reference_hits),
            },
            kl: mean(|u| u.kl),
            largest,
            agreement: share(|u| u.agreements),
        }),
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// What intervals take as one observation: documents, or windows where there are few documents.
fn units(windows: &[Window], sums: &[Sums]) -> (Vec<Sums>, Option<&'static str>) {
    let mut by_document: Vec<Sums> = Vec::new();
    let mut last = None;
    for (window, sum) in windows.iter().zip(sums) {
        if last.replace(window.document) != Some(window.document) {
            by_document.push(Sums::default());
        }
        if let Some(document) = by_document.last_mut() {
            *document += *sum;
        }
    }
    if by_document.len() >= MANY_DOCUMENTS {
        return (by_document, Some("documents"));
    }
    (sums.to_vec(), (sums.len() >= LEAST_UNITS).then_some("windows"))
}

/// One or two models that read the same windows in step.
struct Pair<'a> {
    model: Scorer<'a>,
    reference: Option<Scorer<'a>>,
    tokenizer: &'a Tokenizer,
    separator: Option<u32>,
    largest: Largest,
}

impl Pair<'_> {
    fn score(&mut self, document: &Document, window: &Window, bar: &indicatif::ProgressBar) -> Result<Sums> {
        let tokens = &document.tokens[window.start..window.end];
        let context = window.counted - window.start;
        self.model.begin(tokens, context)?;
        if let Some(reference) = &mut self.reference {
            reference.begin(tokens, context).context("the model of --against")?;
        }
        let mut sums = Sums::default();
        while let Some(rows) = self.model.next_rows()? {
            let other = match &mut self.reference {
                Some(reference) => reference.next_rows().context("the model of --against")?,
                None => None,
            };
            let mut other = other.as_ref().map(|rows| rows.iter());
            let before = sums.tokens;
            for (position, row) in rows.iter() {
                let at = window.start + position + 1;
                let next = document.tokens[at];
                sums.tokens += 1;
                if Some(next) != self.separator {
                    sums.bytes += self.tokenizer.token_bytes(next).len() as u64;
                }
                sums.loss -= row.log_prob(next);
                sums.hits += u64::from(row.best() == next);
                if let Some((_, reference)) = other.as_mut().and_then(Iterator::next) {
                    let kl = reference.divergence(&row);
                    sums.reference_loss -= reference.log_prob(next);
                    sums.reference_hits += u64::from(reference.best() == next);
                    sums.kl += kl;
                    sums.agreements += u64::from(reference.best() == row.best());
                    if kl > self.largest.kl {
                        self.largest = Largest { kl, document: window.document + 1, token: at };
                    }
                }
            }
            bar.inc(sums.tokens - before);
        }
        Ok(sums)
    }
}

/// Fails unless two models have the same tokens: only then are their distributions about the same thing.
///
/// # Errors
/// One sentence with the first difference.
pub(super) fn require_same_vocabulary(model: &Session, reference: &Session) -> Result<()> {
    let advice = "token by token only models with the same vocabulary can be compared; name another one for --against";
    let rows = |session: &Session| session.engine.model().facts().vocab;
    if rows(model) != rows(reference) {
        bail!(
            "{} has a vocabulary of {} tokens and {} one of {}; {advice}",
            model.name,
            terminal::count(rows(model) as u64),
            reference.name,
            terminal::count(rows(reference) as u64)
        );
    }
    let (a, b) = (&model.text.tokenizer, &reference.text.tokenizer);
    let different = |id: &u32| a.token_bytes(*id) != b.token_bytes(*id);
    if let Some(id) = (0..rows(model) as u32).find(different) {
        bail!(
            "token {id} is {:?} in {} and {:?} in {}; {advice}",
            a.decode(&[id]),
            model.name,
            b.decode(&[id]),
            reference.name
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_documents_are_units_and_else_windows_are() {
        let of = |documents: &[usize]| {
            let windows: Vec<Window> =
                documents.iter().map(|d| Window { document: *d, start: 0, counted: 0, end: 1 }).collect();
            let sums = vec![Sums { tokens: 1, ..Sums::default() }; windows.len()];
            let (units, name) = units(&windows, &sums);
            (units.iter().map(|u| u.tokens).collect::<Vec<_>>(), name)
        };
        let many: Vec<usize> = (0..20).chain([19, 19]).collect();
        let mut tokens = vec![1; 20];
        tokens[19] = 3;
        assert_eq!(of(&many), (tokens, Some("documents")));
        assert_eq!(of(&[0, 0, 0, 1, 1, 1]), (vec![1; 6], Some("windows")));
        assert_eq!(of(&[0, 1, 2, 3]), (vec![1; 4], None));
    }
}
