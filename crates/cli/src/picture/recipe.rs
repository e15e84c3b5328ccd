//! Everything that makes a picture what it is: stored in its file as texts, and read from there to make it again.

use anyhow::{Context, Result, bail};
use onebit_engine::NoiseRng;
use onebit_models::image::{ImageSize, schedule::Shift};

/// Where the noise comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noise {
    /// Drawn from a seed.
    Seed(NoiseRng, u64),
    /// Read from a file, of which this is a hash.
    File(String),
}

/// What a picture is made of, beside the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// As the user wrote it, what the model does not read included.
    pub prompt: String,
    /// Pixels.
    pub size: ImageSize,
    /// Steps from noise to picture.
    pub steps: usize,
    /// Weight of the prompt.
    pub guidance: f32,
    /// Shift of the noise levels.
    pub shift: Shift,
    /// Tokens that the prompt is cut at and padded to.
    pub text_tokens: usize,
    /// The noise.
    pub noise: Noise,
}

/// The model and machine that made a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maker {
    /// The model's name.
    pub model: String,
    /// Its [`fingerprint`](super::fingerprint).
    pub model_hash: String,
    /// Rounding of the inputs of packed matmuls.
    pub activations: String,
    /// The backend's name.
    pub backend: String,
}

impl Recipe {
    /// Names and values for a file, those of the maker included.
    #[must_use]
    pub fn texts(&self, maker: &Maker) -> Vec<(&'static str, String)> {
        let mut texts = vec![
            ("Software", format!("onebit {}", env!("CARGO_PKG_VERSION"))),
            ("prompt", self.prompt.clone()),
            ("size", self.size.to_string()),
            ("steps", self.steps.to_string()),
            ("guidance", self.guidance.to_string()),
            ("shift", shift_text(self.shift)),
            ("max_sequence_length", self.text_tokens.to_string()),
        ];
        match &self.noise {
            Noise::Seed(rng, seed) => {
                texts.push(("seed", seed.to_string()));
                texts.push(("noise_rng", rng.as_str().to_owned()));
            }
            Noise::File(hash) => texts.push(("noise_file", hash.clone())),
        }
        let Maker { model, model_hash, activations, backend } = maker;
        for (name, value) in
            [("model", model), ("model_hash", model_hash), ("activations", activations), ("backend", backend)]
        {
            texts.push((name, value.clone()));
        }
        texts
    }

    /// The recipe and its maker out of a file's texts.
    ///
    /// # Errors
    /// A text that is missing, or that this version does not understand.
    pub fn read(texts: &[(String, String)]) -> Result<(Recipe, Maker)> {
        let text = |name: &str| texts.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        if text("prompt").is_none() || text("model_hash").is_none() {
            bail!("it does not hold how it was made: it is no picture of onebit's, or was made with --no-metadata");
        }
        let must = |name: &str| text(name).with_context(|| format!("it does not hold its `{name}`"));
        let wrong =
            |name: &str, value: &str| format!("its `{name}` is `{value}`, which this version of onebit does not know");
        let count = |name: &str| -> Result<usize> {
            let value = must(name)?;
            value.parse().ok().filter(|n| *n > 0).with_context(|| wrong(name, value))
        };
        let size = must("size")?;
        let sides = size.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
        let size = sides.and_then(|(w, h)| ImageSize::new(w, h)).with_context(|| wrong("size", size))?;
        let guidance = must("guidance")?;
        let shift = must("shift")?;
        let noise = match (text("seed"), text("noise_file")) {
            (_, Some(hash)) => Noise::File(hash.to_owned()),
            (Some(seed), None) => {
                let rng = must("noise_rng")?;
                let known = NoiseRng::ALL.into_iter().find(|known| known.as_str() == rng);
                let seed = seed.parse().ok().with_context(|| wrong("seed", seed))?;
                Noise::Seed(known.with_context(|| wrong("noise_rng", rng))?, seed)
            }
            (None, None) => bail!("it holds neither its `seed` nor its `noise_file`"),
        };
        let recipe = Recipe {
            prompt: must("prompt")?.to_owned(),
            size,
            steps: count("steps")?,
            guidance: guidance
                .parse()
                .ok()
                .filter(|g: &f32| g.is_finite())
                .with_context(|| wrong("guidance", guidance))?,
            shift: read_shift(shift).with_context(|| wrong("shift", shift))?,
            text_tokens: count("max_sequence_length")?,
            noise,
        };
        let word = |name: &str| text(name).unwrap_or_default().to_owned();
        let maker = Maker {
            model: word("model"),
            model_hash: word("model_hash"),
            activations: word("activations"),
            backend: word("backend"),
        };
        Ok((recipe, maker))
    }

