//! The contract of `onebit_ops::Backend` on this machine's cores.

use crate::bandwidth::measure_read_bandwidth;
use crate::cache::Memory;
use crate::dispatch::Tier;
use crate::layout::{Packed, Segment, VERSION};
use crate::memory::{ALIGN, Arena, Bytes};
use crate::plan::{Prepared, Workspace};
use crate::repack::{Target, is_ternary, may_be_triples, repack, segment_bytes, symmetry, target};
use crate::threads::{Pool, default_threads};
use onebit_ops::{
    Activations, Backend, Cache, CacheSpec, Caps, FormatSupport, Fusions, KvFormat, OpError, PIECE_ALIGN, Plan,
    PlanOptions, Program, Resident, SharedBytes, SlotState, StepInputs, StepOutput, Table, Ticket, UploadOptions,
    Vector, Weight, WeightInfo,
};
use onebit_quant::{Format, Matrix, Symmetry};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Wishes of whoever makes the backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuOptions {
    /// Threads; without a wish as many as the process may use.
    pub threads: Option<usize>,
    /// Kernels; without a wish what the variable `ONEBIT_CPU` names, or else the best of the machine.
    pub tier: Option<Tier>,
}

/// Runs programs on the CPU.
pub struct CpuBackend {
    caps: Caps,
    tier: Tier,
    pool: Pool,
    arena: Mutex<Arena>,
    /// Where the last step worked.
    last: Mutex<Weak<Mutex<Workspace>>>,
    next_ticket: AtomicU64,
    done: Mutex<HashMap<Ticket, StepOutput>>,
}

/// The payload of a plan.
struct CpuPlan {
    prepared: Prepared,
    space: Arc<Mutex<Workspace>>,
}

/// Parts of a weight that share a layout, and what they become.
struct Run<'m, 'd> {
    first_row: usize,
    parts: Vec<&'m Matrix<'d>>,
    target: Target,
}

/// The payload of a cache.
struct CpuCache(Mutex<Memory>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held leaves plain numbers behind, which the next step overwrites.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn memory(cache: &Cache) -> Result<MutexGuard<'_, Memory>, OpError> {
    Ok(lock(&cache.payload::<CpuCache>().ok_or(OpError::ForeignHandle("a cache"))?.0))
}

// Kernels read whole vectors of a kept weight as of any other.
const _: () = assert!(PIECE_ALIGN.is_multiple_of(ALIGN));

impl CpuBackend {
    /// A backend with its threads.
    ///
    /// # Errors
    /// [`OpError::Device`] when `ONEBIT_CPU` names a tier that this machine does not have.
    pub fn new(options: CpuOptions) -> Result<Self, OpError> {
        let tier = match (options.tier, std::env::var("ONEBIT_CPU")) {
            (Some(tier), _) => tier,
            (None, Ok(name)) if !name.is_empty() => Tier::named(&name)
                .map_err(|e| OpError::Device { backend: "cpu".to_owned(), message: format!("ONEBIT_CPU: {e}") })?,
            (None, _) => Tier::best(),
        };
        let pool = Pool::new(options.threads.unwrap_or_else(default_threads).max(1));
        let threads = pool.threads();
        let caps = Caps {
            name: "cpu".to_owned(),
            device: format!(
                "{} ({threads} thread{}, {})",
                processor_name(),
                if threads == 1 { "" } else { "s" },
                tier.name()
            ),
            activations: vec![Activations::F32, Activations::I8G128, Activations::I9G128],
            // Nine bits cost no more than eight: the kernels look sums up, and those fit the same tables.
            default_activations: Activations::I9G128,
            kv_formats: vec![KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4],
            prefill_rows: 512,
            asynchronous: false,
            images: true,
            tables_in_files: true,
        };
        Ok(CpuBackend {
            caps,
            tier,
            pool,
            arena: Mutex::default(),
            last: Mutex::default(),
            next_ticket: AtomicU64::new(0),
            done: Mutex::default(),
        })
    }

