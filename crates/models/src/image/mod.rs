//! Bonsai Image (FLUX.2 klein): a text encoder, a diffusion transformer over latent pixels, and the decoder of a VAE.
//!
//! | file | part |
//! |---|---|
//! | [`text_encoder`] | Qwen3 up to the last layer that the transformer reads |
//! | [`transformer`] | two-stream and one-stream blocks; predicts the flow at a noise level |
//! | [`vae`] | latents to pixels |
//! | [`schedule`] | noise levels of the steps |
//! | [`Named`] | weights under other names than those of diffusers |
//!
//! Rows are latent pixels (one for 16 x 16 pixels of the picture) or text tokens, columns are channels.

mod facts;
mod names;
pub mod schedule;
pub mod text_encoder;
pub mod transformer;
pub mod vae;

pub use facts::{ImageFacts, ImagePart, ImageSize, PATCH};
pub use names::Named;

use crate::ModelError;
use onebit_ops::{SourceError, WeightSource};

/// A part that its loader built.
fn part_loader<T>(built: Option<T>) -> Result<T, ModelError> {
    built.ok_or_else(|| SourceError("a part of the model was not built".to_owned()).into())
}

/// Sizes of the three parts, checked against each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Of the transformer.
    pub transformer: ImageFacts,
    /// Of the text encoder.
    pub text: text_encoder::TextFacts,
    /// Of the decoder.
    pub vae: vae::VaeFacts,
}

/// Reads the headers of all parts, in the order of [`ImagePart::ALL`].
///
/// # Errors
/// The part with its fault. Of parts that do not belong together it is that which the transformer was not made for.
pub fn facts([text, transformer, vae]: [&dyn WeightSource; 3]) -> Result<Facts, (ImagePart, ModelError)> {
    let of = |part| move |error| (part, error);
    let (transformer, _) = transformer::outline(transformer).map_err(of(ImagePart::Transformer))?;
    let (text, _) = text_encoder::outline(text).map_err(of(ImagePart::TextEncoder))?;
    text_encoder::agrees(&text, &transformer).map_err(of(ImagePart::TextEncoder))?;
    let (vae, _) = vae::outline(vae).map_err(of(ImagePart::Vae))?;
    vae::agrees(&vae, &transformer).map_err(of(ImagePart::Vae))?;
    Ok(Facts { transformer, text, vae })
}
