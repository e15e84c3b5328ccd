//! Hyperparameters, read from one container and written for the other.

use super::heads::HeadOrder;
use super::names::Architecture;
use anyhow::{Result, anyhow, bail};
use onebit_checkpoint::gguf::{Array, Value};
use onebit_ops::{Meta, WeightSource};
use serde_json::{Map, Value as Json, json};

/// Names of one count: in `config.json`, and in GGUF without the architecture prefix.
type Key = (&'static str, &'static str);

const COUNTS: [Key; 7] = [
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
];

const DELTA_COUNTS: [Key; 5] = [
    ("full_attention_interval", "full_attention_interval"),
    ("linear_num_key_heads", "ssm.group_count"),
    ("linear_num_value_heads", "ssm.time_step_rank"),
    ("linear_key_head_dim", "ssm.state_size"),
    ("linear_conv_kernel_dim", "ssm.conv_kernel"),
];

/// Context extension.
#[derive(Debug, Clone, PartialEq)]
struct Yarn {
    factor: f64,
    original: f64,
    /// Multiplier of queries and keys, where it is not the paper's.
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
}

/// Every number that a model of either architecture needs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hyper {
    pub(super) architecture: Architecture,
    counts: Vec<(Key, u64)>,
    value_dim: u64,
    eps: f64,
    theta: f64,
    yarn: Option<Yarn>,
    /// Dimensions of a head that rotate, and how they are shared between time, height and width.
    rotary: u64,
    sections: Vec<u64>,
}

/// One container's way to spell keys.
struct Reader<'a> {
    source: &'a dyn WeightSource,
    prefix: String,
}

impl Reader<'_> {
    fn get(&self, key: Key) -> Option<Meta> {
        if self.source.is_gguf() {
            return self.source.meta(&format!("{}{}", self.prefix, key.1));
        }
        self.source.meta(&format!("text_config.{}", key.0)).or_else(|| self.source.meta(key.0))
    }

    fn count(&self, key: Key) -> Result<u64> {
        let spelled = if self.source.is_gguf() { format!("{}{}", self.prefix, key.1) } else { key.0.to_owned() };
        let found = self.get(key).ok_or_else(|| anyhow!("the metadata has no `{spelled}`"))?;
        found.as_usize().map(|v| v as u64).ok_or_else(|| anyhow!("`{spelled}` is no count"))
    }

    fn number(&self, key: Key) -> Option<f64> {
        self.get(key).and_then(|m| m.as_f64())
    }
}

impl Hyper {
    /// Reads what both containers express.
    pub(super) fn read(source: &dyn WeightSource, architecture: Architecture) -> Result<Hyper> {
        let reader = Reader { source, prefix: format!("{}.", architecture.gguf()) };
        let mut keys = COUNTS.to_vec();
        if architecture == Architecture::Qwen35 {
            keys.extend(DELTA_COUNTS);
        }
        let mut counts = Vec::new();
        for key in keys {
            // The interval may be absent in files that list their layers instead.
            match reader.count(key) {
                Ok(count) => counts.push((key, count)),
                Err(_) if key.0 == "full_attention_interval" => {}
                Err(error) => return Err(error),
            }
        }
        let eps = reader.number(("rms_norm_eps", "attention.layer_norm_rms_epsilon"));
        let theta = reader.number(("rope_parameters.rope_theta", "rope.freq_base"));
        let theta = theta.or_else(|| reader.number(("rope_theta", "rope.freq_base")));
        let mut hyper = Hyper {
            architecture,
            counts,
            value_dim: 0,
            eps: eps.ok_or_else(|| anyhow!("the metadata has no RMS norm epsilon"))?,
            theta: theta.ok_or_else(|| anyhow!("the metadata has no rotary base"))?,
            yarn: read_yarn(&reader)?,
            rotary: 0,
            sections: Vec::new(),
        };
        // Extra blocks of GGUF belong to the multi-token-prediction head.
        if let Some(extra) = reader.get(("", "nextn_predict_layers")).and_then(|m| m.as_usize())
            && source.is_gguf()
        {
            let layers = hyper.layers() - extra as u64;
            hyper.set("num_hidden_layers", layers);
        }
        if architecture == Architecture::Qwen35 {
            hyper.value_dim = if source.is_gguf() {
                reader.count(("", "ssm.inner_size"))? / hyper.count("linear_num_value_heads").max(1)
            } else {
                reader.count(("linear_value_head_dim", ""))?
            };
            hyper.read_rotary(&reader)?;
        }
        Ok(hyper)
    }

    fn read_rotary(&mut self, reader: &Reader<'_>) -> Result<()> {
        let dim = self.count("head_dim");
        self.rotary = if reader.source.is_gguf() {
            reader.count(("", "rope.dimension_count"))?
        } else {
            let factor = reader.number(("rope_parameters.partial_rotary_factor", ""));
            let factor = factor.or_else(|| reader.number(("partial_rotary_factor", ""))).unwrap_or(0.25);
            (dim as f64 * factor) as u64
        };
        let sections = reader.get(("rope_parameters.mrope_section", "rope.dimension_sections"));
        let sections = sections.as_ref().and_then(Meta::as_list).unwrap_or_default();
        self.sections = sections.iter().filter_map(|m| m.as_usize().map(|v| v as u64)).collect();
        self.sections.truncate(3);
        Ok(())
    }

