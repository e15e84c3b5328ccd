//! A compiled program: its memory, its launches, and the graph that they were captured in.
//!
//! A step is a copy of each named value, one graph, and a copy for each output, all in the order of the backend's stream. Inputs
//! that are small come as parameters of the graph's first launch, others are copied before it, and the tokens that a step
//! chooses it writes to the host's memory by itself: what stands between two graphs keeps the device waiting for some
//! microseconds.
//! Launches are for the plan's largest step; the kernels find in the inputs how much of it is wanted.

use crate::cache::{Held, Memory};
use crate::driver::{Device, During, NAME, fault};
use crate::inputs::Layout;
use crate::launch;
use crate::memory::{Buffer, Pinned};
use crate::module::Kernels;
use crate::ops::{self, Call, Frame};
use crate::outputs::Results;
use crate::params::{Address, InputsParams};
use cudarc::driver::sys::{self, CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, result};
use onebit_ops::{
    Cache, Capacity, Op, OpError, Placement, Program, RopeTable, Rows, StepInputs, StepOutput, TensorInfo,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The payload of a plan.
pub(crate) struct CudaPlan {
    device: Arc<Device>,
    kernels: Arc<Kernels>,
    /// In the order in which it runs: inputs come first and outputs last, so that what the host copies stays from the start and
    /// to the end.
    program: Program,
    /// Place of each op in the lowered program.
    order: Vec<usize>,
    pub cache: Cache,
    pub vocab: usize,
    profile: bool,
    placements: Vec<Placement>,
    arena: Buffer,
    scratch: Buffer,
    /// Of one half of it.
    scratch_bytes: usize,
    /// For kernels whose last block does something; 0 between kernels.
    counters: Buffer,
    tables: Vec<(Arc<RopeTable>, Buffer)>,
    /// Numbers of rows of temporaries that have one of their own, in ascending order, and the same on the device.
    counts: (Vec<usize>, Buffer),
    work: Mutex<Work>,
    /// Host memory of steps that have ended.
    spare: Mutex<Vec<Pinned>>,
}

/// What is made anew when the step's arrays or the pending areas move.
struct Work {
    layout: Layout,
    inputs: Buffer,
    /// The pending areas that the launches point to.
    areas: Address,
    launched: Launched,
}

enum Launched {
    /// All launches as one.
    Graph(Graph),
    /// One by one, with the time of each op.
    Profiled(Vec<Vec<Call>>),
}

/// A captured graph.
struct Graph {
    graph: CudaGraph,
    /// The node that brings the inputs, where it has one.
    inputs: Option<sys::CUgraphNode>,
}

// SAFETY: a graph may be used by any thread, by one at a time; the lock around it sees to that.
unsafe impl Send for Graph {}

impl Graph {
    /// Of a graph whose first launch is that of the inputs, if `brings_inputs`.
    ///
    /// # Errors
    /// [`OpError::Device`].
    fn new(graph: CudaGraph, brings_inputs: bool) -> Result<Graph, OpError> {
        let (mut first, mut count) = (std::ptr::null_mut(), 1);
        if brings_inputs {
            // SAFETY: the graph lives, and there is room for one node, of which a line of launches has one at its start.
            unsafe { sys::cuGraphGetRootNodes(graph.cu_graph(), &raw mut first, &raw mut count) }
                .result()
                .during("looking into a graph")?;
        }
        Ok(Graph { graph, inputs: brings_inputs.then_some(first) })
    }

    fn launch(&self, device: &Device) -> Result<(), OpError> {
        // SAFETY: both handles live, and the lock around the graph keeps other threads away.
        unsafe { result::graph::launch(self.graph.cu_graph_exec(), device.stream.cu_stream()) }
            .during("launching a graph")
    }
}

/// A step on its way.
pub(crate) struct UnderWay {
    plan: Arc<CudaPlan>,
    done: CudaEvent,
    inputs: Pinned,
    values: Pinned,
    host: Pinned,
    results: Results,
    /// Before each op, and after the last.
    times: Vec<CudaEvent>,
}

/// The launch that brings `bytes` bytes of inputs to the device, with those that are known; `None` where it has no room for them.
fn inputs_call(to: Address, bytes: usize, known: &[u8]) -> Option<Call> {
    let units = bytes.div_ceil(16);
    let launch = launch::inputs(units)?;
    let mut params = InputsParams { to, units: units as u32, ..InputsParams::default() };
    params.data.as_flattened_mut()[..known.len()].copy_from_slice(known);
    Some(Call { launch, params: Box::new(params) })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held leaves whole values behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaPlan {
    /// Prepares a lowered program for a cache.
    ///
    /// # Errors
    /// Foreign handles, shapes that the cache or the kernels do not have, too little memory.
    pub(crate) fn new(
        device: &Arc<Device>,
        kernels: &Arc<Kernels>,
        program: Program,
        cache: Cache,
        profile: bool,
    ) -> Result<CudaPlan, OpError> {
        let memory = memory(&cache, device)?;
        let mut vocab = usize::MAX;
        let mut tables: Vec<(Arc<RopeTable>, Buffer)> = Vec::new();
        for op in &program.ops {
            ops::check(op, program.bucket, memory.spec())?;
            if ops::is_for_images(op) && !device.arch.runs_images() {
                return Err(OpError::UnsupportedOp { backend: NAME.to_owned(), op: op.name() });
            }
            match op {
                Op::Embed { table, .. } => vocab = vocab.min(table.rows()),
                Op::Rope { table, .. } if !tables.iter().any(|(known, _)| known == table) => {
                    tables.push((table.clone(), upload_table(device, table)?));
                }
                _ => {}
            }
        }
        let (program, order) = copies_outside(program);
        let (placements, floats) = program.place();
        let scratch = program.ops.iter().map(|op| ops::scratch(op, &program, memory, device));
        let scratch = scratch.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0);
        let scratch_bytes = scratch.next_multiple_of(256);
        let scratch = 2 * scratch_bytes;
        let arena = floats * size_of::<f32>();
        let layout = Layout::new(program.bucket, Capacity::first(program.bucket));
        device.require((arena + scratch + layout.bytes()) as u64, "a plan")?;
        let inputs = Buffer::zeroed(device, layout.bytes(), "the inputs of a plan")?;
        let mut plan = CudaPlan {
            device: device.clone(),
            kernels: kernels.clone(),
            order,
            cache: cache.clone(),
            vocab,
            profile,
            placements,
            arena: Buffer::zeroed(device, arena, "the temporaries of a plan")?,
            scratch: Buffer::zeroed(device, scratch, "the scratch memory of a plan")?,
            scratch_bytes,
            counters: Buffer::zeroed(device, ops::counters(&program) * size_of::<u32>(), "the counters of a plan")?,
            tables,
            counts: upload_counts(device, &program)?,
            work: Mutex::new(Work { layout, inputs, areas: 0, launched: Launched::Profiled(Vec::new()) }),
            spare: Mutex::default(),
            program,
        };
        let areas = memory.hold().areas();
        let work = plan.work.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (layout, address) = (work.layout, work.inputs.address());
        let launched = plan.launches(memory, layout, address, areas)?;
        let work = plan.work.get_mut().unwrap_or_else(PoisonError::into_inner);
        (work.launched, work.areas) = (launched, areas);
        Ok(plan)
    }

    /// The program as it runs.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// All launches, for arrays and areas at these places.
    fn launches(&self, memory: &Memory, layout: Layout, inputs: Address, areas: Address) -> Result<Launched, OpError> {
        let frame = Frame {
            device: &self.device,
            bucket: self.program.bucket,
            tensors: &self.program.tensors,
            placements: &self.placements,
            arena: self.arena.address(),
            scratch: self.scratch.address(),
            scratch_bytes: self.scratch_bytes,
            counters: self.counters.address(),
            step: layout.step(inputs),
            memory,
            areas,
            counts: (&self.counts.0, self.counts.1.address()),
            tables: &self.tables,
        };
        let calls = ops::launches(&self.program, &frame)?;
        // Every kernel is found and loaded before a capture begins: loading may wait for the device.
        self.kernels.get(launch::INPUTS, 0)?;
        for call in calls.iter().flatten() {
            self.kernels.get(&call.launch.kernel, call.launch.shared)?;
        }
        if self.profile {
            return Ok(Launched::Profiled(calls));
        }
        let stream = self.device.capture.lock().unwrap_or_else(PoisonError::into_inner);
        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .during("beginning to capture a graph")?;
        let chained = self.device.chains_launches();
        let mut calls = calls.iter().flatten();
        let bring = inputs_call(inputs, layout.bytes(), &[]);
        // What follows the inputs reads them before it waits for anything; without them, the first one has none before it.
        let mut first = [bring.as_ref(), calls.next()].into_iter().flatten();
        let first = first.try_for_each(|call| self.launch(call, &stream, false));
        let launched = first.and_then(|()| calls.try_for_each(|call| self.launch(call, &stream, chained)));
        // The capture must end whatever happened in it.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        launched?;
        let graph = graph.during("making a graph")?;
        let graph = graph.ok_or_else(|| fault("the driver captured no graph"))?;
        Graph::new(graph, bring.is_some()).map(Launched::Graph)
    }

    /// Launches a kernel; `chained` lets it begin while the one before it still runs, which it waits for by itself.
    fn launch(&self, call: &Call, stream: &CudaStream, chained: bool) -> Result<(), OpError> {
        let crate::launch::Launch { kernel, grid, threads, shared, cluster } = &call.launch;
        let function = self.kernels.get(kernel, *shared)?;
        let mut params = [call.params.pointer()];
        let mut attributes = Vec::with_capacity(2);
        if chained {
            // SAFETY: every bit pattern of this structure of numbers is one of its values.
            let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
            attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attribute.value.programmaticStreamSerializationAllowed = 1;
            attributes.push(attribute);
        }
        if *cluster > 1 {
            // SAFETY: as above.
            let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
            attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: *cluster, y: 1, z: 1 };
            attributes.push(attribute);
        }
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: *threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: *shared,
            hStream: stream.cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the kernel takes exactly one structure, of the type that its op's module made for it; the addresses in it
        // were taken from buffers that the plan, its weights and its cache own. Attributes and structure live until the
        // call returns.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, function.cu_function(), params.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .during(&format!("launching {kernel} on {grid:?} blocks"))
    }

    /// Starts a step whose inputs have been checked. The caller holds the cache, so that steps are submitted in the order in
    /// which they change it.
    pub(crate) fn submit(self: &Arc<Self>, held: &mut Held, inputs: &StepInputs) -> Result<UnderWay, OpError> {
        let memory = memory(&self.cache, &self.device)?;
        held.ledger.check(&self.program, inputs)?;
        let needed = held.ledger.areas_needed(&self.program, inputs);
        memory.grow_areas(held, needed)?;
        self.device.bind()?;
        let mut work = lock(&self.work);
        self.make_room(&mut work, memory, held.areas(), inputs)?;
        let areas = held.ledger.submit(&self.program, inputs);
        let results = Results::of(&self.program, &self.placements, inputs);
        let mut host = self.pinned(results.bytes())?;
        let mut stage = self.pinned(work.layout.bytes())?;
        let used = work.layout.write(inputs, &areas, results.tokens_at(&host), stage.bytes_mut());
        self.bring_inputs(&work, &stage, used)?;
        let values = self.bring_values(inputs)?;
        let times = match &work.launched {
            Launched::Graph(graph) => {
                graph.launch(&self.device)?;
                Vec::new()
            }
            Launched::Profiled(calls) => self.run_profiled(calls)?,
        };
        results.copy(&self.device, &self.arena, &mut host)?;
        let done = self.device.context.new_event(None).during("creating an event")?;
        done.record(&self.device.stream).during("recording an event")?;
        Ok(UnderWay { plan: self.clone(), done, inputs: stage, values, host, results, times })
    }

    /// Brings the first `used` bytes of a step's inputs to the device, before the graph or by its first launch.
    fn bring_inputs(&self, work: &Work, stage: &Pinned, used: usize) -> Result<(), OpError> {
        let node = if let Launched::Graph(Graph { inputs, .. }) = &work.launched { *inputs } else { None };
        let call = inputs_call(work.inputs.address(), used, &stage.bytes()[..used]);
        match (&work.launched, node, call) {
            (Launched::Graph(Graph { graph, .. }), Some(node), Some(call)) => self.change(graph, node, &call, work),
            (_, _, Some(call)) => self.launch(&call, &self.device.stream, false),
            (_, _, None) => work.inputs.write(0, stage, 0..used),
        }
    }

    /// Gives a node of a graph other parameters from its next launch on.
    fn change(&self, graph: &CudaGraph, node: sys::CUgraphNode, call: &Call, work: &Work) -> Result<(), OpError> {
        // As it was captured.
        let whole = launch::inputs(work.layout.bytes().div_ceil(16));
        let crate::launch::Launch { kernel, grid, threads, shared, .. } = whole.as_ref().unwrap_or(&call.launch);
        let function = self.kernels.get(kernel, *shared)?;
        let mut pointer = [call.params.pointer()];
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function.cu_function(),
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: *threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: *shared,
            kernelParams: pointer.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the node is one of the graph's and has this kernel, which takes exactly one structure of the call's type; it is
        // copied before the call returns. The lock around the graph keeps other threads away.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(graph.cu_graph_exec(), node, &raw const params) }
            .result()
            .during("handing a graph its inputs")
    }

    /// Copies the named values to the temporaries of their inputs. The host's memory must stay until the step is done.
    fn bring_values(&self, inputs: &StepInputs) -> Result<Pinned, OpError> {
        let bytes = inputs.values.values().map(|values| values.len() * size_of::<f32>()).sum::<usize>();
        let mut stage = self.pinned(bytes.max(1))?;
        let mut end = 0;
        for op in &self.program.ops {
            let Op::Input { name, out } = op else { break };
            let from = end;
            for (to, value) in stage.bytes_mut()[from..].as_chunks_mut::<4>().0.iter_mut().zip(&inputs.values[&**name])
            {
                *to = value.to_le_bytes();
                end += size_of::<f32>();
            }
            let place = self.placements[out.0 as usize].offset * size_of::<f32>();
            self.arena.write(place, &stage, from..end)?;
        }
        Ok(stage)
    }

    /// Lays the inputs out anew where a step needs more than there was room for, and makes the launches anew where
    /// something that they point to has moved.
    fn make_room(&self, work: &mut Work, memory: &Memory, areas: Address, inputs: &StepInputs) -> Result<(), OpError> {
        let needed = Capacity::of(inputs);
        let capacity = work.layout.capacity;
        if !capacity.holds(needed) {
            let layout = Layout::new(self.program.bucket, capacity.grown(needed));
            let buffer = Buffer::zeroed(&self.device, layout.bytes(), "the inputs of a plan")?;
            let launched = self.launches(memory, layout, buffer.address(), areas)?;
            // The old ones are freed behind the steps that use them: freeing waits for the device.
            *work = Work { layout, inputs: buffer, areas, launched };
        } else if work.areas != areas {
            work.launched = self.launches(memory, work.layout, work.inputs.address(), areas)?;
            work.areas = areas;
        }
        Ok(())
    }

    /// Launches one by one, an event before each op and one after the last.
    fn run_profiled(&self, calls: &[Vec<Call>]) -> Result<Vec<CudaEvent>, OpError> {
        let stamp = || {
            let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
            self.device.stream.record_event(flags).during("recording an event")
        };
        let mut times = Vec::with_capacity(calls.len() + 1);
        for calls in calls {
            times.push(stamp()?);
            calls.iter().try_for_each(|call| self.launch(call, &self.device.stream, false))?;
        }
        times.push(stamp()?);
        Ok(times)
    }

    /// Host memory of at least so many bytes, of an earlier step where one is left.
    fn pinned(&self, bytes: usize) -> Result<Pinned, OpError> {
        let mut spare = lock(&self.spare);
        match spare.iter().position(|p| p.bytes().len() >= bytes) {
            Some(at) => Ok(spare.swap_remove(at)),
            None => Pinned::new(&self.device, bytes.next_power_of_two()),
        }
    }
}

