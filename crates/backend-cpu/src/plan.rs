//! A compiled program: ops in order over one arena.

use crate::cache::Memory;
use crate::dispatch::Tier;
use crate::memory::{Buffer, Disjoint};
use crate::ops::attention::Attention;
use crate::ops::full_attention::FullAttention;
use crate::ops::image::GroupNorm;
use crate::ops::linear::Linear;
use crate::ops::recurrent::{Delta, MAX_KERNEL, transposed_taps};
use crate::ops::simple::Gates;
use crate::ops::{
    Exec, Frame, attention, conv2d, full_attention, image, linear, recurrent, sample, simple, vector, weight,
};
use crate::threads::Pool;
use onebit_ops::{Cache, Epilogue, Op, OpError, Placement, Program, RopeTable, Rows, StepInputs, StepOutput, Weight};
use std::sync::Arc;
use std::time::Instant;

/// A program bound to a cache, with everything that does not change from step to step.
pub(crate) struct Prepared {
    pub program: Program,
    pub cache: Cache,
    pub vocab: usize,
    profile: bool,
    placements: Vec<Placement>,
    /// Different rotary tables of the program; their angles are computed once a step.
    tables: Vec<Arc<RopeTable>>,
    /// What an op needs beside its operands.
    extras: Vec<Extra>,
}

enum Extra {
    None,
    /// Index into `Prepared::tables`.
    Angles(usize),
    /// `[kernel][channels]`.
    Taps(Vec<f32>),
    /// The weight of the next product, the first of a step after the last.
    Next(Weight),
}

/// Memory of a plan; it goes when the plan does.
pub(crate) struct Workspace {
    arena: Buffer,
    scratch: Buffer,
    worker_scratch: Buffer,
    angles: Vec<Vec<f32>>,
}

/// Bytes of a workspace that are not worth giving back: fresh pages cost more than they are worth.
const SMALL_WORKSPACE: usize = 16 << 20;

impl Workspace {
    /// Gives large temporaries back to the system until the next step. No step reads what another one left.
    pub(crate) fn give_back(&mut self) {
        let buffers = [&mut self.arena, &mut self.scratch, &mut self.worker_scratch];
        if buffers.iter().map(|b| b.bytes().len()).sum::<usize>() > SMALL_WORKSPACE {
            buffers.into_iter().for_each(Buffer::discard);
        }
    }
}

impl Prepared {
    pub(crate) fn new(program: Program, cache: Cache, profile: bool) -> Result<Self, OpError> {
        let mut tables: Vec<Arc<RopeTable>> = Vec::new();
        let mut extras = Vec::with_capacity(program.ops.len());
        let mut vocab = usize::MAX;
        for (at, op) in program.ops.iter().enumerate() {
            extras.push(match op {
                Op::Embed { table, .. } => {
                    weight(table)?;
                    vocab = vocab.min(table.rows());
                    Extra::None
                }
                Op::Linear { weight: w, norm, .. } => {
                    if weight(w)?.table.is_some() {
                        let (wanted, got) = ("an uploaded weight".to_owned(), "a table to look rows up in".to_owned());
                        return Err(OpError::Shape { op: "linear", what: w.name().to_owned(), wanted, got });
                    }
                    norm.as_ref().map(|n| vector(&n.gain)).transpose()?;
                    Extra::Next(next_weight(&program, at).unwrap_or(w).clone())
                }
                Op::Rope { table, .. } => {
                    let known = tables.iter().position(|t| Arc::ptr_eq(t, table) || t == table);
                    Extra::Angles(known.unwrap_or_else(|| {
                        tables.push(table.clone());
                        tables.len() - 1
                    }))
                }
                Op::ConvSilu { weight, kernel, layer, .. } => {
                    check_state(&cache, *layer, op.name())?;
                    check("conv_silu", "kernel", &format!("1 to {MAX_KERNEL}"), *kernel, |k| {
                        (1..=MAX_KERNEL).contains(&k)
                    })?;
                    Extra::Taps(transposed_taps(weight, *kernel)?)
                }
                Op::GatedDelta { layer, .. } => {
                    check_state(&cache, *layer, op.name())?;
                    Extra::None
                }
                Op::Attention { k, layer, .. } => {
                    let kv = cache.spec().kv;
                    check("attention", "KV layer", &format!("below {}", kv.layers), *layer, |l| l < kv.layers)?;
                    check("attention", "key heads", &kv.heads.to_string(), k.heads, |h| h == kv.heads)?;
                    check("attention", "head dimension", &kv.dim.to_string(), k.dim, |d| d == kv.dim)?;
                    Extra::None
                }
                Op::GroupNorm { gain, bias, .. } => {
                    vector(gain)?;
                    vector(bias).map(|_| Extra::None)?
                }
                Op::Conv2d { conv, .. } => {
                    conv2d::check(&conv.weight)?;
                    vector(&conv.bias).map(|_| Extra::None)?
                }
                Op::RmsNorm { norm, .. } | Op::GatedNorm { norm, .. } => vector(&norm.gain).map(|_| Extra::None)?,
                Op::DeltaGates { decay_rate, dt_bias, .. } => {
                    vector(decay_rate)?;
                    vector(dt_bias).map(|_| Extra::None)?
                }
                _ => Extra::None,
            });
        }
        let (placements, _) = program.place();
        Ok(Prepared { program, cache, vocab, profile, placements, tables, extras })
    }

