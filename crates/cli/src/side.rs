//! What stands beside the weights: tokenizer, chat template, end tokens, and how the model's makers sample from it.

use crate::builtin;
use crate::source::Source;
use anyhow::{Context, Result, anyhow, bail};
use onebit_checkpoint::{Container, Meta};
use onebit_text::{ChatTemplate, GgufVocab, ThinkMarkers, Tokenizer, stop_tokens};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

/// Larger than any real side file; a file beyond it is not read.
const MAX_SIDE_FILE: u64 = 256 << 20;

/// The file of a folder's tokenizer.
const TOKENIZER: &str = "tokenizer.json";

/// Everything about text that a checkpoint brings along.
#[derive(Debug)]
pub struct TextSide {
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// How conversations become prompts; base models have none.
    pub template: Option<ChatTemplate>,
    /// How the makers sample.
    pub defaults: GenerationDefaults,
    /// Ids that end an answer.
    pub eos: Vec<u32>,
}

/// Sampling values of `generation_config.json`, or of the `general.sampling` keys of GGUF.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// False takes the likeliest token.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Likeliest tokens to draw from.
    pub top_k: Option<usize>,
    /// Probability that they reach.
    pub top_p: Option<f32>,
    /// Smallest share of the likeliest.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens already seen.
    pub repetition_penalty: Option<f32>,
}

impl GenerationDefaults {
    /// Values that are absent or null say nothing; those of another type are an error, since a lost end token or
    /// temperature would show only in bad answers.
    fn from_json(json: &Json) -> Result<Self> {
        let given = |key: &str| json.get(key).filter(|v| !v.is_null());
        let wrong = |key: &str, v: &Json, wanted: &str| anyhow!("`{key}` is {v}; wanted {wanted}");
        let number = |key: &str| {
            let read = |v: &Json| v.as_f64().map(|n| n as f32).ok_or_else(|| wrong(key, v, "a number"));
            given(key).map(read).transpose()
        };
        if let Some(ids) = given("eos_token_id") {
            let list = ids.as_array().map_or(std::slice::from_ref(ids), Vec::as_slice);
            if list.iter().any(|id| id.as_u64().is_none()) {
                return Err(wrong("eos_token_id", ids, "a token id or a list of them"));
            }
        }
        let top_k = |v: &Json| {
            v.as_u64().and_then(|k| usize::try_from(k).ok()).ok_or_else(|| wrong("top_k", v, "a whole number"))
        };
        let do_sample = |v: &Json| v.as_bool().ok_or_else(|| wrong("do_sample", v, "true or false"));
        Ok(GenerationDefaults {
            do_sample: given("do_sample").map(do_sample).transpose()?,
            temperature: number("temperature")?,
            top_k: given("top_k").map(top_k).transpose()?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
        })
    }

    fn from_gguf(source: &Source) -> Self {
        let meta = |key: &str| source.checkpoint().meta(&format!("general.sampling.{key}"));
        let number = |key: &str| meta(key).and_then(Meta::as_f64).map(|v| v as f32);
        GenerationDefaults {
            do_sample: None,
            temperature: number("temp"),
            top_k: meta("top_k").and_then(Meta::as_usize),
            top_p: number("top_p"),
            min_p: number("min_p"),
            repetition_penalty: number("penalty_repeat"),
        }
    }
}

impl TextSide {
    /// Reads the side files of an open model, or the metadata of a GGUF file.
    ///
    /// # Errors
    /// A missing or unreadable tokenizer, a broken template.
    pub fn read(source: &Source) -> Result<TextSide> {
        match source.checkpoint().container() {
            Container::Gguf => Self::from_gguf(source),
            Container::Safetensors => Self::from_folder(source, &folder(source)),
        }
    }

    /// Fails at once, without reading it, when there is no tokenizer to read.
    ///
    /// # Errors
    /// A missing tokenizer file.
    pub fn require(source: &Source) -> Result<()> {
        match source.checkpoint().container() {
            Container::Gguf => Ok(()),
            Container::Safetensors => {
                let folder = folder(source);
                let path = folder.join(TOKENIZER);
                if path.exists() || builtin::file(&path).is_some() { Ok(()) } else { Err(no_tokenizer(&folder)) }
            }
        }
    }

    /// The texts around reasoning, if the model writes them.
    #[must_use]
    pub fn think_markers(&self) -> Option<ThinkMarkers> {
        self.template.as_ref().and_then(ChatTemplate::think_markers)
    }

