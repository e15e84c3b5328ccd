//! An open image model: what it is, how a prompt fits, and the making of pictures.

use super::fingerprint;
use super::recipe::{Maker, Recipe};
use crate::args::ImageRunOptions;
use crate::resolve::Located;
use crate::{Usage, backends, image_model};
use anyhow::{Context, Result, anyhow, bail};
use onebit_engine::image::{
    ImageError, ImageEvent, ImageModel, ImagePlan, ImageRequest, ImageSettings, Picture, Residency,
};
use onebit_models::image::{ImageFacts, ImageSize};
use onebit_ops::{Activations, Backend};
use std::ops::ControlFlow;
use std::sync::Arc;

/// An image model that can be asked for pictures.
pub struct Studio {
    /// The name to show.
    pub name: String,
    /// What goes into the files.
    pub maker: Maker,
    /// The device in words.
    pub device: String,
    model: ImageModel,
    residency: Residency,
    decode_bytes: Option<u64>,
}

/// A prompt as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fitted {
    /// What is read.
    pub text: String,
    /// Tokens of the whole prompt, the frame around it included.
    pub tokens: usize,
    /// What is left out at the end, if anything.
    pub dropped: Option<String>,
}

impl Fitted {
    /// The sentence about what is left out.
    #[must_use]
    pub fn warning(&self, most: usize) -> Option<String> {
        let dropped = self.dropped.as_ref()?;
        let start: String = dropped.trim_start().chars().take(40).collect();
        let dots = if dropped.trim_start().chars().count() > 40 { "…" } else { "" };
        Some(format!(
            "the prompt has {} tokens with its frame and {most} are read: what begins with “{start}{dots}” is left out",
            self.tokens
        ))
    }
}

impl Studio {
    /// Opens a model. Reads headers, and samples of the weights for the hash.
    ///
    /// # Errors
    /// Files that are no image model's, or incomplete.
    pub fn open(located: &Located, backend: Arc<dyn Backend>, options: &ImageRunOptions) -> Result<Studio> {
        let shared = options.shared();
        let caps = backend.caps();
        let activations = match shared.activations.resolve(caps.default_activations) {
            Activations::F32 => "f32",
            Activations::I8G128 => "int8",
            Activations::I9G128 => "int9",
        };
        let (device, backend_name) = (caps.device.clone(), caps.name.clone());
        let model = image_model::open(&located.path, &shared, backend)?;
        let maker = Maker {
            model: located.name.clone(),
            model_hash: fingerprint::of(&image_model::folders(&located.path)?)?,
            activations: activations.to_owned(),
            backend: backend_name.to_string(),
        };
        let residency = if options.low_memory { Residency::OneByOne } else { Residency::Auto };
        let decode_bytes = options.decode_memory.map(|mb| mb as u64 * 1_000_000);
        Ok(Studio { name: located.name.clone(), maker, device, model, residency, decode_bytes })
    }

    /// The size of a picture where nobody names one.
    #[must_use]
    pub fn usual_size(&self) -> ImageSize {
        self.model.usual_size()
    }

    /// What a picture of a size is made with where nobody says otherwise.
    #[must_use]
    pub fn defaults(&self, size: ImageSize) -> ImageSettings {
        self.model.settings(size)
    }

    /// Sizes of the transformer.
    #[must_use]
    pub fn facts(&self) -> &ImageFacts {
        &self.model.facts().transformer
    }

    fn settings(&self, recipe: &Recipe) -> ImageSettings {
        ImageSettings {
            size: recipe.size,
            steps: recipe.steps,
            guidance: recipe.guidance,
            shift: recipe.shift,
            text_tokens: recipe.text_tokens,
            residency: self.residency,
            decode_bytes: self.decode_bytes,
        }
    }

    /// What a picture will need.
    ///
    /// # Errors
    /// Settings that the model cannot take, and too little memory.
    pub fn plan(&self, recipe: &Recipe) -> Result<ImagePlan, ImageError> {
        self.model.plan(&self.settings(recipe))
    }

    /// Tokens of a prompt, the frame around it included.
    ///
    /// # Errors
    /// A fault of the tokenizer.
    pub fn tokens(&self, prompt: &str) -> Result<usize, ImageError> {
        self.model.tokens(prompt)
    }