    /// Decoder layers.
    pub(super) fn layers(&self) -> u64 {
        self.count("num_hidden_layers")
    }

    /// Order of the value heads; `None` for models without delta-rule layers.
    pub(super) fn heads(&self) -> Option<HeadOrder> {
        (self.architecture == Architecture::Qwen35).then(|| HeadOrder {
            key_heads: self.count("linear_num_key_heads") as usize,
            value_heads: self.count("linear_num_value_heads") as usize,
            key_dim: self.count("linear_key_head_dim") as usize,
            value_dim: self.value_dim as usize,
        })
    }

    fn count(&self, hf: &str) -> u64 {
        self.counts.iter().find(|(key, _)| key.0 == hf).map_or(0, |(_, count)| *count)
    }

    fn set(&mut self, hf: &str, value: u64) {
        self.counts.iter_mut().filter(|(key, _)| key.0 == hf).for_each(|(_, count)| *count = value);
    }

    /// As GGUF key-values.
    ///
    /// # Errors
    /// A number that GGUF's 32 bits do not hold.
    pub(super) fn to_gguf(&self) -> Result<Vec<(String, Value)>> {
        let arch = self.architecture.gguf();
        let key = |leaf: &str| format!("{arch}.{leaf}");
        let mut out = vec![("general.architecture".to_owned(), Value::Str(arch.to_owned()))];
        for ((_, leaf), count) in &self.counts {
            let count = u32::try_from(*count).map_err(|_| anyhow!("`{leaf}` is {count}, which is no 32-bit count"))?;
            out.push((key(leaf), Value::U32(count)));
        }
        out.push((key("attention.value_length"), Value::U32(self.count("head_dim") as u32)));
        out.push((key("attention.layer_norm_rms_epsilon"), Value::F32(self.eps as f32)));
        out.push((key("rope.freq_base"), Value::F32(exact("the rotary base", self.theta)?)));
        if let Some(yarn) = &self.yarn {
            out.push((key("rope.scaling.type"), Value::Str("yarn".to_owned())));
            out.push((key("rope.scaling.factor"), Value::F32(exact("the YaRN factor", yarn.factor)?)));
            out.push((key("rope.scaling.original_context_length"), Value::U32(yarn.original as u32)));
            if let Some(factor) = yarn.attention_factor {
                // In GGUF the number multiplies the paper's own factor.
                out.push((key("rope.scaling.attn_factor"), Value::F32(yarn.pre_factor(factor)?)));
            }
            for (leaf, beta) in [("yarn_beta_fast", yarn.beta_fast), ("yarn_beta_slow", yarn.beta_slow)] {
                if let Some(beta) = beta {
                    out.push((key(&format!("rope.scaling.{leaf}")), Value::F32(exact(leaf, beta)?)));
                }
            }
        }
        if self.architecture == Architecture::Qwen35 {
            let inner = self.count("linear_num_value_heads") * self.value_dim;
            out.push((key("ssm.inner_size"), Value::U32(inner as u32)));
            out.push((key("rope.dimension_count"), Value::U32(self.rotary as u32)));
            if !self.sections.is_empty() {
                let mut sections: Vec<i32> = self.sections.iter().map(|&s| s as i32).collect();
                sections.resize(4, 0);
                out.push((key("rope.dimension_sections"), Value::Array(Array::I32(sections))));
            }
        }
        Ok(out)
    }

