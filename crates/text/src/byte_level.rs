//! The byte alphabet of byte-level BPE: each of the 256 bytes is written in a
//! vocabulary as one printable character.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the 68 others
//! take the characters from U+0100 on, in ascending order of byte.

/// Whether a byte is written as itself.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// Highest code point of the alphabet plus one: 256 + 68.
const ALPHABET_END: usize = 0x100 + 68;

/// Marks a code point outside the alphabet.
const NONE: u16 = u16::MAX;

/// Code point to byte.
const DECODE: [u16; ALPHABET_END] = {
    let mut table = [NONE; ALPHABET_END];
    let mut shifted = 0x100;
    let mut byte = 0;
    while byte < 256 {
        if is_plain(byte as u8) {
            table[byte] = byte as u16;
        } else {
            table[shifted] = byte as u16;
            shifted += 1;
        }
        byte += 1;
    }
    table
};

/// Appends the bytes that a vocabulary entry stands for. An entry with a
/// character outside the alphabet stands for its own UTF-8 bytes.
pub(crate) fn append_bytes(entry: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in entry.chars() {
        match DECODE.get(c as usize) {
            Some(&byte) if byte != NONE => out.push(byte as u8),
            _ => {
                out.truncate(start);
                out.extend_from_slice(entry.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entry: &str) -> Vec<u8> {
        let mut out = Vec::new();
        append_bytes(entry, &mut out);
        out
    }

    #[test]
    fn alphabet_is_a_bijection() {
        let mut seen = [false; 256];
        for byte in DECODE.into_iter().filter(|&b| b != NONE) {
            assert!(!std::mem::replace(&mut seen[byte as usize], true));
        }
        assert!(seen.iter().all(|&s| s));
    }

    #[test]
    fn known_entries() {
        assert_eq!(bytes("Ġthe"), b" the");
        assert_eq!(bytes("Ċ"), b"\n");
        assert_eq!(bytes("Ã©"), "é".as_bytes());
        assert_eq!(bytes("ðŁĻĤ"), "🙂".as_bytes());
    }

    #[test]
    fn foreign_entry_is_its_own_text() {
        assert_eq!(bytes("<｜x｜>"), "<｜x｜>".as_bytes());
    }
}
