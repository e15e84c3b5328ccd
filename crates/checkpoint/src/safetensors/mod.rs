//! Safetensors: header, shard index and writing.
//!
//! Layout of a file: header length u64 little-endian, a JSON object, then the data. The object maps a tensor name to
//! `{"dtype", "shape", "data_offsets": [begin, end]}` with offsets from the start of the data, and may hold
//! `__metadata__`, a string to string map. The tensors cover the data without gaps or overlaps. Nothing is aligned.

mod header;
mod index;
mod write;

pub use header::{Entry, Header};
pub use index::Index;
pub use write::{TensorSpec, Writer, header_bytes};
