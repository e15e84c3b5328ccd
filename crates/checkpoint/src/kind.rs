//! What a checkpoint is, so that one that cannot run is refused with its name and never loaded as something else.

use std::collections::HashMap;
use std::fmt;

use crate::inventory::Inventory;
use crate::meta::Meta;

/// Architectures that are plain text models (a vision tower may come along).
const TEXT: [&str; 4] = ["qwen3", "qwen3_5", "qwen3_5_text", "qwen35"];

/// Kind of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A language model of a known family.
    Text,
    /// An image model: the folder with transformer, text encoder and VAE, or its transformer alone.
    Image {
        /// Bits per code of the transformer; 16 when it is not packed, 0 when the folder does not say.
        bits: u32,
        /// Weights per scale; 0 when not packed or not said.
        group: u32,
    },
    /// A language model whose weights live in a Hadamard-rotated input basis. Run plainly it answers nonsense.
    Rotated {
        /// Bits per code, 0 when not packed.
        bits: u32,
        /// Weights per scale, 0 when not packed.
        group: u32,
        /// The sign by which it was recognised.
        how: String,
    },
    /// The vision half of a GGUF model (`mmproj`), useless alone.
    VisionProjector,
    /// A draft model for speculation, useless alone.
    Drafter,
    /// Anything else, by its architecture name; empty when the files name none.
    Unknown(String),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packed = |f: &mut fmt::Formatter<'_>, bits: u32, group: u32| match (bits, group) {
            (0, _) => Ok(()),
            (bits, 0) => write!(f, " ({bits}-bit)"),
            (bits, group) => write!(f, " ({bits}-bit, groups of {group})"),
        };
        match self {
            Self::Text => f.write_str("a text model"),
            Self::Image { bits, group } => {
                f.write_str("an image model")?;
                packed(f, *bits, *group)
            }
            Self::Rotated { bits, group, how } => {
                f.write_str("a text model with Hadamard-rotated weights")?;
                packed(f, *bits, *group)?;
                write!(f, ", recognised by {how}")
            }
            Self::VisionProjector => f.write_str("the vision projector of a text model (mmproj)"),
            Self::Drafter => f.write_str("a draft model for speculation"),
            Self::Unknown(arch) if arch.is_empty() => f.write_str("a model that names no architecture"),
            Self::Unknown(arch) => write!(f, "a model of the unknown architecture `{arch}`"),
        }
    }
}

impl Kind {
    /// Judges headers and configuration.
    pub(crate) fn recognise(inventory: &Inventory) -> Self {
        let arch = architecture(inventory);
        if let Some(how) = rotation(inventory, &arch) {
            let (bits, group) = dominant(inventory);
            return Self::Rotated { bits, group, how };
        }
        match arch.as_str() {
            "clip" => Self::VisionProjector,
            "dspark" => Self::Drafter,
            known if TEXT.contains(&known) => Self::Text,
            // A transformer opened by its own folder, or a single file.
            other if other.starts_with("Flux2") || original_flux2(inventory) => {
                let (bits, group) = dominant(inventory);
                Self::Image { bits: if bits == 0 { 16 } else { bits }, group }
            }
            _ => Self::Unknown(arch),
        }
    }
}

/// Whether this is FLUX.2's transformer under the names of Black Forest Labs: the modulations outside the blocks are new in it.
fn original_flux2(inventory: &Inventory) -> bool {
    ["double_blocks.0.img_attn.qkv.weight", "double_stream_modulation_img.lin.weight"]
        .iter()
        .all(|name| inventory.tensors().any(|t| t.name.ends_with(name)))
}

/// `general.architecture`, `model_type`, diffusers' `_class_name` or the first of `architectures`.
fn architecture(inventory: &Inventory) -> String {
    for key in ["general.architecture", "model_type", "_class_name"] {
        if let Some(name) = inventory.meta(key).and_then(Meta::as_str) {
            return name.to_owned();
        }
    }
    let list = inventory.meta("architectures").and_then(Meta::as_array);
    list.and_then(|list| list.get(0)).and_then(Meta::as_str).unwrap_or_default().to_owned()
}

/// The first sign of rotated weights.
fn rotation(inventory: &Inventory, arch: &str) -> Option<String> {
    if let Some(key) = inventory.gguf().and_then(|map| map.keys().find(|key| key.starts_with("prism.hadamard."))) {
        return Some(format!("the key `{key}`"));
    }
    if arch.starts_with("prism_hadamard") {
        return Some(format!("the model type `{arch}`"));
    }
    for key in ["prism_hadamard", "hadamard", "hadamard_config", "gdn_activation_layout"] {
        for path in [key.to_owned(), format!("text_config.{key}"), format!("quantization.{key}")] {
            if !matches!(inventory.meta(&path), None | Some(Meta::Null | Meta::Bool(false))) {
                return Some(format!("the field `{path}` of config.json"));
            }
        }
    }
    inventory.tensors().find(|t| t.name.ends_with(".signs")).map(|t| format!("the tensor `{}`", t.name))
}

/// Bits and group that hold most of the packed bytes; zeros without packed matrices.
fn dominant(inventory: &Inventory) -> (u32, u32) {
    let mut bytes: HashMap<(usize, usize), u64> = HashMap::new();
    for (_, info) in inventory.packed() {
        *bytes.entry((info.format.bits(), info.format.group())).or_default() += info.bytes();
    }
    // Ties go to the larger key, so that the answer does not depend on the map's order.
    let most = bytes.into_iter().max_by_key(|&(key, bytes)| (bytes, key));
    most.map_or((0, 0), |((bits, group), _)| (bits as u32, group as u32))
}