    /// The memory that steps of this plan work in.
    pub(crate) fn workspace(&self, tier: Tier, threads: usize) -> Result<Workspace, OpError> {
        let kernels = tier.kernels();
        let rows = self.program.bucket.rows;
        let (mut shared, mut worker) = (0, 0);
        for op in &self.program.ops {
            let (s, w) = match op {
                Op::Linear { weight, activations, epilogue, out, .. } => {
                    let gated = *epilogue == Epilogue::SwiGlu;
                    linear::scratch(kernels, self.program.max_rows(*out), weight, *activations, (gated, threads))?
                }
                Op::Attention { q, k, .. } => attention::scratch(rows, self.program.bucket.context, *q, *k),
                Op::FullAttention { q, k, out, .. } => full_attention::scratch(self.program.max_rows(*out), *q, *k),
                Op::GroupNorm { x, .. } => (image::group_norm_scratch(self.program.max_rows(x.tensor), *x), 0),
                Op::Conv2d { conv, .. } => (0, conv2d::scratch(conv)),
                Op::GatedDelta { k, .. } => recurrent::delta_scratch(rows, *k),
                Op::Sample { logits } => (0, sample::scratch(*logits)),
                _ => (0, 0),
            };
            shared = shared.max(s);
            worker = worker.max(w);
        }
        let (_, arena) = self.program.place();
        let angles = self.tables.iter().map(|t| vec![0.0; rows * t.rotary_dim()]).collect();
        Ok(Workspace {
            arena: Buffer::zeroed(arena * size_of::<f32>(), "the temporaries of a plan")?,
            scratch: Buffer::zeroed(shared, "the scratch memory of a plan")?,
            worker_scratch: Buffer::zeroed(worker * threads, "the scratch memory of a plan")?,
            angles,
        })
    }

    /// Refuses a step that accepts more rows than a layer of this program holds pending, before any op has changed a
    /// slot.
    pub(crate) fn check_accepted(&self, memory: &Memory, inputs: &StepInputs) -> Result<(), OpError> {
        for segment in inputs.segments.iter().filter(|s| s.accepted > 0) {
            for op in &self.program.ops {
                let pending = match op {
                    Op::ConvSilu { layer, .. } => memory.pending(segment.slot, *layer)?.0,
                    Op::GatedDelta { layer, .. } => memory.pending(segment.slot, *layer)?.1,
                    _ => continue,
                };
                if segment.accepted > pending {
                    return Err(OpError::Inputs(format!("{} rows accepted of {pending} pending", segment.accepted)));
                }
            }
        }
        Ok(())
    }

