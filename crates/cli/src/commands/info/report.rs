//! Everything that `info` says, as data.

use super::check::Check;
use super::image::ImageFacts;
use crate::args::RunOptions;
use crate::backends::{self, Candidate};
use crate::side::TextSide;
use crate::source::Headers;
use anyhow::Result;
use onebit_checkpoint::{Container, Inventory, Kind};
use onebit_engine::{EngineOptions, MemoryPlan};
use onebit_models::{Facts, outline};
use onebit_ops::{Backend, FormatSupport};
use onebit_quant::Format;
use serde::Serialize;
use std::collections::BTreeMap;

/// A model, described.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) name: String,
    pub(super) path: String,
    /// In words, and whether it runs.
    pub(super) kind: String,
    pub(super) runs: bool,
    pub(super) container: &'static str,
    pub(super) files: Vec<String>,
    pub(super) tensors: usize,
    pub(super) tensor_bytes: u64,
    pub(super) model: Option<ModelFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<ImageFacts>,
    /// Bytes by part and format.
    pub(super) parts: Vec<PartRow>,
    /// Tensors that text does not load, by their first name.
    pub(super) other: Vec<OtherRow>,
    pub(super) kernels: Vec<KernelRow>,
    /// Backends that this machine or build lacks, with the reason.
    pub(super) absent: Vec<AbsentRow>,
    pub(super) memory: Option<MemoryRow>,
    pub(super) text: Option<TextFacts>,
    /// What `--cache-repack` kept of it for the chosen device.
    pub(super) repacked: Option<Repacked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) check: Option<Check>,
    pub(super) problems: Vec<String>,
}

/// A file of repacked weights.
#[derive(Debug, Serialize)]
pub(super) struct Repacked {
    pub(super) path: String,
    pub(super) bytes: u64,
}

/// Sizes of the network.
#[derive(Debug, Serialize)]
pub(super) struct ModelFacts {
    pub(super) architecture: &'static str,
    pub(super) layers: usize,
    pub(super) attention_layers: usize,
    pub(super) delta_layers: usize,
    pub(super) hidden: usize,
    pub(super) vocab: usize,
    pub(super) context: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) parameters: u64,
    pub(super) matrices: usize,
    pub(super) matrix_bytes: u64,
    pub(super) bits_per_weight: f64,
}

/// Matrices of one use in one format.
#[derive(Debug, Serialize)]
pub(super) struct PartRow {
    pub(super) part: String,
    pub(super) format: String,
    pub(super) matrices: usize,
    pub(super) parameters: u64,
    pub(super) bytes: u64,
}

/// Tensors outside the language model's matrices.
#[derive(Debug, Serialize)]
pub(super) struct OtherRow {
    pub(super) group: String,
    pub(super) tensors: usize,
    pub(super) bytes: u64,
}

/// What a backend does with a format.
#[derive(Debug, Serialize)]
pub(super) struct KernelRow {
    pub(super) format: String,
    pub(super) backend: String,
    pub(super) kernel: Option<String>,
    pub(super) advice: Option<String>,
}

/// A backend that cannot run here.
#[derive(Debug, Serialize)]
pub(super) struct AbsentRow {
    pub(super) backend: &'static str,
    pub(super) reason: String,
}

/// What running takes.
#[derive(Debug, Serialize)]
pub(super) struct MemoryRow {
    pub(super) backend: String,
    pub(super) activations: String,
    pub(super) kv: String,
    pub(super) kv_bytes_per_token: u64,
    pub(super) state_bytes_per_sequence: u64,
    pub(super) weights: u64,
    pub(super) overhead: u64,
    pub(super) free: u64,
    /// The context that would be chosen, or was asked for, when it fits.
    pub(super) context: Option<usize>,
    pub(super) total: Option<u64>,
    pub(super) refusal: Option<String>,
    /// Total at several contexts.
    pub(super) at: Vec<(usize, u64)>,
}

/// The text side.
#[derive(Debug, Serialize)]
pub(super) struct TextFacts {
    pub(super) tokens: usize,
    pub(super) chat_template: bool,
    pub(super) thinking: bool,
    pub(super) thinking_switch: bool,
    pub(super) end_tokens: Vec<u32>,
    pub(super) temperature: Option<f64>,
    pub(super) top_k: Option<usize>,
    pub(super) top_p: Option<f64>,
    pub(super) min_p: Option<f64>,
}

