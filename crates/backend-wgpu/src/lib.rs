//! The wgpu backend: kernels in real `.wgsl` files for Vulkan, Metal and DX12, and one list of dispatches a plan.
//!
//! | module | idea |
//! |---|---|
//! | `adapter` | finding a GPU, opening it, and what is said when it fails |
//! | `shaders`, `pipelines` | from `shaders/` to pipelines: constants in front of plain inclusions |
//! | `translated`, `tuning` | what the driver has made of the kernels, and what was measured, kept between runs |
//! | `memory` | buffers, and sums of their bytes |
//! | `layout`, `repack`, `weight` | how a weight lies on the device, and how it gets there from a file's format |
//! | `cache` | pages, state slots and guesses |
//! | `ops` | the operations of `onebit_ops` as dispatches |
//! | `inputs`, `outputs`, `clock`, `plan`, `backend` | a step: its inputs, its results, its dispatches; the contract |
//!
//! `shaders/README.md` draws all memory. A row's result does not depend on the rows computed beside it: every plan runs the
//! same kernels' loops over a row.

mod adapter;
mod backend;
mod bandwidth;
mod cache;
mod clock;
mod inputs;
mod layout;
mod memory;
mod ops;
mod outputs;
mod pipelines;
mod plan;
mod repack;
pub mod shaders;
mod translated;
mod tuning;
mod weight;

pub use adapter::{AdapterKind, Found, adapters, gpu_is_possible};
pub use backend::{WgpuBackend, WgpuOptions};
pub use tuning::Tuning;
