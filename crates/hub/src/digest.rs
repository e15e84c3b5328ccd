//! Checksums of downloads.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::listing::RepoFile;

/// The checksum that a listed file has, being computed.
pub(crate) enum Checksum {
    Sha256(Sha256),
    /// Git's id of a file: SHA-1 over a header with its length, and the file.
    Git(Sha1),
    /// The listing names no checksum.
    Unknown,
}

impl Checksum {
    pub(crate) fn for_file(file: &RepoFile, size: u64) -> Self {
        if file.sha256.is_some() {
            Self::Sha256(Sha256::new())
        } else if file.git_id.is_some() {
            let mut sha1 = Sha1::new();
            sha1.update(format!("blob {size}\0"));
            Self::Git(sha1)
        } else {
            Self::Unknown
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sha256) => sha256.update(bytes),
            Self::Git(sha1) => sha1.update(bytes),
            Self::Unknown => {}
        }
    }

    /// The sum in lower-case hexadecimal.
    pub(crate) fn finish(self) -> Option<String> {
        match self {
            Self::Sha256(sha256) => Some(hex(&sha256.finalize())),
            Self::Git(sha1) => Some(hex(&sha1.finalize())),
            Self::Unknown => None,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums() {
        let git = RepoFile { git_id: Some("x".into()), ..RepoFile::default() };
        let mut sum = Checksum::for_file(&git, 6);
        sum.update(b"hello\n");
        assert_eq!(sum.finish().as_deref(), Some("ce013625030ba8dba906f756967f9e9ca394464a"));
        let lfs = RepoFile { sha256: Some("x".into()), ..RepoFile::default() };
        let mut sum = Checksum::for_file(&lfs, 3);
        sum.update(b"abc");
        assert_eq!(sum.finish().as_deref(), Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
    }
}