impl TextFacts {
    pub(super) fn of(side: &TextSide) -> TextFacts {
        // Widened through decimal text, so that 0.6 stays 0.6.
        let wide = |v: Option<f32>| v.and_then(|v| v.to_string().parse().ok());
        TextFacts {
            tokens: side.tokenizer.vocab_size(),
            chat_template: side.template.is_some(),
            thinking: side.think_markers().is_some(),
            thinking_switch: side.template.as_ref().is_some_and(onebit_text::ChatTemplate::has_thinking_switch),
            end_tokens: side.eos.clone(),
            temperature: wide(side.defaults.temperature),
            top_k: side.defaults.top_k,
            top_p: wide(side.defaults.top_p),
            min_p: wide(side.defaults.min_p),
        }
    }
}

impl Report {
    /// Describes a model by its headers. A model that does not run is described as far as its headers go, with the
    /// reason among the problems.
    pub(super) fn of(name: &str, inventory: &Inventory, options: &RunOptions, backend: &dyn Backend) -> Result<Report> {
        let mut report = Report {
            name: name.to_owned(),
            path: inventory.path().display().to_string(),
            kind: inventory.kind().to_string(),
            runs: false,
            container: match inventory.container() {
                Container::Safetensors => "safetensors",
                Container::Gguf => "GGUF",
            },
            files: inventory.files().to_vec(),
            tensors: inventory.tensors().len(),
            tensor_bytes: inventory.tensors().map(|t| t.bytes).sum(),
            model: None,
            image: None,
            parts: Vec::new(),
            other: Vec::new(),
            kernels: Vec::new(),
            absent: Vec::new(),
            memory: None,
            text: None,
            repacked: None,
            check: None,
            problems: Vec::new(),
        };
        if let Kind::Image { .. } = inventory.kind() {
            return Ok(report);
        }
        if *inventory.kind() != Kind::Text {
            report
                .problems
                .extend(crate::load::refuse_kind(&report.path, inventory.kind()).err().map(|e| e.to_string()));
            return Ok(report);
        }
        match outline(&Headers(inventory)) {
            Ok((facts, parts)) => report.describe(inventory, &facts, &parts.parts, options, backend)?,
            Err(error) => report.problems.push(error.to_string()),
        }
        Ok(report)
    }

    fn describe(
        &mut self,
        inventory: &Inventory,
        facts: &Facts,
        parts: &[onebit_models::Part],
        options: &RunOptions,
        backend: &dyn Backend,
    ) -> Result<()> {
        let mut rows: BTreeMap<(onebit_models::PartKind, String), PartRow> = BTreeMap::new();
        let mut formats: Vec<Format> = Vec::new();
        let mut bytes = 0;
        for part in parts {
            // Headers hand out matrices without bytes; their sizes are in the inventory.
            let stored = inventory.matrix_info(&part.tensor)?.map_or(0, |info| info.bytes());
            bytes += stored;
            if !formats.contains(&part.format) {
                formats.push(part.format);
            }
            let format = part.format.to_string();
            let row = rows.entry((part.kind, format.clone())).or_insert_with(|| PartRow {
                part: part.kind.to_string(),
                format,
                matrices: 0,
                parameters: 0,
                bytes: 0,
            });
            row.matrices += 1;
            row.parameters += (part.rows * part.cols) as u64;
            row.bytes += stored;
        }
        self.parts = rows.into_values().collect();
        self.other = other(inventory, parts);
        self.model = Some(ModelFacts {
            architecture: facts.architecture,
            layers: facts.layers,
            attention_layers: facts.kv.layers,
            delta_layers: facts.state.map_or(0, |s| s.layers),
            hidden: facts.hidden,
            vocab: facts.vocab,
            context: facts.context,
            kv_heads: facts.kv.heads,
            head_dim: facts.kv.dim,
            parameters: facts.parameters,
            matrices: parts.len(),
            matrix_bytes: bytes,
            bits_per_weight: bytes as f64 * 8.0 / facts.parameters.max(1) as f64,
        });
        let machine = backends::all(options.backend, options.threads)?;
        self.kernels = kernels(&formats, &machine.candidates);
        self.absent = machine.absent.into_iter().map(|(backend, reason)| AbsentRow { backend, reason }).collect();
        let unsupported = formats.iter().find_map(|f| match backend.format_support(*f) {
            FormatSupport::Unsupported(advice) => {
                Some(format!("{f} has no kernel on {}: {advice}", backend.caps().name))
            }
            FormatSupport::Kernel(_) => None,
        });
        self.runs = unsupported.is_none();
        self.problems.extend(unsupported);
        self.memory = Some(memory_row(facts, bytes, options, backend)?);
        Ok(())
    }
}

