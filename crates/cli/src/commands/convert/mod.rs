//! `onebit convert`: the same weights in the other container.
//!
//! | file | idea |
//! |---|---|
//! | `names` | which tensor is which |
//! | `hyper` | hyperparameters |
//! | `vocabulary` | the tokenizer |
//! | `matrices` | formats of packed matrices |
//! | `heads` | the order of value heads |
//! | `floats` | norms, convolutions, decays |
//! | `to_gguf`, `to_mlx` | one direction each |
//!
//! "Lossless" means that every weight has the same value afterwards, with two exceptions that are printed when they
//! occur: offsets that the packs themselves rounded by one subnormal step of binary16, and decay rates to their last
//! binary digit, because the containers store a different function of them.

mod floats;
mod heads;
mod hyper;
mod matrices;
mod names;
mod to_gguf;
mod to_mlx;
mod vocabulary;

use crate::args::{ConvertArgs, ConvertTo};
use crate::source::Source;
use crate::{Usage, load, resolve, terminal};
use anyhow::{Context, Result, anyhow, bail};
use heads::{Direction, HeadOrder};
use matrices::{Moved, Rewritten};
use names::{Architecture, Content, Pair, ValueHeads};
use onebit_checkpoint::Container;
use onebit_models::{Facts, Outline, outline};
use onebit_ops::WeightSource;
use onebit_quant::{Matrix, Packed};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A model to convert, read and understood.
struct Job<'a> {
    source: &'a Source,
    hyper: hyper::Hyper,
    outline: Outline,
    facts: Facts,
    pairs: Vec<Pair>,
    direction: Direction,
    notes: Vec<String>,
    moved: Moved,
    decay_error: f64,
}

/// Runs the command.
///
/// # Errors
/// Whatever cannot be read, has no exact form in the other container, or cannot be written.
pub fn run(args: &ConvertArgs) -> Result<()> {
    let started = Instant::now();
    if args.gguf_group.is_some() && args.to() == ConvertTo::Mlx {
        bail!(Usage("--gguf-group is about GGUF files, and the destination is a folder; leave it out".to_owned()));
    }
    let options = load::Options { mmap: !args.no_mmap, q2_0_group: args.q2_0_group };
    let path = resolve::local(&args.src)?;
    if args.dst.exists() {
        bail!("{} exists already; name a destination that does not", args.dst.display());
    }
    let source = load::open(&path, &options)?;
    let (to, from) = (args.to(), source.checkpoint().container());
    let mut job = match (from, to) {
        (Container::Safetensors, ConvertTo::Gguf) => Job::read(&source, Direction::ToTiled)?,
        (Container::Gguf, ConvertTo::Mlx) => Job::read(&source, Direction::ToGrouped)?,
        (Container::Gguf, ConvertTo::Gguf) => {
            bail!("{} is a GGUF file already; name a folder to write", path.display())
        }
        (Container::Safetensors, ConvertTo::Mlx) => {
            bail!("{} is in safetensors already; name a destination that ends in .gguf", path.display())
        }
    };
    let partial = partial_name(&args.dst)?;
    let written = match to {
        ConvertTo::Gguf => to_gguf::write(&mut job, &partial, args.gguf_group.unwrap_or(64)),
        ConvertTo::Mlx => to_mlx::write(&mut job, &partial),
    };
    let checked = written.and_then(|()| same_model(&job, &partial, to));
    if let Err(error) = checked {
        remove(&partial);
        return Err(error.context(path.display().to_string()));
    }
    std::fs::rename(&partial, &args.dst).with_context(|| args.dst.display().to_string())?;
    job.report(&args.dst, started);
    Ok(())
}

