//! Bonsai Image (FLUX.2 klein): a text encoder, a diffusion transformer over latent pixels, and the decoder of a VAE.
//!
//! | file | part |
//! |---|---|
//! | [`text_encoder`] | Qwen3 up to the last layer that the transformer reads |
//! | [`transformer`] | two-stream and one-stream blocks; predicts the flow at a noise level |
//! | [`vae`] | latents to pixels |
//! | [`schedule`] | noise levels of the steps |
//!
//! Rows are latent pixels (one for 16 x 16 pixels of the picture) or text tokens, columns are channels.

mod facts;
pub mod schedule;

pub use facts::{ImageFacts, ImagePart, ImageSize, PATCH};
