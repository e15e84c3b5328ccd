//! Naming what a file is when it is no weight file.

use crate::error::Problem;

/// Errors that the first bytes of a file give away, whatever container it should have been.
pub(crate) fn check(prefix: &[u8], file_len: u64) -> Result<(), Problem> {
    if file_len == 0 {
        return Err(Problem::Empty);
    }
    let start: String = prefix.iter().take(64).map(|&b| b.to_ascii_lowercase() as char).collect();
    let start = start.trim_start_matches(['\u{ef}', '\u{bb}', '\u{bf}', ' ', '\t', '\r', '\n']);
    if ["<!doctype", "<html", "<?xml", "<head"].iter().any(|tag| start.starts_with(tag)) {
        return Err(Problem::WebPage);
    }
    if start.starts_with("version https://git-lfs") {
        return Err(Problem::LfsPointer(file_len));
    }
    Ok(())
}

/// The first bytes for a message: as text where printable, else as hex.
pub(crate) fn describe(prefix: &[u8]) -> String {
    let start = &prefix[..prefix.len().min(8)];
    if start.iter().all(|b| b.is_ascii_graphic() || *b == b' ') {
        format!("`{}`", String::from_utf8_lossy(start))
    } else {
        let hex: Vec<String> = start.iter().map(|b| format!("{b:02x}")).collect();
        format!("bytes {}", hex.join(" "))
    }
}
