//! An image model on a device.

use super::decode;
use super::plan::{self, Sketches};
use super::prompt;
use super::run::Runner;
use super::{ImageError, ImageEvent, ImagePlan, ImageRequest, ImageSettings, Picture};
use onebit_models::image::schedule;
use onebit_models::image::text_encoder::{self, TextEncoder};
use onebit_models::image::transformer::{self, Transformer, names};
use onebit_models::image::vae::{self, Vae};
use onebit_models::image::{Facts, ImagePart, ImageSize};
use onebit_models::{LoadOptions, ModelError, Progress};
use onebit_ops::{Activations, Backend, OpError, SourceError, WeightSource};
use onebit_text::Tokenizer;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// Where the parts of an image model come from. Weights are opened when they are needed, and closed after.
pub trait ImageTree: Send + Sync {
    /// Opens a part: its configuration and its tensors.
    ///
    /// # Errors
    /// A sentence for a part that is missing or cannot be read, with how to get it.
    fn open(&self, part: ImagePart) -> Result<Box<dyn WeightSource + '_>, SourceError>;
    /// The bytes of `tokenizer.json`.
    ///
    /// # Errors
    /// As [`ImageTree::open`].
    fn tokenizer(&self) -> Result<Vec<u8>, SourceError>;
}

/// How the model is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageOptions {
    /// Rounding of the inputs of packed products.
    pub activations: Activations,
    /// Keep offsets even where they can be derived.
    pub keep_biases: bool,
    /// Bytes that weights and temporaries may take, if it is known; decides about [`Residency::Auto`](super::Residency).
    pub free_bytes: Option<u64>,
}

/// An open image model.
pub struct ImageModel {
    tree: Box<dyn ImageTree>,
    backend: Arc<dyn Backend>,
    options: ImageOptions,
    facts: Facts,
    tokenizer: Tokenizer,
    sketches: Sketches,
    loaded: Loaded,
}

/// Parts that are in memory.
#[derive(Default)]
struct Loaded {
    text: Option<TextEncoder>,
    transformer: Option<Transformer>,
    vae: Option<Vae>,
}

/// Whoever listens, and whether they have had enough.
struct Listener<'a, 'b> {
    on: &'a mut (dyn FnMut(ImageEvent<'_>) -> ControlFlow<()> + 'b),
    stopped: bool,
    seconds: Vec<(ImagePart, [f64; 2])>,
}

impl Listener<'_, '_> {
    fn tell(&mut self, event: ImageEvent<'_>) -> Result<(), ImageError> {
        self.stopped |= (self.on)(event).is_break();
        if self.stopped { Err(ImageError::Cancelled) } else { Ok(()) }
    }

    /// Adds to the time of a part: `which` is 0 for reading its weights, 1 for running it.
    fn time(&mut self, part: ImagePart, which: usize, since: Instant) {
        let seconds = since.elapsed().as_secs_f64();
        match self.seconds.iter_mut().find(|(known, _)| *known == part) {
            Some((_, times)) => times[which] += seconds,
            None => {
                let mut times = [0.0; 2];
                times[which] = seconds;
                self.seconds.push((part, times));
            }
        }
    }
}

