//! The `quantization` section of `config.json` and the bits and groups of an MLX triplet.
//!
//! From shapes alone only the product `bits * group` is known, since
//! `words * 32 = cols * bits` and `groups * group = cols`. The configuration decides among the readings and the
//! shapes check it; a caller that knows the number of columns settles both without the configuration.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::{Problem, clip};

/// How a module is stored, according to the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Bits per code.
    pub bits: u64,
    /// Weights per scale.
    pub group: u64,
    /// `affine` when absent.
    pub mode: String,
}

/// The `quantization` section: a default and the modules that differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quantization {
    /// For modules without an entry of their own; `None` when the section is absent.
    pub default: Option<Setting>,
    /// By module path as written; `None` stands for `false`, not quantized.
    exact: HashMap<String, Option<Setting>>,
    /// By canonical module path.
    canonical: HashMap<String, Option<Setting>>,
}

impl Quantization {
    /// Reads `quantization`, else `quantization_config`, of a configuration. Absent is fine.
    ///
    /// Override keys may be spelled with or without the prefixes `model.` and `language_model.` in any order.
    ///
    /// # Errors
    /// [`Problem::Config`] for values of the wrong type, and when two spellings of one module contradict each other.
    pub fn parse(config: &Value) -> Result<Self, Problem> {
        let (key, section) = match (config.get("quantization"), config.get("quantization_config")) {
            (Some(section), _) if !section.is_null() => ("quantization", section),
            (_, Some(section)) if !section.is_null() => ("quantization_config", section),
            _ => return Ok(Self::default()),
        };
        let section = section.as_object().ok_or_else(|| wrong(key, "is not an object"))?;
        let default = setting(key, section, None)?;
        let mut found = Self { default: Some(default), ..Self::default() };
        for (module, value) in section {
            let path = format!("{key}.{}", clip(module));
            let entry = match value {
                Value::Bool(false) => None,
                Value::Object(own) => Some(setting(&path, own, found.default.as_ref())?),
                // The section's own fields, and fields of other tools that carry no module.
                _ => continue,
            };
            let canon = canonical(module);
            if found.canonical.get(canon).is_some_and(|other| *other != entry) {
                return Err(wrong(&path, "contradicts the same module under another spelling"));
            }
            found.canonical.insert(canon.to_owned(), entry.clone());
            found.exact.insert(module.clone(), entry);
        }
        Ok(found)
    }

    /// What the configuration says about a module: its own entry in any spelling (`Some(None)` for `false`), else
    /// the default, else `None`.
    #[must_use]
    pub fn lookup(&self, module: &str) -> Option<Option<&Setting>> {
        self.own(module).or_else(|| self.default.as_ref().map(Some))
    }

    /// The module's own entry, if it has one.
    #[must_use]
    pub fn own(&self, module: &str) -> Option<Option<&Setting>> {
        let entry = self.exact.get(module).or_else(|| self.canonical.get(canonical(module)));
        entry.map(Option::as_ref)
    }
}

fn wrong(key: &str, why: &str) -> Problem {
    Problem::Config { key: key.to_owned(), why: why.to_owned() }
}

/// Bits, group and mode of one object; an override inherits what it does not say.
fn setting(key: &str, object: &Map<String, Value>, inherit: Option<&Setting>) -> Result<Setting, Problem> {
    let number = |field: &str, inherited: Option<u64>| match object.get(field) {
        None | Some(Value::Null) => Ok(inherited.unwrap_or(0)),
        Some(value) => value.as_u64().ok_or_else(|| wrong(&format!("{key}.{field}"), "is not a whole number")),
    };
    let text = |field: &str| match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(&format!("{key}.{field}"), "is not a string")),
    };
    // Other tools mark their sections with `quant_method`; MLX ones have no such field or say `mlx`.
    let foreign = text("quant_method")?.filter(|method| method != "mlx" && method != "affine");
    let mode = match text("mode")? {
        Some(mode) => mode,
        None => foreign.or_else(|| inherit.map(|i| i.mode.clone())).unwrap_or_else(|| "affine".into()),
    };
    Ok(Setting {
        bits: number("bits", inherit.map(|i| i.bits))?,
        group: number("group_size", inherit.map(|i| i.group))?,
        mode,
    })
}

/// A module path without the wrappers that packs put before it or leave away.
fn canonical(module: &str) -> &str {
    let mut path = module;
    while let Some(rest) = path.strip_prefix("model.").or_else(|| path.strip_prefix("language_model.")) {
        path = rest;
    }
    path
}

/// Bits and group of a triplet.
///
/// `words` and `groups` are the second dimensions of `.weight` (u32 words) and `.scales`; `setting` is what the
/// configuration says, `cols` the number of columns if the caller knows it.
///
/// # Errors
/// [`Problem::Disagreement`] and [`Problem::UnknownBits`], both naming the layer.
pub fn infer(
    layer: &str,
    words: usize,
    groups: usize,
    setting: Option<&Setting>,
    cols: Option<usize>,
) -> Result<(u32, u32), Problem> {
    let mut candidates = Vec::new();
    for bits in [1u32, 2, 4, 8] {
        for group in [32u32, 64, 128] {
            // Both sides are the number of columns times `bits`.
            let from_words = (words as u128) * 32;
            let from_groups = (groups as u128) * u128::from(group) * u128::from(bits);
            let fits_cols = cols.is_none_or(|cols| groups as u128 * u128::from(group) == cols as u128);
            if from_words == from_groups && fits_cols && groups > 0 {
                candidates.push((bits, group));
            }
        }
    }
    let shapes = || {
        let list: Vec<String> = candidates.iter().map(|(bits, group)| format!("{bits}-bit g{group}")).collect();
        let known = cols.map_or_else(String::new, |cols| format!(" at {cols} columns"));
        if list.is_empty() {
            format!("no supported width ({words} words and {groups} scales per row{known})")
        } else {
            format!("{}{known}", list.join(" or "))
        }
    };
    match setting {
        Some(setting) => {
            let fits = |c: &&(u32, u32)| u64::from(c.0) == setting.bits && u64::from(c.1) == setting.group;
            candidates.iter().find(fits).copied().ok_or_else(|| Problem::Disagreement {
                layer: clip(layer),
                config: format!("{}-bit g{}", setting.bits, setting.group),
                shapes: shapes(),
            })
        }
        None => match candidates.as_slice() {
            [only] => Ok(*only),
            _ => Err(Problem::UnknownBits { layer: clip(layer), candidates: shapes() }),
        },
    }
}
