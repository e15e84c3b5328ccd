//! The oracle: every op as plain loops, sums in f64, one op at a time. Slow, obvious, complete.
//!
//! Weights stay packed here too; a row is decoded when it is used.

mod attention;
mod delta;
mod image;
mod linear;
mod pointwise;
mod sample;

pub use sample::sample;

use crate::{
    Activations, Backend, Cache, CacheSpec, Caps, FormatSupport, Fusions, KvFormat, Op, OpError, PAGE_ROWS, Plan,
    PlanOptions, Program, Sampled, SlotState, StepInputs, StepOutput, Ticket, UploadOptions, Vector, View, Weight,
    WeightInfo,
};
use onebit_quant::{Format, Matrix};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The scalar reference backend.
pub struct Reference {
    caps: Caps,
    next_ticket: AtomicU64,
    done: Mutex<HashMap<Ticket, StepOutput>>,
}

/// A matrix that owns its bytes, still packed.
struct OwnedMatrix {
    format: Format,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl OwnedMatrix {
    fn matrix(&self) -> Result<Matrix<'_>, OpError> {
        Ok(Matrix::new(self.format, self.rows, self.cols, &self.codes, &self.scales, &self.biases)?)
    }
}

struct ReferenceWeight {
    parts: Vec<OwnedMatrix>,
}

struct ReferenceCache {
    memory: Mutex<Memory>,
}

/// Cache contents as plain vectors.
struct Memory {
    /// `[layer][page * PAGE_ROWS + row][heads * dim]`, rounded to the KV format; grown as pages are used.
    keys: Vec<HashMap<usize, Vec<f32>>>,
    values: Vec<HashMap<usize, Vec<f32>>>,
    /// `[slot][layer]`.
    slots: Vec<Vec<SlotMemory>>,
    /// Tokens of the last step, one for each logit row.
    sampled: Vec<u32>,
}

/// One slot of one delta-rule layer.
#[derive(Clone)]
struct SlotMemory {
    delta: Vec<f32>,
    window: Vec<f32>,
    /// Raw convolution inputs of a speculative step, one row each.
    pending_window: Vec<Vec<f32>>,
    /// `(k, v, log_decay, beta)` of a speculative step, keys already normalised and mapped to value heads.
    pending_delta: Vec<delta::Update>,
}

struct ReferencePlan {
    program: Program,
    cache: Cache,
    profile: bool,
    vocab: usize,
}

/// Temporaries of one step: `values[tensor][row]`.
struct Frame<'a> {
    program: &'a Program,
    inputs: &'a StepInputs,
    /// The step's tokens, the carried ones among them.
    tokens: Vec<u32>,
    cache: &'a Cache,
    values: Vec<Vec<Vec<f32>>>,
    output: StepOutput,
}

impl Frame<'_> {
    /// The values that a view covers, one vector for each row.
    fn read(&self, view: View) -> Vec<Vec<f32>> {
        self.values[view.tensor.0 as usize]
            .iter()
            .map(|row| {
                (0..view.heads).flat_map(|h| row[view.offset + h * view.stride..][..view.dim].iter().copied()).collect()
            })
            .collect()
    }
}

impl Default for Reference {
    fn default() -> Self {
        Self::new()
    }
}