    /// A weight whose segments `segment` makes, of the parts that share a layout, what they become, and the first row.
    fn assemble(
        &self,
        name: &str,
        parts: &[Matrix<'_>],
        (symmetry, as_triples): (Vec<Symmetry>, bool),
        mut segment: impl FnMut(&[&Matrix<'_>], Target, usize) -> Result<Segment, OpError>,
    ) -> Result<Weight, OpError> {
        let wrong = |what: String, wanted: String, got: String| OpError::Shape { op: "upload", what, wanted, got };
        let Some(first) = parts.first() else {
            return Err(wrong(name.to_owned(), "one part or more".to_owned(), "none".to_owned()));
        };
        let (mut ranges, mut rows) = (Vec::new(), 0);
        for part in parts {
            if part.cols != first.cols {
                let what = format!("columns of `{name}`");
                return Err(wrong(what, first.cols.to_string(), part.cols.to_string()));
            }
            ranges.push(rows..rows + part.rows);
            rows += part.rows;
        }
        let (mut kernels, mut segments, mut shed_bytes): (Vec<String>, _, _) = (Vec::new(), Vec::new(), 0);
        for Run { first_row, parts, target } in self.runs(parts, &symmetry, as_triples) {
            let kernel = format!("{}/{}", target.layout.name(), self.tier.name());
            if !kernels.contains(&kernel) {
                kernels.push(kernel);
            }
            shed_bytes += target.shed_bytes;
            segments.push(segment(&parts, target, first_row)?);
        }
        let info = WeightInfo {
            name: name.to_owned(),
            rows,
            cols: first.cols,
            parts: ranges,
            kernel: kernels.join("+"),
            resident_bytes: segments.iter().map(|s| s.data.bytes().len() as u64).sum(),
            shed_bytes,
        };
        Ok(Weight::new(info, Box::new(Packed { segments, symmetry, table: None })))
    }

    /// Neighbours with the same layout, which become one segment.
    fn runs<'m, 'd>(&self, parts: &'m [Matrix<'d>], symmetry: &[Symmetry], as_triples: bool) -> Vec<Run<'m, 'd>> {
        let (mut runs, mut row): (Vec<Run<'m, 'd>>, usize) = (Vec::new(), 0);
        for (part, symmetry) in parts.iter().zip(symmetry) {
            let mut target = target(part, self.tier.kernels(), symmetry.clone(), as_triples);
            let same =
                |run: &&mut Run<'_, '_>| (run.target.layout, run.target.reading) == (target.layout, target.reading);
            match runs.last_mut().filter(same) {
                Some(run) => {
                    target.sparse.iter_mut().for_each(|r| r.row += row - run.first_row);
                    run.target.sparse.append(&mut target.sparse);
                    run.target.shed_bytes += target.shed_bytes;
                    run.parts.push(part);
                }
                None => runs.push(Run { first_row: row, parts: vec![part], target }),
            }
            row += part.rows;
        }
        runs
    }

    /// Bytes of the stretch that these parts are kept in.
    fn kept_bytes(&self, parts: &[Matrix<'_>], symmetry: &[Symmetry], as_triples: bool) -> usize {
        self.runs(parts, symmetry, as_triples).iter().fold(0usize, |end, run| {
            let rows = run.parts.iter().map(|p| p.rows).sum();
            end.next_multiple_of(PIECE_ALIGN).saturating_add(segment_bytes(&run.target.layout, rows))
        })
    }

    /// The kernels in use.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// The threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

/// The processor's name, as the system has it.
fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("model name"));
    match line.and_then(|l| l.split_once(':')) {
        Some((_, name)) => name.trim().to_owned(),
        None => std::env::consts::ARCH.to_owned(),
    }
}

impl Backend for CpuBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn fusions(&self) -> Fusions {
        Fusions { norm: true, residual: true, swiglu: true }
    }

    fn format_support(&self, format: Format) -> FormatSupport {
        let layout = match (format.dense(), format.bits()) {
            (Some(kind), _) => format!("dense-{}", kind.name().to_lowercase()),
            (None, bits @ (1 | 2)) => format!("bits{bits}"),
            (None, bits) => format!("block{bits}"),
        };
        FormatSupport::Kernel(format!("{layout}/{}", self.tier.name()))
    }

    fn read_bandwidth(&self) -> Result<Option<f64>, OpError> {
        Ok(Some(measure_read_bandwidth(self.pool.threads())?))
    }

    fn upload(&self, name: &str, parts: &[Matrix<'_>], options: UploadOptions) -> Result<Weight, OpError> {
        let found = |part: &Matrix<'_>| {
            if options.keep_biases { Symmetry::Affine } else { symmetry(&self.pool, part) }
        };
        let symmetry: Vec<Symmetry> = parts.iter().map(found).collect();
        let as_triples = may_be_triples(self.tier.kernels(), parts, &symmetry)
            && parts.iter().all(|part| is_ternary(&self.pool, part));
        self.assemble(name, parts, (symmetry, as_triples), |parts, target, first_row| {
            repack(&self.pool, &mut lock(&self.arena), name, parts, target, first_row)
        })
    }

    fn layout(&self) -> Option<String> {
        let kernels = self.tier.kernels();
        let choices = [kernels.bits1_order, kernels.bits2_order]
            .into_iter()
            .flat_map(|order| std::iter::once(order.unit as u64).chain(order.position.map(u64::from)))
            .chain([kernels.together as u64, u64::from(kernels.triples.is_some())])
            .fold(0u64, |hash, n| hash.wrapping_mul(257).wrapping_add(n + 1));
        Some(format!("cpu-{}-{VERSION}-{choices:016x}", self.tier.name()))
    }

    fn resident<'a>(&self, weight: &'a Weight) -> Option<Resident<Vec<&'a [u8]>>> {
        let packed: &Packed = weight.payload()?;
        let data = packed.segments.iter().map(|s| s.data.bytes()).collect();
        packed.table.is_none().then(|| Resident { symmetry: packed.symmetry.clone(), data })
    }

    fn restore(&self, name: &str, parts: &[Matrix<'_>], kept: Resident<SharedBytes>) -> Result<Weight, OpError> {
        let fail = |why: String| OpError::Kept { weight: name.to_owned(), why };
        if kept.symmetry.len() != parts.len() {
            return Err(fail(format!("it has {} parts, wanted {}", kept.symmetry.len(), parts.len())));
        }
        // Triples were made of the codes, which are not read again; they are fewer bytes than planes of the same parts.
        let as_triples = may_be_triples(self.tier.kernels(), parts, &kept.symmetry)
            && self.kept_bytes(parts, &kept.symmetry, true) == kept.data.len();
        let mut next: usize = 0;
        self.assemble(name, parts, (kept.symmetry, as_triples), |parts, target, first_row| {
            let rows: usize = parts.iter().map(|p| p.rows).sum();
            let (start, end) = (next, next.saturating_add(segment_bytes(&target.layout, rows)));
            let data = kept.data.slice(start..end).filter(|data| (data.as_ptr() as usize).is_multiple_of(PIECE_ALIGN));
            let data = data.ok_or_else(|| fail(format!("it has {} bytes, wanted {end}", kept.data.len())))?;
            next = end.next_multiple_of(PIECE_ALIGN);
            let Target { layout, sparse, .. } = target;
            if sparse.iter().any(|r| r.row >= rows || r.group >= layout.groups()) {
                return Err(fail("a rounded offset lies outside".to_owned()));
            }
            Ok(Segment { rows: first_row..first_row + rows, layout, data: Bytes::File(data), sparse })
        })
    }

    fn upload_table(&self, name: &str, table: Table) -> Result<Weight, OpError> {
        let info = WeightInfo {
            name: name.to_owned(),
            rows: table.rows,
            cols: table.cols,
            parts: std::iter::once(0..table.rows).collect(),
            kernel: "file rows".to_owned(),
            resident_bytes: table.matrix().bytes() as u64,
            shed_bytes: 0,
        };
        Ok(Weight::new(info, Box::new(Packed { segments: Vec::new(), symmetry: Vec::new(), table: Some(table) })))
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vector, OpError> {
        Ok(Vector::new(values.len(), Arc::new(values.to_vec())))
    }

    fn cache(&self, spec: CacheSpec) -> Result<Cache, OpError> {
        Ok(Cache::new(spec, Arc::new(CpuCache(Mutex::new(Memory::new(spec)?)))))
    }

    fn clear_slot(&self, cache: &Cache, slot: usize) -> Result<(), OpError> {
        memory(cache)?.clear_slot(slot)
    }

    fn copy_slot(&self, cache: &Cache, from: usize, to: usize) -> Result<(), OpError> {
        memory(cache)?.copy_slot(from, to)
    }

    fn copy_page(&self, cache: &Cache, from: u32, to: u32) -> Result<(), OpError> {
        memory(cache)?.copy_page(from, to)
    }

    fn read_slot(&self, cache: &Cache, slot: usize, layer: usize) -> Result<SlotState, OpError> {
        memory(cache)?.read_slot(slot, layer)
    }

    fn compile(&self, program: Program, cache: &Cache, options: PlanOptions) -> Result<Plan, OpError> {
        drop(memory(cache)?);
        let prepared = Prepared::new(program.lower(self.fusions()), cache.clone(), options.profile)?;
        let space = Arc::new(Mutex::new(prepared.workspace(self.tier, self.pool.threads())?));
        Ok(Plan::new(Box::new(CpuPlan { prepared, space })))
    }

    fn run(&self, plan: &Plan, inputs: StepInputs) -> Result<Ticket, OpError> {
        let CpuPlan { prepared, space } = plan.payload().ok_or(OpError::ForeignHandle("a plan"))?;
        inputs.check(&prepared.program, prepared.cache.spec(), prepared.vocab)?;
        // A prompt's temporaries are not kept while its answer is written.
        let last = std::mem::replace(&mut *lock(&self.last), Arc::downgrade(space)).upgrade();
        if let Some(last) = last.filter(|last| !Arc::ptr_eq(last, space)) {
            lock(&last).give_back();
        }
        let mut space = lock(space);
        let mut memory = memory(&prepared.cache)?;
        prepared.check_accepted(&memory, &inputs)?;
        let output = prepared.step(self.tier, &self.pool, &mut memory, &mut space, &inputs)?;
        let ticket = Ticket(self.next_ticket.fetch_add(1, Ordering::Relaxed));
        lock(&self.done).insert(ticket, output);
        Ok(ticket)
    }

    fn poll(&self, ticket: Ticket) -> Result<Option<StepOutput>, OpError> {
        let output = lock(&self.done).remove(&ticket);
        output.map(Some).ok_or_else(|| OpError::Inputs(format!("step {} is not under way", ticket.0)))
    }
}
