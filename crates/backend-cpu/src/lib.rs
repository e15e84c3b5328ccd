//! The CPU backend: packed weights in layouts made for the machine's vector unit, and the loops over them.
//!
//! | module | idea |
//! |---|---|
//! | [`dispatch`](Tier) | which instruction set this process may use, found once at run time |
//! | `threads` | fork-join over hot threads |
//! | `layout`, `repack` | how a weight lies in memory, and how it gets there from a file's format |
//! | `generic` | every loop, written once over a vector of eight floats |
//! | `x86_64`, `aarch64` | what the compiler would not find by itself, one folder for each instruction set |
//! | `ops` | the operations of `onebit_ops`, cut into tasks |
//! | `plan`, `backend` | the contract |
//!
//! Results do not depend on the number of threads, and a row's result does not depend on how many rows are computed
//! beside it: integer sums are exact and groups are added in ascending order.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod ahead;
mod backend;
mod bandwidth;
mod cache;
mod dispatch;
mod generic;
mod layout;
mod memory;
mod ops;
mod plan;
mod repack;
mod threads;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use backend::{CpuBackend, CpuOptions};
pub use bandwidth::measure_read_bandwidth;
pub use dispatch::{Tier, TierError};
pub use threads::{default_threads, measure_phase_cost};
