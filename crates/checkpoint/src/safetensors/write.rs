//! Writing safetensors, tensor by tensor.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::tensor::StoredType;

/// What the header says about a tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name.
    pub name: String,
    /// Element type (not a GGUF block).
    pub stored: StoredType,
    /// Row-major shape.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Bytes of the tensor.
    ///
    /// # Errors
    /// `InvalidInput` when the shape overflows or the type is a GGUF block.
    pub fn bytes(&self) -> io::Result<u64> {
        let bytes = self.stored.element_bytes().and_then(|_| self.stored.tensor_bytes(&self.shape));
        bytes.map(|b| b as u64).ok_or_else(|| {
            let why = format!("`{}` cannot be stored as {} {:?}", self.name, self.stored.name(), self.shape);
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })
    }
}

/// Length field and JSON of a file that holds these tensors back to back in this order, padded with spaces to a
/// multiple of 8 as other writers do.
///
/// # Errors
/// As [`TensorSpec::bytes`].
pub fn header_bytes(metadata: &[(&str, &str)], tensors: &[TensorSpec]) -> io::Result<Vec<u8>> {
    let mut map = Map::new();
    if !metadata.is_empty() {
        let strings: Map<String, Value> = metadata.iter().map(|&(k, v)| (k.to_owned(), v.into())).collect();
        map.insert("__metadata__".into(), strings.into());
    }
    let mut begin = 0u64;
    for tensor in tensors {
        let end = begin + tensor.bytes()?;
        let entry = json!({ "dtype": tensor.stored.name(), "shape": tensor.shape, "data_offsets": [begin, end] });
        if map.insert(tensor.name.clone(), entry).is_some() {
            let why = format!("`{}` is announced twice", tensor.name);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        begin = end;
    }
    let mut text = serde_json::to_vec(&map)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.append(&mut text);
    Ok(out)
}

/// Streams a safetensors file: the header on creation, then each tensor in the announced order.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    pending: std::vec::IntoIter<TensorSpec>,
}

impl<W: Write> Writer<W> {
    /// Writes the header. `metadata` is `__metadata__`; MLX writes `format: mlx`.
    ///
    /// # Errors
    /// Those of the sink and of [`header_bytes`].
    pub fn new(mut out: W, metadata: &[(&str, &str)], tensors: Vec<TensorSpec>) -> io::Result<Self> {
        out.write_all(&header_bytes(metadata, &tensors)?)?;
        Ok(Self { out, pending: tensors.into_iter() })
    }

    /// Writes the next announced tensor.
    ///
    /// # Errors
    /// `InvalidInput` when `name` or the length is not that of the next one; those of the sink.
    pub fn tensor(&mut self, name: &str, data: &[u8]) -> io::Result<()> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let spec = self.pending.next().ok_or_else(|| invalid(format!("`{name}` was not announced")))?;
        let bytes = spec.bytes()?;
        if spec.name != name || bytes != data.len() as u64 {
            return Err(invalid(format!(
                "expected `{}` of {bytes} bytes next, got `{name}` of {} bytes",
                spec.name,
                data.len()
            )));
        }
        self.out.write_all(data)
    }

    /// Flushes and returns the sink.
    ///
    /// # Errors
    /// `InvalidInput` when an announced tensor was not written; those of the sink.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(spec) = self.pending.next() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("`{}` was not written", spec.name)));
        }
        self.out.flush()?;
        Ok(self.out)
    }
}
