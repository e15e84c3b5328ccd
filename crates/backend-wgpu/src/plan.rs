//! A compiled program: its memory, its bind groups, and the dispatches of a step.
//!
//! A step is one copy of its inputs, its dispatches in order, and one copy of each result. The host knows how many rows a
//! step has, so exactly as many workgroups run; the kernels find everything else in the inputs.

use crate::adapter::{Device, fault};
use crate::cache::{Held, Memory};
use crate::clock;
use crate::inputs::{Counts, Layout};
use crate::memory::Buffer;
use crate::ops::{self, Call, Extent, Frame, Launch};
use crate::outputs::{Outputs, Results};
use crate::pipelines::{Pipeline, Pipelines};
use onebit_ops::{Cache, Capacity, Op, OpError, Placement, Program, RopeTable, StepInputs, StepOutput};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Multiply-adds of one submission. Slow GPUs do about 10^11 a second, and some systems take a device away that is busy for
/// longer than two.
const MACS_A_SUBMISSION: u64 = 100_000_000_000;

/// The payload of a plan.
pub(crate) struct WgpuPlan {
    device: Arc<Device>,
    program: Program,
    pub cache: Cache,
    pub vocab: usize,
    profile: bool,
    placements: Vec<Placement>,
    arena: Buffer,
    scratch: Buffer,
    packed: Buffer,
    outputs: Outputs,
    tables: Vec<Arc<RopeTable>>,
    work: Mutex<Work>,
    /// Host memory of steps that have ended.
    spare: Mutex<Vec<Buffer>>,
}

/// What is made anew when the step's arrays or the pending areas move.
struct Work {
    layout: Layout,
    step: Buffer,
    /// Version of the pending areas that the bind groups point to.
    areas: u64,
    /// For each op.
    dispatches: Vec<Vec<Dispatch>>,
}

/// A call that only lacks the step's sizes.
struct Dispatch {
    group: wgpu::BindGroup,
    launches: Vec<(Launch, Arc<Pipeline>)>,
}

/// A step on its way.
pub(crate) struct UnderWay {
    plan: Arc<WgpuPlan>,
    done: Arc<AtomicBool>,
    host: Buffer,
    results: Results,
    seconds: Vec<f64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held leaves whole values behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WgpuPlan {
    /// Prepares a lowered program for a cache.
    ///
    /// # Errors
    /// Foreign handles, shapes that the cache or the kernels do not have, too little memory.
    pub(crate) fn new(
        device: &Arc<Device>,
        pipelines: &Pipelines,
        program: Program,
        cache: Cache,
        profile: bool,
    ) -> Result<WgpuPlan, OpError> {
        let memory = memory(&cache, device)?;
        // Their values are written before the step begins, where the arena must not be anything else's yet.
        let is_input = |op: &&Op| matches!(op, Op::Input { .. });
        if program.ops.iter().skip_while(is_input).any(|op| is_input(&op)) {
            return Err(OpError::Inputs("on wgpu a program's inputs come before its other operations".to_owned()));
        }
        let mut vocab = usize::MAX;
        let mut tables: Vec<Arc<RopeTable>> = Vec::new();
        for op in &program.ops {
            ops::check(op, program.bucket, memory.spec())?;
            match op {
                Op::Embed { table, .. } => vocab = vocab.min(table.rows()),
                Op::Rope { table, .. } if !tables.contains(table) => tables.push(table.clone()),
                _ => {}
            }
        }
        let (placements, floats) = program.place();
        let scratch = program.ops.iter().map(|op| ops::scratch(op, &program, memory, device));
        let scratch = scratch.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0);
        let scratch = scratch + program.ops.iter().map(|op| ops::front(op, &program)).max().unwrap_or(0);
        let outputs = Outputs::of(&program);
        let layout = Layout::new(program.bucket, &tables, Capacity::first(program.bucket));
        let buffer = |floats: usize, what: &str| Buffer::new(device, floats as u64 * 4, what);
        let plan = WgpuPlan {
            arena: buffer(floats, "the temporaries of a plan")?,
            scratch: buffer(scratch, "the scratch memory of a plan")?,
            packed: buffer(outputs.floats, "the outputs of a plan")?,
            device: device.clone(),
            cache: cache.clone(),
            vocab,
            profile,
            placements,
            outputs,
            tables,
            work: Mutex::new(Work {
                step: Buffer::new(device, layout.bytes() as u64, "the inputs of a plan")?,
                layout,
                areas: u64::MAX,
                dispatches: Vec::new(),
            }),
            spare: Mutex::default(),
            program,
        };
        plan.prepare(&mut lock(&plan.work), pipelines, memory, &memory.hold())?;
        Ok(plan)
    }

