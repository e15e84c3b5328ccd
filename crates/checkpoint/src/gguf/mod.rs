//! GGUF: header, key-values, tensor table, splits and writing.
//!
//! Layout of a file: magic `GGUF`, version u32, tensor count u64, key-value count u64, the key-values, the tensor
//! table, padding to `general.alignment` (default 32), then the data, each tensor padded to the same alignment.
//! Everything little-endian. Versions 2 and 3 are the same bytes here. Source: ggml's `docs/gguf.md`.

mod cursor;
mod header;
mod layout;
mod split;
mod value;
mod write;

pub use header::{Header, RawTensor, TensorType};
pub use layout::resolve_q2_0;
pub use split::{check_splits, split_name};
pub use value::{Array, Value};
pub use write::{TensorSpec, Writer, header_bytes};
