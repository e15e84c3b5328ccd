//! Telling the weight format of a file from its name, before any byte is read.

use std::fmt;

/// A weight format as repositories name it, such as `Q1_0` or `MLX 1-bit`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightFormat(String);

/// GGUF types in the order of preference, the packed Bonsai types first. Of
/// types that hold the same weights, the smaller is read faster.
const GGUF_TYPES: [&str; 12] =
    ["Q1_0", "PQ2_0", "Q2_0", "Q2_0_g64", "PTQ1_0", "Q4_0", "Q4_1", "Q4_K_M", "Q8_0", "F16", "BF16", "F32"];

pub(crate) const MLX_1BIT: &str = "MLX 1-bit";
pub(crate) const MLX_2BIT: &str = "MLX 2-bit";
pub(crate) const SAFETENSORS: &str = "safetensors";

impl WeightFormat {
    /// The name for the weights of an image model, which lie in several folders.
    pub const IMAGE: &'static str = "image pack";

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// From the name of a GGUF file: the last part of its stem, without the
    /// number of a split.
    pub fn of_gguf(file: &str) -> Self {
        let base = file.rsplit('/').next().unwrap_or(file);
        let stem = without_extension(base);
        let stem = match split_number(stem) {
            Some((stem, _, _)) => stem,
            None => stem,
        };
        let last = stem.rsplit(['-', '.']).next().unwrap_or(stem);
        let known = GGUF_TYPES.iter().find(|t| t.eq_ignore_ascii_case(last));
        Self(known.map_or_else(|| last.to_owned(), |t| (*t).to_owned()))
    }

    /// From the name of a repository with safetensors files.
    pub fn of_safetensors(repo: &str) -> Self {
        let repo = repo.to_ascii_lowercase();
        Self(
            match () {
                () if repo.contains("1bit") => MLX_1BIT,
                () if repo.contains("2bit") => MLX_2BIT,
                () => SAFETENSORS,
            }
            .to_owned(),
        )
    }

    pub(crate) fn image() -> Self {
        Self(Self::IMAGE.to_owned())
    }

    /// Whether these are the weights of an image model.
    pub fn is_image(&self) -> bool {
        self.0 == Self::IMAGE
    }

    /// Whether a selector can only mean a GGUF file.
    pub fn is_gguf_selector(selector: &str) -> bool {
        let lower = selector.to_ascii_lowercase();
        lower.ends_with(".gguf") || lower == "gguf" || GGUF_TYPES.iter().any(|t| t.eq_ignore_ascii_case(selector))
    }

    /// Whether this is one of the packed 1-bit or 2-bit formats.
    pub fn is_packed(&self) -> bool {
        self.rank() < 6
    }

    /// Order of preference; smaller is better.
    pub(crate) fn rank(&self) -> usize {
        match self.0.as_str() {
            MLX_1BIT | MLX_2BIT => 0,
            SAFETENSORS => 7 + GGUF_TYPES.len(),
            Self::IMAGE => 8 + GGUF_TYPES.len(),
            other => match GGUF_TYPES.iter().position(|t| *t == other) {
                Some(at) if at < 5 => 1 + at,
                Some(at) => 2 + at,
                None => 6 + GGUF_TYPES.len(),
            },
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn without_extension(base: &str) -> &str {
    base.rsplit_once('.').map_or(base, |(stem, _)| stem)
}

/// Stem, number and count of a split such as `x-00001-of-00003`.
pub(crate) fn split_number(stem: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    Some((stem, number.parse().ok()?, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gguf_names() {
        for (file, format) in [
            ("Bonsai-27B-Q1_0.gguf", "Q1_0"),
            ("q/Ternary-Bonsai-27B-Q2_0_g64.gguf", "Q2_0_g64"),
            ("Ternary-Bonsai-2-27B-pq2_0.gguf", "PQ2_0"),
            ("x-PTQ1_0-00002-of-00003.gguf", "PTQ1_0"),
            ("model.Q4_K_M.gguf", "Q4_K_M"),
        ] {
            assert_eq!(WeightFormat::of_gguf(file).as_str(), format);
        }
    }

    #[test]
    fn packed_come_first() {
        let rank = |name: &str| WeightFormat(name.into()).rank();
        let order = [MLX_1BIT, "Q1_0", "PQ2_0", "Q2_0", "Q4_0", "F32", "odd", SAFETENSORS];
        assert!(order.windows(2).all(|w| rank(w[0]) < rank(w[1])));
        assert!(WeightFormat("PTQ1_0".into()).is_packed());
        assert!(!WeightFormat("Q4_0".into()).is_packed());
    }

    #[test]
    fn selectors() {
        assert!(WeightFormat::is_gguf_selector("q1_0"));
        assert!(WeightFormat::is_gguf_selector("a.gguf"));
        assert!(!WeightFormat::is_gguf_selector("model.safetensors"));
    }
}
