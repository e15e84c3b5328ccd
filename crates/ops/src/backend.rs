//! The contract of a device.

use crate::{
    Activations, Cache, CacheSpec, Carried, Draw, KvFormat, Op, OpError, Program, Resident, Sampled, SharedBytes,
    SlotState, Table,
};
use onebit_quant::{Format, Matrix};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A weight on a device: one matrix, or several with equal inputs whose rows follow one another.
#[derive(Clone)]
pub struct Weight(Arc<WeightInner>);

struct WeightInner {
    info: WeightInfo,
    payload: Box<dyn Any + Send + Sync>,
}

/// What is known of an uploaded weight.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightInfo {
    /// Name in reports, such as `layers.0.self_attn.qkv`.
    pub name: String,
    /// Rows of all parts together (outputs).
    pub rows: usize,
    /// Columns (inputs).
    pub cols: usize,
    /// Row range of each part.
    pub parts: Vec<Range<usize>>,
    /// Layout and kernel that run it, such as `bits1/avx2`.
    pub kernel: String,
    /// Bytes that one full read of the weight moves.
    pub resident_bytes: u64,
    /// Bytes of offsets that were derived instead of kept.
    pub shed_bytes: u64,
}

impl Weight {
    /// Wraps a backend's own weight object.
    pub fn new(info: WeightInfo, payload: Box<dyn Any + Send + Sync>) -> Self {
        Weight(Arc::new(WeightInner { info, payload }))
    }
    /// What is known of it.
    pub fn info(&self) -> &WeightInfo {
        &self.0.info
    }
    /// Name in reports.
    pub fn name(&self) -> &str {
        &self.0.info.name
    }
    /// Rows (outputs).
    pub fn rows(&self) -> usize {
        self.0.info.rows
    }
    /// Columns (inputs).
    pub fn cols(&self) -> usize {
        self.0.info.cols
    }
    /// Row range of part `i`.
    pub fn part(&self, i: usize) -> Range<usize> {
        self.0.info.parts[i].clone()
    }
    /// Bytes that one full read moves.
    pub fn resident_bytes(&self) -> u64 {
        self.0.info.resident_bytes
    }
    /// The backend's own object, if it is of this type.
    pub fn payload<T: Any>(&self) -> Option<&T> {
        self.0.payload.downcast_ref::<T>()
    }
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.info.fmt(f)
    }
}

/// A small f32 vector on a device: gains, biases, convolution taps.
#[derive(Clone)]
pub struct Vector {
    len: usize,
    payload: Arc<dyn Any + Send + Sync>,
}

impl Vector {
    /// Wraps a backend's own vector object.
    pub fn new(len: usize, payload: Arc<dyn Any + Send + Sync>) -> Self {
        Vector { len, payload }
    }
    /// Values.
    pub fn len(&self) -> usize {
        self.len
    }
    /// True for no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The backend's own object, if it is of this type.
    pub fn payload<T: Any>(&self) -> Option<&T> {
        self.payload.downcast_ref::<T>()
    }
}

/// A compiled program. Bound to the cache that it was compiled with.
pub struct Plan {
    payload: Box<dyn Any + Send + Sync>,
}

impl Plan {
    /// Wraps a backend's own plan object.
    pub fn new(payload: Box<dyn Any + Send + Sync>) -> Self {
        Plan { payload }
    }
    /// The backend's own object, if it is of this type.
    pub fn payload<T: Any>(&self) -> Option<&T> {
        self.payload.downcast_ref::<T>()
    }
}

/// Fused forms that a backend runs itself; the others are lowered to small ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fusions {
    /// RMS norm in front of a matmul.
    pub norm: bool,
    /// Residual add behind a matmul.
    pub residual: bool,
    /// `silu(gate) * up` behind a gate-and-up matmul.
    pub swiglu: bool,
}

/// How a backend runs a stored format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatSupport {
    /// With this kernel.
    Kernel(String),
    /// Not at all; the sentence says what to use instead.
    Unsupported(String),
}

