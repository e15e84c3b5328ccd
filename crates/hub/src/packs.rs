//! The published Bonsai packs, in one table: short names, repositories, sizes.
//!
//! Byte counts are the tensors' data; a file's header adds under a megabyte to
//! an MLX pack and some megabytes of vocabulary to a GGUF file.

use crate::file_format::WeightFormat;

/// Values that a weight can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alphabet {
    /// -s and +s.
    Binary,
    /// -s, 0 and +s.
    Ternary,
}

/// How far onebit supports a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It runs, and answers with text.
    Text,
    /// Its weights are stored rotated, which is not supported yet.
    Rotated,
    /// It runs, and makes pictures instead of text.
    Image,
}

/// One published model with its packs.
#[derive(Debug, Clone, PartialEq)]
pub struct Pack {
    /// The name to type.
    pub short: &'static str,
    /// The name on its card.
    pub title: &'static str,
    /// The model it was made from.
    pub base: &'static str,
    /// The architecture in its GGUF header, or `flux2`.
    pub arch: &'static str,
    /// Its weights.
    pub alphabet: Alphabet,
    /// Bits of a code in the MLX pack.
    pub bits: u32,
    /// Weights that share a scale.
    pub group: u32,
    /// Quantized parameters of the language model, or of the image transformer.
    pub params: u64,
    /// Repository of the MLX pack.
    pub mlx_repo: &'static str,
    /// Bytes of its tensors, a bundled vision tower included; unknown for
    /// packs whose tensors nobody has listed.
    pub mlx_bytes: Option<u64>,
    /// Repository of the GGUF files.
    pub gguf_repo: Option<&'static str>,
    /// The preferred GGUF type there, and the bytes of its tensors.
    pub gguf: Option<(&'static str, u64)>,
    /// Bytes of F16 key-value cache per token.
    pub kv_bytes_per_token: u64,
    /// Bytes that a sequence needs besides, whatever its length.
    pub state_bytes: u64,
    /// Longest context.
    pub context: u64,
    /// Whether it runs.
    pub support: Support,
}

impl Pack {
    /// The repository that a selector asks for: GGUF types are in their own.
    pub fn repo_for(&self, selector: Option<&str>) -> &'static str {
        match (selector, self.gguf_repo) {
            (Some(selector), Some(gguf)) if WeightFormat::is_gguf_selector(selector) => gguf,
            _ => self.mlx_repo,
        }
    }
}

/// The pack with this short name, title or repository; case does not matter.
pub fn find(name: &str) -> Option<&'static Pack> {
    let same = |other: &str| other.eq_ignore_ascii_case(name);
    PACKS.iter().find(|p| same(p.short) || same(p.title) || same(p.mlx_repo) || p.gguf_repo.is_some_and(same))
}

const KIB: u64 = 1024;

/// Recurrent and convolution state of one sequence of the 27B, in f32.
const STATE_27B: u64 = 48 * 48 * 128 * 128 * 4 + 48 * 10_240 * 3 * 4;

/// Most values are shared by the two packs of a size.
const fn qwen3(
    short: &'static str,
    title: &'static str,
    base: &'static str,
    alphabet: Alphabet,
    params: u64,
    kv_kib: u64,
    context: u64,
) -> Pack {
    Pack {
        short,
        title,
        base,
        arch: "qwen3",
        alphabet,
        bits: if matches!(alphabet, Alphabet::Binary) { 1 } else { 2 },
        group: 128,
        params,
        mlx_repo: "",
        mlx_bytes: None,
        gguf_repo: None,
        gguf: None,
        kv_bytes_per_token: kv_kib * KIB,
        state_bytes: 0,
        context,
        support: Support::Text,
    }
}

const fn qwen35(short: &'static str, title: &'static str, base: &'static str, alphabet: Alphabet) -> Pack {
    Pack { arch: "qwen35", state_bytes: STATE_27B, ..qwen3(short, title, base, alphabet, 26_893_352_960, 64, 262_144) }
}

const fn image(short: &'static str, title: &'static str, alphabet: Alphabet) -> Pack {
    Pack {
        arch: "flux2",
        support: Support::Image,
        ..qwen3(short, title, "FLUX.2-klein-4B", alphabet, 3_680_501_760, 0, 512)
    }
}