    /// The program as it runs.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Makes pipelines, constants and bind groups for where everything lies now.
    fn prepare(&self, work: &mut Work, pipelines: &Pipelines, memory: &Memory, held: &Held) -> Result<(), OpError> {
        let frame = Frame {
            device: &self.device,
            bucket: self.program.bucket,
            tensors: &self.program.tensors,
            placements: &self.placements,
            arena: &self.arena,
            scratch: &self.scratch,
            step: &work.step,
            layout: &work.layout,
            packed: &self.packed,
            outputs: &self.outputs,
            memory,
            areas: &held.areas,
            tables: &self.tables,
        };
        let calls = ops::all_calls(&self.program, &frame)?;
        let stride = self.device.abilities.align as usize;
        let mut bytes = Vec::new();
        for call in calls.iter().flatten() {
            let words = call.params.iter().flat_map(|word| word.to_le_bytes());
            let end = bytes.len() + stride;
            bytes.extend(words);
            bytes.resize(end, 0);
        }
        let constants = Buffer::constants(&self.device, &bytes)?;
        let mut at = 0;
        let mut dispatches = Vec::with_capacity(calls.len());
        for calls in calls {
            let mut of_op = Vec::with_capacity(calls.len());
            for call in calls {
                of_op.push(self.bind(pipelines, call, &constants, at)?);
                at += stride as u64;
            }
            dispatches.push(of_op);
        }
        work.dispatches = dispatches;
        work.areas = held.areas.version;
        Ok(())
    }