/// What a backend can do.
#[derive(Debug, Clone, PartialEq)]
pub struct Caps {
    /// `reference`, `cpu`, ...
    pub name: String,
    /// Device and tier in words, such as `AMD EPYC, 2 threads, avx2`.
    pub device: String,
    /// Activation kinds that it runs.
    pub activations: Vec<Activations>,
    /// The kind that `auto` means.
    pub default_activations: Activations,
    /// KV formats that it runs.
    pub kv_formats: Vec<KvFormat>,
    /// Rows of a prefill chunk that suit the device.
    pub prefill_rows: usize,
    /// [`Backend::run`] returns before the step is done, so that the host can prepare the next one meanwhile.
    pub asynchronous: bool,
    /// It runs the operations of image models: those from [`Op::Input`] to [`Op::Conv2d`].
    pub images: bool,
    /// [`Backend::upload_table`] leaves the matrix in its file, so that it takes no memory of the device.
    pub tables_in_files: bool,
}

/// Wishes at upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UploadOptions {
    /// Keep offsets even where they can be derived from the scales.
    pub keep_biases: bool,
}

/// Wishes at compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlanOptions {
    /// Time every op; the times come with each step's output.
    pub profile: bool,
}

/// The rows of one sequence in a step. Rows of a segment are consecutive tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Rows of the step.
    pub rows: Range<usize>,
    /// State slot.
    pub slot: usize,
    /// KV pages in order; they hold `past + rows` tokens at least.
    pub pages: Vec<u32>,
    /// Tokens of the sequence before this step.
    pub past: usize,
    /// Rows of the slot's pending speculative step that turned out right; they enter the state before this step.
    pub accepted: usize,
    /// The rows are guesses: the state stays as it is and the rows stay pending until the next step says how many hold.
    pub speculative: bool,
}

/// What changes from step to step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepInputs {
    /// One token a row.
    pub tokens: Vec<u32>,
    /// One position `(t, h, w)` a row; text has three equal coordinates.
    pub positions: Vec<[u32; 3]>,
    /// The sequences, in row order, without gaps.
    pub segments: Vec<Segment>,
    /// Rows whose logits are wanted, ascending.
    pub logit_rows: Vec<usize>,
    /// One for each logit row, when the program samples; otherwise none.
    pub draws: Vec<Draw>,
    /// Rows whose tokens come from the step just before on this cache, ascending.
    pub carried: Vec<Carried>,
    /// The values of each of the program's inputs, row-major.
    pub values: BTreeMap<String, Vec<f32>>,
}

impl StepInputs {
    /// Checks what every backend relies on.
    ///
    /// # Errors
    /// [`OpError::Inputs`] with the first contradiction.
    pub fn check(&self, program: &Program, cache: &CacheSpec, vocab: usize) -> Result<(), OpError> {
        let fail = |text: String| Err(OpError::Inputs(text));
        let rows = self.tokens.len();
        let most = program.bucket.rows;
        if rows > most || (rows == 0 && most > 0) {
            return fail(format!("{rows} rows in a plan for {} to {most}", most.min(1)));
        }
        self.check_values(program)?;
        if self.positions.len() != rows {
            return fail(format!("{} positions for {rows} rows", self.positions.len()));
        }
        if self.logit_rows.len() > program.bucket.logits || self.logit_rows.iter().any(|r| *r >= rows) {
            return fail(format!(
                "logit rows {:?} in a plan for {} of {rows} rows",
                self.logit_rows, program.bucket.logits
            ));
        }
        if self.carried.iter().any(|c| c.row >= rows) || self.carried.windows(2).any(|c| c[0].row >= c[1].row) {
            return fail(format!("carried rows {:?} are not ascending rows of {rows}", self.carried));
        }
        let is_carried = |row: usize| self.carried.iter().any(|c| c.row == row);
        let foreign = self.tokens.iter().enumerate().find(|(row, t)| **t as usize >= vocab && !is_carried(*row));
        if let Some((_, token)) = foreign {
            return fail(format!("token {token} is outside the vocabulary of {vocab}"));
        }
        self.check_draws(program.sampled_logits())?;
        let mut next = 0;
        for s in &self.segments {
            if s.rows.start != next || s.rows.end <= s.rows.start {
                return fail(format!("segment rows {:?} after row {next}", s.rows));
            }
            next = s.rows.end;
            let tokens = s.past + s.rows.len();
            if tokens > program.bucket.context {
                return fail(format!("{tokens} tokens in a plan for a context of {}", program.bucket.context));
            }
            if cache.kv.layers > 0 && s.pages.len() * crate::PAGE_ROWS < tokens {
                return fail(format!("{} pages for {tokens} tokens", s.pages.len()));
            }
            if let Some(page) = s.pages.iter().find(|p| **p as usize >= cache.kv.pages) {
                return fail(format!("page {page} of {}", cache.kv.pages));
            }
            if let Some(state) = &cache.state {
                if s.slot >= state.slots {
                    return fail(format!("state slot {} of {}", s.slot, state.slots));
                }
                if (s.speculative && s.rows.len() > state.max_pending) || s.accepted > state.max_pending {
                    return fail(format!("more than {} speculative rows", state.max_pending));
                }
            }
        }
        if next != rows {
            return fail(format!("segments cover {next} of {rows} rows"));
        }
        Ok(())
    }