/// Tensors that are no matrix of the language model, grouped by what they belong to.
fn other(inventory: &Inventory, parts: &[onebit_models::Part]) -> Vec<OtherRow> {
    let used: std::collections::HashSet<&str> = parts.iter().map(|p| p.tensor.as_str()).collect();
    let mut rows: BTreeMap<&str, OtherRow> = BTreeMap::new();
    for tensor in inventory.tensors() {
        let base = ["weight", "scales", "biases"]
            .iter()
            .find_map(|part| tensor.name.strip_suffix(part)?.strip_suffix('.'))
            .unwrap_or(&tensor.name);
        if used.contains(base) {
            continue;
        }
        let name = tensor.name.as_str();
        let group = if name.starts_with("vision_tower.") || name.contains("visual.") {
            "vision tower (not loaded)"
        } else if name.contains("mtp.") {
            "multi-token prediction (not loaded)"
        } else {
            "norms and other small tensors"
        };
        let row = rows.entry(group).or_insert_with(|| OtherRow { group: group.to_owned(), tensors: 0, bytes: 0 });
        row.tensors += 1;
        row.bytes += tensor.bytes;
    }
    rows.into_values().collect()
}

/// What every backend of this machine does with each format.
fn kernels(formats: &[Format], candidates: &[Candidate]) -> Vec<KernelRow> {
    let mut rows = Vec::new();
    for candidate in candidates {
        for format in formats {
            let (kernel, advice) = match candidate.backend.format_support(*format) {
                FormatSupport::Kernel(kernel) => (Some(kernel), None),
                FormatSupport::Unsupported(advice) => (None, Some(advice)),
            };
            rows.push(KernelRow { format: format.to_string(), backend: candidate.name.clone(), kernel, advice });
        }
    }
    rows
}

fn memory_row(facts: &Facts, weights: u64, options: &RunOptions, backend: &dyn Backend) -> Result<MemoryRow> {
    let activations = options.activations.resolve(backend.caps().default_activations);
    let engine = EngineOptions {
        kv: options.kv_quant.resolve(activations),
        activations: Some(activations),
        ..EngineOptions::new(facts.context)
    };
    let free = backends::free_memory(backend)?;
    let fit = MemoryPlan::fit(facts, weights, &engine, options.ctx, free);
    let at = |context: usize| {
        let plan = MemoryPlan::of(facts, weights, &EngineOptions { context, ..engine.clone() });
        (context, plan.total())
    };
    let contexts = [4096, 8192, 32_768, 131_072, facts.context];
    let mut at: Vec<(usize, u64)> = contexts.into_iter().filter(|c| *c <= facts.context).map(at).collect();
    at.dedup();
    let spec = facts.cache_spec(onebit_ops::PAGE_ROWS, 1, engine.kv);
    Ok(MemoryRow {
        backend: backend.caps().device.clone(),
        activations: activations.to_string(),
        kv: engine.kv.to_string(),
        kv_bytes_per_token: spec.kv.bytes_per_token(),
        state_bytes_per_sequence: spec.state.map_or(0, |s| s.bytes_per_slot()),
        weights,
        overhead: onebit_engine::OVERHEAD,
        free,
        context: fit.as_ref().ok().map(|p| p.context),
        total: fit.as_ref().ok().map(MemoryPlan::total),
        refusal: fit.err().map(|e| e.to_string()),
        at,
    })
}