impl<'a> Job<'a> {
    fn read(source: &'a Source, direction: Direction) -> Result<Job<'a>> {
        let path = source.checkpoint().path().display().to_string();
        let (facts, outline) = outline(source).with_context(|| path.clone())?;
        let architecture = Architecture::find(facts.architecture)
            .ok_or_else(|| anyhow!("{path}: no conversion is known for the architecture `{}`", facts.architecture))?;
        let hyper = hyper::Hyper::read(source, architecture).with_context(|| path.clone())?;
        let (prefix, head) = match direction {
            Direction::ToTiled => found_prefix(source),
            Direction::ToGrouped => architecture.mlx_prefix(),
        };
        let pairs = names::pairs(architecture, hyper.layers() as usize, prefix, head);
        let notes = Vec::new();
        Ok(Job { source, hyper, outline, facts, pairs, direction, notes, moved: 0, decay_error: 0.0 })
    }

    fn heads(&self) -> Option<HeadOrder> {
        self.hyper.heads()
    }

    /// The matrix of a pair in the order of the other container, then in its format.
    fn matrix(
        &self,
        base: &str,
        heads: ValueHeads,
        rewrite: impl Fn(&Matrix<'_>) -> Result<(Rewritten, Moved)>,
    ) -> Result<Option<(Packed, Moved)>> {
        let Some(matrix) = self.source.matrix(base)? else { return Ok(None) };
        let named = || format!("tensor `{base}.weight`");
        let reordered = match self.heads() {
            Some(order) => order.reorder(&matrix, heads, self.direction).with_context(named)?,
            None => None,
        };
        let view = reordered.as_ref().map_or(matrix, Packed::as_matrix);
        let (rewritten, moved) = rewrite(&view).with_context(named)?;
        let packed = match rewritten {
            Rewritten::New(packed) => packed,
            Rewritten::Same => reordered.unwrap_or_else(|| owned(&matrix)),
        };
        self.source.release(base);
        Ok(Some((packed, moved)))
    }

    /// A float tensor as the other container stores it, with its shape in this one.
    fn floats(&mut self, tensor: &str, content: Content, offset: f32) -> Result<Option<(Vec<usize>, Vec<f32>)>> {
        let Some(dense) = self.source.dense(tensor)? else { return Ok(None) };
        let heads = self.heads();
        let (values, error) = floats::rewrite(content, dense.values, heads.as_ref(), self.direction, offset)
            .with_context(|| format!("tensor `{tensor}`"))?;
        self.decay_error = self.decay_error.max(error);
        Ok(Some((dense.shape, values)))
    }

    /// Every tensor of the source must be one of `used`, or of a part that the other container has no place for.
    fn account(&mut self, used: &[String]) -> Result<()> {
        let used: std::collections::HashSet<&str> = used.iter().map(String::as_str).collect();
        let (mut vision, mut mtp) = (0, 0);
        for tensor in self.source.checkpoint().tensors() {
            let name = tensor.name.as_str();
            if used.contains(name) || name.ends_with("rotary_emb.inv_freq") || name.starts_with("rope_freqs.") {
                continue;
            }
            let extra_block = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
            if ["vision_tower.", "model.visual.", "visual."].iter().any(|p| name.starts_with(p)) {
                vision += 1;
            } else if name.contains("mtp.") || extra_block.is_some_and(|block| block >= self.hyper.layers()) {
                mtp += 1;
            } else {
                bail!("tensor `{name}` has no place in the other container");
            }
        }
        if vision > 0 {
            self.notes.push(format!(
                "{vision} tensors of the vision tower are left out: GGUF keeps them in a file of their own"
            ));
        }
        if mtp > 0 {
            self.notes
                .push(format!("{mtp} tensors of the multi-token-prediction head are left out: nothing uses them yet"));
        }
        Ok(())
    }

    fn report(&self, dst: &Path, started: Instant) {
        for note in &self.notes {
            terminal::say(&format!("note: {note}"));
        }
        if self.moved > 0 {
            terminal::say(&format!(
                "note: {} groups had an offset that was rounded by one subnormal step; it is now the derived one",
                self.moved
            ));
        }
        if self.decay_error > 0.0 {
            terminal::say(&format!(
                "note: decay rates are stored as logarithms there; the largest relative change is {:.0e}",
                self.decay_error
            ));
        }
        let parts = self.outline.parts.len();
        let size = terminal::bytes(size_of(dst));
        terminal::say(&format!(
            "{}: {parts} matrices, {size}, in {}",
            dst.display(),
            terminal::seconds(started.elapsed())
        ));
    }
}

/// The prefixes that the source's tensors carry.
fn found_prefix(source: &Source) -> (&'static str, &'static str) {
    let known = [("language_model.model.", "language_model."), ("model.language_model.", ""), ("model.", "")];
    let has = |prefix: &str| source.checkpoint().tensor(&format!("{prefix}embed_tokens.weight")).is_some();
    known.into_iter().find(|(prefix, _)| has(prefix)).unwrap_or(("model.", ""))
}

fn owned(matrix: &Matrix<'_>) -> Packed {
    Packed {
        format: matrix.format,
        rows: matrix.rows,
        cols: matrix.cols,
        codes: matrix.codes.to_vec(),
        scales: matrix.scales.to_vec(),
        biases: matrix.biases.to_vec(),
    }
}

/// Opens what was written and compares the sizes that a model would be built with.
fn same_model(job: &Job<'_>, path: &Path, to: ConvertTo) -> Result<()> {
    let group = (to == ConvertTo::Gguf).then_some(64);
    let written = load::open(path, &load::Options { mmap: true, q2_0_group: group })?;
    let (facts, _) = outline(&written)?;
    if facts != job.facts {
        bail!(
            "the result reads back as {facts:?} instead of {:?}; this is a fault of onebit, please report it",
            job.facts
        );
    }
    Ok(())
}

/// A sibling of the destination to write to until everything is there.
fn partial_name(dst: &Path) -> Result<PathBuf> {
    let name = dst.file_name().ok_or_else(|| anyhow!("{} names no file or folder", dst.display()))?;
    let mut partial = std::ffi::OsString::from(".partial-");
    partial.push(name);
    let partial = dst.with_file_name(partial);
    remove(&partial);
    Ok(partial)
}

/// Removes what an interrupted conversion left behind, if anything.
fn remove(path: &Path) {
    // A failure shows again, with its reason, when the same place is written.
    let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
}

fn size_of(path: &Path) -> u64 {
    let file = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|e| file(&e.path())).sum(),
        Err(_) => file(path),
    }
}
