//! What a picture needs, predicted before anything is loaded.

use super::decode::{self, Tiling};
use super::run::{bytes, operations};
use super::{ImageError, ImageSettings, Residency};
use onebit_models::image::ImagePart;
use onebit_models::image::text_encoder::TextEncoder;
use onebit_models::image::transformer::Transformer;
use onebit_models::image::vae::Vae;
use onebit_ops::{Activations, Weight};

/// Everything beside weights and temporaries: the program, its tokenizer, and copies of latents and pixels.
const OVERHEAD: u64 = 150_000_000;

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
    /// Stripes of the decoder's last layers; 1 for the whole picture at once.
    pub tiles: usize,
    /// How often the decoder begins to work, which is told each time.
    pub decoder_runs: usize,
    /// Bytes of memory at the worst moment, the program's own included.
    pub peak: u64,
}

impl ImagePlan {
    /// Multiply-adds of all parts.
    pub fn operations(&self) -> u64 {
        self.parts.iter().map(|p| p.operations).sum()
    }

    fn peak(parts: &[PlanPart], one_by_one: bool) -> u64 {
        let temporaries = parts.iter().map(|p| p.temporaries).max().unwrap_or(0);
        let most = if one_by_one {
            parts.iter().map(|p| p.weights + p.temporaries).max().unwrap_or(0)
        } else {
            parts.iter().map(|p| p.weights).sum::<u64>() + temporaries
        };
        most + OVERHEAD
    }
}

/// Parts that can be recorded without a device.
pub(super) struct Sketches {
    pub text: TextEncoder,
    pub transformer: Transformer,
    pub vae: Vae,
}

/// Plans a picture; `free` are the bytes that it may take.
pub(super) fn plan(
    sketches: &Sketches,
    settings: &ImageSettings,
    activations: Activations,
    free: Option<u64>,
) -> Result<(ImagePlan, Tiling), ImageError> {
    let ImageSettings { size, steps, text_tokens, .. } = *settings;
    // Every row of text counts, since padding is run like the prompt.
    let text = sketches.text.program(text_tokens, text_tokens, activations);
    let context = sketches.transformer.context_program(text_tokens);
    let step = sketches.transformer.program(size, text_tokens, activations, false);
    let weights = |all: Vec<&Weight>| all.iter().map(|w| w.resident_bytes()).sum();
    let prompts = if settings.guidance == 1.0 { 1 } else { 2 };
    let vae_weights: u64 = weights(sketches.vae.weights());
    let most = settings.decode_bytes.unwrap_or_else(|| {
        let left = free.unwrap_or(u64::MAX).saturating_sub(vae_weights + OVERHEAD);
        // The thinnest stripes are tried in any case.
        decode::DEFAULT_BYTES.min(left.max(decode::DEFAULT_BYTES / 8))
    });
    let tiling = decode::tiling(&sketches.vae, size, most)?;
    let parts = vec![
        PlanPart {
            part: ImagePart::TextEncoder,
            weights: weights(sketches.text.weights()),
            temporaries: bytes(&text),
            operations: prompts * operations(&text),
        },
        PlanPart {
            part: ImagePart::Transformer,
            weights: weights(sketches.transformer.weights()),
            temporaries: bytes(&step).max(bytes(&context)),
            operations: prompts * (operations(&context) + steps as u64 * operations(&step)),
        },
        PlanPart {
            part: ImagePart::Vae,
            weights: vae_weights,
            temporaries: tiling.bytes,
            operations: tiling.operations,
        },
    ];
    let one_by_one = match settings.residency {
        Residency::All => false,
        Residency::OneByOne => true,
        Residency::Auto => free.is_some_and(|free| ImagePlan::peak(&parts, false) > free),
    };
    let peak = ImagePlan::peak(&parts, one_by_one);
    Ok((ImagePlan { parts, one_by_one, tiles: tiling.tiles, decoder_runs: tiling.runs, peak }, tiling))
}
