//! Hyperparameters, read from either container by one table of key pairs.

use crate::ModelError;
use onebit_ops::{Meta, RopeTable, WeightSource, YarnScaling};

/// Looks a value up under its Hugging Face name (in `text_config` or at the top) or under its GGUF name.
pub(crate) struct Config<'a> {
    source: &'a dyn WeightSource,
    gguf_prefix: String,
}

/// One value's names: in `config.json`, and in GGUF without the architecture prefix.
pub(crate) type Key = (&'static str, &'static str);

// Keys that every decoder here has.
pub(crate) const LAYERS: Key = ("num_hidden_layers", "block_count");
pub(crate) const HEADS: Key = ("num_attention_heads", "attention.head_count");
pub(crate) const KV_HEADS: Key = ("num_key_value_heads", "attention.head_count_kv");
pub(crate) const HEAD_DIM: Key = ("head_dim", "attention.key_length");
pub(crate) const EPS: Key = ("rms_norm_eps", "attention.layer_norm_rms_epsilon");
pub(crate) const CONTEXT: Key = ("max_position_embeddings", "context_length");

impl<'a> Config<'a> {
    pub(crate) fn new(source: &'a dyn WeightSource) -> Self {
        let arch = source.meta("general.architecture");
        let gguf_prefix = arch.as_ref().and_then(Meta::as_str).map_or_else(String::new, str::to_owned);
        Config { source, gguf_prefix }
    }

    pub(crate) fn get(&self, key: Key) -> Option<Meta> {
        if self.source.is_gguf() {
            return self.source.meta(&format!("{}.{}", self.gguf_prefix, key.1));
        }
        let found = self.source.meta(&format!("text_config.{}", key.0));
        found.or_else(|| self.source.meta(key.0))
    }

    /// The key's name as the user finds it in the file.
    fn spelled(&self, key: Key) -> String {
        if self.source.is_gguf() { format!("{}.{}", self.gguf_prefix, key.1) } else { key.0.to_owned() }
    }

    pub(crate) fn count(&self, key: Key) -> Result<usize, ModelError> {
        let meta = self.get(key).ok_or_else(|| ModelError::MissingKey(self.spelled(key)))?;
        match meta.as_usize() {
            Some(n) if n > 0 && n < 1 << 32 => Ok(n),
            _ => Err(self.unsupported(key, &meta, "a count from 1 to 4294967295")),
        }
    }

    pub(crate) fn number(&self, key: Key) -> Result<f64, ModelError> {
        let meta = self.get(key).ok_or_else(|| ModelError::MissingKey(self.spelled(key)))?;
        meta.as_f64().filter(|v| v.is_finite()).ok_or_else(|| self.unsupported(key, &meta, "a number"))
    }

    /// Refuses a declared size that the tensors contradict.
    pub(crate) fn agrees(&self, key: Key, size: usize) -> Result<(), ModelError> {
        match self.get(key) {
            Some(found) if found.as_usize() != Some(size) => {
                Err(self.unsupported(key, &found, &format!("{size}, the size that its tensors have")))
            }
            _ => Ok(()),
        }
    }

    /// The epsilon of the RMS norms: a small positive number.
    pub(crate) fn eps(&self) -> Result<f32, ModelError> {
        let eps = self.number(EPS)?;
        if eps > 0.0 && eps < 0.1 {
            return Ok(eps as f32);
        }
        Err(self.unsupported(EPS, &Meta::Float(eps), "a small positive number"))
    }

    /// Refuses a value that is there and is none of those implemented.
    pub(crate) fn require(&self, key: Key, wanted: &[Meta]) -> Result<(), ModelError> {
        match self.get(key) {
            Some(found) if !wanted.contains(&found) => {
                let list: Vec<String> = wanted.iter().map(show).collect();
                Err(self.unsupported(key, &found, &list.join(" or ")))
            }
            _ => Ok(()),
        }
    }

