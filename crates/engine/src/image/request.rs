//! What is asked of an image model, what it tells meanwhile, and what comes back.

use onebit_models::image::{ImagePart, ImageSize, schedule::Shift};

/// Which parts of the model are in memory at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residency {
    /// All of them where the plan fits into free memory, otherwise one at a time.
    #[default]
    Auto,
    /// All of them.
    All,
    /// One at a time: each is loaded, run and freed.
    OneByOne,
}

/// What decides about time and memory of a picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageSettings {
    /// Pixels.
    pub size: ImageSize,
    /// Runs of the transformer, 1 or more; the Bonsai packs are made for 4.
    pub steps: usize,
    /// Weight of the prompt against the empty prompt: `v = v_empty + guidance (v_prompt - v_empty)`. At 1, for which the
    /// Bonsai packs are made, the empty prompt is not run; any other value doubles the work.
    pub guidance: f32,
    /// Of the noise levels.
    pub shift: Shift,
    /// Tokens that the prompt is padded to, frame included; longer prompts are refused.
    pub text_tokens: usize,
    /// What stays in memory.
    pub residency: Residency,
    /// Most bytes that the decoder's temporaries may take; larger pictures are decoded in stripes. `None` for the default.
    pub decode_bytes: Option<u64>,
}

impl ImageSettings {
    /// Four steps without guidance, 512 tokens.
    pub fn new(size: ImageSize) -> Self {
        ImageSettings {
            size,
            steps: 4,
            guidance: 1.0,
            shift: Shift::Empirical,
            text_tokens: 512,
            residency: Residency::Auto,
            decode_bytes: None,
        }
    }
}

/// One picture.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRequest {
    /// As the user wrote it; the chat frame is added here.
    pub prompt: String,
    /// Size, steps and memory.
    pub settings: ImageSettings,
    /// Standard normal values, `(size.tokens(), channels)` row-major: row `y * size.columns() + x` is a latent pixel.
    pub noise: Vec<f32>,
}

/// How far a picture is. The callback stops the work between two events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ImageEvent<'a> {
    /// Weights of a part are being read.
    Loading {
        /// Which.
        part: ImagePart,
        /// Bytes read so far.
        bytes: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A part begins to work.
    Running(ImagePart),
    /// A step is done.
    Step {
        /// Counted from 1.
        step: usize,
        /// In all.
        steps: usize,
        /// Latents after the step, as [`ImageRequest::noise`].
        latents: &'a [f32],
    },
}

/// A finished picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Pixels.
    pub size: ImageSize,
    /// `(height, width, 3)` row-major, 0 to 255.
    pub rgb: Vec<u8>,
    /// Latents after each step, each as [`ImageRequest::noise`].
    pub latents: Vec<Vec<f32>>,
    /// Tokens of the prompt, frame included, before padding.
    pub tokens: usize,
    /// Seconds of each part: reading its weights, and running it.
    pub seconds: Vec<(ImagePart, [f64; 2])>,
    /// Parts were loaded one by one.
    pub one_by_one: bool,
    /// Stripes that the decoder's last layers worked in; 1 for the whole picture at once.
    pub tiles: usize,
}
