//! Which file names may be joined to a folder or put into an address.

use crate::error::HubError;

/// Refuses everything but plain names, with `/` between folders: no empty
/// parts, no `.` or `..`, no drive letters, backslashes or control characters.
/// The names come from the network, and are joined to paths and addresses.
pub(crate) fn check_name(name: &str, place: &str) -> Result<(), HubError> {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let odd = |c: char| c.is_control() || matches!(c, '\\' | ':');
    if name.split('/').all(plain) && !name.contains(odd) {
        Ok(())
    } else {
        Err(HubError::UnsafeName { name: name.to_owned(), place: place.to_owned() })
    }
}

/// A name as part of an address; `/` is kept where `keep_slash` says so.
pub(crate) fn percent_encode(name: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(name.len());
    for &byte in name.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte as char);
            }
            b'/' if keep_slash => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_pass() {
        for name in ["a", "a/b.safetensors", "モデル　é.gguf", "..a", "a b", ".gitattributes"] {
            assert!(check_name(name, "x").is_ok(), "{name}");
        }
    }

    #[test]
    fn ways_out_are_refused() {
        for name in [
            "",
            "/etc/hostname",
            "../x",
            "a/../../x",
            "a//b",
            "a/",
            "./a",
            r"C:\x",
            r"\\?\x",
            "C:x",
            "a\0b",
            "a\nb",
            "..",
            r"a\..\b",
        ] {
            assert!(check_name(name, "x").is_err(), "{name:?}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(percent_encode("a b/ü?#%", true), "a%20b/%C3%BC%3F%23%25");
        assert_eq!(percent_encode("refs/pr/1", false), "refs%2Fpr%2F1");
    }
}
