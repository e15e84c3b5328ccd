//! Names of answers and calls, and the time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// `PREFIX` and 24 random hexadecimal digits.
pub(crate) fn fresh(prefix: &str) -> String {
    let mut bytes = [0u8; 12];
    // Without the system's random numbers an id is still different from the others of this moment.
    if getrandom::fill(&mut bytes).is_err() {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos());
        bytes.copy_from_slice(&nanos.to_le_bytes()[..12]);
    }
    let digits: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("{prefix}{digits}")
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

/// The time as ISO 8601 in UTC.
pub(crate) fn iso_time() -> String {
    jiff::Timestamp::now().to_string()
}

/// Seconds since 1970 as ISO 8601 in UTC.
pub(crate) fn iso(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).map(|t| t.to_string()).unwrap_or_default()
}

/// A seed that nobody could have told beforehand: 32 bits, which every generator of noise looks at.
pub(crate) fn fresh_seed() -> u64 {
    let mut bytes = [0u8; 4];
    if getrandom::fill(&mut bytes).is_err() {
        bytes = (SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.subsec_nanos())).to_le_bytes();
    }
    u32::from_le_bytes(bytes).into()
}
