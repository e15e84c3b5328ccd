//! Parsers for safetensors (MLX, HF) and GGUF checkpoints.
//!
//! [`open`] takes a folder or a file and returns a [`Checkpoint`]: its metadata, its tensor list and borrowed
//! [`Matrix`](onebit_quant::Matrix) views into the files. Nothing here knows a device or computes with a weight.
//!
//! Files are untrusted. Every parser works on a byte slice, returns an error or a value, never panics, and
//! allocates no more than a small multiple of the bytes that it has really seen. The same parsers read a header
//! from the first bytes of a file ([`Parsed::NeedBytes`] asks for more), so that a model can be judged over HTTP
//! ranges before it is downloaded: [`Inventory`] is what such headers add up to.
//!
//! | module | holds |
//! |---|---|
//! | [`safetensors`] | header, shard index, writer |
//! | [`gguf`] | header, key-value types, the two meanings of type id 42, writer |
//! | [`mlx`] | the `quantization` section of `config.json` |

mod checkpoint;
mod discover;
mod error;
pub mod gguf;
mod image;
mod inventory;
mod json;
mod kind;
mod meta;
pub mod mlx;
pub mod safetensors;
mod sniff;
mod storage;
mod tensor;

pub use checkpoint::{Checkpoint, DenseTensor, Fingerprint, OpenOptions, open, open_embedded};
pub use error::{Error, Problem};
pub use image::{ImageFolders, image_folders, is_image_folder};
pub use inventory::{Container, Inventory, MatrixInfo};
pub use kind::Kind;
pub use meta::{Meta, MetaArray};
pub use storage::{FileBytes, explain_shrunk_files, map_file};
pub use tensor::{StoredType, TensorInfo};

/// What a header parser made of the bytes that it was given.
#[derive(Debug, Clone, PartialEq)]
pub enum Parsed<T> {
    /// The header was complete.
    Header(T),
    /// The prefix ends too early: at least so many bytes of the file are needed. Never more than the file's length.
    NeedBytes(u64),
}