    fn unsupported(&self, key: Key, found: &Meta, wanted: &str) -> ModelError {
        ModelError::UnsupportedValue { key: self.spelled(key), found: show(found), wanted: wanted.to_owned() }
    }

    /// The rotary table of `rotary_dim` dimensions: plain or YaRN, from `rope_parameters`, `rope_scaling` or GGUF keys.
    pub(crate) fn rope(&self, rotary_dim: usize) -> Result<RopeTable, ModelError> {
        let theta = match self.number(("rope_parameters.rope_theta", "rope.freq_base")) {
            Ok(theta) => theta,
            Err(_) => self.number(("rope_theta", "rope.freq_base"))?,
        };
        if theta <= 1.0 {
            return Err(self.unsupported(("rope_theta", "rope.freq_base"), &Meta::Float(theta), "a base above 1"));
        }
        let group = ["rope_parameters", "rope_scaling"].into_iter().find(|group| {
            let key = |leaf: &str| {
                self.source
                    .meta(&format!("text_config.{group}.{leaf}"))
                    .or_else(|| self.source.meta(&format!("{group}.{leaf}")))
            };
            key("rope_type").or_else(|| key("type")).is_some()
        });
        let scaling = |leaf: &str, gguf: &str| -> Option<Meta> {
            if self.source.is_gguf() {
                return self.source.meta(&format!("{}.rope.scaling.{gguf}", self.gguf_prefix));
            }
            let group = group?;
            let key = format!("{group}.{leaf}");
            self.source.meta(&format!("text_config.{key}")).or_else(|| self.source.meta(&key))
        };
        let kind = scaling("rope_type", "type").or_else(|| scaling("type", "type"));
        let kind = kind.as_ref().and_then(Meta::as_str).unwrap_or("default").to_owned();
        match kind.as_str() {
            "default" | "none" => Ok(RopeTable::plain(theta, rotary_dim)),
            "yarn" => {
                let number = |leaf, gguf| scaling(leaf, gguf).and_then(|m| m.as_f64());
                for leaf in ["mscale", "mscale_all_dim"] {
                    if let Some(found) = scaling(leaf, leaf) {
                        return Err(ModelError::UnsupportedValue {
                            key: leaf.to_owned(),
                            found: show(&found),
                            wanted: "no such key in its YaRN scaling".to_owned(),
                        });
                    }
                }
                let missing = |key: &str| ModelError::MissingKey(format!("rope scaling `{key}`"));
                let factor = number("factor", "factor").filter(|f| *f >= 1.0).ok_or_else(|| missing("factor"))?;
                let original = number("original_max_position_embeddings", "original_context_length")
                    .filter(|c| *c >= 1.0)
                    .ok_or_else(|| missing("original_max_position_embeddings"))?;
                // In GGUF the factor only multiplies the paper's own; in Hugging Face files it replaces it.
                let paper = 0.1 * factor.ln() + 1.0;
                let attention_factor = if self.source.is_gguf() {
                    number("", "attn_factor").map(|pre| pre * paper)
                } else {
                    number("attention_factor", "")
                };
                let yarn = YarnScaling {
                    factor,
                    original_context: original,
                    beta_fast: number("beta_fast", "yarn_beta_fast").unwrap_or(32.0),
                    beta_slow: number("beta_slow", "yarn_beta_slow").unwrap_or(1.0),
                    attention_factor,
                };
                Ok(RopeTable::yarn(theta, rotary_dim, &yarn))
            }
            other => Err(ModelError::UnsupportedValue {
                key: "rope scaling type".to_owned(),
                found: other.to_owned(),
                wanted: "`default` or `yarn`".to_owned(),
            }),
        }
    }
}

pub(crate) fn show(meta: &Meta) -> String {
    match meta {
        Meta::Int(v) => v.to_string(),
        Meta::Float(v) => v.to_string(),
        Meta::Bool(v) => v.to_string(),
        Meta::Text(v) => format!("`{v}`"),
        Meta::List(v) => format!("a list of {}", v.len()),
        Meta::Object => "an object".to_owned(),
    }
}
