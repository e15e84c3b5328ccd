//! The closed set of operations that a Bonsai model is made of, and the contract of a device that runs them.
//!
//! A model's forward pass is *recorded once* into a [`Program`]: a list of [`Op`]s over handles, with the bytes each
//! must move. A [`Backend`] compiles the program into a [`Plan`] and runs the plan for every step; tokens, positions,
//! cache slots and page tables arrive as [`StepInputs`], so nothing is recorded again per token.
//!
//! This crate knows no file and no model. Its [`mod@reference`] backend is the oracle: scalar, obvious and complete.

#![forbid(unsafe_code)]

mod activation;
mod backend;
mod cache;
mod error;
mod ledger;
mod lists;
mod program;
mod recorder;
pub mod reference;
mod rope;
mod sample;
mod source;
mod store;

pub use activation::{Activations, QuantizedRow, quantize_row};
pub use backend::{
    Backend, Caps, FormatSupport, Fusions, Plan, PlanOptions, Segment, StepInputs, StepOutput, Ticket, UploadOptions,
    Vector, Weight, WeightInfo, wait,
};
pub use cache::{Cache, CacheSpec, KvFormat, KvSpec, PAGE_ROWS, SlotState, StateSpec};
pub use error::OpError;
pub use ledger::{Areas, Ledger};
pub use lists::Capacity;
pub use program::{
    Bucket, ChannelNorm, Conv2d, Epilogue, Grid, HeadMap, Norm, Op, Placement, Program, Rows, Seen, StageCost, Tensor,
    TensorInfo, View,
};
pub use recorder::Recorder;
pub use rope::{RopeTable, YarnScaling};
pub use sample::{Adjust, Carried, Draw, Sampled, allows};
pub use source::{DenseTensor, Meta, SharedBytes, SourceError, Table, WeightSource};
pub use store::{PIECE_ALIGN, Resident, WeightStore};
