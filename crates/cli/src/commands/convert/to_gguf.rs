//! From an MLX or Hugging Face folder to one GGUF file.

use super::matrices::{self, Moved};
use super::names::{Content, Pair, ValueHeads};
use super::{Job, vocabulary};
use crate::{side, terminal};
use anyhow::{Context, Result, bail};
use onebit_checkpoint::gguf::{TensorSpec, Value, Writer};
use onebit_quant::{Format, Packed, ParamType};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// What goes into one tensor.
enum Data {
    /// Converted when it is written.
    Matrix(ValueHeads),
    /// Small, so converted at once.
    Floats(Vec<u8>),
}

/// One tensor to write.
struct Planned {
    pair: Pair,
    spec: TensorSpec,
    data: Data,
}

/// Writes the file. `group` is the block size of 2-bit codes.
pub(super) fn write(job: &mut Job<'_>, path: &Path, group: u16) -> Result<()> {
    let planned = plan(job, group)?;
    let metadata = metadata(job)?;
    let file = File::create(path).with_context(|| path.display().to_string())?;
    let specs = planned.iter().map(|p| p.spec.clone()).collect();
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, file), &metadata, specs)?;
    let bar = terminal::count_bar("converting", planned.len() as u64);
    for tensor in planned {
        let name = &tensor.spec.name;
        match tensor.data {
            Data::Floats(bytes) => writer.tensor(name, &bytes)?,
            Data::Matrix(heads) => {
                let (packed, moved) = rewritten(job, &tensor.pair, heads, group)?;
                job.moved += moved;
                writer.tensor(name, &packed.codes)?;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    writer.finish()?;
    Ok(())
}

fn rewritten(job: &Job<'_>, pair: &Pair, heads: ValueHeads, group: u16) -> Result<(Packed, Moved)> {
    match job.matrix(&pair.hf, heads, |matrix| matrices::to_gguf(matrix, group))? {
        Some(found) => Ok(found),
        None => bail!("tensor `{}.weight` has vanished", pair.hf),
    }
}

fn plan(job: &mut Job<'_>, group: u16) -> Result<Vec<Planned>> {
    let offset = norm_offset(job);
    let mut used = Vec::new();
    let mut planned = Vec::new();
    let mut spread = Vec::new();
    for pair in job.pairs.clone() {
        let (format, shape, data) = match pair.content {
            Content::Matrix(heads) => {
                let Some(info) = job.source.checkpoint().matrix_info(&pair.hf)? else { continue };
                used.extend(["weight", "scales", "biases"].map(|part| format!("{}.{part}", pair.hf)));
                let straddles = job.heads().is_some_and(|order| order.straddles(info.format, heads));
                let format = match matrices::only_gguf_format(info.format, group) {
                    Some(format) if !straddles => format,
                    _ => rewritten(job, &pair, heads, group)?.0.format,
                };
                if straddles {
                    spread.push(format);
                }
                (format, vec![info.rows, info.cols], Data::Matrix(heads))
            }
            content => {
                let name = pair.hf_tensor();
                let offset = if content == Content::OffsetNorm { offset } else { 0.0 };
                let Some((shape, values)) = job.floats(&name, content, offset)? else { continue };
                used.push(name);
                // The convolution's singleton axis goes, whichever it is.
                let shape =
                    if content == Content::Conv { shape.into_iter().filter(|d| *d != 1).collect() } else { shape };
                let mut bytes = Vec::with_capacity(values.len() * 4);
                values.iter().for_each(|&v| ParamType::F32.write(v, &mut bytes));
                (Format::F32, shape, Data::Floats(bytes))
            }
        };
        planned.push(Planned { spec: TensorSpec { name: pair.gguf_tensor(), shape, format }, pair, data });
    }
    if let Some(format) = spread.first() {
        let count = spread.len();
        job.notes.push(format!(
            "{count} output projections of delta-rule layers are stored as {format}: their groups straddle value heads, whose order differs in GGUF"
        ));
    }
    job.account(&used)?;
    Ok(planned)
}

/// Unconverted files store most norm gains less 1; their convolution weights have the singleton axis in the middle.
fn norm_offset(job: &Job<'_>) -> f32 {
    let middle = |shape: &[usize]| matches!(shape, [_, 1, kernel] if *kernel != 1);
    let conv = |t: &onebit_checkpoint::TensorInfo| t.name.ends_with("linear_attn.conv1d.weight") && middle(&t.shape);
    if job.source.checkpoint().tensors().any(conv) { 1.0 } else { 0.0 }
}

fn metadata(job: &mut Job<'_>) -> Result<Vec<(String, Value)>> {
    let folder = side::folder(job.source);
    let mut out = job.hyper.to_gguf()?;
    let text = |key: &str, value: &str| (key.to_owned(), Value::Str(value.to_owned()));
    let name = std::path::absolute(&folder).ok().and_then(|f| f.file_name().map(|n| n.to_string_lossy().into_owned()));
    out.insert(1, text("general.type", "model"));
    out.insert(2, text("general.name", name.as_deref().unwrap_or("model")));
    out.push(("general.quantization_version".to_owned(), Value::U32(2)));
    let config = job.source.checkpoint().config();
    out.extend(vocabulary::to_gguf(&folder, config, job.facts.vocab, &mut job.notes)?);
    Ok(out)
}
