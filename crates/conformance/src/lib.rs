//! One set of cases that every backend must pass, and a mock device that keeps the contract honest.
//!
//! A backend crate runs all of them with one line in a test file, one `#[test]` for each group of cases:
//!
//! ```
//! # use onebit_ops::reference::Reference;
//! fn make_backend() -> Reference {
//!     Reference::new()
//! }
//! onebit_conformance::conformance!(make_backend);
//! ```
//!
//! A tier that the machine may lack returns an `Option`; its tests then say that they did not run. Several tiers stand
//! in modules of their own:
//!
//! ```
//! # use onebit_ops::reference::Reference;
//! # fn with_tier(_: &str) -> Option<Reference> { Some(Reference::new()) }
//! mod avx2 {
//!     onebit_conformance::conformance!(optional || super::with_tier("avx2"));
//! }
//! ```
//!
//! Every case runs the same recorded program on the backend and on [`onebit_ops::reference::Reference`] and compares
//! each value within a bound that is derived from the case's data, never guessed; the formulas stand in the files of
//! `src/bound`. Two things must hold bit for bit: integer activations that make every result a whole number, and a row's
//! result whatever else the step computes. What a backend says it does not run (activation kinds, KV formats, stored
//! formats) is skipped, after checking that it refuses where the contract has a refusal.

#![forbid(unsafe_code)]

mod bound;
mod cases;
mod check;
mod delta_case;
pub mod mock;
mod prng;
mod rows;
mod session;
mod weights;

use check::Suite;
use onebit_ops::Backend;
use onebit_ops::reference::Reference;

/// A group of cases.
pub struct Group {
    /// Its name, which is that of the test.
    pub name: &'static str,
    run: fn(&mut Suite<'_>),
}

/// What a group of cases did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Comparisons made.
    pub checks: usize,
    /// One message for each comparison that failed: case, worst index, expected, got, bound.
    pub failures: Vec<String>,
}

/// Runs one group on a backend.
#[must_use]
pub fn run(group: &Group, backend: &dyn Backend) -> Outcome {
    let reference = Reference::new();
    let mut suite = Suite::new(group.name, backend, &reference);
    (group.run)(&mut suite);
    suite.finish()
}

/// Runs the named group and panics with its failures: the body of every generated test.
///
/// # Panics
/// When a comparison fails, and for a name that is not in [`GROUPS`].
pub fn assert_group(name: &str, backend: &dyn Backend) {
    let group = GROUPS.iter().find(|g| g.name == name).unwrap_or_else(|| panic!("no group of cases is named {name}"));
    let Outcome { checks, failures } = run(group, backend);
    println!("{name} on {}: {checks} comparisons", backend.caps().name);
    let shown: Vec<&str> = failures.iter().take(8).map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{}: {} of {checks} comparisons failed in {name}\n{}",
        backend.caps().name,
        failures.len(),
        shown.join("\n")
    );
}

/// Hands the list of groups to another macro of this crate. The only place that lists them.
#[doc(hidden)]
#[macro_export]
macro_rules! __groups {
    ($then:ident $args:tt) => {
        $crate::$then! {
            $args
            contract
            matmul_formats
            matmul_batches
            matmul_widths
            matmul_members
            matmul_epilogues
            matmul_integers
            matmul_surroundings
            replay
            embedding
            kept
            norms
            rope
            gates
            select
            sample
            sample_full
            attention
            conv
            gated_delta
            speculation
            slots
            neighbours
            latents
            full_attention
            pictures
            chains
        }
    };
}

/// The table of groups.
#[doc(hidden)]
#[macro_export]
macro_rules! __table {
    ({} $($name:ident)*) => {
        /// Every group of cases, in the order of the tests.
        pub static GROUPS: &[Group] = &[$(Group { name: stringify!($name), run: cases::$name::run }),*];
    };
}

/// One test for each group.
#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ({ $make:expr } $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                if let Some(backend) = ($make)() {
                    $crate::assert_group(stringify!($name), &backend);
                } else {
                    eprintln!("{}: not run, this machine lacks the backend or tier", stringify!($name));
                }
            }
        )*
    };
}

/// Makes one `#[test]` for each group of cases. The argument is a function or closure that makes the backend; after
/// the word `optional` it returns an `Option`, for a tier that the machine may lack.
#[macro_export]
macro_rules! conformance {
    (optional $make:expr) => {
        $crate::__groups! { __tests { $make } }
    };
    ($make:expr) => {
        $crate::__groups! { __tests { || Some(($make)()) } }
    };
}

__groups! { __table {} }
