//! What a picture needs, predicted before anything is loaded.

use super::decode::{self, Tiling};
use super::run::{Work, bytes, exchanged};
use super::{ImageError, ImageOptions, ImageSettings, Residency};
use onebit_models::image::ImagePart;
use onebit_models::image::text_encoder::TextEncoder;
use onebit_models::image::transformer::Transformer;
use onebit_models::image::vae::{self, Vae};
use onebit_ops::{Caps, Program, Weight};

/// Bytes of the program itself: code that has run, threads, headers.
const PROGRAM: u64 = 30_000_000;
/// Bytes that a tokenizer takes for each of its file while that is read, and from then on.
const TOKENIZER: [u64; 2] = [13, 7];
/// Most bytes that the C library's allocator keeps of what was freed: it gives back what exceeds twice its largest piece of 32 MB.
const FREED: u64 = 64 << 20;
/// Bytes of a picture's pixel as levels and in its file.
const LEVELS: u64 = 6;

/// Prediction for one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanPart {
    /// Which.
    pub part: ImagePart,
    /// Bytes of its weights on the device.
    pub weights: u64,
    /// Bytes of its temporaries while it runs.
    pub temporaries: u64,
    /// Bytes of what goes in and comes out, as the host holds it.
    pub copies: u64,
    /// Multiply-adds for the whole picture.
    pub operations: u64,
    /// The same by the time that they take: of two parts with the same number one takes about as long as the other.
    pub work: u64,
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

    /// `tokenizer` are the bytes of its file.
    fn peak(parts: &[PlanPart], one_by_one: bool, tokenizer: u64) -> u64 {
        let runs = |p: &PlanPart| p.temporaries + p.copies;
        let most = if one_by_one {
            let mut before = 0;
            let taken = parts.iter().map(|p| {
                let freed = FREED.min(before);
                before += p.weights;
                freed + p.weights + runs(p)
            });
            taken.max().unwrap_or(0)
        } else {
            parts.iter().map(|p| p.weights).sum::<u64>() + parts.iter().map(runs).max().unwrap_or(0)
        };
        let [read, kept] = TOKENIZER.map(|times| times * tokenizer);
        PROGRAM + read.max(kept + most)
    }
}

/// Parts that can be recorded without a device.
pub(super) struct Sketches {
    pub text: TextEncoder,
    pub transformer: Transformer,
    pub vae: Vae,
    /// Bytes of the tokenizer's file.
    pub tokenizer: u64,
}

/// Plans a picture on a device; of `options` it counts how inputs are rounded and how many bytes are free.
pub(super) fn plan(
    sketches: &Sketches,
    settings: &ImageSettings,
    options: &ImageOptions,
    device: &Caps,
) -> Result<(ImagePlan, Tiling), ImageError> {
    let ImageSettings { size, steps, text_tokens, .. } = *settings;
    let ImageOptions { activations, free_bytes: free, .. } = *options;
    // Every row of text counts, since padding is run like the prompt.
    let text = sketches.text.program(text_tokens, text_tokens, activations);
    let context = sketches.transformer.context_program(text_tokens);
    let step = sketches.transformer.program(size, text_tokens, activations, false);
    let weights = |all: Vec<&Weight>| all.iter().map(|w| w.resident_bytes()).sum::<u64>();
    let table = if device.tables_in_files { 0 } else { sketches.text.table().resident_bytes() };
    let prompts = if settings.guidance == 1.0 { 1 } else { 2 };
    let vae_weights = weights(sketches.vae.weights());
    let both = |program: &Program| exchanged(program).iter().sum::<u64>();
    let vae_copies = 2 * both(&sketches.vae.program(vae::whole(size))) + LEVELS * (size.width() * size.height()) as u64;
    let most = settings.decode_bytes.unwrap_or_else(|| {
        let beside = PROGRAM + TOKENIZER[1] * sketches.tokenizer + vae_weights + vae_copies;
        let left = free.unwrap_or(u64::MAX).saturating_sub(beside);
        // The thinnest stripes are tried in any case.
        decode::DEFAULT_BYTES.min(left.max(decode::DEFAULT_BYTES / 8))
    });
    let tiling = decode::tiling(&sketches.vae, size, most)?;
    let part = |part, weights, temporaries, copies, Work { operations, weighed }: Work| PlanPart {
        part,
        weights,
        temporaries,
        copies,
        operations,
        work: weighed,
    };
    let parts = vec![
        part(
            ImagePart::TextEncoder,
            weights(sketches.text.weights()) + table,
            bytes(&text),
            2 * prompts * both(&text),
            prompts * Work::of(&text),
        ),
        part(
            ImagePart::Transformer,
            weights(sketches.transformer.weights()),
            bytes(&step).max(bytes(&context)),
            prompts * both(&context) + 2 * both(&step) + steps as u64 * exchanged(&step)[1],
            prompts * (Work::of(&context) + steps as u64 * Work::of(&step)),
        ),
        part(ImagePart::Vae, vae_weights, tiling.bytes, vae_copies, tiling.work),
    ];
    let one_by_one = match settings.residency {
        Residency::All => false,
        Residency::OneByOne => true,
        Residency::Auto => free.is_some_and(|free| ImagePlan::peak(&parts, false, sketches.tokenizer) > free),
    };
    let peak = ImagePlan::peak(&parts, one_by_one, sketches.tokenizer);
    Ok((ImagePlan { parts, one_by_one, tiles: tiling.tiles, decoder_runs: tiling.runs, peak }, tiling))
}