    /// One step. The inputs have been checked.
    pub(crate) fn step(
        &self,
        tier: Tier,
        pool: &Pool,
        memory: &mut Memory,
        space: &mut Workspace,
        inputs: &StepInputs,
    ) -> Result<StepOutput, OpError> {
        for (table, angles) in self.tables.iter().zip(&mut space.angles) {
            let n = table.inv_freq.len();
            for (position, row) in inputs.positions.iter().zip(angles.chunks_exact_mut(2 * n.max(1))) {
                let (cos, sin) = row.split_at_mut(n);
                table.cos_sin(*position, cos, sin);
            }
        }
        inputs.check_carried(memory.sampled.len())?;
        let mut tokens = inputs.tokens.clone();
        inputs.carried.iter().for_each(|c| tokens[c.row] = memory.sampled[c.from]);
        let mut frame = Frame {
            exec: Exec { kernels: tier.kernels(), pool },
            inputs,
            tokens: &tokens,
            tensors: &self.program.tensors,
            placements: &self.placements,
            arena: Disjoint::new(space.arena.floats_mut()),
            cache: memory,
            scratch: space.scratch.bytes_mut(),
            worker_scratch: space.worker_scratch.bytes_mut(),
        };
        let mut output = StepOutput::default();
        for (op, extra) in self.program.ops.iter().zip(&self.extras) {
            let start = self.profile.then(Instant::now);
            if !skipped(op, inputs, &self.program) {
                execute(op, extra, &space.angles, &mut frame, &mut output)?;
            } else if let Op::Output { name, .. } = op {
                output.values.insert(name.to_string(), Vec::new());
            }
            output.op_seconds.extend(start.map(|s| s.elapsed().as_secs_f64()));
        }
        memory.sampled.clear();
        memory.sampled.extend(output.sampled.iter().map(|s| s.token));
        Ok(output)
    }
}

/// The weight of the first product after op `at`, seen as a circle.
fn next_weight(program: &Program, at: usize) -> Option<&Weight> {
    let circle = program.ops[at + 1..].iter().chain(&program.ops[..at]);
    circle.filter_map(|op| if let Op::Linear { weight, .. } = op { Some(weight) } else { None }).next()
}

/// True for ops on logit rows when no logits are wanted.
fn skipped(op: &Op, inputs: &StepInputs, program: &Program) -> bool {
    let of_logits = |t: &onebit_ops::Tensor| program.tensors[t.0 as usize].rows == Rows::Logits;
    let on_logits = match op {
        Op::Output { x, .. } => of_logits(&x.tensor),
        Op::Sample { .. } => true,
        _ => op.outputs().first().is_some_and(of_logits),
    };
    on_logits && inputs.logit_rows.is_empty()
}

fn check(op: &'static str, what: &str, wanted: &str, got: usize, fits: impl Fn(usize) -> bool) -> Result<(), OpError> {
    if fits(got) {
        return Ok(());
    }
    Err(OpError::Shape { op, what: what.to_owned(), wanted: wanted.to_owned(), got: got.to_string() })
}

fn check_state(cache: &Cache, layer: usize, op: &'static str) -> Result<(), OpError> {
    let layers = cache.spec().state.map_or(0, |s| s.layers);
    check(op, "state layer", &format!("below {layers}"), layer, |l| l < layers)
}