/// Every published pack, small to large.
pub static PACKS: [Pack; 11] = [
    Pack {
        mlx_repo: "prism-ml/Bonsai-1.7B-mlx-1bit",
        mlx_bytes: Some(268_982_848),
        gguf_repo: Some("prism-ml/Bonsai-1.7B-gguf"),
        gguf: Some(("Q1_0", 242_357_152)),
        ..qwen3("bonsai-1.7b", "Bonsai-1.7B", "Qwen3-1.7B", Alphabet::Binary, 1_719_904_256, 112, 32_768)
    },
    Pack {
        mlx_repo: "prism-ml/Bonsai-4B-mlx-1bit",
        mlx_bytes: Some(628_765_392),
        gguf_repo: Some("prism-ml/Bonsai-4B-gguf"),
        gguf: Some(("Q1_0", 566_320_264)),
        ..qwen3("bonsai-4b", "Bonsai-4B", "Qwen3-4B", Alphabet::Binary, 4_021_588_480, 144, 32_768)
    },
    Pack {
        mlx_repo: "prism-ml/Bonsai-8B-mlx-1bit",
        mlx_bytes: Some(1_280_028_928),
        gguf_repo: Some("prism-ml/Bonsai-8B-gguf"),
        gguf: Some(("Q1_0", 1_152_704_128)),
        ..qwen3("bonsai-8b", "Bonsai-8B", "Qwen3-8B", Alphabet::Binary, 8_188_239_872, 144, 65_536)
    },
    Pack {
        mlx_repo: "prism-ml/Bonsai-27B-mlx-1bit",
        mlx_bytes: Some(5_128_837_600),
        gguf_repo: Some("prism-ml/Bonsai-27B-gguf"),
        gguf: Some(("Q1_0", 3_792_459_776)),
        ..qwen35("bonsai-27b", "Bonsai-27B", "Qwen3.6-27B", Alphabet::Binary)
    },
    Pack {
        mlx_repo: "prism-ml/Ternary-Bonsai-1.7B-mlx-2bit",
        mlx_bytes: Some(483_970_880),
        gguf_repo: Some("prism-ml/Ternary-Bonsai-1.7B-gguf"),
        gguf: Some(("Q2_0", 457_345_184)),
        ..qwen3("ternary-1.7b", "Ternary-Bonsai-1.7B", "Qwen3-1.7B", Alphabet::Ternary, 1_719_904_256, 112, 32_768)
    },
    Pack {
        mlx_repo: "prism-ml/Ternary-Bonsai-4B-mlx-2bit",
        mlx_bytes: Some(1_131_463_952),
        gguf_repo: Some("prism-ml/Ternary-Bonsai-4B-gguf"),
        gguf: Some(("Q2_0", 1_069_018_824)),
        ..qwen3("ternary-4b", "Ternary-Bonsai-4B", "Qwen3-4B", Alphabet::Ternary, 4_021_588_480, 144, 32_768)
    },
    Pack {
        mlx_repo: "prism-ml/Ternary-Bonsai-8B-mlx-2bit",
        mlx_bytes: Some(2_303_558_912),
        gguf_repo: Some("prism-ml/Ternary-Bonsai-8B-gguf"),
        gguf: Some(("Q2_0", 2_176_234_112)),
        ..qwen3("ternary-8b", "Ternary-Bonsai-8B", "Qwen3-8B", Alphabet::Ternary, 8_188_239_872, 144, 65_536)
    },
    Pack {
        mlx_repo: "prism-ml/Ternary-Bonsai-27B-mlx-2bit",
        mlx_bytes: Some(8_490_506_720),
        gguf_repo: Some("prism-ml/Ternary-Bonsai-27B-gguf"),
        gguf: Some(("Q2_0", 7_154_128_896)),
        ..qwen35("ternary-27b", "Ternary-Bonsai-27B", "Qwen3.6-27B", Alphabet::Ternary)
    },
    Pack {
        mlx_repo: "prism-ml/Ternary-Bonsai-2-27B-mlx-2bit",
        gguf_repo: Some("prism-ml/Ternary-Bonsai-2-27B-gguf"),
        gguf: Some(("PQ2_0", 7_195_047_936)),
        support: Support::Rotated,
        ..qwen35("ternary-2-27b", "Ternary-Bonsai-2-27B", "Qwen3.8-27B", Alphabet::Ternary)
    },
    Pack {
        mlx_repo: "prism-ml/bonsai-image-binary-4B-mlx-1bit",
        ..image("image-binary-4b", "Bonsai-Image-Binary-4B", Alphabet::Binary)
    },
    Pack {
        mlx_repo: "prism-ml/bonsai-image-ternary-4B-mlx-2bit",
        ..image("image-ternary-4b", "Bonsai-Image-Ternary-4B", Alphabet::Ternary)
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_complete() {
        for (i, pack) in PACKS.iter().enumerate() {
            assert!(pack.mlx_repo.starts_with("prism-ml/"), "{}", pack.short);
            assert_eq!(pack.gguf.is_some(), pack.gguf_repo.is_some(), "{}", pack.short);
            for other in &PACKS[..i] {
                assert_ne!(pack.short, other.short);
                assert_ne!(pack.mlx_repo, other.mlx_repo);
            }
            assert_eq!(find(pack.short), Some(pack));
            assert_eq!(find(pack.mlx_repo), Some(pack));
        }
    }

    /// The codes and scales alone explain nearly all bytes of a pack without
    /// a vision tower; norms and the like are the small rest.
    #[test]
    fn sizes_follow_from_the_parameters() {
        for pack in PACKS.iter().filter(|p| p.support == Support::Text) {
            let mlx_bits = u64::from(pack.bits * 128 + 32);
            let gguf_bits = u64::from(pack.bits * 128 + 16);
            let close = |bytes: u64, bits: u64, extra: u64| {
                let packed = pack.params / 128 * bits / 8;
                (packed..packed + extra).contains(&bytes)
            };
            let vision = if pack.arch == "qwen35" { 921_460_192 } else { 0 };
            let mlx = pack.mlx_bytes.expect("known for every text pack");
            assert!(close(mlx - vision, mlx_bits, 6_000_000), "{}", pack.short);
            let (_, gguf) = pack.gguf.expect("known for every text pack");
            assert!(close(gguf, gguf_bits, 11_000_000), "{}", pack.short);
        }
    }
}