    /// Every input of the program, and no other, with as many values as it has.
    fn check_values(&self, program: &Program) -> Result<(), OpError> {
        let mut wanted = 0;
        for op in &program.ops {
            let Op::Input { name, out } = op else { continue };
            wanted += 1;
            let len = program.max_rows(*out) * program.tensors[out.0 as usize].cols;
            match self.values.get(&**name).map(Vec::len) {
                Some(got) if got == len => {}
                Some(got) => return Err(OpError::Inputs(format!("input `{name}` has {got} values, wanted {len}"))),
                None => return Err(OpError::Inputs(format!("input `{name}` is missing"))),
            }
        }
        if self.values.len() > wanted {
            return Err(OpError::Inputs(format!("{} inputs in a plan for {wanted}", self.values.len())));
        }
        Ok(())
    }
}

/// What a step gives back.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutput {
    /// Each output of the program, `(rows, cols)` row-major.
    pub values: BTreeMap<String, Vec<f32>>,
    /// The token of each logit row, when the program samples.
    pub sampled: Vec<Sampled>,
    /// Seconds of each op of the lowered program, when the plan was made to be profiled.
    pub op_seconds: Vec<f64>,
}

/// A step on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// A device that runs programs. Nothing here blocks on the device: [`Backend::run`] returns a ticket, [`Backend::poll`] asks.
pub trait Backend: Send + Sync {
    /// What it can do.
    fn caps(&self) -> &Caps;

    /// Fused forms that it runs itself.
    fn fusions(&self) -> Fusions;

    /// Whether and how it runs a stored format.
    fn format_support(&self, format: Format) -> FormatSupport;

    /// Bytes that are free in the device's own memory, or `None` where it works in the machine's.
    ///
    /// # Errors
    /// [`OpError::Device`].
    fn free_memory(&self) -> Result<Option<u64>, OpError> {
        Ok(None)
    }

    /// Device, driver and build, where results depend on somebody else's compiler and a first use should be tried; `None` where they
    /// do not.
    fn trial_key(&self) -> Option<String> {
        None
    }

    /// Whether the device has gone away with everything that it held. No handle of it is good any more, and only a backend that is
    /// opened anew can be.
    fn is_lost(&self) -> bool {
        false
    }

    /// GB/s (10^9 bytes) that the device reads from its memory, measured now: what decoding is compared with. `None`
    /// where that says nothing.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`] for the probe, [`OpError::Device`].
    fn read_bandwidth(&self) -> Result<Option<f64>, OpError> {
        Ok(None)
    }

