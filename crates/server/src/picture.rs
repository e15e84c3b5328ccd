//! Pictures: what is asked for, what makes one, and what it tells on its way.

use std::ops::ControlFlow;
use std::sync::Arc;

/// One picture to make.
#[derive(Debug, Clone, PartialEq)]
pub struct PictureOrder {
    /// What it should show.
    pub prompt: String,
    /// Pixels from left to right.
    pub width: usize,
    /// Pixels from top to bottom.
    pub height: usize,
    /// Steps from noise to picture.
    pub steps: usize,
    /// How strongly the prompt is followed; 1 is as the model was made for.
    pub guidance: f32,
    /// The seed of the noise.
    pub seed: u64,
}

/// What holds where an order is silent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PictureDefaults {
    /// Pixels from left to right.
    pub width: usize,
    /// Pixels from top to bottom.
    pub height: usize,
    /// Steps from noise to picture.
    pub steps: usize,
    /// How strongly the prompt is followed.
    pub guidance: f32,
}

/// How far a picture is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureStage {
    /// The prompt is read.
    Prompt,
    /// So many steps are done.
    Steps {
        /// Steps done.
        done: usize,
        /// Steps in all.
        total: usize,
    },
    /// The steps are done, and pixels are made.
    Pixels,
}

/// A picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// A PNG file.
    pub png: Vec<u8>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// What it took.
    pub seconds: f64,
}

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// The order cannot be carried out.
    #[error("`{field}`: {message}")]
    Order {
        /// The field that is wrong, as [`PictureOrder`] names it; `size` for width and height.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The watcher wanted it to end.
    #[error("the picture was cancelled")]
    Cancelled,
    /// Too little memory is free now; it may work later.
    #[error("{0}")]
    NoRoom(String),
    /// The order was fine, and the work failed.
    #[error("{0}")]
    Failed(String),
}

/// What makes pictures, one after the other, on a thread of its own.
pub trait PictureSource: 'static {
    /// Makes a picture. `watch` is told of each stage as it begins and of each step as it ends, as often as there is a
    /// chance to stop, and says whether to go on.
    ///
    /// # Errors
    /// [`PictureError::Cancelled`] when `watch` said so.
    fn make(
        &mut self,
        order: &PictureOrder,
        watch: &mut dyn FnMut(PictureStage) -> ControlFlow<()>,
    ) -> Result<Picture, PictureError>;
}

/// Finds what is wrong with an order before it waits for its turn. Runs beside the source, on any thread.
pub type PictureCheck = Arc<dyn Fn(&PictureOrder) -> Result<(), PictureError> + Send + Sync>;
