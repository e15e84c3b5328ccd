//! `device-mock`: a device as a browser's GPU is one, for machines without a GPU.
//!
//! * Its memory is another thread's: handles are numbers, and nothing crosses but commands and bytes.
//! * It runs plans and nothing else. A step is a list of dispatches; a ticket is answered after some polls.
//! * A dispatch sees at most eight storage bindings of at most 128 KiB each, so that every weight, page pool and state of
//!   some size is split.
//! * Temporaries lie where [`Program::place`] puts them, in an arena full of NaN at the start of every step, so that
//!   an overlap of two lives or a value of an earlier step shows.
//!
//! Its arithmetic is plain f32, so it also shows how far honest rounding may go within the bounds.

mod codec;
mod device;
mod encode;
mod image;
mod kernel;
mod link;
mod resident;
mod sample;

pub use device::{BINDING_BYTES, BINDINGS};

use encode::{Encoded, Fixed, encode, readback_len};
use kernel::floats;
use link::{Buffer, Link, NAME, lock};
use onebit_ops::{
    Activations, Backend, Cache, CacheSpec, Caps, FormatSupport, Fusions, KvFormat, Op, OpError, Plan, PlanOptions,
    Program, Sampled, SlotState, StepInputs, StepOutput, Ticket, UploadOptions, Vector, Weight, WeightInfo,
};
use onebit_quant::{Format, Matrix};
use resident::{Block, CacheMemory, blocks};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Polls that find nothing, for each ticket.
const EMPTY_POLLS: usize = 3;

/// The mock device.
pub struct MockDevice {
    caps: Caps,
    link: Arc<Link>,
    under_way: Mutex<HashMap<Ticket, Step>>,
}

/// A step that was submitted.
struct Step {
    polls: usize,
    outputs: Vec<(String, usize)>,
    /// Rows with a token each.
    sampled: usize,
    ops: usize,
}

struct MockPlan {
    program: Program,
    fixed: Fixed,
    cache: Cache,
    vocab: usize,
    profile: bool,
}

impl Default for MockDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl MockDevice {
    /// Starts a device; it ends with its last handle.
    #[must_use]
    pub fn new() -> Self {
        let caps = Caps {
            name: NAME.to_owned(),
            device: format!("a thread, {BINDINGS} bindings of {BINDING_BYTES} bytes"),
            activations: vec![Activations::F32, Activations::I8G128, Activations::I9G128],
            default_activations: Activations::F32,
            kv_formats: vec![KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4],
            prefill_rows: 64,
            asynchronous: true,
            images: true,
            tables_in_files: false,
        };
        MockDevice { caps, link: Link::open(), under_way: Mutex::default() }
    }

