//! The choice of tokens in all its combinations, and in a vocabulary of a real model's size.

use super::sample::{narrow, wide};
use crate::check::Suite;

/// More than one binding of a small device.
const WIDE: usize = 70_001;

pub(crate) fn run(suite: &mut Suite<'_>) {
    narrow(suite, 60, 1);
    wide(suite, WIDE, 5);
}
