//! Weights as a device holds them, kept from one run to the next.

use crate::SharedBytes;
use onebit_quant::Symmetry;

/// Each piece of a kept weight begins at a multiple of so many bytes.
pub const PIECE_ALIGN: usize = 64;

/// A weight in a device's own layout. What the layout is follows from the parts' formats and from these.
#[derive(Clone)]
pub struct Resident<B> {
    /// Symmetry of each part, found when it was uploaded.
    pub symmetry: Vec<Symmetry>,
    /// Its bytes: the pieces of one stretch, each at a multiple of [`PIECE_ALIGN`], or that stretch.
    pub data: B,
}

/// A file, or anything else, that keeps uploaded weights by their names.
pub trait WeightStore {
    /// A weight that was kept in an earlier run.
    fn find(&self, name: &str) -> Option<Resident<SharedBytes>>;
    /// Takes a weight that was uploaded now. A fault is the store's own matter: the weight is there all the same.
    fn keep(&self, name: &str, weight: Resident<Vec<&[u8]>>);
}