    fn memory<'a>(&self, cache: &'a Cache) -> Result<&'a CacheMemory, OpError> {
        let memory = cache.payload::<CacheMemory>().filter(|m| m.is_on(&self.link));
        memory.ok_or(OpError::ForeignHandle("a cache"))
    }

    /// Every handle of the program must be of this device.
    fn check_handles(&self, program: &Program) -> Result<(), OpError> {
        let weight = |w: &Weight| match blocks_of(w)?.iter().all(|b| b.is_on(&self.link)) {
            true => Ok(()),
            false => Err(OpError::ForeignHandle("a weight")),
        };
        let vector = |v: &Vector| match buffer_of(v)?.is_on(&self.link) {
            true => Ok(()),
            false => Err(OpError::ForeignHandle("a vector")),
        };
        for op in &program.ops {
            match op {
                Op::Embed { table, .. } => weight(table)?,
                Op::Linear { weight: w, norm, .. } => {
                    weight(w)?;
                    norm.as_ref().map_or(Ok(()), |n| vector(&n.gain))?;
                }
                Op::RmsNorm { norm, .. } | Op::GatedNorm { norm, .. } => vector(&norm.gain)?,
                Op::ConvSilu { weight, .. } => vector(weight)?,
                Op::GroupNorm { gain, bias, .. } => {
                    vector(gain)?;
                    vector(bias)?;
                }
                Op::Conv2d { conv, .. } => {
                    weight(&conv.weight)?;
                    vector(&conv.bias)?;
                }
                Op::DeltaGates { decay_rate, dt_bias, .. } => {
                    vector(decay_rate)?;
                    vector(dt_bias)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The blocks of a weight.
fn blocks_of(weight: &Weight) -> Result<&Vec<Block>, OpError> {
    weight.payload().ok_or(OpError::ForeignHandle("a weight"))
}

/// The buffer of a vector.
fn buffer_of(vector: &Vector) -> Result<&Buffer, OpError> {
    vector.payload().ok_or(OpError::ForeignHandle("a vector"))
}

impl Backend for MockDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn fusions(&self) -> Fusions {
        // Norm and residual make eight bindings with an MLX weight; a second weight for gate and up would be too many.
        Fusions { norm: true, residual: true, swiglu: false }
    }

    fn format_support(&self, _: Format) -> FormatSupport {
        FormatSupport::Kernel("mock".to_owned())
    }

    fn upload(&self, name: &str, parts: &[Matrix<'_>], _: UploadOptions) -> Result<Weight, OpError> {
        let shape = |what: String, wanted: String, got: String| OpError::Shape { op: "upload", what, wanted, got };
        let Some(first) = parts.first() else {
            return Err(shape(name.to_owned(), "one part or more".to_owned(), "none".to_owned()));
        };
        let (mut resident, mut ranges, mut rows) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            if part.cols != first.cols {
                let what = format!("columns of `{name}`");
                return Err(shape(what, first.cols.to_string(), part.cols.to_string()));
            }
            resident.extend(blocks(&self.link, rows, part)?);
            ranges.push(rows..rows + part.rows);
            rows += part.rows;
        }
        let info = WeightInfo {
            name: name.to_owned(),
            rows,
            cols: first.cols,
            parts: ranges,
            kernel: "mock".to_owned(),
            resident_bytes: parts.iter().map(|p| p.bytes() as u64).sum(),
            shed_bytes: 0,
        };
        Ok(Weight::new(info, Box::new(resident)))
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vector, OpError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(Vector::new(values.len(), Arc::new(self.link.upload(&bytes)?)))
    }

    fn cache(&self, spec: CacheSpec) -> Result<Cache, OpError> {
        Ok(Cache::new(spec, Arc::new(CacheMemory::new(&self.link, spec)?)))
    }

    fn clear_slot(&self, cache: &Cache, slot: usize) -> Result<(), OpError> {
        self.link.submit(self.memory(cache)?.clear(slot)?)
    }

    fn copy_slot(&self, cache: &Cache, from: usize, to: usize) -> Result<(), OpError> {
        self.link.submit(self.memory(cache)?.copy(from, to)?)
    }

    fn copy_page(&self, cache: &Cache, from: u32, to: u32) -> Result<(), OpError> {
        self.link.submit(self.memory(cache)?.copy_page(from, to)?)
    }

    fn read_slot(&self, cache: &Cache, slot: usize, layer: usize) -> Result<SlotState, OpError> {
        let memory = self.memory(cache)?;
        let state = memory.state()?;
        let delta = floats(&self.link.read(memory.delta(slot, layer)?)?);
        // On the device each channel's window lies together.
        let stored = floats(&self.link.read(memory.window(slot, layer)?)?);
        let rows = state.kernel - 1;
        let window = (0..rows).flat_map(|r| (0..state.channels).map(move |c| c * rows + r)).map(|at| stored[at]);
        Ok(SlotState { delta, window: window.collect() })
    }

    fn compile(&self, program: Program, cache: &Cache, options: PlanOptions) -> Result<Plan, OpError> {
        let program = program.lower(self.fusions());
        self.check_handles(&program)?;
        let fixed = Fixed::new(&self.link, &program, self.memory(cache)?)?;
        let table =
            program.ops.iter().find_map(|op| if let Op::Embed { table, .. } = op { Some(table.rows()) } else { None });
        let vocab = table.unwrap_or(usize::MAX);
        Ok(Plan::new(Box::new(MockPlan { program, fixed, cache: cache.clone(), vocab, profile: options.profile })))
    }

    fn run(&self, plan: &Plan, inputs: StepInputs) -> Result<Ticket, OpError> {
        let plan: &MockPlan = plan.payload().ok_or(OpError::ForeignHandle("a plan"))?;
        let memory = self.memory(&plan.cache)?;
        inputs.check(&plan.program, plan.cache.spec(), plan.vocab)?;
        for s in &inputs.segments {
            let pending = memory.pending(s.slot);
            if s.accepted > pending {
                return Err(OpError::Inputs(format!("{} rows accepted of {pending} pending", s.accepted)));
            }
        }
        inputs.check_carried(memory.sampled())?;
        let readback = self.link.buffer(4 * readback_len(&plan.program))?;
        let Encoded { mut commands, outputs } = encode(&plan.program, &plan.fixed, memory, &inputs, &readback)?;
        let ticket = Ticket(self.link.number());
        let sampled = inputs.draws.len();
        let values = outputs.iter().map(|(_, len)| len).sum::<usize>() + 2 * sampled;
        commands.push(device::Command::Read { tag: ticket.0, range: readback.floats(0, values) });
        self.link.submit(commands)?;
        for s in &inputs.segments {
            memory.set_pending(s.slot, if s.speculative { s.rows.len() } else { 0 });
        }
        memory.set_sampled(&plan.fixed.sampled, sampled);
        let ops = if plan.profile { plan.program.ops.len() } else { 0 };
        lock(&self.under_way).insert(ticket, Step { polls: 0, outputs, sampled, ops });
        Ok(ticket)
    }

    fn poll(&self, ticket: Ticket) -> Result<Option<StepOutput>, OpError> {
        let mut under_way = lock(&self.under_way);
        let step =
            under_way.get_mut(&ticket).ok_or_else(|| OpError::Inputs(format!("step {} is not under way", ticket.0)))?;
        step.polls += 1;
        if step.polls <= EMPTY_POLLS {
            return Ok(None);
        }
        let reply = self.link.reply(ticket.0);
        if matches!(reply, Ok(None)) {
            return Ok(None);
        }
        let step = under_way.remove(&ticket);
        let (Some(step), Some(bytes)) = (step, reply?) else { return Ok(None) };
        let all = floats(&bytes);
        let mut rest = all.as_slice();
        let mut output = StepOutput { op_seconds: vec![0.0; step.ops], ..StepOutput::default() };
        for (name, len) in step.outputs {
            let (values, after) = rest.split_at(len);
            output.values.insert(name, values.to_vec());
            rest = after;
        }
        let pairs = rest.chunks_exact(2).take(step.sampled);
        output.sampled = pairs.map(|p| Sampled { token: p[0].to_bits(), logprob: p[1] }).collect();
        Ok(Some(output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{bucket, first, stateless};
    use crate::weights;
    use onebit_ops::{Recorder, wait};

    /// `y = gate(x) + gate(x)` over two temporaries that live at once, with the plan changed before it runs.
    fn run(change: impl FnOnce(&mut MockPlan)) -> Result<StepOutput, OpError> {
        let device = MockDevice::new();
        let table = weights::dense(&[vec![1.0, -2.0, 3.0, 0.5]]);
        let table = device.upload("table", &[table.as_matrix()], UploadOptions::default())?;
        let mut rec = Recorder::new(bucket(1, 1));
        let x = rec.embed(&table);
        let gated = rec.sigmoid_mul(x, x);
        let y = rec.sigmoid_mul(gated, x);
        rec.output(y, "y");
        let (program, cache) = (rec.finish(), device.cache(stateless())?);
        let fixed = Fixed::new(&device.link, &program, device.memory(&cache)?)?;
        let mut plan = MockPlan { program, fixed, cache, vocab: 1, profile: false };
        change(&mut plan);
        wait(&device, device.run(&Plan::new(Box::new(plan)), first(&[0]))?)
    }

    #[test]
    fn a_right_plan_runs() {
        assert!(run(|_| {}).unwrap().values["y"].iter().all(|v| v.is_finite()));
    }

    #[test]
    fn temporaries_that_share_memory_are_an_error() {
        let error = run(|plan| plan.fixed.placements[1] = plan.fixed.placements[0]).unwrap_err();
        assert!(error.to_string().contains("overlaps"), "{error}");
    }

    #[test]
    fn a_temporary_that_nobody_wrote_is_not_a_number() {
        let output = run(|plan| drop(plan.program.ops.remove(1))).unwrap();
        assert!(output.values["y"].iter().all(|v| v.is_nan()));
    }

    #[test]
    fn handles_of_another_device_are_refused() {
        let (one, other) = (MockDevice::new(), MockDevice::new());
        let table = weights::dense(&[vec![1.0]]);
        let table = other.upload("table", &[table.as_matrix()], UploadOptions::default()).unwrap();
        let mut rec = Recorder::new(bucket(1, 1));
        let x = rec.embed(&table);
        rec.output(x, "y");
        let cache = one.cache(stateless()).unwrap();
        let plan = one.compile(rec.finish(), &cache, PlanOptions::default());
        assert!(matches!(plan, Err(OpError::ForeignHandle("a weight"))));
    }
}
