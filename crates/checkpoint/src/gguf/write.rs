//! Writing GGUF v3, tensor by tensor.

use std::io::{self, Write};

use onebit_quant::Format;

use super::value::{Value, write_string};

const ALIGNMENT: u64 = 32;

/// What the tensor table says about a tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name.
    pub name: String,
    /// Row-major shape; written in reverse.
    pub shape: Vec<usize>,
    /// Dense or block format (not MLX affine).
    pub format: Format,
}

impl TensorSpec {
    /// Bytes of the tensor without padding.
    ///
    /// # Errors
    /// `InvalidInput` when the format has no GGUF id or the shape does not consist of whole blocks.
    pub fn bytes(&self) -> io::Result<u64> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("tensor `{}`: {why}", self.name));
        if self.format.gguf_id().is_none() {
            return Err(wrong("GGUF has no type for this format"));
        }
        let (&cols, rows) = self.shape.split_last().ok_or_else(|| wrong("it has no dimension"))?;
        let rows =
            rows.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(|| wrong("its shape overflows"))?;
        self.format.matrix_bytes(rows, cols).map(|b| b as u64).map_err(|e| wrong(&e.to_string()))
    }
}

/// The whole header, padded so that data may follow. Order of keys and tensors is kept.
///
/// # Errors
/// As [`TensorSpec::bytes`]; `InvalidInput` for a `general.alignment` other than 32.
pub fn header_bytes(metadata: &[(String, Value)], tensors: &[TensorSpec]) -> io::Result<Vec<u8>> {
    let mut out = b"GGUF".to_vec();
    out.extend_from_slice(&3u32.to_le_bytes());
    out.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    out.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        if key == "general.alignment" && *value != Value::U32(ALIGNMENT as u32) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "only an alignment of 32 is written"));
        }
        write_string(key, &mut out);
        value.write(&mut out);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        let bytes = tensor.bytes()?;
        write_string(&tensor.name, &mut out);
        out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
        for &dim in tensor.shape.iter().rev() {
            out.extend_from_slice(&(dim as u64).to_le_bytes());
        }
        out.extend_from_slice(&tensor.format.gguf_id().unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
        offset += bytes.next_multiple_of(ALIGNMENT);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    Ok(out)
}

/// Streams a GGUF file: the header on creation, then each tensor in the announced order.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    pending: std::vec::IntoIter<TensorSpec>,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Those of the sink and of [`header_bytes`].
    pub fn new(mut out: W, metadata: &[(String, Value)], tensors: Vec<TensorSpec>) -> io::Result<Self> {
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
        self.out.write_all(data)?;
        let padding = bytes.next_multiple_of(ALIGNMENT) - bytes;
        self.out.write_all(&[0; ALIGNMENT as usize][..padding as usize])
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