    /// Puts matrices of equal width on the device as one row-concatenated weight. Members may differ in format; the
    /// result then equals the parts computed one by one.
    ///
    /// # Errors
    /// [`OpError::UnsupportedFormat`], [`OpError::Shape`] for unequal widths, [`OpError::OutOfMemory`].
    fn upload(&self, name: &str, parts: &[Matrix<'_>], options: UploadOptions) -> Result<Weight, OpError>;

    /// A name for the layouts that weights have on this device, which changes whenever they do: weights that were kept
    /// under another name are of no use. `None` where weights cannot be kept.
    fn layout(&self) -> Option<String> {
        None
    }

    /// An uploaded weight as it lies in memory, if it can be kept.
    fn resident<'a>(&self, weight: &'a Weight) -> Option<Resident<Vec<&'a [u8]>>> {
        let _ = weight;
        None
    }

    /// Takes a weight as it was kept, in place of an upload: of `parts` only formats and shapes are looked at.
    ///
    /// # Errors
    /// [`OpError::Kept`] for bytes that cannot be this weight.
    fn restore(&self, name: &str, parts: &[Matrix<'_>], kept: Resident<SharedBytes>) -> Result<Weight, OpError> {
        let _ = (parts, kept);
        Err(OpError::Kept { weight: name.to_owned(), why: "this backend keeps no weights".to_owned() })
    }

    /// Takes a matrix of which only rows are looked up, never a product. A device that reads files itself may leave it
    /// where it is.
    ///
    /// # Errors
    /// As [`Backend::upload`].
    fn upload_table(&self, name: &str, table: Table) -> Result<Weight, OpError> {
        self.upload(name, &[table.matrix()], UploadOptions::default())
    }

    /// Puts a small f32 vector on the device.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`].
    fn upload_vector(&self, values: &[f32]) -> Result<Vector, OpError>;

    /// Makes a zeroed cache.
    ///
    /// # Errors
    /// [`OpError::OutOfMemory`] before anything is touched.
    fn cache(&self, spec: CacheSpec) -> Result<Cache, OpError>;

    /// Zeroes a state slot.
    ///
    /// # Errors
    /// [`OpError::Inputs`] for a slot that is not there.
    fn clear_slot(&self, cache: &Cache, slot: usize) -> Result<(), OpError>;

    /// Copies a state slot, without pending rows.
    ///
    /// # Errors
    /// [`OpError::Inputs`] for a slot that is not there.
    fn copy_slot(&self, cache: &Cache, from: usize, to: usize) -> Result<(), OpError>;

    /// Copies a page of keys and values, in all layers.
    ///
    /// # Errors
    /// [`OpError::Inputs`] for a page that is not there.
    fn copy_page(&self, cache: &Cache, from: u32, to: u32) -> Result<(), OpError>;

    /// Reads one layer of a state slot back, for tests and goldens.
    ///
    /// # Errors
    /// [`OpError::Inputs`] for a slot or layer that is not there.
    fn read_slot(&self, cache: &Cache, slot: usize, layer: usize) -> Result<SlotState, OpError>;

    /// Compiles a program for a cache.
    ///
    /// # Errors
    /// [`OpError::UnsupportedActivations`], [`OpError::OutOfMemory`], [`OpError::ForeignHandle`].
    fn compile(&self, program: Program, cache: &Cache, options: PlanOptions) -> Result<Plan, OpError>;

    /// Starts a step. Steps on one cache, and clears and copies of its slots and pages, take effect in the order of
    /// these calls, whether or not earlier ones were polled; [`StepInputs::carried`] means the step started last.
    ///
    /// # Errors
    /// [`OpError::Inputs`], [`OpError::Device`].
    fn run(&self, plan: &Plan, inputs: StepInputs) -> Result<Ticket, OpError>;

    /// The step's output once it is there; each ticket answers once.
    ///
    /// # Errors
    /// [`OpError::Device`], and [`OpError::Inputs`] for a ticket that is not under way.
    fn poll(&self, ticket: Ticket) -> Result<Option<StepOutput>, OpError>;
}

/// Polls until the step is done.
///
/// # Errors
/// Those of [`Backend::poll`].
pub fn wait(backend: &dyn Backend, ticket: Ticket) -> Result<StepOutput, OpError> {
    loop {
        if let Some(output) = backend.poll(ticket)? {
            return Ok(output);
        }
        std::thread::yield_now();
    }
}