    fn bind(&self, pipelines: &Pipelines, call: Call, constants: &Buffer, at: u64) -> Result<Dispatch, OpError> {
        let size = |bytes: u64| wgpu::BufferSize::new(bytes);
        let most = (call.params.len() as u64 * 4).next_multiple_of(16);
        let mut launches = Vec::with_capacity(call.launches.len());
        for launch in call.launches {
            let pipeline = pipelines.get(&self.device, &launch.kernel)?;
            launches.push((launch, pipeline));
        }
        let (_, first) = launches.first().ok_or_else(|| fault("an op has no kernel"))?;
        let constants = wgpu::BufferBinding { buffer: constants.raw(), offset: at, size: size(most) };
        let storage = call.bound.iter().map(|b| wgpu::BufferBinding {
            buffer: b.buffer.raw(),
            offset: b.offset,
            size: size(b.size),
        });
        let entries: Vec<_> = std::iter::once(constants)
            .chain(storage)
            .enumerate()
            .map(|(i, b)| wgpu::BindGroupEntry { binding: i as u32, resource: wgpu::BindingResource::Buffer(b) })
            .collect();
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &first.layout, entries: &entries };
        let group = self.device.guarded("binding memory", 0, || self.device.device.create_bind_group(&descriptor))?;
        Ok(Dispatch { group, launches })
    }

    /// Starts a step whose inputs have been checked. The caller holds the cache, so that steps are submitted in the order in
    /// which they change it.
    pub(crate) fn submit(
        self: &Arc<Self>,
        pipelines: &Pipelines,
        held: &mut Held,
        inputs: &StepInputs,
    ) -> Result<UnderWay, OpError> {
        self.device.check()?;
        let memory = memory(&self.cache, &self.device)?;
        held.ledger.check(&self.program, inputs)?;
        let needed = held.ledger.areas_needed(&self.program, inputs);
        memory.grow_areas(held, needed)?;
        let mut work = lock(&self.work);
        self.make_room(&mut work, pipelines, memory, held, inputs)?;
        let results = self.outputs.results(inputs);
        let host = self.host_memory(results.bytes())?;
        let areas = held.ledger.submit(&self.program, inputs);
        let words = work.layout.write(inputs, &self.tables, &areas);
        self.bring_values(inputs);
        work.step.write(0, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
        let counts = Counts::of(inputs);
        let seconds = if self.profile {
            self.run_profiled(&work.dispatches, &counts)?
        } else {
            self.run(&work.dispatches, &counts, inputs);
            Vec::new()
        };
        let done = self.read_back(memory, &results, &host);
        self.device.check()?;
        Ok(UnderWay { plan: self.clone(), done, host, results, seconds })
    }

    /// Copies the named values to the temporaries of their inputs.
    fn bring_values(&self, inputs: &StepInputs) {
        for op in &self.program.ops {
            let Op::Input { name, out } = op else { break };
            let bytes: Vec<u8> = inputs.values[&**name].iter().flat_map(|value| value.to_le_bytes()).collect();
            let place = self.placements[out.0 as usize].offset * size_of::<f32>();
            self.arena.write(place as u64, &bytes);
        }
    }

    /// Copies the results to host memory, behind everything else; the flag says when they are there.
    fn read_back(&self, memory: &Memory, results: &Results, host: &Buffer) -> Arc<AtomicBool> {
        let mut encoder = self.encoder();
        for s in results.stretches.iter().filter(|s| s.bytes > 0) {
            encoder.copy_buffer_to_buffer(self.packed.raw(), s.from, host.raw(), s.to, s.bytes);
        }
        if results.sampled > 0 {
            let bytes = results.sampled as u64 * 8;
            encoder.copy_buffer_to_buffer(memory.sampled().raw(), 0, host.raw(), results.sampled_at, bytes);
        }
        self.device.queue.submit([encoder.finish()]);
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        if results.bytes() > 0 {
            let slice = host.raw().slice(..results.bytes());
            slice.map_async(wgpu::MapMode::Read, move |_| flag.store(true, Ordering::Release));
        } else {
            self.device.queue.on_submitted_work_done(move || flag.store(true, Ordering::Release));
        }
        done
    }

    /// Lays the inputs out anew where a step needs more than there was room for, and the bind groups where something that
    /// they point to has moved.
    fn make_room(
        &self,
        work: &mut Work,
        pipelines: &Pipelines,
        memory: &Memory,
        held: &Held,
        inputs: &StepInputs,
    ) -> Result<(), OpError> {
        let needed = Capacity::of(inputs);
        let capacity = work.layout.capacity;
        if !capacity.holds(needed) {
            let layout = Layout::new(self.program.bucket, &self.tables, capacity.grown(needed));
            work.step = Buffer::new(&self.device, layout.bytes() as u64, "the inputs of a plan")?;
            work.layout = layout;
        } else if work.areas == held.areas.version {
            return Ok(());
        }
        self.prepare(work, pipelines, memory, held)
    }

    /// Rows of an op's result in this step.
    fn rows_of(&self, op: &Op, counts: &Counts) -> usize {
        op.outputs()
            .first()
            .map_or(counts.rows, |out| ops::row_count(self.program.tensors[out.0 as usize].rows, counts))
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Encodes and submits all dispatches, in several submissions where one would take long.
    fn run(&self, dispatches: &[Vec<Dispatch>], counts: &Counts, inputs: &StepInputs) {
        let kv = self.cache.spec().kv.format;
        let macs = |op: &Op| op.cost(self.rows_of(op, counts), &inputs.segments, kv).macs;
        for some in submissions(self.program.ops.iter().map(macs)) {
            let mut encoder = self.encoder();
            {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                dispatches[some].iter().for_each(|of_op| encode(&mut pass, of_op, counts));
            }
            self.device.queue.submit([encoder.finish()]);
        }
    }

    /// Runs op by op, and gives the seconds of each.
    fn run_profiled(&self, dispatches: &[Vec<Dispatch>], counts: &Counts) -> Result<Vec<f64>, OpError> {
        if !self.device.abilities.timestamps {
            return self.run_by_host_clock(dispatches, counts);
        }
        let mut seconds = Vec::with_capacity(dispatches.len());
        for some in dispatches.chunks(clock::MOST_PASSES) {
            let clock = clock::Clock::new(&self.device, some.len())?;
            let mut encoder = self.encoder();
            for (i, of_op) in some.iter().enumerate() {
                let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes: Some(clock.around(i)) };
                encode(&mut encoder.begin_compute_pass(&descriptor), of_op, counts);
            }
            clock.resolve(&mut encoder);
            self.device.queue.submit([encoder.finish()]);
            seconds.extend(clock.read(&self.device)?);
        }
        Ok(seconds)
    }

    /// Each op for itself: the start and the end of a submission are in every time.
    fn run_by_host_clock(&self, dispatches: &[Vec<Dispatch>], counts: &Counts) -> Result<Vec<f64>, OpError> {
        let mut seconds = Vec::with_capacity(dispatches.len());
        self.device.queue.submit([]);
        self.device.wait()?;
        for of_op in dispatches {
            let mut encoder = self.encoder();
            encode(&mut encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()), of_op, counts);
            let buffer = encoder.finish();
            let start = Instant::now();
            self.device.queue.submit([buffer]);
            self.device.wait()?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(seconds)
    }

    /// Host memory of at least so many bytes, of an earlier step where one is left.
    fn host_memory(&self, bytes: u64) -> Result<Buffer, OpError> {
        let mut spare = lock(&self.spare);
        match spare.iter().position(|buffer| buffer.size() >= bytes) {
            Some(at) => Ok(spare.swap_remove(at)),
            None => Buffer::for_reading(&self.device, bytes.next_power_of_two()),
        }
    }
}

