//! Stop strings across token borders.

use crate::error::StopError;
use crate::hold::{open_tail, take_front};

/// What a push released.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopPiece {
    /// Text that is certainly before any stop string.
    pub text: String,
    /// Index of the stop string that ended the text, if one did.
    pub stopped_by: Option<usize>,
}

/// Cuts a stream exactly before the first stop string.
///
/// It keeps back only the longest end of the text that could still become a
/// stop string. The first stop string to be complete wins; of two that are
/// complete at the same letter, the longer. So the cut does not depend on how
/// the text was divided into pieces.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped_by: Option<usize>,
}

impl StopMatcher {
    /// For these stop strings; none at all passes everything through.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Result<Self, StopError> {
        let stops: Vec<String> = stops.into_iter().map(Into::into).collect();
        match stops.iter().position(String::is_empty) {
            Some(index) => Err(StopError::Empty { index }),
            None => Ok(Self { stops, ..Self::default() }),
        }
    }

    /// Adds text. After a stop, everything is swallowed.
    pub fn push(&mut self, text: &str) -> StopPiece {
        if self.stopped_by.is_some() {
            return StopPiece { text: String::new(), stopped_by: self.stopped_by };
        }
        self.held.push_str(text);
        let first = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(i, stop)| self.held.find(stop).map(|at| (at + stop.len(), at, i)))
            .min();
        if let Some((_, at, index)) = first {
            self.held.truncate(at);
            self.stopped_by = Some(index);
            return StopPiece { text: std::mem::take(&mut self.held), stopped_by: Some(index) };
        }
        let keep = self.stops.iter().map(|s| open_tail(&self.held, s)).max().unwrap_or(0);
        let at = self.held.len() - keep;
        StopPiece { text: take_front(&mut self.held, at), stopped_by: None }
    }

    /// Ends the stream: what was kept back is plain text after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Index of the stop string that was met.
    pub fn stopped_by(&self) -> Option<usize> {
        self.stopped_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().copied()).expect("usable stops");
        let mut out: String = pieces.iter().map(|p| matcher.push(p).text).collect();
        out.push_str(&matcher.finish());
        (out, matcher.stopped_by())
    }

    #[test]
    fn cut_at_every_letter() {
        let text = "alpha beta gamma delta";
        for at in 0..=text.len() {
            let (a, b) = text.split_at(at);
            assert_eq!(run(&["beta gamma"], &[a, b]), ("alpha ".into(), Some(0)));
        }
    }

    #[test]
    fn holds_only_what_could_match() {
        let mut matcher = StopMatcher::new(["beta gamma"]).expect("usable");
        assert_eq!(matcher.push("alpha be").text, "alpha ");
        assert_eq!(matcher.push("st").text, "best");
        assert_eq!(matcher.push(" beta").text, " ");
        assert_eq!(matcher.push(" gas").text, "beta gas");
    }

    #[test]
    fn prefix_of_another_stops_first() {
        assert_eq!(run(&["abc", "ab"], &["xa", "bc"]), ("x".into(), Some(1)));
        assert_eq!(run(&["ab", "abc"], &["xabc"]), ("x".into(), Some(0)));
    }

    #[test]
    fn longer_of_two_that_end_together() {
        assert_eq!(run(&["bc", "abc"], &["xabc"]), ("x".into(), Some(1)));
    }

    #[test]
    fn inner_stop_that_ends_first_wins_in_any_cut() {
        assert_eq!(run(&["abcd", "bc"], &["abcd"]), ("a".into(), Some(1)));
        assert_eq!(run(&["abcd", "bc"], &["a", "b", "c", "d"]), ("a".into(), Some(1)));
    }

    #[test]
    fn swallows_after_the_stop() {
        let mut matcher = StopMatcher::new(["\n"]).expect("usable");
        assert_eq!(matcher.push("a\nb").text, "a");
        assert_eq!(matcher.push("c"), StopPiece { text: String::new(), stopped_by: Some(0) });
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn no_stops_hold_nothing() {
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }

    #[test]
    fn empty_stop_is_refused() {
        assert_eq!(StopMatcher::new(["a", ""]).map(|_| ()), Err(StopError::Empty { index: 1 }));
    }

    proptest! {
        #[test]
        fn any_cut_equals_letter_by_letter(
            text in "[abc]{0,24}",
            stops in proptest::collection::vec("[abc]{1,4}", 0..4),
            step in 1usize..6,
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let by = |n: usize| {
                let pieces: Vec<String> =
                    text.as_bytes().chunks(n).map(|c| String::from_utf8_lossy(c).into()).collect();
                run(&stops, &pieces.iter().map(String::as_str).collect::<Vec<_>>())
            };
            prop_assert_eq!(by(step), by(1));
            let (out, stopped) = by(1);
            prop_assert!(text.starts_with(&out));
            prop_assert_eq!(stopped.is_some(), stops.iter().any(|s| text.contains(s)));
            if stopped.is_none() {
                prop_assert_eq!(out, text);
            }
        }
    }
}
