//! A reader over the first bytes of a file that tells "the file ends here" from "the prefix ends here".

use crate::error::{Problem, clip};

/// Why a read stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// The file is wrong.
    Bad(Problem),
    /// The prefix is too short: this many bytes of the file are needed.
    Need(u64),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Bad(problem)
    }
}

/// A GGUF format error.
pub(super) fn bad(why: impl Into<String>) -> Stop {
    Stop::Bad(Problem::Gguf(why.into()))
}

pub(super) struct Cursor<'a> {
    prefix: &'a [u8],
    file_len: u64,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(prefix: &'a [u8], file_len: u64) -> Self {
        Self { prefix, file_len, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes of the file that follow, whether in the prefix or not.
    pub(super) fn remaining(&self) -> u64 {
        self.file_len.saturating_sub(self.at as u64)
    }

    /// Fails unless `count` items of at least `min` bytes each can still follow. Called before anything is
    /// allocated or looped over on the strength of a stored count.
    pub(super) fn check_count(&self, what: &str, count: u64, min: u64) -> Result<(), Stop> {
        if count > self.remaining() / min {
            return Err(bad(format!(
                "{what} is given as {count}, more than the {} bytes left can hold",
                self.remaining()
            )));
        }
        Ok(())
    }

    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], Stop> {
        let end = self.position().checked_add(len).filter(|&end| end <= self.file_len);
        let Some(end) = end else {
            let wanted = self.position().saturating_add(len);
            return Err(Stop::Bad(Problem::Truncated { wanted, got: self.file_len }));
        };
        let slice = usize::try_from(end).ok().and_then(|end| self.prefix.get(self.at..end));
        let Some(slice) = slice else { return Err(Stop::Need(end)) };
        self.at += slice.len();
        Ok(slice)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Stop> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Stop> {
        self.array().map(u64::from_le_bytes)
    }

    /// A length-prefixed UTF-8 string; `what` names it in errors.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a str, Stop> {
        let len = self.u64()?;
        self.check_count(&format!("the length of {what}"), len, 1)?;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes)
            .map_err(|_| bad(format!("{what} is not UTF-8 (`{}`)", clip(&String::from_utf8_lossy(bytes)))))
    }
}