    /// As much of a prompt as fits into `most` tokens.
    ///
    /// # Errors
    /// When the frame alone has more.
    pub fn fit(&self, prompt: &str, most: usize) -> Result<Fitted> {
        fit(prompt, most, |text| Ok(self.model.tokens(text)?))
    }

    /// Makes a picture from noise, (tokens, channels) row-major.
    ///
    /// # Errors
    /// Whatever there is instead of a picture; [`ImageError::Cancelled`] when `on` said so.
    pub fn paint(
        &mut self,
        recipe: &Recipe,
        prompt: &str,
        noise: Vec<f32>,
        on: &mut dyn FnMut(ImageEvent<'_>) -> ControlFlow<()>,
    ) -> Result<Picture, ImageError> {
        let request = ImageRequest { prompt: prompt.to_owned(), settings: self.settings(recipe), noise };
        self.model.generate(&request, on)
    }
}

/// The longest beginning of a prompt that has at most so many tokens.
fn fit(prompt: &str, most: usize, count: impl Fn(&str) -> Result<usize>) -> Result<Fitted> {
    let tokens = count(prompt)?;
    if tokens <= most {
        return Ok(Fitted { text: prompt.to_owned(), tokens, dropped: None });
    }
    let frame = count("")?;
    if frame >= most {
        bail!("--max-sequence-length {most} leaves no room for a prompt: its frame alone has {frame} tokens");
    }
    let ends: Vec<usize> = prompt.char_indices().map(|(at, _)| at).collect();
    // A character more may make a token less, so the count is no more than nearly monotonic: what the search finds is
    // checked, and a character less always fits soon.
    let (mut fits, mut fails) = (0, ends.len());
    while fails - fits > 1 {
        let middle = fits.midpoint(fails);
        if count(&prompt[..ends[middle]])? <= most { fits = middle } else { fails = middle }
    }
    let (text, dropped) = prompt.split_at(ends[fits]);
    Ok(Fitted { text: text.to_owned(), tokens, dropped: Some(dropped.to_owned()) })
}

/// The error with its parameter as the command line spells it.
#[must_use]
pub fn in_flags(error: ImageError) -> anyhow::Error {
    match error {
        ImageError::Parameter { name: "decode bytes", wanted, got } => {
            anyhow!(Usage(format!("--decode-memory: the bytes must be {wanted}, got {got}")))
        }
        ImageError::Parameter { name: "text tokens", wanted, got } => {
            anyhow!(Usage(format!("--max-sequence-length must be {wanted}, got {got}")))
        }
        ImageError::Parameter { name, wanted, got } => anyhow!(Usage(format!("--{name} must be {wanted}, got {got}"))),
        other => other.into(),
    }
}

/// Opens a backend that runs image models.
///
/// # Errors
/// As [`backends::open_for_images`].
pub fn backend(options: &ImageRunOptions, quiet: bool) -> Result<Arc<dyn Backend>> {
    backends::open_for_images(&options.shared(), quiet).context("image models")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of three tokens, and a token for each word.
    fn words(text: &str) -> Result<usize> {
        Ok(3 + text.split_whitespace().count())
    }

    #[test]
    fn prompts_are_cut_where_the_tokens_end() {
        let whole = fit("a b c", 6, words).expect("fits");
        assert_eq!(whole, Fitted { text: "a b c".to_owned(), tokens: 6, dropped: None });
        let cut = fit("one two three fourteen", 5, words).expect("cut");
        assert_eq!((cut.tokens, cut.text.trim()), (7, "one two"));
        let warning = cut.warning(5).expect("a warning");
        assert!(warning.contains("7 tokens") && warning.contains("“three fourteen”"), "{warning}");
        let long = fit(&"盆栽 ".repeat(2000), 512, words).expect("cut");
        assert_eq!((long.tokens, words(&long.text).expect("a count")), (2003, 512));
        assert!(fit("a b", 3, words).is_err(), "no room");
        assert_eq!(fit("", 3, words).expect("nothing").tokens, 3);
    }
}