/// Neighbouring ops that are submitted together, by their multiply-adds: the last one of each goes over the bound, if any does.
fn submissions(macs: impl Iterator<Item = u64>) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut sum = MACS_A_SUBMISSION;
    for (at, macs) in macs.enumerate() {
        match all.last_mut() {
            Some(last) if sum < MACS_A_SUBMISSION => {
                last.end = at + 1;
                sum += macs;
            }
            _ => {
                all.push(at..at + 1);
                sum = macs;
            }
        }
    }
    all
}

fn encode(pass: &mut wgpu::ComputePass<'_>, dispatches: &[Dispatch], counts: &Counts) {
    for dispatch in dispatches {
        let Some((launch, pipeline)) = dispatch.launches.iter().find(|(launch, _)| launch.fits(counts)) else {
            continue;
        };
        let [x, y, z] = launch.grid.map(|extent: Extent| extent.count(counts) as u32);
        if x > 0 && y > 0 && z > 0 {
            pass.set_pipeline(&pipeline.raw);
            pass.set_bind_group(0, &dispatch.group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
    }
}

impl UnderWay {
    /// Whether the step has ended.
    ///
    /// # Errors
    /// A fault of the device, in this step or in one before.
    pub(crate) fn is_done(&self) -> Result<bool, OpError> {
        self.plan.device.look()?;
        Ok(self.done.load(Ordering::Acquire))
    }

    /// Takes the output of a step that is done.
    ///
    /// # Errors
    /// [`OpError::Device`] where the results cannot be read.
    pub(crate) fn take(self) -> Result<StepOutput, OpError> {
        let bytes = self.results.bytes();
        let mut output = if bytes > 0 {
            let view = self.host.raw().slice(..bytes).get_mapped_range();
            let view = view.map_err(|error| fault(format!("reading the results of a step: {error}")))?;
            let output = self.results.read(&view);
            drop(view);
            self.host.raw().unmap();
            output
        } else {
            self.results.read(&[])
        };
        output.op_seconds = self.seconds;
        lock(&self.plan.spare).push(self.host);
        Ok(output)
    }
}

/// The payload of a cache of this backend and device.
///
/// # Errors
/// [`OpError::ForeignHandle`].
pub(crate) fn memory<'a>(cache: &'a Cache, device: &Arc<Device>) -> Result<&'a Memory, OpError> {
    let memory: Option<&Memory> = cache.payload();
    memory.filter(|m| m.is_on(device)).ok_or(OpError::ForeignHandle("a cache"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{WgpuBackend, WgpuOptions};
    use onebit_ops::{
        Activations, Backend, Bucket, CacheSpec, HeadMap, KvFormat, KvSpec, Norm, PlanOptions, Recorder, StateSpec,
        UploadOptions, View,
    };
    use onebit_quant::{Format, quantize};

    /// A long prompt is read in submissions that no system takes the device away for: a layer of the 27B for 512 rows, and what
    /// attention over 8,192 tokens adds.
    #[test]
    fn no_submission_is_much_longer_than_its_bound() {
        let products = [5120 * 34_816, 17_408 * 5120, 5120 * 14_336, 6144 * 5120].map(|weight: u64| weight * 512);
        let attention = 512 * 8192 * 2 * 24 * 256;
        let step: Vec<u64> = (0..64).flat_map(|_| products.into_iter().chain([attention])).collect();
        let all = submissions(step.iter().copied());
        assert_eq!(all.first().map(|s| s.start), Some(0));
        assert_eq!(all.last().map(|s| s.end), Some(step.len()));
        assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
        let largest = step.iter().max().copied().unwrap_or(0);
        for some in &all {
            let macs: u64 = step[some.clone()].iter().sum();
            assert!(macs < MACS_A_SUBMISSION + largest, "{macs} in {some:?}");
        }
        // Decoding is one submission.
        assert_eq!(submissions([5120 * 34_816; 320].into_iter().map(|w: u64| w / 512)).len(), 1);
    }

    const HIDDEN: usize = 256;

    /// A layer with attention or with the delta rule, and its MLP.
    fn layer(backend: &WgpuBackend, hybrid: bool, kv: KvFormat) -> Vec<usize> {
        let weight = |rows: usize, cols: usize| {
            let packed = quantize(Format::Q1_0, rows, cols, &vec![1.0; rows * cols]).unwrap();
            backend.upload("w", &[packed.as_matrix()], UploadOptions::default()).unwrap()
        };
        let vector = |n: usize| backend.upload_vector(&vec![1.0; n]).unwrap();
        let norm = Norm { gain: vector(HIDDEN), eps: 1e-6 };
        let (gain, kind) = (vector(128), Activations::I8G128);
        let mut rec = Recorder::new(Bucket { rows: 20, logits: 1, context: 512 });
        let x = rec.embed(&weight(8, HIDDEN));
        let part = |y: View, i: usize| y.columns(i * HIDDEN..(i + 1) * HIDDEN);
        let inner = if hybrid {
            let y = rec.norm_linear(x, &norm, &weight(4 * HIDDEN + 4, HIDDEN), kind);
            let mixed = rec.conv_silu(y.columns(0..3 * HIDDEN), &vector(3 * HIDDEN * 4), 4, 0);
            let gate = |at: usize| y.columns(4 * HIDDEN + 2 * at..4 * HIDDEN + 2 * at + 2);
            let gates = rec.delta_gates(gate(0), gate(1), &vector(2), &vector(2));
            let qkv = [0, 1, 2].map(|i| part(mixed, i).split(2));
            let read = rec.gated_delta(qkv, gates, HeadMap::Grouped, 1e-6, 0);
            let read = rec.gated_norm(read, part(y, 3).split(2), &gain, 1e-6);
            View { heads: 1, dim: HIDDEN, stride: HIDDEN, ..read }
        } else {
            let y = rec.norm_linear(x, &norm, &weight(4 * HIDDEN, HIDDEN), kind);
            let rope = Arc::new(RopeTable::plain(1e4, 128));
            let [q, k] = [0, 1].map(|i| rec.rms_norm(part(y, i).split(2), &gain, 1e-6));
            let [q, k] = [q, k].map(|x| rec.rope(x, &rope));
            let read = rec.attention(q, k, part(y, 2).split(2), 0, 0.1);
            rec.sigmoid_mul(read, part(y, 3))
        };
        let x = rec.linear_add(inner, &weight(HIDDEN, HIDDEN), kind, x);
        let inner = rec.norm_linear_swiglu(x, &norm, &weight(4 * HIDDEN, HIDDEN), kind);
        let y = rec.linear_add(inner, &weight(HIDDEN, 2 * HIDDEN), kind, x);
        rec.output(y, "y");
        let kv = KvSpec { layers: 1, heads: 2, dim: 128, pages: 8, format: kv };
        let [kernel, heads, key_dim, value_dim] = [4, 2, 128, 128];
        let (channels, max_pending) = (3 * HIDDEN, 1);
        let state = StateSpec { layers: 1, slots: 1, channels, kernel, heads, key_dim, value_dim, max_pending };
        let cache = backend.cache(CacheSpec { kv, state: Some(state) }).unwrap();
        let plan = backend.compile(rec.finish(), &cache, PlanOptions::default()).unwrap();
        let plan: &Arc<WgpuPlan> = plan.payload().unwrap();
        let counts = |rows: usize, segments: usize, context: usize| Counts {
            rows,
            logits: 0,
            segments,
            tiles: segments,
            context,
            longest: rows / segments,
            guesses: false,
        };
        let work = lock(&plan.work);
        let run = |counts: Counts| {
            let fits = |dispatch: &&Dispatch| dispatch.launches.iter().any(|(launch, _)| launch.fits(&counts));
            work.dispatches.iter().flatten().filter(fits).count()
        };
        // Less the embedding and the output.
        let steps = [(1, 1, 100), (1, 1, 300), (2, 2, 300), (2, 1, 300), (20, 1, 300)];
        steps.map(|(rows, segments, context)| run(counts(rows, segments, context)) - 2).to_vec()
    }

    /// Each dispatch waits for the one before it, which is most of the time of a step of one row: `shaders/README.md`.
    #[test]
    fn a_decoded_row_takes_six_or_seven_dispatches_a_layer() {
        if crate::adapters().is_empty() {
            return eprintln!("not run: no adapter");
        }
        let backend = WgpuBackend::new(WgpuOptions::default()).unwrap();
        // One row of a short context and of a longer one, two sequences with one each, one with two rows, and one with many.
        assert_eq!(layer(&backend, false, KvFormat::F16), [6, 7, 9, 10, 10]);
        assert_eq!(layer(&backend, false, KvFormat::Q8), [8, 8, 10, 10, 10]);
        assert_eq!(layer(&backend, true, KvFormat::F16), [6, 6, 8, 10, 11]);
    }
}
