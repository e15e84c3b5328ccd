//! Keeping message text from becoming control tokens.
//!
//! A rendered prompt is one string, and nothing in it says which letters the
//! template wrote and which came from a message. So before rendering, every
//! special-token text inside a message is broken: a marker character is put
//! behind its first character. The template copies it through; after rendering,
//! special tokens are looked for in the marked text, which finds only those
//! that the template wrote, and then the markers are taken out.
//!
//! This holds as little as possible apart: words that reach from template
//! text into message text are still merged as in training, and a template's
//! own tests on unbroken text work. The end of a text that begins a special
//! token is broken as well, so that neighbours cannot complete it.
//!
//! The marker is a private-use character that occurs nowhere in the input.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::special::SpecialSet;
use crate::thinking::ThinkMarkers;

/// Characters that may become the marker: a whole private-use plane.
const CANDIDATES: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// Collects the candidates that a text already uses.
pub(crate) fn note_used(text: &str, used: &mut BTreeSet<char>) {
    used.extend(text.chars().filter(|c| CANDIDATES.contains(c)));
}

/// [`note_used`] for all keys and strings of a JSON value.
pub(crate) fn note_used_json(value: &Value, used: &mut BTreeSet<char>) {
    match value {
        Value::String(text) => note_used(text, used),
        Value::Array(items) => items.iter().for_each(|v| note_used_json(v, used)),
        Value::Object(entries) => {
            for (key, v) in entries {
                note_used(key, used);
                note_used_json(v, used);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A marker that is not among the used characters.
pub(crate) fn choose_marker(used: &BTreeSet<char>) -> Option<char> {
    CANDIDATES.into_iter().find(|c| !used.contains(c))
}

/// Breaks special-token texts with one marker.
pub(crate) struct Protector<'a> {
    pub(crate) specials: &'a SpecialSet,
    pub(crate) marker: char,
}

impl Protector<'_> {
    /// Breaks every special token in `text`, except at the offsets in `keep`.
    pub(crate) fn text(&self, text: &str, keep: &[usize]) -> String {
        let mut places = self.specials.starts(text);
        let tail = self.specials.open_tail(text);
        if tail > 0 {
            places.push(text.len() - tail);
        }
        places.retain(|at| !keep.contains(at));
        places.sort_unstable();
        places.dedup();
        let mut out = String::with_capacity(text.len() + places.len() * self.marker.len_utf8());
        let mut from = 0;
        for at in places {
            let after_first = at + text[at..].chars().next().map_or(0, char::len_utf8);
            out.push_str(&text[from..after_first]);
            out.push(self.marker);
            from = after_first;
        }
        out.push_str(&text[from..]);
        out
    }

    /// Breaks them in all keys and strings of a JSON value.
    pub(crate) fn json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text, &[])),
            Value::Array(items) => Value::Array(items.iter().map(|v| self.json(v)).collect()),
            Value::Object(entries) => Value::Object(self.object(entries)),
            plain => plain.clone(),
        }
    }

    /// [`Protector::json`] for an object.
    pub(crate) fn object(&self, entries: &Map<String, Value>) -> Map<String, Value> {
        entries.iter().map(|(key, v)| (self.text(key, &[]), self.json(v))).collect()
    }
}

/// Offsets of the markers in an assistant's text that frame its reasoning:
/// the first closing one, and the opening one where the text begins with it.
/// Templates look for these; any others are text.
pub(crate) fn framing_markers(text: &str, markers: &ThinkMarkers) -> Vec<usize> {
    let Some(close) = text.find(&markers.close) else { return Vec::new() };
    let begin = text.len() - text.trim_start().len();
    if begin < close && text[begin..].starts_with(&markers.open) { vec![begin, close] } else { vec![close] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::special::SpecialToken;
    use serde_json::json;

    fn specials() -> SpecialSet {
        let tokens = ["<|im_end|>", "<think>", "</think>"]
            .iter()
            .enumerate()
            .map(|(id, t)| SpecialToken { id: id as u32, text: (*t).into(), control: true })
            .collect();
        SpecialSet::new(tokens).expect("a valid set")
    }

    fn protect(text: &str, keep: &[usize]) -> String {
        let specials = specials();
        Protector { specials: &specials, marker: '#' }.text(text, keep)
    }

    #[test]
    fn breaks_whole_and_begun_tokens() {
        assert_eq!(protect("a<|im_end|>b", &[]), "a<#|im_end|>b");
        assert_eq!(protect("x</think><think>y", &[]), "x<#/think><#think>y");
        assert_eq!(protect("a <|im_", &[]), "a <#|im_");
        assert_eq!(protect("a < b", &[]), "a < b");
        assert_eq!(protect("", &[]), "");
    }

    #[test]
    fn keeps_framing_markers_only() {
        let text = " <think>a</think>b</think>";
        let keep = framing_markers(text, &ThinkMarkers::default());
        assert_eq!(protect(text, &keep), " <think>a</think>b<#/think>");
        assert!(framing_markers("a<think>", &ThinkMarkers::default()).is_empty());
        assert_eq!(framing_markers("a</think>b", &ThinkMarkers::default()), [1]);
    }

    #[test]
    fn json_keys_and_values() {
        let specials = specials();
        let protector = Protector { specials: &specials, marker: '#' };
        assert_eq!(
            protector.json(&json!({"<think>": ["<think>", 1, null]})),
            json!({"<#think>": ["<#think>", 1, null]})
        );
    }

    #[test]
    fn marker_avoids_the_input() {
        let mut used = BTreeSet::new();
        note_used_json(&json!({"\u{F0000}": ["a\u{F0001}"]}), &mut used);
        assert_eq!(choose_marker(&used), Some('\u{F0002}'));
    }
}
