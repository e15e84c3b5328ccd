//! How much of a stream's end must be kept back because it may still become
//! a marker.

/// Length in bytes of the longest end of `text` that is a beginning of
/// `marker`, but not all of it.
pub(crate) fn open_tail(text: &str, marker: &str) -> usize {
    let (text, marker) = (text.as_bytes(), marker.as_bytes());
    let longest = marker.len().saturating_sub(1).min(text.len());
    (1..=longest).rev().find(|&n| text.ends_with(&marker[..n])).unwrap_or(0)
}

/// Takes `text` apart at byte `at`, leaving the rest in place.
pub(crate) fn take_front(text: &mut String, at: usize) -> String {
    let rest = text.split_off(at);
    std::mem::replace(text, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_open_tail() {
        assert_eq!(open_tail("xaa", "aab"), 2);
        assert_eq!(open_tail("xaab", "aab"), 0);
        assert_eq!(open_tail("</thin", "</think>"), 6);
        assert_eq!(open_tail("", "a"), 0);
        assert_eq!(open_tail("a", ""), 0);
        assert_eq!(open_tail("é", "ё"), 0);
    }
}