    /// As `config.json`. `vocab` and `tied` come from the tensors, `extra` joins the innermost object.
    pub(super) fn to_config(&self, vocab: usize, tied: bool, extra: Map<String, Json>) -> Map<String, Json> {
        let mut text = Map::new();
        let mut put = |key: &str, value: Json| text.insert(key.to_owned(), value);
        self.counts.iter().for_each(|((key, _), count)| {
            put(key, json!(count));
        });
        put("rms_norm_eps", short(self.eps));
        put("vocab_size", json!(vocab));
        put("tie_word_embeddings", json!(tied));
        put("hidden_act", json!("silu"));
        put("attention_bias", json!(false));
        let hybrid = self.architecture == Architecture::Qwen35;
        let mut rope = Map::new();
        rope.insert("rope_type".to_owned(), json!(if self.yarn.is_some() { "yarn" } else { "default" }));
        if let Some(yarn) = &self.yarn {
            let numbers = [
                ("factor", Some(yarn.factor)),
                ("original_max_position_embeddings", Some(yarn.original)),
                ("attention_factor", yarn.attention_factor),
                ("beta_fast", yarn.beta_fast),
                ("beta_slow", yarn.beta_slow),
            ];
            for (key, number) in numbers {
                rope.extend(number.map(|n| (key.to_owned(), whole(n))));
            }
        }
        if hybrid {
            put("linear_value_head_dim", json!(self.value_dim));
            put("attn_output_gate", json!(true));
            rope.insert("rope_theta".to_owned(), whole(self.theta));
            let factor = self.rotary as f64 / self.count("head_dim").max(1) as f64;
            rope.insert("partial_rotary_factor".to_owned(), json!(factor));
            if !self.sections.is_empty() {
                rope.insert("mrope_interleaved".to_owned(), json!(true));
                rope.insert("mrope_section".to_owned(), json!(self.sections));
            }
            put("rope_parameters", Json::Object(rope));
            put("model_type", json!("qwen3_5_text"));
        } else {
            put("rope_theta", whole(self.theta));
            if self.yarn.is_some() {
                put("rope_scaling", Json::Object(rope));
            }
        }
        text.extend(extra);
        if !hybrid {
            text.insert("architectures".to_owned(), json!(["Qwen3ForCausalLM"]));
            text.insert("model_type".to_owned(), json!("qwen3"));
            return text;
        }
        let mut config = Map::new();
        config.insert("architectures".to_owned(), json!(["Qwen3_5ForConditionalGeneration"]));
        config.insert("model_type".to_owned(), json!("qwen3_5"));
        config.insert("tie_word_embeddings".to_owned(), json!(tied));
        config.insert("text_config".to_owned(), Json::Object(text));
        config
    }
}

impl Yarn {
    /// The paper's factor for queries and keys.
    fn paper(&self) -> f64 {
        0.1 * self.factor.ln() + 1.0
    }

    fn pre_factor(&self, factor: f64) -> Result<f32> {
        let pre = (factor / self.paper()) as f32;
        if (f64::from(pre) * self.paper()) as f32 == factor as f32 {
            return Ok(pre);
        }
        bail!("the YaRN attention factor {factor} has no exact form in GGUF")
    }
}

fn read_yarn(reader: &Reader<'_>) -> Result<Option<Yarn>> {
    let gguf = reader.source.is_gguf();
    let group = if gguf {
        "rope.scaling"
    } else {
        let holds = |group: &&str| {
            let key = |leaf: &str| {
                reader
                    .source
                    .meta(&format!("text_config.{group}.{leaf}"))
                    .or_else(|| reader.source.meta(&format!("{group}.{leaf}")))
            };
            key("rope_type").or_else(|| key("type")).is_some()
        };
        ["rope_parameters", "rope_scaling"].into_iter().find(holds).unwrap_or("rope_parameters")
    };
    let get = |hf: &str, leaf: &str| {
        let leaf = if gguf { leaf } else { hf };
        let key = format!("{}{group}.{leaf}", if gguf { reader.prefix.as_str() } else { "" });
        let nested = if gguf { None } else { reader.source.meta(&format!("text_config.{key}")) };
        nested.or_else(|| reader.source.meta(&key))
    };
    let number = |hf: &str, leaf: &str| get(hf, leaf).and_then(|m| m.as_f64());
    let kind = get("rope_type", "type").or_else(|| get("type", "type"));
    match kind.as_ref().and_then(Meta::as_str).unwrap_or("default") {
        "default" | "none" => Ok(None),
        "yarn" => {
            let needed = |value: Option<f64>| value.ok_or_else(|| anyhow!("the YaRN scaling lacks a number"));
            let mut yarn = Yarn {
                factor: needed(number("factor", "factor"))?,
                original: needed(number("original_max_position_embeddings", "original_context_length"))?,
                attention_factor: None,
                beta_fast: number("beta_fast", "yarn_beta_fast"),
                beta_slow: number("beta_slow", "yarn_beta_slow"),
            };
            let factor = number("attention_factor", "attn_factor");
            let factor = if gguf { factor.filter(|f| *f != 1.0).map(|pre| pre * yarn.paper()) } else { factor };
            // The paper's own is what every reader assumes.
            yarn.attention_factor = factor.filter(|f| *f as f32 != yarn.paper() as f32);
            Ok(Some(yarn))
        }
        other => bail!("rope scaling of type `{other}` cannot be converted"),
    }
}

/// A number that GGUF stores in 32 bits, if that changes nothing.
fn exact(what: &str, value: f64) -> Result<f32> {
    let narrow = value as f32;
    if f64::from(narrow) == value {
        Ok(narrow)
    } else {
        bail!("{what} {value} is not a 32-bit float, as GGUF stores it")
    }
}

/// A number that is used as f32, in its shortest decimal form.
pub(super) fn short(value: f64) -> Json {
    let text = (value as f32).to_string();
    json!(text.parse::<f64>().unwrap_or(value))
}

/// A JSON number without a fraction where there is none.
fn whole(value: f64) -> Json {
    if value.fract() == 0.0 && value.abs() < 9e15 { json!(value as i64) } else { json!(value) }
}
