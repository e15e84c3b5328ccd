//! The `onebit` command.
fn main() {}