impl UnderWay {
    /// The step's output once it is there.
    ///
    /// # Errors
    /// A fault of the device, in this step or in one before.
    pub(crate) fn is_done(&self) -> Result<bool, OpError> {
        self.plan.device.bind()?;
        self.done.try_is_complete().during("running a step")
    }

    /// Takes the output of a step that is done.
    ///
    /// # Errors
    /// [`OpError::Device`] where the times cannot be read.
    pub(crate) fn take(self) -> Result<StepOutput, OpError> {
        let mut output = self.results.read(self.host.bytes());
        if !self.times.is_empty() {
            output.op_seconds = vec![0.0; self.plan.order.len()];
            for (place, pair) in self.plan.order.iter().zip(self.times.windows(2)) {
                let ms = pair[0].elapsed_ms(&pair[1]).during("reading the time of an op")?;
                output.op_seconds[*place] = f64::from(ms) / 1e3;
            }
        }
        lock(&self.plan.spare).extend([self.inputs, self.values, self.host]);
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

fn upload_table(device: &Arc<Device>, table: &RopeTable) -> Result<Buffer, OpError> {
    let pairs = table.inv_freq.iter().zip(&table.axis);
    let bytes: Vec<u8> =
        pairs.flat_map(|(freq, axis)| [freq.to_le_bytes(), u32::from(*axis).to_le_bytes()].concat()).collect();
    Buffer::holding(device, &bytes, "a rotary table")
}

fn upload_counts(device: &Arc<Device>, program: &Program) -> Result<(Vec<usize>, Buffer), OpError> {
    let fixed = |info: &TensorInfo| if let Rows::Fixed(rows) = info.rows { Some(rows) } else { None };
    let counts: Vec<usize> = program.tensors.iter().filter_map(fixed).collect::<BTreeSet<_>>().into_iter().collect();
    let bytes: Vec<u8> = counts.iter().flat_map(|rows| (*rows as u32).to_le_bytes()).collect();
    let buffer = Buffer::holding(device, &bytes, "the numbers of rows of a plan")?;
    Ok((counts, buffer))
}

/// Moves inputs to the start and outputs to the end; returns each op's former place too. Nothing else depends on where they
/// stand.
fn copies_outside(program: Program) -> (Program, Vec<usize>) {
    let mut ops: Vec<(usize, Op)> = program.ops.into_iter().enumerate().collect();
    ops.sort_by_key(|(_, op)| match op {
        Op::Input { .. } => 0,
        Op::Output { .. } => 2,
        _ => 1,
    });
    let (order, ops) = ops.into_iter().unzip();
    (Program { ops, ..program }, order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_ops::{Bucket, Recorder, Vector};

    #[test]
    fn an_output_keeps_its_temporary_to_the_end() {
        let mut rec = Recorder::new(Bucket { rows: 2, logits: 1, context: 2 });
        let info = onebit_ops::WeightInfo {
            name: "table".to_owned(),
            rows: 4,
            cols: 16,
            parts: std::iter::once(0..4).collect(),
            kernel: String::new(),
            resident_bytes: 1,
            shed_bytes: 0,
        };
        let table = onebit_ops::Weight::new(info, Box::new(()));
        let x = rec.embed(&table);
        rec.output(x, "tap");
        let gain = Vector::new(16, Arc::new(()));
        let y = rec.rms_norm(x, &gain, 1e-6);
        let z = rec.rms_norm(y, &gain, 1e-6);
        rec.output(z, "y");
        let (program, order) = copies_outside(rec.finish());
        assert_eq!(order, [0, 2, 3, 1, 4]);
        let (places, _) = program.place();
        // Without the move `z` would lie where `x` was.
        assert_ne!(places[0].offset, places[2].offset);
    }
}
