//! The adapter between checkpoint files and models: `ops` knows no file, `checkpoint` knows no model.

use onebit_checkpoint::{Checkpoint, Container, Inventory};
use onebit_ops::{DenseTensor, Meta, SharedBytes, SourceError, Table, WeightSource};
use onebit_quant::Matrix;
use std::sync::Arc;

/// An open checkpoint as a source of weights.
#[derive(Debug)]
pub struct Source(Checkpoint);

impl Source {
    /// Wraps an open checkpoint, whatever it holds; [`crate::load::open`] refuses those that cannot run.
    pub fn new(checkpoint: Checkpoint) -> Source {
        Source(checkpoint)
    }

    /// The checkpoint itself.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.0
    }
}

impl WeightSource for Source {
    fn is_gguf(&self) -> bool {
        self.0.container() == Container::Gguf
    }

    fn meta(&self, key: &str) -> Option<Meta> {
        self.0.meta(key).and_then(owned)
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        names_and_shapes(&self.0)
    }

    fn matrix(&self, base: &str) -> Result<Option<Matrix<'_>>, SourceError> {
        self.0.matrix(base).map_err(|e| SourceError(e.to_string()))
    }

    fn table(&self, base: &str) -> Result<Option<Table>, SourceError> {
        let fault = |e: onebit_checkpoint::Error| SourceError(e.to_string());
        // As every matrix, it is checked against the file's length first.
        let Some(Matrix { format, rows, cols, .. }) = self.0.matrix(base).map_err(fault)? else { return Ok(None) };
        let Some(info) = self.0.matrix_info(base).map_err(fault)? else { return Ok(None) };
        let lend = |tensor| self.0.lend(tensor).map(|(owner, range)| SharedBytes::new(owner, range));
        let Some(codes) = lend(info.weight) else { return Ok(None) };
        let nothing = SharedBytes::new(Arc::new([]), 0..0);
        let (scales, biases) = match info.params {
            Some((scales, biases)) => (lend(scales), lend(biases)),
            None => (Some(nothing.clone()), Some(nothing)),
        };
        let Some((scales, biases)) = scales.zip(biases) else { return Ok(None) };
        Ok(Some(Table { format, rows, cols, codes, scales, biases }))
    }

    fn dense(&self, name: &str) -> Result<Option<DenseTensor>, SourceError> {
        let found = self.0.dense(name).map_err(|e| SourceError(e.to_string()))?;
        Ok(found.map(|(shape, values)| DenseTensor { shape, values }))
    }

    fn fetch(&self, base: &str) {
        for suffix in ["weight", "scales", "biases"] {
            self.0.fetch(&format!("{base}.{suffix}"));
        }
    }

    fn release(&self, base: &str) {
        for suffix in ["weight", "scales", "biases"] {
            self.0.release(&format!("{base}.{suffix}"));
        }
    }
}

/// Headers alone as a source of *shapes*: matrices without bytes, floats that are all zero. Enough for
/// [`onebit_models::outline`], and all there is before a download. Byte counts are those of the inventory.
#[derive(Debug, Clone, Copy)]
pub struct Headers<'a>(pub &'a Inventory);

impl WeightSource for Headers<'_> {
    fn is_gguf(&self) -> bool {
        self.0.container() == Container::Gguf
    }

    fn meta(&self, key: &str) -> Option<Meta> {
        self.0.meta(key).and_then(owned)
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        names_and_shapes(self.0)
    }

    fn matrix(&self, base: &str) -> Result<Option<Matrix<'_>>, SourceError> {
        let info = self.0.matrix_info(base).map_err(|e| SourceError(e.to_string()))?;
        Ok(info.map(|i| Matrix { format: i.format, rows: i.rows, cols: i.cols, codes: &[], scales: &[], biases: &[] }))
    }

    fn dense(&self, name: &str) -> Result<Option<DenseTensor>, SourceError> {
        Ok(self.0.tensor(name).map(|t| {
            // Bounded by the file's own length: a header cannot promise more elements than it has bytes.
            DenseTensor { shape: t.shape.clone(), values: vec![0.0; t.shape.iter().product()] }
        }))
    }

    fn release(&self, _: &str) {}
}

fn names_and_shapes(inventory: &Inventory) -> Vec<(String, Vec<usize>)> {
    inventory.tensors().map(|t| (t.name.clone(), t.shape.clone())).collect()
}

/// A metadata value as models take it; JSON null is no value.
fn owned(meta: onebit_checkpoint::Meta<'_>) -> Option<Meta> {
    use onebit_checkpoint::Meta as M;
    Some(match meta {
        M::Null => return None,
        M::Bool(v) => Meta::Bool(v),
        M::Unsigned(v) => i64::try_from(v).map_or(Meta::Float(v as f64), Meta::Int),
        M::Signed(v) => Meta::Int(v),
        M::Float(v) => Meta::Float(v),
        M::Str(v) => Meta::Text(v.to_owned()),
        M::Array(items) => Meta::List(items.iter().filter_map(owned).collect()),
        M::Object(_) => Meta::Object,
    })
}
