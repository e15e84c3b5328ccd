//! Weights under whatever names they were published, shown under those of diffusers.
//!
//! Black Forest Labs, and with them ComfyUI and the usual GGUF files, have names of their own, queries, keys and values in one
//! matrix, and no configuration:
//!
//! | theirs | diffusers' |
//! |---|---|
//! | `double_blocks.N.img_attn.qkv` | thirds of rows: `transformer_blocks.N.attn.to_q`, `to_k`, `to_v` |
//! | `double_blocks.N.txt_mlp.0` | `transformer_blocks.N.ff_context.linear_in` |
//! | `single_blocks.N.linear1` | `single_transformer_blocks.N.attn.to_qkv_mlp_proj` |
//! | `final_layer.adaLN_modulation.1` | `norm_out.linear`, but with the shift before the scale |
//! | `decoder.up.3.block.0` | `decoder.up_blocks.0.resnets.0`: counted from the other end |
//!
//! Source: `convert_flux2_to_diffusers.py` of diffusers. Sizes that no configuration tells are those of the tensors.

use crate::ModelError;
use onebit_ops::{DenseTensor, Meta, SourceError, Table, WeightSource};
use onebit_quant::Matrix;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What programs that save whole models put before each name of the transformer.
const PREFIXES: [&str; 3] = ["", "model.diffusion_model.", "diffusion_model."];

/// Modules outside the blocks.
const ENDS: [(&str, &str); 9] = [
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    ("time_in.in_layer", "time_guidance_embed.timestep_embedder.linear_1"),
    ("time_in.out_layer", "time_guidance_embed.timestep_embedder.linear_2"),
    ("double_stream_modulation_img.lin", "double_stream_modulation_img.linear"),
    ("double_stream_modulation_txt.lin", "double_stream_modulation_txt.linear"),
    ("single_stream_modulation.lin", "single_stream_modulation.linear"),
    ("final_layer.adaLN_modulation.1", "norm_out.linear"),
    ("final_layer.linear", "proj_out"),
];

