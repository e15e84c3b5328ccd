//! From a GGUF file to an MLX folder.

use super::matrices::{self, Moved, smallest_float};
use super::names::{Content, Pair, ValueHeads};
use super::{Job, vocabulary};
use crate::terminal;
use anyhow::{Context, Result, bail};
use onebit_checkpoint::StoredType;
use onebit_checkpoint::safetensors::{TensorSpec, Writer};
use onebit_quant::{Format, Packed};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// What goes into one module.
enum Data {
    /// Converted when it is written.
    Matrix(ValueHeads),
    /// Small, so converted at once.
    Floats(Vec<u8>),
}

/// One module to write: one tensor, or the three of a packed matrix.
struct Planned {
    pair: Pair,
    specs: Vec<TensorSpec>,
    data: Data,
}

/// Writes the folder.
pub(super) fn write(job: &mut Job<'_>, folder: &Path) -> Result<()> {
    let side = vocabulary::to_mlx(job.source)?;
    let (planned, formats) = plan(job)?;
    let tied = !planned.iter().any(|p| p.pair.gguf == "output");
    let mut config = job.hyper.to_config(job.facts.vocab, tied, side.ids);
    if let Some(section) = quantization(&formats) {
        config.insert("quantization".to_owned(), section.clone());
        config.insert("quantization_config".to_owned(), section);
    }
    std::fs::create_dir(folder).with_context(|| folder.display().to_string())?;
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| path.display().to_string())
    };
    put("config.json", &serde_json::to_vec_pretty(&config)?)?;
    for (name, bytes) in &side.files {
        put(name, bytes)?;
    }
    let path = folder.join("model.safetensors");
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    let specs: Vec<TensorSpec> = planned.iter().flat_map(|p| p.specs.clone()).collect();
    put("model.safetensors.index.json", &index(&specs)?)?;
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, file), &[("format", "mlx")], specs)?;
    let bar = terminal::count_bar("converting", planned.len() as u64);
    for module in planned {
        match &module.data {
            Data::Floats(bytes) => writer.tensor(&module.specs[0].name, bytes)?,
            Data::Matrix(heads) => {
                let (packed, moved) = rewritten(job, &module.pair, *heads)?;
                job.moved += moved;
                for (spec, bytes) in module.specs.iter().zip([&packed.codes, &packed.scales, &packed.biases]) {
                    writer.tensor(&spec.name, bytes)?;
                }
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    writer.finish()?;
    Ok(())
}

fn rewritten(job: &Job<'_>, pair: &Pair, heads: ValueHeads) -> Result<(Packed, Moved)> {
    match job.matrix(&pair.gguf, heads, matrices::to_mlx)? {
        Some(found) => Ok(found),
        None => bail!("tensor `{}.weight` has vanished", pair.gguf),
    }
}

/// Every module, and the format of each matrix by its module path.
fn plan(job: &mut Job<'_>) -> Result<(Vec<Planned>, BTreeMap<String, Format>)> {
    let mut used = Vec::new();
    let mut planned = Vec::new();
    let mut formats = BTreeMap::new();
    for pair in job.pairs.clone() {
        let (specs, data) = match pair.content {
            Content::Matrix(heads) => {
                let Some(info) = job.source.checkpoint().matrix_info(&pair.gguf)? else { continue };
                used.push(info.weight.name.clone());
                let straddles = job.heads().is_some_and(|order| order.straddles(info.format, heads));
                let format = match matrices::only_mlx_format(info.format) {
                    Some(format) if !straddles => format,
                    _ => rewritten(job, &pair, heads)?.0.format,
                };
                formats.insert(pair.hf.clone(), format);
                (matrix_specs(&pair.hf, format, info.rows, info.cols)?, Data::Matrix(heads))
            }
            content => {
                let name = pair.gguf_tensor();
                let Some((mut shape, values)) = job.floats(&name, content, 0.0)? else { continue };
                used.push(name);
                if content == Content::Conv {
                    // The trailing axis of one tells readers that the gains beside it are complete.
                    shape.push(1);
                }
                let (kind, bytes) = smallest_float(&values, true);
                let spec = TensorSpec { name: pair.hf_tensor(), stored: StoredType::Float(kind), shape };
                (vec![spec], Data::Floats(bytes))
            }
        };
        planned.push(Planned { pair, specs, data });
    }
    job.account(&used)?;
    Ok((planned, formats))
}

fn matrix_specs(base: &str, format: Format, rows: usize, cols: usize) -> Result<Vec<TensorSpec>> {
    let spec =
        |part: &str, stored, cols| TensorSpec { name: format!("{base}.{part}"), stored, shape: vec![rows, cols] };
    match (format, format.dense()) {
        (Format::Affine { bits, group, scale, bias }, _) => {
            let groups = cols / usize::from(group);
            Ok(vec![
                spec("weight", StoredType::U32, cols * usize::from(bits) / 32),
                spec("scales", StoredType::Float(scale), groups),
                spec("biases", StoredType::Float(bias), groups),
            ])
        }
        (_, Some(kind)) => Ok(vec![spec("weight", StoredType::Float(kind), cols)]),
        _ => bail!("tensor `{base}.weight`: {format} has no form in an MLX pack"),
    }
}

/// The `quantization` section: what most matrices have, and the modules that differ.
fn quantization(formats: &BTreeMap<String, Format>) -> Option<Json> {
    let setting = |format: &Format| match format {
        Format::Affine { bits, group, .. } => Some((*bits, *group)),
        _ => None,
    };
    let mut counts: BTreeMap<(u8, u16), usize> = BTreeMap::new();
    formats.values().filter_map(setting).for_each(|s| *counts.entry(s).or_default() += 1);
    let (&default, _) = counts.iter().max_by_key(|(_, count)| **count)?;
    let object = |(bits, group): (u8, u16)| json!({"group_size": group, "bits": bits});
    let mut section = Map::new();
    section.insert("group_size".to_owned(), json!(default.1));
    section.insert("bits".to_owned(), json!(default.0));
    for (module, format) in formats {
        match setting(format) {
            None => section.insert(module.clone(), json!(false)),
            Some(own) if own != default => section.insert(module.clone(), object(own)),
            Some(_) => None,
        };
    }
    Some(Json::Object(section))
}

fn index(specs: &[TensorSpec]) -> Result<Vec<u8>> {
    let mut total = 0;
    for spec in specs {
        total += spec.bytes()?;
    }
    let map: Map<String, Json> = specs.iter().map(|s| (s.name.clone(), json!("model.safetensors"))).collect();
    Ok(serde_json::to_vec_pretty(&json!({"metadata": {"total_size": total}, "weight_map": map}))?)
}