    /// The seed in words.
    #[must_use]
    pub fn seed_text(&self) -> String {
        match &self.noise {
            Noise::Seed(NoiseRng::Torch, seed) => format!("seed {seed}"),
            Noise::Seed(rng, seed) => format!("seed {seed} ({})", rng.as_str()),
            Noise::File(_) => "noise from a file".to_owned(),
        }
    }
}

/// `auto`, or the number.
#[must_use]
pub fn shift_text(shift: Shift) -> String {
    match shift {
        Shift::Empirical => "auto".to_owned(),
        Shift::Fixed(mu) => mu.to_string(),
    }
}

fn read_shift(text: &str) -> Option<Shift> {
    match text {
        "auto" => Some(Shift::Empirical),
        mu => mu.parse().ok().filter(|mu: &f64| mu.is_finite()).map(Shift::Fixed),
    }
}

impl Maker {
    /// Why the same recipe may give another picture with `other`; none when it gives the same.
    #[must_use]
    pub fn difference(&self, other: &Maker) -> Option<String> {
        if self.model_hash != other.model_hash {
            return Some(format!(
                "it was made by another model, {} ({}), and this is {} ({}), so the picture will differ",
                self.model, self.model_hash, other.model, other.model_hash
            ));
        }
        let mut parts = Vec::new();
        if self.activations != other.activations {
            parts.push(format!("{} activations, and these are {}", self.activations, other.activations));
        }
        if self.backend != other.backend {
            parts.push(format!("the backend {}, and this is {}", self.backend, other.backend));
        }
        (!parts.is_empty())
            .then(|| format!("it was made with {}; the picture may differ a little", parts.join(", and with ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe() -> Recipe {
        Recipe {
            prompt: "A bonsai tree 盆栽\non a desk".to_owned(),
            size: ImageSize::new(512, 768).expect("a size"),
            steps: 4,
            guidance: 1.25,
            shift: Shift::Fixed(3.0),
            text_tokens: 512,
            noise: Noise::Seed(NoiseRng::Mlx, u64::MAX),
        }
    }

    fn maker() -> Maker {
        let [model, hash, act, cpu] = ["a model", "0123abcd", "int8", "cpu"].map(str::to_owned);
        Maker { model, model_hash: hash, activations: act, backend: cpu }
    }

    fn owned(texts: Vec<(&'static str, String)>) -> Vec<(String, String)> {
        texts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let from_file = Recipe { noise: Noise::File("ab12".to_owned()), shift: Shift::Empirical, ..recipe() };
        for recipe in [recipe(), from_file] {
            let read = Recipe::read(&owned(recipe.texts(&maker()))).expect("a recipe");
            assert_eq!(read, (recipe, maker()));
        }
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        let texts = owned(recipe().texts(&maker()));
        for name in
            ["prompt", "size", "steps", "guidance", "shift", "seed", "noise_rng", "model_hash", "max_sequence_length"]
        {
            let rest: Vec<_> = texts.iter().filter(|(key, _)| key != name).cloned().collect();
            let error = Recipe::read(&rest).expect_err(name).to_string();
            assert!(error.contains(name) || error.contains("--no-metadata"), "{name}: {error}");
        }
        for (name, value) in [
            ("size", "500x500"),
            ("steps", "0"),
            ("guidance", "NaN"),
            ("shift", "x"),
            ("seed", "-1"),
            ("noise_rng", "numpy"),
        ] {
            let changed: Vec<_> =
                texts.iter().map(|(k, v)| (k.clone(), if k == name { value.to_owned() } else { v.clone() })).collect();
            let error = Recipe::read(&changed).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains(value), "{name}: {error}");
        }
    }

    #[test]
    fn makers_that_differ() {
        assert_eq!(maker().difference(&maker()), None);
        let other = Maker { model_hash: "ffff".to_owned(), ..maker() };
        assert!(maker().difference(&other).is_some_and(|d| d.contains("another model") && d.contains("ffff")));
        let other = Maker { activations: "f32".to_owned(), ..maker() };
        assert!(maker().difference(&other).is_some_and(|d| d.contains("int8") && d.contains("f32")));
    }
}
