//! Finding the special tokens of a text.

use aho_corasick::{AhoCorasick, MatchKind};

/// A token that is matched as whole text and never made by merging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpecialToken {
    pub(crate) id: u32,
    pub(crate) text: String,
    /// A control token, which a person should not see.
    pub(crate) control: bool,
}

/// All special tokens of a tokenizer, matched leftmost, then longest.
#[derive(Debug)]
pub(crate) struct SpecialSet {
    tokens: Vec<SpecialToken>,
    finder: Option<AhoCorasick>,
}

/// A stretch of text between or at special tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stretch<'a> {
    Plain(&'a str),
    Special(u32),
}

impl SpecialSet {
    /// Tokens with empty text are dropped: they would match everywhere.
    pub(crate) fn new(mut tokens: Vec<SpecialToken>) -> Result<Self, String> {
        tokens.retain(|t| !t.text.is_empty());
        let finder = if tokens.is_empty() {
            None
        } else {
            let finder = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|t| t.text.as_bytes()))
                .map_err(|e| e.to_string())?;
            Some(finder)
        };
        Ok(Self { tokens, finder })
    }

    pub(crate) fn tokens(&self) -> &[SpecialToken] {
        &self.tokens
    }

    /// Cuts `text` at its special tokens.
    pub(crate) fn split<'a>(&self, text: &'a str) -> Vec<Stretch<'a>> {
        let mut out = Vec::new();
        let mut at = 0;
        for found in self.finder.iter().flat_map(|f| f.find_iter(text)) {
            if found.start() > at {
                out.push(Stretch::Plain(&text[at..found.start()]));
            }
            out.push(Stretch::Special(self.tokens[found.pattern().as_usize()].id));
            at = found.end();
        }
        if at < text.len() {
            out.push(Stretch::Plain(&text[at..]));
        }
        out
    }

    /// Byte offset of every place where a special token starts, overlapping
    /// ones included.
    pub(crate) fn starts(&self, text: &str) -> Vec<usize> {
        // Overlapping search is not defined for leftmost matching, and this
        // runs on message text only: restart one character after each match.
        let mut out = Vec::new();
        let Some(finder) = &self.finder else { return out };
        let mut at = 0;
        while let Some(found) = finder.find(&text[at..]) {
            let start = at + found.start();
            out.push(start);
            at = start + text[start..].chars().next().map_or(1, char::len_utf8);
        }
        out
    }

    /// Length of the longest end of `text` that begins some special token
    /// without completing it.
    pub(crate) fn open_tail(&self, text: &str) -> usize {
        self.tokens.iter().map(|t| crate::hold::open_tail(text, &t.text)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> SpecialSet {
        let tokens = texts
            .iter()
            .enumerate()
            .map(|(id, t)| SpecialToken { id: id as u32, text: (*t).into(), control: true })
            .collect();
        SpecialSet::new(tokens).expect("a valid set")
    }

    #[test]
    fn longest_wins_at_one_place() {
        let s = set(&["<a>", "<a>b"]);
        assert_eq!(s.split("x<a>b<a>"), [Stretch::Plain("x"), Stretch::Special(1), Stretch::Special(0)]);
    }

    #[test]
    fn no_tokens() {
        let s = set(&[]);
        assert_eq!(s.split("x"), [Stretch::Plain("x")]);
        assert!(s.split("").is_empty());
        assert!(s.starts("x").is_empty());
        assert_eq!(s.open_tail("x"), 0);
    }

    #[test]
    fn overlapping_starts_are_all_found() {
        let s = set(&["abab", "ba"]);
        assert_eq!(s.starts("ababab"), [0, 1, 2, 3]);
    }
}