/// How a part is read onto a device.
type Load<T> = fn(&dyn WeightSource, &dyn Backend, LoadOptions<'_>, &mut dyn FnMut(Progress)) -> Result<T, ModelError>;

impl ImageModel {
    /// Reads headers, configuration and tokenizer; no weights.
    ///
    /// # Errors
    /// A part that is missing, or of another shape than this program runs; a backend that runs no image models.
    pub fn open(
        tree: Box<dyn ImageTree>,
        backend: Arc<dyn Backend>,
        options: ImageOptions,
    ) -> Result<ImageModel, ImageError> {
        if !backend.caps().images {
            let error = OpError::UnsupportedOp { backend: backend.caps().name.clone(), op: "full_attention" };
            return Err(ImageError::Device { part: ImagePart::Transformer, error });
        }
        let file = tree.tokenizer()?;
        let (facts, sketches) = {
            let sources = ImagePart::ALL.map(|part| tree.open(part));
            let [text, transformer, vae] = sources;
            let (text, transformer, vae) = (text?, transformer?, vae?);
            let of = |part| move |error| ImageError::Part { part, error };
            let facts = onebit_models::image::facts([&*text, &*transformer, &*vae])
                .map_err(|(part, error)| ImageError::Part { part, error })?;
            let sketches = Sketches {
                text: text_encoder::sketch(&*text).map_err(of(ImagePart::TextEncoder))?,
                transformer: transformer::sketch(&*transformer).map_err(of(ImagePart::Transformer))?,
                vae: vae::sketch(&*vae).map_err(of(ImagePart::Vae))?,
                tokenizer: file.len() as u64,
            };
            (facts, sketches)
        };
        let tokenizer = Tokenizer::from_json(&file)?;
        prompt::padding(&tokenizer)?;
        Ok(ImageModel { tree, backend, options, facts, tokenizer, sketches, loaded: Loaded::default() })
    }

    /// Sizes of all parts.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What a picture of a size is made with where nobody says otherwise: [`ImageSettings::new`], with no more text tokens
    /// than the text encoder was made for.
    pub fn settings(&self, size: ImageSize) -> ImageSettings {
        let settings = ImageSettings::new(size);
        ImageSettings { text_tokens: settings.text_tokens.min(self.facts.text.context), ..settings }
    }

    /// The size of a picture where nobody names one.
    pub fn usual_size(&self) -> ImageSize {
        self.facts.vae.usual_size()
    }

    /// Tokens of a prompt with its frame: what must not exceed [`ImageSettings::text_tokens`].
    ///
    /// # Errors
    /// [`ImageError::Tokenizer`].
    pub fn tokens(&self, prompt: &str) -> Result<usize, ImageError> {
        Ok(prompt::encode(&self.tokenizer, prompt)?.len())
    }

    /// What a picture will need.
    ///
    /// # Errors
    /// [`ImageError::Parameter`].
    pub fn plan(&self, settings: &ImageSettings) -> Result<ImagePlan, ImageError> {
        self.check(settings)?;
        Ok(plan::plan(&self.sketches, settings, &self.options, self.backend.caps())?.0)
    }

    /// Gives the memory of all parts back; the next picture reads them again.
    pub fn unload(&mut self) {
        self.loaded = Loaded::default();
    }

    /// Makes a picture. `on` hears of every event and stops the work with [`ControlFlow::Break`].
    ///
    /// # Errors
    /// Any [`ImageError`]; a picture with NaN or of one colour is one.
    pub fn generate(
        &mut self,
        request: &ImageRequest,
        on: &mut dyn FnMut(ImageEvent<'_>) -> ControlFlow<()>,
    ) -> Result<Picture, ImageError> {
        let settings = &request.settings;
        self.check(settings)?;
        self.check_noise(request)?;
        let tokens = prompt::encode(&self.tokenizer, &request.prompt)?;
        self.check_length(&tokens, settings)?;
        let (plan, tiling) = plan::plan(&self.sketches, settings, &self.options, self.backend.caps())?;
        self.check_memory(&plan, settings)?;
        let mut listener = Listener { on, stopped: false, seconds: Vec::new() };
        let texts = self.read_prompts(request, &tokens, plan.one_by_one, &mut listener)?;
        let latents = self.denoise(request, texts, plan.one_by_one, &mut listener)?;
        let last = latents.last().unwrap_or(&request.noise);
        let rgb = self.decode(last, settings, &tiling, plan.one_by_one, &mut listener)?;
        Ok(Picture {
            size: settings.size,
            rgb,
            latents,
            tokens: tokens.len(),
            seconds: listener.seconds,
            one_by_one: plan.one_by_one,
            tiles: tiling.tiles,
        })
    }

    fn check(&self, settings: &ImageSettings) -> Result<(), ImageError> {
        let wrong =
            |name, wanted: &str, got: String| Err(ImageError::Parameter { name, wanted: wanted.to_owned(), got });
        if !(1..=1000).contains(&settings.steps) {
            return wrong("steps", "from 1 to 1000", settings.steps.to_string());
        }
        if !(settings.guidance.is_finite() && settings.guidance >= 0.0) {
            return wrong("guidance", "a number from 0 on (1 for none)", settings.guidance.to_string());
        }
        if let schedule::Shift::Fixed(mu) = settings.shift
            && !(mu.is_finite() && mu.abs() <= 20.0)
        {
            return wrong("shift", "a number from -20 to 20", mu.to_string());
        }
        let most = self.facts.text.context;
        if !(1..=most).contains(&settings.text_tokens) {
            return wrong("text tokens", &format!("from 1 to {most}"), settings.text_tokens.to_string());
        }
        Ok(())
    }

    fn check_noise(&self, request: &ImageRequest) -> Result<(), ImageError> {
        let size = request.settings.size;
        let wanted = size.tokens() * self.facts.transformer.channels;
        let bad = request.noise.iter().find(|v| !v.is_finite());
        let got = match bad {
            Some(bad) => bad.to_string(),
            None if request.noise.len() == wanted => return Ok(()),
            None => format!("{} values", request.noise.len()),
        };
        Err(ImageError::Parameter { name: "noise", wanted: format!("{wanted} finite values for {size}"), got })
    }

    fn check_length(&self, tokens: &[u32], settings: &ImageSettings) -> Result<(), ImageError> {
        if tokens.len() > settings.text_tokens {
            return Err(ImageError::PromptTooLong { tokens: tokens.len(), most: settings.text_tokens });
        }
        Ok(())
    }

    fn check_memory(&self, plan: &ImagePlan, settings: &ImageSettings) -> Result<(), ImageError> {
        let Some(free) = self.options.free_bytes.filter(|free| plan.peak > *free) else { return Ok(()) };
        let advice = if plan.one_by_one {
            "close other programs or ask for a smaller picture"
        } else {
            "let parts be loaded one by one (low memory), close other programs or ask for a smaller picture"
        };
        let size = settings.size.to_string();
        Err(ImageError::Memory { size, wanted: plan.peak, free, advice: advice.to_owned() })
    }

    /// Reads a part's weights.
    fn load<T>(&self, part: ImagePart, load: Load<T>, listener: &mut Listener<'_, '_>) -> Result<T, ImageError> {
        let since = Instant::now();
        let source = self.tree.open(part)?;
        let options = LoadOptions { keep_biases: self.options.keep_biases, store: None };
        let mut progress = |p: Progress| {
            // Loading goes on to the end of this part; the next question stops the work.
            let _ = listener.tell(ImageEvent::Loading { part, bytes: p.bytes, total: p.total });
        };
        let loaded = load(&*source, &*self.backend, options, &mut progress);
        let loaded = loaded.map_err(|error| ImageError::Part { part, error })?;
        listener.time(part, 0, since);
        Ok(loaded)
    }

    /// What the transformer sees of the prompt, and of the empty prompt where it is to be weighed against it.
    fn read_prompts(
        &mut self,
        request: &ImageRequest,
        tokens: &[u32],
        one_by_one: bool,
        listener: &mut Listener<'_, '_>,
    ) -> Result<Vec<Vec<f32>>, ImageError> {
        let (part, settings) = (ImagePart::TextEncoder, &request.settings);
        let encoder = match self.loaded.text.take() {
            Some(encoder) => encoder,
            None => self.load(part, TextEncoder::load, listener)?,
        };
        listener.tell(ImageEvent::Running(part))?;
        let since = Instant::now();
        let mut prompts = vec![tokens.to_vec()];
        if settings.guidance != 1.0 {
            prompts.push(prompt::encode(&self.tokenizer, "")?);
        }
        let (runner, pad) = (Runner { backend: &*self.backend }, prompt::padding(&self.tokenizer)?);
        let mut texts = Vec::new();
        for mut prompt in prompts {
            let keys = prompt.len();
            prompt.resize(settings.text_tokens, pad);
            let program = encoder.program(settings.text_tokens, keys, self.options.activations);
            let plan = runner.compile(part, program)?;
            let text = runner.read(&plan, prompt, text_encoder::OUTPUT)?;
            finite(part, 0, &text)?;
            texts.push(text);
        }
        listener.time(part, 1, since);
        if !one_by_one {
            self.loaded.text = Some(encoder);
        }
        Ok(texts)
    }

    /// Latents after each step.
    fn denoise(
        &mut self,
        request: &ImageRequest,
        texts: Vec<Vec<f32>>,
        one_by_one: bool,
        listener: &mut Listener<'_, '_>,
    ) -> Result<Vec<Vec<f32>>, ImageError> {
        let (part, settings) = (ImagePart::Transformer, &request.settings);
        let transformer = match self.loaded.transformer.take() {
            Some(transformer) => transformer,
            None => self.load(part, Transformer::load, listener)?,
        };
        listener.tell(ImageEvent::Running(part))?;
        let since = Instant::now();
        let runner = Runner { backend: &*self.backend };
        let (size, rows) = (settings.size, settings.text_tokens);
        let mut contexts = Vec::new();
        for text in texts {
            let program = transformer.context_program(rows);
            contexts.push(runner.once(part, program, vec![(names::PROMPT, text)], names::TEXT)?);
        }
        let plan = runner.compile(part, transformer.program(size, rows, self.options.activations, false))?;
        let angles = transformer.angles(size, rows);
        let sigmas = schedule::sigmas(size.tokens(), settings.steps, settings.shift);
        let mut latents = request.noise.clone();
        let mut all = Vec::with_capacity(settings.steps);
        for (i, levels) in sigmas.windows(2).enumerate() {
            let (sigma, next) = (levels[0] as f32, levels[1] as f32);
            let mut flows = Vec::new();
            for context in &contexts {
                let values = vec![
                    (names::TEXT, context.clone()),
                    (names::LATENTS, latents.clone()),
                    (names::TIME, transformer.time(sigma)),
                    (names::ANGLES, angles.clone()),
                ];
                flows.push(runner.run(&plan, values, names::FLOW)?);
            }
            if let [flow, empty] = flows.as_mut_slice() {
                flow.iter_mut().zip(empty).for_each(|(v, e)| *v = *e + settings.guidance * (*v - *e));
            }
            latents.iter_mut().zip(&flows[0]).for_each(|(x, v)| *x += (next - sigma) * v);
            finite(part, i + 1, &latents)?;
            all.push(latents.clone());
            listener.tell(ImageEvent::Step { step: i + 1, steps: settings.steps, latents: &latents })?;
        }
        listener.time(part, 1, since);
        drop(plan);
        if !one_by_one {
            self.loaded.transformer = Some(transformer);
        }
        Ok(all)
    }

    fn decode(
        &mut self,
        latents: &[f32],
        settings: &ImageSettings,
        tiling: &decode::Tiling,
        one_by_one: bool,
        listener: &mut Listener<'_, '_>,
    ) -> Result<Vec<u8>, ImageError> {
        let part = ImagePart::Vae;
        let vae = match self.loaded.vae.take() {
            Some(vae) => vae,
            None => self.load(part, Vae::load, listener)?,
        };
        let since = Instant::now();
        let runner = Runner { backend: &*self.backend };
        let mut before = || listener.tell(ImageEvent::Running(part));
        let pixels = decode::decode(&runner, &vae, (latents, settings.size), tiling, &mut before)?;
        finite(part, 0, &pixels)?;
        let rgb = bytes(&pixels)?;
        listener.time(part, 1, since);
        if !one_by_one {
            self.loaded.vae = Some(vae);
        }
        Ok(rgb)
    }
}

/// Refuses numbers that broke down.
fn finite(part: ImagePart, step: usize, values: &[f32]) -> Result<(), ImageError> {
    let broken = values.iter().filter(|v| !v.is_finite()).count();
    if broken == 0 {
        return Ok(());
    }
    let what = format!("{broken} of {} values are NaN or infinite", values.len());
    Err(ImageError::Broken { part, step, what })
}

/// Levels of a picture whose values lie about -1 to 1. A picture of one colour is refused: that is what a decoder gives
/// whose numbers have broken down.
fn bytes(pixels: &[f32]) -> Result<Vec<u8>, ImageError> {
    let level = |v: &f32| ((v / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
    let rgb: Vec<u8> = pixels.iter().map(level).collect();
    let first = rgb.first_chunk::<3>();
    if rgb.len() > 3 && rgb.as_chunks::<3>().0.iter().all(|pixel| Some(pixel) == first) {
        let what = format!("every pixel has the colour {:?}", first.unwrap_or(&[0; 3]));
        return Err(ImageError::Broken { part: ImagePart::Vae, step: 0, what });
    }
    Ok(rgb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_clamped_and_rounded() {
        assert_eq!(bytes(&[-1.0, 1.0, 0.0, 5.0, -5.0, 0.5]), Ok(vec![0, 255, 128, 255, 0, 191]));
    }

    #[test]
    fn a_picture_of_one_colour_is_an_error() {
        let black = bytes(&[-3.0; 12]).unwrap_err().to_string();
        assert!(black.contains("every pixel") && black.contains("doctor"), "{black}");
        let broken = finite(ImagePart::Transformer, 2, &[0.0, f32::NAN]).unwrap_err().to_string();
        assert!(broken.contains("step 2") && broken.contains("1 of 2"), "{broken}");
    }
}
