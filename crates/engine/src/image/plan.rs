//! What a picture needs, predicted before anything is loaded.

use onebit_models::image::ImagePart;

/// Prediction for one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanPart {
    /// Which.
    pub part: ImagePart,
    /// Bytes of its weights on the device.
    pub weights: u64,
    /// Bytes of its temporaries while it runs.
    pub temporaries: u64,
    /// Multiply-adds for the whole picture.
    pub operations: u64,
}

/// Prediction for a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePlan {
    /// In the order of work.
    pub parts: Vec<PlanPart>,
    /// Parts are loaded one by one.
    pub one_by_one: bool,
    /// Tiles of the decoder; 1 for the whole picture at once.
    pub tiles: usize,
    /// Bytes of memory at the worst moment, the program's own included.
    pub peak: u64,
}

impl ImagePlan {
    /// Multiply-adds of all parts.
    pub fn operations(&self) -> u64 {
        self.parts.iter().map(|p| p.operations).sum()
    }
}
