//! JSON side files, read with limits on size and (through serde_json's own 128 levels) on nesting.

use std::fs;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Problem};
use crate::sniff;

/// Larger than any real `config.json`.
pub(crate) const CONFIG_LIMIT: u64 = 16 << 20;
/// An index entry takes some 100 bytes; this holds over a million tensors.
pub(crate) const INDEX_LIMIT: u64 = 256 << 20;

/// The bytes of a file of at most `limit` bytes; `None` when it does not exist.
pub(crate) fn read_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    let fail = |problem| Error::new(path, problem);
    // Opening a pipe waits for its other end.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(fail(Problem::NotAFile));
    }
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fail(e.into())),
    };
    let len = file.metadata().map_err(|e| fail(e.into()))?.len();
    if len > limit {
        return Err(fail(Problem::TooLarge { got: len, limit }));
    }
    let mut bytes = Vec::new();
    // The limit holds even if the file grows meanwhile.
    file.take(limit).read_to_end(&mut bytes).map_err(|e| fail(e.into()))?;
    sniff::check(&bytes, bytes.len() as u64).map_err(fail)?;
    Ok(Some(bytes))
}

/// A configuration file; `None` when it does not exist.
pub(crate) fn read_config(path: &Path) -> Result<Option<Value>, Error> {
    let Some(bytes) = read_file(path, CONFIG_LIMIT)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::new(path, Problem::Json { part: "configuration", why: e.to_string() }))?;
    Ok(Some(value))
}