fn execute(
    op: &Op,
    extra: &Extra,
    angles: &[Vec<f32>],
    frame: &mut Frame<'_>,
    output: &mut StepOutput,
) -> Result<(), OpError> {
    let kernels = frame.exec.kernels;
    match (op, extra) {
        (Op::Embed { table, out }, _) => simple::embed(frame, table, *out)?,
        (Op::RmsNorm { x, norm, out }, _) => simple::rms_norm(frame, *x, norm, *out)?,
        (Op::Linear { x, norm, weight, activations, epilogue, out }, Extra::Next(next)) => {
            let op = Linear {
                x: *x,
                norm: norm.as_ref(),
                weight,
                activations: *activations,
                epilogue: *epilogue,
                out: *out,
                next: crate::ops::weight(next)?,
            };
            linear::run(frame, op)?;
        }
        (Op::Add { a, b, out }, _) => simple::zip(frame, *a, *b, *out, kernels.add),
        (Op::SwiGlu { gate, up, out }, _) => simple::zip(frame, *gate, *up, *out, kernels.swiglu),
        (Op::SigmoidMul { x, gate, out }, _) => simple::zip(frame, *x, *gate, *out, kernels.sigmoid_mul),
        (Op::Rope { x, table, out }, Extra::Angles(i)) => simple::rope(frame, *x, table, &angles[*i], *out),
        (Op::Attention { q, k, v, layer, scale, out }, _) => {
            attention::run(frame, Attention { q: *q, k: *k, v: *v, layer: *layer, scale: *scale, out: *out });
        }
        (Op::ConvSilu { x, layer, out, .. }, Extra::Taps(taps)) => {
            recurrent::conv_silu(frame, *x, taps, *layer, *out)?;
        }
        (Op::DeltaGates { a, b, decay_rate, dt_bias, log_decay, beta }, _) => {
            let gates = Gates { a: *a, b: *b, decay_rate, dt_bias, log_decay: *log_decay, beta: *beta };
            simple::delta_gates(frame, &gates)?;
        }
        (Op::GatedDelta { q, k, v, log_decay, beta, map, eps, layer, out }, _) => {
            let op = Delta {
                q: *q,
                k: *k,
                v: *v,
                log_decay: *log_decay,
                beta: *beta,
                map: *map,
                eps: *eps,
                layer: *layer,
                out: *out,
            };
            recurrent::gated_delta(frame, op)?;
        }
        (Op::GatedNorm { x, z, norm, out }, _) => simple::gated_norm(frame, *x, *z, norm, *out)?,
        (Op::Input { name, out }, _) => image::input(frame, name, *out),
        (Op::Modulate { x, scale, shift, eps, out }, _) => image::modulate(frame, [*x, *scale, *shift], *eps, *out),
        (Op::GatedAdd { x, gate, y, out }, _) => image::gated_add(frame, [*x, *gate, *y], *out),
        (Op::RotatePairs { x, angles, out }, _) => image::rotate_pairs(frame, *x, *angles, *out),
        (Op::FullAttention { q, k, v, scale, seen, out }, _) => {
            full_attention::run(frame, FullAttention { q: *q, k: *k, v: *v, scale: *scale, seen: *seen, out: *out });
        }
        (Op::JoinRows { parts, out }, _) => image::join_rows(frame, parts, *out),
        (Op::TakeRows { x, start, out }, _) => image::take_rows(frame, *x, *start, *out),
        (Op::JoinColumns { parts, out }, _) => image::join_columns(frame, parts, *out),
        (Op::GroupNorm { x, groups, gain, bias, eps, out }, _) => {
            image::group_norm(frame, &GroupNorm { x: *x, groups: *groups, gain, bias, eps: *eps, out: *out })?;
        }
        (Op::Conv2d { conv, out }, _) => conv2d::run(frame, conv, *out)?,
        (Op::SelectRows { x, out }, _) => simple::select_rows(frame, *x, *out),
        (Op::Sample { logits }, _) => output.sampled = sample::run(frame, *logits),
        (Op::Output { x, name }, _) => {
            output.values.insert(name.to_string(), simple::output(frame, *x));
        }
        (Op::Linear { .. } | Op::Rope { .. } | Op::ConvSilu { .. }, _) => unreachable!("prepared with what it needs"),
    }
    Ok(())
}
