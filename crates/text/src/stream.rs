//! Decoding one token at a time without ever showing half a character.

use crate::tokenizer::Tokenizer;

/// Collects the bytes of generated tokens and hands out whole characters.
///
/// A character whose bytes are split over tokens appears with its last byte.
/// Bytes that can never become a character appear at once as U+FFFD, so that
/// nothing stalls the stream.
#[derive(Debug, Clone, Default)]
pub struct TextStream {
    /// At most three bytes: the beginning of one character.
    held: Vec<u8>,
}

impl TextStream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a token and returns the text that it completes. Control tokens
    /// give no text.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if tokenizer.is_special(id) {
            return String::new();
        }
        self.push_bytes(tokenizer.token_slice(id))
    }

    /// Adds bytes and returns the text that they complete.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.held.len());
        let mut rest = Vec::new();
        let mut chunks = self.held.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            if chunks.peek().is_none() && is_open(invalid) {
                rest.extend_from_slice(invalid);
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.held = rest;
        text
    }

    /// Ends the stream: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        if std::mem::take(&mut self.held).is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.to_string() }
    }
}

/// Whether more bytes could make these a character.
fn is_open(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(e) if e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(bytes: &[u8], step: usize) -> String {
        let mut stream = TextStream::new();
        let mut out: String = bytes.chunks(step).map(|c| stream.push_bytes(c)).collect();
        out.push_str(&stream.finish());
        out
    }

    #[test]
    fn emoji_by_twos_and_ones() {
        for text in ["🙂", "👩‍👩‍👧", "e\u{301}", "你好，世界！", "a🙂b"] {
            for step in 1..=5 {
                assert_eq!(cut(text.as_bytes(), step), text);
            }
        }
    }

    #[test]
    fn nothing_before_the_last_byte() {
        let mut stream = TextStream::new();
        assert_eq!(stream.push_bytes(&[0xf0, 0x9f]), "");
        assert_eq!(stream.push_bytes(&[0x99]), "");
        assert_eq!(stream.push_bytes(&[0x82, b'!']), "🙂!");
    }

    #[test]
    fn invalid_bytes_never_stall() {
        let mut stream = TextStream::new();
        assert_eq!(stream.push_bytes(&[0xff]), "\u{fffd}");
        assert_eq!(stream.push_bytes(&[0xf0]), "");
        assert_eq!(stream.push_bytes(b"ok"), "\u{fffd}ok");
        assert_eq!(stream.push_bytes(&[0x80, b'x']), "\u{fffd}x");
    }

    #[test]
    fn end_within_a_character() {
        let mut stream = TextStream::new();
        assert_eq!(stream.push_bytes(&[b'a', 0xe4, 0xbd]), "a");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.finish(), "");
    }

    proptest! {
        #[test]
        fn any_bytes_any_cut_equal_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            step in 1usize..8,
        ) {
            prop_assert_eq!(cut(&bytes, step), String::from_utf8_lossy(&bytes));
        }
    }
}