impl Reference {
    /// The reference needs nothing.
    pub fn new() -> Self {
        Reference {
            caps: Caps {
                name: "reference".to_owned(),
                device: "scalar loops, one thread".to_owned(),
                activations: vec![Activations::F32, Activations::I8G128, Activations::I9G128],
                default_activations: Activations::F32,
                kv_formats: vec![KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4],
                prefill_rows: 64,
                asynchronous: false,
                images: true,
                tables_in_files: false,
            },
            next_ticket: AtomicU64::new(0),
            done: Mutex::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held leaves plain numbers behind, which the next step overwrites.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn weight(w: &Weight) -> Result<&ReferenceWeight, OpError> {
    w.payload().ok_or(OpError::ForeignHandle("a weight"))
}

fn vector(v: &Vector) -> Result<&Vec<f32>, OpError> {
    v.payload().ok_or(OpError::ForeignHandle("a vector"))
}

fn memory(cache: &Cache) -> Result<MutexGuard<'_, Memory>, OpError> {
    Ok(lock(&cache.payload::<ReferenceCache>().ok_or(OpError::ForeignHandle("a cache"))?.memory))
}

fn slot_error(cache: &Cache, slot: usize) -> OpError {
    OpError::Inputs(format!("state slot {slot} of {}", cache.spec().state.map_or(0, |s| s.slots)))
}

impl Backend for Reference {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn fusions(&self) -> Fusions {
        Fusions::default()
    }

    fn format_support(&self, _: Format) -> FormatSupport {
        FormatSupport::Kernel("scalar".to_owned())
    }

    fn upload(&self, name: &str, parts: &[Matrix<'_>], _: UploadOptions) -> Result<Weight, OpError> {
        let Some(first) = parts.first() else {
            return Err(OpError::Shape {
                op: "upload",
                what: name.to_owned(),
                wanted: "one part or more".to_owned(),
                got: "none".to_owned(),
            });
        };
        let (mut ranges, mut rows, mut bytes) = (Vec::new(), 0, 0);
        let mut owned = Vec::new();
        for part in parts {
            if part.cols != first.cols {
                return Err(OpError::Shape {
                    op: "upload",
                    what: format!("columns of `{name}`"),
                    wanted: first.cols.to_string(),
                    got: part.cols.to_string(),
                });
            }
            ranges.push(rows..rows + part.rows);
            rows += part.rows;
            bytes += (part.codes.len() + part.scales.len() + part.biases.len()) as u64;
            owned.push(OwnedMatrix {
                format: part.format,
                rows: part.rows,
                cols: part.cols,
                codes: part.codes.to_vec(),
                scales: part.scales.to_vec(),
                biases: part.biases.to_vec(),
            });
        }
        let info = WeightInfo {
            name: name.to_owned(),
            rows,
            cols: first.cols,
            parts: ranges,
            kernel: "scalar".to_owned(),
            resident_bytes: bytes,
            shed_bytes: 0,
        };
        Ok(Weight::new(info, Box::new(ReferenceWeight { parts: owned })))
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vector, OpError> {
        Ok(Vector::new(values.len(), Arc::new(values.to_vec())))
    }

    fn cache(&self, spec: CacheSpec) -> Result<Cache, OpError> {
        let slots = spec.state.map_or_else(Vec::new, |s| {
            let layer = SlotMemory {
                delta: vec![0.0; s.delta_len()],
                window: vec![0.0; s.window_len()],
                pending_window: Vec::new(),
                pending_delta: Vec::new(),
            };
            vec![vec![layer; s.layers]; s.slots]
        });
        let pool = || vec![HashMap::new(); spec.kv.layers];
        let memory = Mutex::new(Memory { keys: pool(), values: pool(), slots, sampled: Vec::new() });
        Ok(Cache::new(spec, Arc::new(ReferenceCache { memory })))
    }

    fn clear_slot(&self, cache: &Cache, slot: usize) -> Result<(), OpError> {
        let mut memory = memory(cache)?;
        for layer in memory.slots.get_mut(slot).ok_or_else(|| slot_error(cache, slot))? {
            layer.delta.fill(0.0);
            layer.window.fill(0.0);
            layer.pending_window.clear();
            layer.pending_delta.clear();
        }
        Ok(())
    }

    fn copy_slot(&self, cache: &Cache, from: usize, to: usize) -> Result<(), OpError> {
        let mut memory = memory(cache)?;
        let mut source = memory.slots.get(from).ok_or_else(|| slot_error(cache, from))?.clone();
        for layer in &mut source {
            layer.pending_window.clear();
            layer.pending_delta.clear();
        }
        *memory.slots.get_mut(to).ok_or_else(|| slot_error(cache, to))? = source;
        Ok(())
    }

    fn copy_page(&self, cache: &Cache, from: u32, to: u32) -> Result<(), OpError> {
        cache.spec().check_page(from)?;
        cache.spec().check_page(to)?;
        let mut memory = memory(cache)?;
        let Memory { keys, values, .. } = &mut *memory;
        for layer in keys.iter_mut().chain(values) {
            for row in 0..PAGE_ROWS {
                let [from, to] = [from, to].map(|page| page as usize * PAGE_ROWS + row);
                match layer.get(&from).cloned() {
                    Some(head) => layer.insert(to, head),
                    None => layer.remove(&to),
                };
            }
        }
        Ok(())
    }

    fn read_slot(&self, cache: &Cache, slot: usize, layer: usize) -> Result<SlotState, OpError> {
        let memory = memory(cache)?;
        let layers = memory.slots.get(slot).ok_or_else(|| slot_error(cache, slot))?;
        let found =
            layers.get(layer).ok_or_else(|| OpError::Inputs(format!("state layer {layer} of {}", layers.len())))?;
        Ok(SlotState { delta: found.delta.clone(), window: found.window.clone() })
    }

    fn compile(&self, program: Program, cache: &Cache, options: PlanOptions) -> Result<Plan, OpError> {
        let program = program.lower(self.fusions());
        let vocab =
            program.ops.iter().find_map(|op| if let Op::Embed { table, .. } = op { Some(table.rows()) } else { None });
        let plan = ReferencePlan {
            program,
            cache: cache.clone(),
            profile: options.profile,
            vocab: vocab.unwrap_or(usize::MAX),
        };
        Ok(Plan::new(Box::new(plan)))
    }

    fn run(&self, plan: &Plan, inputs: StepInputs) -> Result<Ticket, OpError> {
        let plan: &ReferencePlan = plan.payload().ok_or(OpError::ForeignHandle("a plan"))?;
        inputs.check(&plan.program, plan.cache.spec(), plan.vocab)?;
        // Before the first op: a refused step must leave every slot as it was.
        delta::check_accepted(&plan.cache, &plan.program, &inputs)?;
        let sampled = memory(&plan.cache)?.sampled.clone();
        inputs.check_carried(sampled.len())?;
        let mut tokens = inputs.tokens.clone();
        inputs.carried.iter().for_each(|c| tokens[c.row] = sampled[c.from]);
        let mut frame = Frame {
            program: &plan.program,
            inputs: &inputs,
            tokens,
            cache: &plan.cache,
            values: vec![Vec::new(); plan.program.tensors.len()],
            output: StepOutput::default(),
        };
        for op in &plan.program.ops {
            let start = Instant::now();
            execute(op, &mut frame)?;
            if plan.profile {
                frame.output.op_seconds.push(start.elapsed().as_secs_f64());
            }
        }
        memory(&plan.cache)?.sampled = frame.output.sampled.iter().map(|s| s.token).collect();
        let ticket = Ticket(self.next_ticket.fetch_add(1, Ordering::Relaxed));
        lock(&self.done).insert(ticket, frame.output);
        Ok(ticket)
    }

    fn poll(&self, ticket: Ticket) -> Result<Option<StepOutput>, OpError> {
        let output = lock(&self.done).remove(&ticket);
        output.map(Some).ok_or_else(|| OpError::Inputs(format!("step {} is not under way", ticket.0)))
    }
}

fn execute(op: &Op, frame: &mut Frame<'_>) -> Result<(), OpError> {
    let results: Vec<(crate::Tensor, Vec<Vec<f32>>)> = match op {
        Op::Embed { table, out } => {
            let mut rows = Vec::with_capacity(frame.tokens.len());
            for token in &frame.tokens {
                rows.push(match *token {
                    Sampled::NOT_FINITE => vec![f32::NAN; table.cols()],
                    token => linear::embedding_row(weight(table)?, token as usize, table.cols())?,
                });
            }
            vec![(*out, rows)]
        }
        Op::RmsNorm { x, norm, out } => {
            let gain = vector(&norm.gain)?;
            vec![(*out, pointwise::rms_norm(frame.read(*x), x.dim, gain, norm.eps))]
        }
        Op::Linear { x, norm, weight: w, activations, epilogue, out } => {
            debug_assert!(norm.is_none() && *epilogue == crate::Epilogue::Store, "fused forms are lowered");
            vec![(*out, linear::linear(&frame.read(*x), weight(w)?, *activations)?)]
        }
        Op::Add { a, b, out } => vec![(*out, pointwise::zip(frame.read(*a), &frame.read(*b), |a, b| a + b))],
        Op::SwiGlu { gate, up, out } => {
            vec![(*out, pointwise::zip(frame.read(*gate), &frame.read(*up), |g, u| pointwise::silu(g) * u))]
        }
        Op::SigmoidMul { x, gate, out } => {
            vec![(*out, pointwise::zip(frame.read(*x), &frame.read(*gate), |x, g| x * pointwise::sigmoid(g)))]
        }
        Op::Rope { x, table, out } => {
            vec![(*out, pointwise::rope(frame.read(*x), x.dim, table, &frame.inputs.positions))]
        }
        Op::Attention { q, k, v, layer, scale, out } => {
            vec![(*out, attention::attention(frame, *q, *k, *v, *layer, *scale)?)]
        }
        Op::ConvSilu { x, weight: w, kernel, layer, out } => {
            vec![(*out, delta::conv_silu(frame, *x, vector(w)?, *kernel, *layer)?)]
        }
        Op::DeltaGates { a, b, decay_rate, dt_bias, log_decay, beta } => {
            let (rate, bias) = (vector(decay_rate)?, vector(dt_bias)?);
            let mut decay = frame.read(*a);
            for row in &mut decay {
                for (h, v) in row.iter_mut().enumerate() {
                    *v = rate[h] * pointwise::softplus(*v + bias[h]);
                }
            }
            let mut gate = frame.read(*b);
            gate.iter_mut().flatten().for_each(|v| *v = pointwise::sigmoid(*v));
            vec![(*log_decay, decay), (*beta, gate)]
        }
        Op::GatedDelta { q, k, v, log_decay, beta, map, eps, layer, out } => {
            let gates = [*log_decay, *beta];
            vec![(*out, delta::gated_delta(frame, [*q, *k, *v], gates, *map, *eps, *layer)?)]
        }
        Op::GatedNorm { x, z, norm, out } => {
            let normed = pointwise::rms_norm(frame.read(*x), x.dim, vector(&norm.gain)?, norm.eps);
            vec![(*out, pointwise::zip(normed, &frame.read(*z), |x, z| x * pointwise::silu(z)))]
        }
        Op::Input { name, out } => {
            let cols = frame.program.tensors[out.0 as usize].cols;
            vec![(*out, frame.inputs.values[&**name].chunks(cols.max(1)).map(<[f32]>::to_vec).collect())]
        }
        Op::Modulate { x, scale, shift, eps, out } => {
            let (scale, shift) = (frame.read(*scale).concat(), frame.read(*shift).concat());
            vec![(*out, image::modulate(frame.read(*x), &scale, &shift, *eps))]
        }
        Op::GatedAdd { x, gate, y, out } => {
            vec![(*out, image::gated_add(frame.read(*x), &frame.read(*gate).concat(), &frame.read(*y)))]
        }
        Op::RotatePairs { x, angles, out } => {
            vec![(*out, image::rotate_pairs(frame.read(*x), x.dim, &frame.read(*angles)))]
        }
        Op::FullAttention { q, k, v, scale, seen, out } => {
            let (queries, keys, values) = (frame.read(*q), frame.read(*k), frame.read(*v));
            let op = image::Attention { q: (&queries, *q), k: (&keys, *k), v: &values, scale: *scale, seen: *seen };
            vec![(*out, image::full_attention(&op))]
        }
        Op::JoinRows { parts, out } => vec![(*out, parts.iter().flat_map(|p| frame.read(*p)).collect())],
        Op::TakeRows { x, start, out } => {
            let rows = frame.read(*x);
            vec![(*out, rows[*start..*start + frame.program.max_rows(*out)].to_vec())]
        }
        Op::JoinColumns { parts, out } => {
            let mut rows = frame.read(parts[0]);
            for part in &parts[1..] {
                rows.iter_mut().zip(frame.read(*part)).for_each(|(row, more)| row.extend(more));
            }
            vec![(*out, rows)]
        }
        Op::GroupNorm { x, groups, gain, bias, eps, out } => {
            vec![(*out, vec![image::group_norm(&frame.read(*x), *groups, gain, bias, *eps)?])]
        }
        Op::Conv2d { conv, out } => vec![(*out, image::conv2d(conv, &|view| frame.read(view))?)],
        Op::SelectRows { x, out } => {
            let rows = frame.read(*x);
            vec![(*out, frame.inputs.logit_rows.iter().map(|r| rows[*r].clone()).collect())]
        }
        Op::Sample { logits } => {
            let rows = frame.read(*logits);
            frame.output.sampled = rows.iter().zip(&frame.inputs.draws).map(|(l, d)| sample(l, d)).collect();
            vec![]
        }
        Op::Output { x, name } => {
            let flat = frame.read(*x).concat();
            frame.output.values.insert(name.to_string(), flat);
            vec![]
        }
    };
    for (tensor, rows) in results {
        frame.values[tensor.0 as usize] = rows;
    }
    Ok(())
}
