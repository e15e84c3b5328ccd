//! The CUDA backend: kernels in real `.cu` files, one captured graph a plan, and nothing of CUDA needed to build.
//!
//! | module | idea |
//! |---|---|
//! | `driver`, [`Arch`] | the driver, loaded at run time; the device, and which code it gets |
//! | `sources`, `compile`, `archive`, `module` | from `kernels/` to loaded machine code |
//! | `memory` | device memory, and host memory that the device copies by itself |
//! | `layout`, `repack`, `weight` | how a weight lies on the device, and how it gets there from a file's format |
//! | `cache` | pages, state slots and guesses |
//! | `params`, `launch`, `stream`, `tens`, `delta` | what kernels are handed, and on which grid each op runs |
//! | `ops` | the operations of `onebit_ops` as launches |
//! | `inputs`, `outputs`, `plan`, `backend` | a step: its inputs, its results, its graph; the contract |
//!
//! `kernels/README.md` draws all memory. A row's result does not depend on the rows computed beside it: integer sums are
//! exact, groups are added in ascending order, and every plan runs the same kernels' loops over a row.

mod arch;
mod archive;
mod backend;
mod bandwidth;
mod cache;
mod compile;
mod delta;
mod driver;
mod inputs;
mod launch;
mod layout;
mod memory;
mod module;
mod ops;
mod outputs;
mod params;
mod plan;
mod repack;
mod sources;
mod stream;
mod tens;
mod weight;

pub use arch::Arch;
pub use archive::{File, archives_are_current, build_archives};
pub use backend::{CudaBackend, CudaOptions, driver_is_installed};