    fn from_folder(source: &Source, folder: &Path) -> Result<TextSide> {
        let path = folder.join(TOKENIZER);
        let Some(bytes) = read(&path)? else { return Err(no_tokenizer(folder)) };
        let tokenizer = Tokenizer::from_json(&bytes).with_context(|| path.display().to_string())?;
        let jinja = read_text(&folder.join("chat_template.jinja"))?;
        let config = read_text(&folder.join("tokenizer_config.json"))?;
        let template = ChatTemplate::from_files(jinja.as_deref(), config.as_deref())
            .with_context(|| folder.display().to_string())?;
        let generation = read_json(&folder.join("generation_config.json"))?;
        let eos = stop_tokens(Some(source.checkpoint().config()), generation.as_ref(), &tokenizer);
        let defaults = match &generation {
            Some(json) => GenerationDefaults::from_json(json)
                .with_context(|| folder.join("generation_config.json").display().to_string())?,
            None => GenerationDefaults::default(),
        };
        Ok(TextSide { tokenizer, template, defaults, eos })
    }

    fn from_gguf(source: &Source) -> Result<TextSide> {
        let name = || source.checkpoint().path().display().to_string();
        let vocab = gguf_vocab(source).with_context(name)?;
        let tokenizer = Tokenizer::from_gguf(vocab).with_context(name)?;
        let template = match source.checkpoint().meta("tokenizer.chat_template").and_then(Meta::as_str) {
            Some(text) => Some(ChatTemplate::from_source(text, "tokenizer.chat_template").with_context(name)?),
            None => None,
        };
        let eos = stop_tokens(None, None, &tokenizer);
        Ok(TextSide { tokenizer, template, defaults: GenerationDefaults::from_gguf(source), eos })
    }
}

fn no_tokenizer(folder: &Path) -> anyhow::Error {
    anyhow!("{}: {TOKENIZER} is missing; download it into the folder from the model's repository", folder.display())
}

/// The tokenizer keys of a GGUF file.
///
/// # Errors
/// Keys that are missing or of another type.
pub fn gguf_vocab(source: &Source) -> Result<GgufVocab> {
    let meta = |key: &str| source.checkpoint().meta(&format!("tokenizer.ggml.{key}"));
    let missing = |key: &str| {
        anyhow!(
            "the file has no `tokenizer.ggml.{key}`, so there is no tokenizer; use a file that was converted with one"
        )
    };
    let text = |key: &str| meta(key).and_then(Meta::as_str).map(str::to_owned).ok_or_else(|| missing(key));
    let texts = |key: &str| -> Result<Vec<String>> {
        let list = meta(key).and_then(Meta::as_array).ok_or_else(|| missing(key))?;
        let list = list.to_strs().ok_or_else(|| anyhow!("`tokenizer.ggml.{key}` is not a list of strings"))?;
        Ok(list.into_iter().map(str::to_owned).collect())
    };
    let id = |key: &str| meta(key).and_then(Meta::as_u64).and_then(|id| u32::try_from(id).ok());
    let token_types = meta("token_type").and_then(Meta::as_array).map(|list| {
        let kind = |meta: Meta<'_>| meta.as_f64().map_or(0, |v| v as i32);
        list.iter().map(kind).collect()
    });
    Ok(GgufVocab {
        model: text("model")?,
        pre: text("pre")?,
        tokens: texts("tokens")?,
        merges: texts("merges")?,
        token_types: token_types.unwrap_or_default(),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        pad: id("padding_token_id"),
        add_bos: meta("add_bos_token").and_then(Meta::as_bool).unwrap_or(false),
    })
}

/// The folder that side files of a safetensors model lie in.
#[must_use]
pub fn folder(source: &Source) -> PathBuf {
    let path = source.checkpoint().path();
    if path.is_dir() || builtin::embedded(path).is_some() {
        return path.to_owned();
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The bytes of a side file; `None` when it is not there.
///
/// # Errors
/// A file that cannot be read, or is far larger than any real one.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    if let Some(bytes) = builtin::file(path) {
        return Ok(Some(bytes.to_vec()));
    }
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).with_context(|| path.display().to_string()),
    };
    if meta.len() > MAX_SIDE_FILE {
        bail!("{} is {} bytes long; no real file of this kind is", path.display(), meta.len());
    }
    std::fs::read(path).map(Some).with_context(|| path.display().to_string())
}

/// The text of a side file; `None` when it is not there.
///
/// # Errors
/// Those of [`read`], and text that is not UTF-8.
pub fn read_text(path: &Path) -> Result<Option<String>> {
    let bytes = read(path)?;
    let text = bytes.map(String::from_utf8).transpose();
    text.with_context(|| format!("{} is not UTF-8 text", path.display()))
}

/// The JSON of a side file; `None` when it is not there.
///
/// # Errors
/// Those of [`read`], and invalid JSON.
pub fn read_json(path: &Path) -> Result<Option<Json>> {
    let bytes = read(path)?;
    let json = bytes.map(|b| serde_json::from_slice(&b)).transpose();
    json.with_context(|| format!("{} is not valid JSON; download it again", path.display()))
}