/// Modules of a double block; several names stand for rows of equal number, in this order.
const DOUBLE: [(&str, &[&str]); 12] = [
    ("img_attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
    ("img_attn.norm.query_norm", &["attn.norm_q"]),
    ("img_attn.norm.key_norm", &["attn.norm_k"]),
    ("img_attn.proj", &["attn.to_out.0"]),
    ("img_mlp.0", &["ff.linear_in"]),
    ("img_mlp.2", &["ff.linear_out"]),
    ("txt_attn.qkv", &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"]),
    ("txt_attn.norm.query_norm", &["attn.norm_added_q"]),
    ("txt_attn.norm.key_norm", &["attn.norm_added_k"]),
    ("txt_attn.proj", &["attn.to_add_out"]),
    ("txt_mlp.0", &["ff_context.linear_in"]),
    ("txt_mlp.2", &["ff_context.linear_out"]),
];

/// Modules of a single block.
const SINGLE: [(&str, &str); 4] = [
    ("linear1", "attn.to_qkv_mlp_proj"),
    ("linear2", "attn.to_out"),
    ("norm.query_norm", "attn.norm_q"),
    ("norm.key_norm", "attn.norm_k"),
];

/// Parts of a decoder's block.
const RESNET: [(&str, &str); 5] =
    [("norm1", "norm1"), ("conv1", "conv1"), ("norm2", "norm2"), ("conv2", "conv2"), ("nin_shortcut", "conv_shortcut")];

/// Parts of the decoder's attention.
const ATTENTION: [(&str, &str); 5] =
    [("norm", "group_norm"), ("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("proj_out", "to_out.0")];

/// One network under diffusers' names.
pub struct Named<'a> {
    source: &'a dyn WeightSource,
    /// Where each tensor really lies; `None` where the names are diffusers' own.
    places: Option<BTreeMap<String, Place>>,
    /// What the tensors say in place of a configuration.
    derived: BTreeMap<&'static str, Meta>,
}

/// A tensor of the file, or some of its rows.
struct Place {
    tensor: String,
    /// Which piece, of how many.
    piece: (usize, usize),
}

impl Place {
    fn rows(&self, all: usize) -> Range<usize> {
        let (piece, pieces) = self.piece;
        piece * all / pieces..(piece + 1) * all / pieces
    }
}

impl<'a> Named<'a> {
    /// The transformer.
    ///
    /// # Errors
    /// Tensors that tell the sizes and cannot be read.
    pub fn transformer(source: &'a dyn WeightSource) -> Result<Self, ModelError> {
        let tensors = source.tensors();
        let first = |prefix: &&str| {
            let name = format!("{prefix}double_blocks.0.img_attn.qkv.weight");
            tensors.iter().any(|(known, _)| *known == name)
        };
        let places = PREFIXES.into_iter().find(first).map(|prefix| {
            let theirs = tensors.iter().filter_map(|(name, _)| Some((name, name.strip_prefix(prefix)?)));
            places(theirs, of_transformer)
        });
        let mut named = Named { source, places, derived: BTreeMap::new() };
        // A key that no other kind of model has: a file of another one may lie beside a single file.
        if source.meta("num_single_layers").is_none() {
            named.derived = named.sizes()?;
        }
        Ok(named)
    }

    /// The VAE, of which the decoder alone is renamed.
    pub fn vae(source: &'a dyn WeightSource) -> Self {
        let tensors = source.tensors();
        let up = |name: &str| name.strip_prefix("decoder.up.")?.split('.').next()?.parse::<usize>().ok();
        let last = tensors.iter().filter_map(|(name, _)| up(name)).max();
        let places =
            last.map(|last| places(tensors.iter().map(|(name, _)| (name, name.as_str())), |m| of_vae(m, last)));
        Named { source, places, derived: BTreeMap::new() }
    }

    /// Whether the names are those of Black Forest Labs; then the last modulation is a shift before a scale.
    pub(super) fn is_original(&self) -> bool {
        self.places.is_some()
    }

    fn place(&self, name: &str) -> Option<&Place> {
        self.places.as_ref()?.get(name)
    }

    /// The module of the file that holds a module.
    fn module(&self, base: &str) -> Option<(&str, &Place)> {
        let place = self.place(&format!("{base}.weight"))?;
        Some((place.tensor.strip_suffix(".weight")?, place))
    }

    /// A transformer's sizes as its tensors have them.
    fn sizes(&self) -> Result<BTreeMap<&'static str, Meta>, ModelError> {
        let missing = |name: &str| ModelError::MissingTensor(name.to_owned());
        let shape = |base: &str| -> Result<(usize, usize), ModelError> {
            let matrix = self.matrix(base)?.ok_or_else(|| missing(&format!("{base}.weight")))?;
            Ok((matrix.rows, matrix.cols))
        };
        let (hidden, channels) = shape("x_embedder")?;
        let (_, text) = shape("context_embedder")?;
        let (_, time) = shape("time_guidance_embed.timestep_embedder.linear_1")?;
        let gain = "transformer_blocks.0.attn.norm_q.weight";
        let dim = self.dense(gain)?.ok_or_else(|| missing(gain))?.values.len();
        let tensors = self.tensors();
        let blocks = |prefix: &str| {
            let index = |name: &str| name.strip_prefix(prefix)?.split('.').next()?.parse::<usize>().ok();
            tensors.iter().filter_map(|(name, _)| index(name)).collect::<BTreeSet<_>>().len()
        };
        let guided = tensors.iter().any(|(name, _)| {
            name.contains("guidance_in.") || name.starts_with("time_guidance_embed.guidance_embedder.")
        });
        let counts = [
            ("num_layers", blocks("transformer_blocks.")),
            ("num_single_layers", blocks("single_transformer_blocks.")),
            ("attention_head_dim", dim),
            ("num_attention_heads", hidden / dim.max(1)),
            ("in_channels", channels),
            ("joint_attention_dim", text),
            ("timestep_guidance_channels", time),
        ];
        let mut meta: BTreeMap<&'static str, Meta> =
            counts.into_iter().map(|(key, n)| (key, Meta::Int(n as i64))).collect();
        // As in all published models: four axes of equal width.
        meta.insert("axes_dims_rope", Meta::List(vec![Meta::Int(dim as i64 / 4); 4]));
        meta.insert("guidance_embeds", Meta::Bool(guided));
        Ok(meta)
    }
}

/// A map from diffusers' names to the tensors of a file, which come with and without a prefix.
fn places<'n>(
    theirs: impl Iterator<Item = (&'n String, &'n str)>,
    rule: impl Fn(&str) -> Vec<String>,
) -> BTreeMap<String, Place> {
    let mut places = BTreeMap::new();
    for (tensor, name) in theirs {
        let Some((module, leaf)) = name.rsplit_once('.') else { continue };
        let leaf = if leaf == "scale" { "weight" } else { leaf };
        let ours = rule(module);
        let pieces = ours.len();
        for (piece, module) in ours.into_iter().enumerate() {
            places.insert(format!("{module}.{leaf}"), Place { tensor: tensor.clone(), piece: (piece, pieces) });
        }
    }
    places
}

/// What a module of the transformer is called by diffusers; the name itself where no rule has it.
fn of_transformer(module: &str) -> Vec<String> {
    let find = |table: &[(&str, &'static str)], leaf: &str| table.iter().find(|(name, _)| *name == leaf).map(|t| t.1);
    let ours = (|| {
        if let Some(end) = find(&ENDS, module) {
            return Some(vec![end.to_owned()]);
        }
        let (kind, rest) = module.split_once('.')?;
        let (index, leaf) = rest.split_once('.')?;
        match kind {
            "double_blocks" => {
                let (_, ours) = DOUBLE.iter().find(|(name, _)| *name == leaf)?;
                Some(ours.iter().map(|leaf| format!("transformer_blocks.{index}.{leaf}")).collect())
            }
            "single_blocks" => Some(vec![format!("single_transformer_blocks.{index}.{}", find(&SINGLE, leaf)?)]),
            _ => None,
        }
    })();
    ours.unwrap_or_else(|| vec![module.to_owned()])
}

/// What a module of the VAE is called by diffusers, where `last` is the highest number of an up block.
fn of_vae(module: &str, last: usize) -> Vec<String> {
    let find = |table: &[(&str, &'static str)], leaf: &str| table.iter().find(|(name, _)| *name == leaf).map(|t| t.1);
    let ours = (|| {
        let inside = module.strip_prefix("decoder.")?;
        match inside {
            "post_quant_conv" => return Some("post_quant_conv".to_owned()),
            "norm_out" => return Some("decoder.conv_norm_out".to_owned()),
            _ => {}
        }
        if let Some(leaf) = inside.strip_prefix("mid.attn_1.") {
            return Some(format!("decoder.mid_block.attentions.0.{}", find(&ATTENTION, leaf)?));
        }
        if let Some(rest) = inside.strip_prefix("mid.block_") {
            let (number, leaf) = rest.split_once('.')?;
            let number = number.parse::<usize>().ok()?.checked_sub(1)?;
            return Some(format!("decoder.mid_block.resnets.{number}.{}", find(&RESNET, leaf)?));
        }
        let (number, rest) = inside.strip_prefix("up.")?.split_once('.')?;
        let block = format!("decoder.up_blocks.{}", last.checked_sub(number.parse().ok()?)?);
        if rest == "upsample.conv" {
            return Some(format!("{block}.upsamplers.0.conv"));
        }
        let (number, leaf) = rest.strip_prefix("block.")?.split_once('.')?;
        Some(format!("{block}.resnets.{number}.{}", find(&RESNET, leaf)?))
    })();
    vec![ours.unwrap_or_else(|| module.to_owned())]
}

impl WeightSource for Named<'_> {
    fn is_gguf(&self) -> bool {
        self.source.is_gguf()
    }

    fn meta(&self, key: &str) -> Option<Meta> {
        if self.derived.is_empty() { self.source.meta(key) } else { self.derived.get(key).cloned() }
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let stored = self.source.tensors();
        let Some(places) = &self.places else { return stored };
        let shapes: BTreeMap<String, Vec<usize>> = stored.into_iter().collect();
        let shape = |place: &Place| {
            let mut shape = shapes.get(&place.tensor).cloned().unwrap_or_default();
            if let Some(rows) = shape.first_mut() {
                *rows = place.rows(*rows).len();
            }
            shape
        };
        places.iter().map(|(name, place)| (name.clone(), shape(place))).collect()
    }

    fn matrix(&self, base: &str) -> Result<Option<Matrix<'_>>, SourceError> {
        if self.places.is_none() {
            return self.source.matrix(base);
        }
        let Some((module, place)) = self.module(base) else { return Ok(None) };
        let matrix = self.source.matrix(module)?;
        Ok(matrix.map(|m| m.slice_rows(place.rows(m.rows))))
    }

    fn table(&self, base: &str) -> Result<Option<Table>, SourceError> {
        // Networks of pictures look nothing up; where names differ the matrix is the way.
        if self.places.is_none() { self.source.table(base) } else { Ok(None) }
    }

    fn dense(&self, name: &str) -> Result<Option<DenseTensor>, SourceError> {
        if self.places.is_none() {
            return self.source.dense(name);
        }
        // Only matrices are cut.
        match self.place(name).filter(|place| place.piece.1 == 1) {
            Some(place) => self.source.dense(&place.tensor),
            None => Ok(None),
        }
    }

    fn fetch(&self, base: &str) {
        self.source.fetch(self.module(base).map_or(base, |(module, _)| module));
    }

    fn release(&self, base: &str) {
        self.source.release(self.module(base).map_or(base, |(module, _)| module));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_blocks_and_of_what_no_rule_has() {
        assert_eq!(of_transformer("double_blocks.4.txt_attn.qkv")[1], "transformer_blocks.4.attn.add_k_proj");
        assert_eq!(of_transformer("single_blocks.19.norm.key_norm"), ["single_transformer_blocks.19.attn.norm_k"]);
        assert_eq!(of_transformer("guidance_in.in_layer"), ["guidance_in.in_layer"]);
        for (theirs, ours) in [
            ("decoder.up.0.block.2.nin_shortcut", "decoder.up_blocks.3.resnets.2.conv_shortcut"),
            ("decoder.up.3.upsample.conv", "decoder.up_blocks.0.upsamplers.0.conv"),
            ("decoder.mid.block_2.norm1", "decoder.mid_block.resnets.1.norm1"),
            ("decoder.mid.attn_1.proj_out", "decoder.mid_block.attentions.0.to_out.0"),
            ("decoder.conv_in", "decoder.conv_in"),
            ("bn", "bn"),
        ] {
            assert_eq!(of_vae(theirs, 3), [ours]);
        }
    }
}
