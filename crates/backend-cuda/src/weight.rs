//! Weights on the device: several parts, each in its own layout, in one piece of memory.

use crate::driver::{Device, During};
use crate::layout::Layout;
use crate::memory::{Buffer, Pinned};
use crate::params::{Codes, Part};
use crate::repack::{Target, repack};
use cudarc::driver::CudaEvent;
use onebit_ops::{OpError, UploadOptions, Weight, WeightInfo};
use onebit_quant::{Matrix, Symmetry};
use std::sync::{Arc, Mutex, PoisonError};

/// Pieces of a weight begin at multiples of so many bytes.
const ALIGN: usize = 256;

/// Weights lie side by side in larger pieces of memory: on an H200 a token of 27B takes 2,333 us so and 2,440 with a piece for
/// each (`lab/cuda/decode.md`). A piece is as large as all before it, within these bounds.
const PIECE: [usize; 2] = [32 << 20, 512 << 20];

/// Bytes of one of the two stretches that weights pass through on their way.
const STAGE: usize = 16 << 20;

/// Threads that lay weights out; more would wait for memory.
const MOST_THREADS: usize = 8;

/// What decides which kernel runs a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub codes: Codes,
    /// Columns that share a scale; 0 for dense.
    pub group: usize,
    pub rows: usize,
    /// Nothing but short scales beside the codes ([`Layout::is_plain`]).
    pub plain: bool,
    /// Short scales and biases, as `linear_bits4_i8_affine` takes them ([`Layout::is_affine_half`]).
    pub affine: bool,
}

impl Shape {
    fn of(layout: &Layout) -> Shape {
        Shape {
            codes: layout.codes,
            group: layout.group,
            rows: layout.rows,
            plain: layout.is_plain(),
            affine: layout.is_affine_half(),
        }
    }
}

/// The payload of a weight.
pub(crate) struct Resident {
    /// What `parts` point into, with other weights.
    buffer: Arc<Buffer>,
    pub parts: Vec<Part>,
    pub shapes: Vec<Shape>,
}

impl Resident {
    pub(crate) fn is_on(&self, device: &Arc<Device>) -> bool {
        self.buffer.is_on(device)
    }
}

/// Brings weights to the device: laid out in memory that it copies by itself, one half while the other is on its way.
pub(crate) struct Loader {
    device: Arc<Device>,
    threads: usize,
    stages: Mutex<Stages>,
    pieces: Mutex<Pieces>,
}

/// The memory of weights that is not taken yet.
#[derive(Default)]
struct Pieces {
    /// Bytes of all pieces.
    made: usize,
    last: Option<Arc<Buffer>>,
    /// Of the last one.
    used: usize,
}

impl Pieces {
    /// Room for a weight: a piece of memory, and the place in it.
    fn take(&mut self, device: &Arc<Device>, bytes: usize, what: &str) -> Result<(Arc<Buffer>, usize), OpError> {
        if let Some(last) = self.last.as_ref().filter(|last| last.bytes() - self.used >= bytes) {
            let at = self.used;
            self.used = (at + bytes).next_multiple_of(ALIGN).min(last.bytes());
            return Ok((last.clone(), at));
        }
        // What is left of a piece in the end is lost to keys and values, which matters where memory is short.
        let usual = self.made.clamp(PIECE[0], PIECE[1]);
        let plenty = device.free_bytes()? >= 4 * usual as u64;
        let buffer = Buffer::new(device, if plenty { usual.max(bytes) } else { bytes }, what)?;
        self.made += buffer.bytes();
        self.used = bytes.next_multiple_of(ALIGN).min(buffer.bytes());
        let buffer = Arc::new(buffer);
        self.last = Some(buffer.clone());
        Ok((buffer, 0))
    }
}

#[derive(Default)]
struct Stages {
    halves: Vec<Stage>,
    next: usize,
}

struct Stage {
    bytes: Pinned,
    /// After the copies from it.
    copied: CudaEvent,
}

impl Loader {
    pub(crate) fn new(device: &Arc<Device>) -> Loader {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        Loader { device: device.clone(), threads, stages: Mutex::default(), pieces: Mutex::default() }
    }

    /// Puts matrices of equal width on the device as one weight.
    ///
    /// # Errors
    /// [`OpError::Shape`], and [`OpError::OutOfMemory`] before anything is touched.
    pub(crate) fn upload(&self, name: &str, parts: &[Matrix<'_>], options: UploadOptions) -> Result<Weight, OpError> {
        let wrong = |what: String, wanted: String, got: String| OpError::Shape { op: "upload", what, wanted, got };
        let Some(first) = parts.first() else {
            return Err(wrong(name.to_owned(), "one part or more".to_owned(), "none".to_owned()));
        };
        if let Some(part) = parts.iter().find(|part| part.cols != first.cols) {
            return Err(wrong(format!("columns of `{name}`"), first.cols.to_string(), part.cols.to_string()));
        }
        let symmetry = |m: &Matrix<'_>| if options.keep_biases { Symmetry::Affine } else { m.symmetry() };
        let layouts: Vec<Layout> = parts.iter().map(|m| Layout::of(m, symmetry(m))).collect();
        let (mut places, bytes) = place(&layouts);
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let (buffer, start) = pieces.take(&self.device, bytes, &format!("weight `{name}`"))?;
        drop(pieces);
        places.iter_mut().flatten().for_each(|at| *at += start);
        let (mut ranges, mut resident, mut rows) = (Vec::new(), Vec::new(), 0);
        for ((matrix, layout), places) in parts.iter().zip(&layouts).zip(&places) {
            self.fill(&buffer, places, matrix, layout)?;
            let sizes = layout.pieces();
            let addresses = std::array::from_fn(|i| if sizes[i] == 0 { 0 } else { buffer.at(places[i], sizes[i]) });
            resident.push(layout.part(rows, addresses));
            ranges.push(rows..rows + matrix.rows);
            rows += matrix.rows;
        }
        let mut kernels: Vec<String> = Vec::new();
        for layout in &layouts {
            let kernel = format!("{}/{}", layout.name(), self.device.arch.name());
            if !kernels.contains(&kernel) {
                kernels.push(kernel);
            }
        }
        let info = WeightInfo {
            name: name.to_owned(),
            rows,
            cols: first.cols,
            parts: ranges,
            kernel: kernels.join("+"),
            resident_bytes: layouts.iter().flat_map(Layout::pieces).sum::<usize>() as u64,
            shed_bytes: layouts.iter().map(|l| l.shed_bytes).sum(),
        };
        let shapes = layouts.iter().map(Shape::of).collect();
        Ok(Weight::new(info, Box::new(Resident { buffer, parts: resident, shapes })))
    }

    /// Lays one part out and copies it to its pieces' places.
    fn fill(&self, buffer: &Buffer, places: &[usize; 5], matrix: &Matrix<'_>, layout: &Layout) -> Result<(), OpError> {
        let block: usize = layout.block_bytes().iter().sum();
        let together = (STAGE / block.max(1)).max(1);
        for start in (0..layout.blocks()).step_by(together) {
            let blocks = start..(start + together).min(layout.blocks());
            let sizes = layout.block_bytes().map(|bytes| bytes * blocks.len());
            self.stage(
                sizes.iter().sum(),
                |bytes| {
                    repack(matrix, layout, blocks.clone(), Target::new(layout, blocks.len(), bytes), self.threads);
                    let mut from = 0;
                    std::array::from_fn::<_, 3, _>(|i| {
                        let to = places[i] + layout.block_bytes()[i] * start;
                        from += sizes[i];
                        (from - sizes[i], to, sizes[i])
                    })
                },
                buffer,
            )?;
        }
        let (firsts, residuals) = layout.residual_lists();
        if residuals.is_empty() {
            return Ok(());
        }
        let lists = [
            firsts.iter().flat_map(|first| first.to_le_bytes()).collect::<Vec<u8>>(),
            residuals.iter().flat_map(|r| [r.place.to_le_bytes(), r.value.to_le_bytes()].concat()).collect(),
        ];
        for (list, place) in lists.iter().zip(&places[3..]) {
            for (i, piece) in list.chunks(STAGE).enumerate() {
                self.stage(
                    piece.len(),
                    |bytes| {
                        bytes.copy_from_slice(piece);
                        [(0, place + i * STAGE, piece.len())]
                    },
                    buffer,
                )?;
            }
        }
        Ok(())
    }

    /// Lets `write` fill so many bytes of a free stage and say which stretches go where: from, to, length.
    fn stage<const N: usize>(
        &self,
        bytes: usize,
        write: impl FnOnce(&mut [u8]) -> [(usize, usize, usize); N],
        buffer: &Buffer,
    ) -> Result<(), OpError> {
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        if stages.halves.len() < 2 {
            let copied = self.device.context.new_event(None).during("creating an event")?;
            stages.halves.push(Stage { bytes: Pinned::new(&self.device, bytes.max(STAGE))?, copied });
            stages.next = stages.halves.len() - 1;
        }
        let at = stages.next;
        stages.next = 1 - at;
        let stage = &mut stages.halves[at];
        stage.copied.synchronize().during("copying weights")?;
        // One block may be wider than the usual stage.
        if stage.bytes.bytes().len() < bytes {
            stage.bytes = Pinned::new(&self.device, bytes)?;
        }
        for (from, to, len) in write(&mut stage.bytes.bytes_mut()[..bytes]) {
            buffer.write(to, &stage.bytes, from..from + len)?;
        }
        stage.copied.record(&self.device.stream).during("copying weights")
    }

    /// Gives the stages back, and the last piece of memory to those who are in it; the next weight makes new ones.
    pub(crate) fn rest(&self) -> Result<(), OpError> {
        *self.pieces.lock().unwrap_or_else(PoisonError::into_inner) = Pieces::default();
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        if !stages.halves.is_empty() {
            self.device.synchronize()?;
            *stages = Stages::default();
        }
        Ok(())
    }
}

/// Where each part's pieces lie, and the bytes of all.
fn place(layouts: &[Layout]) -> (Vec<[usize; 5]>, usize) {
    let mut end = 0usize;
    let mut of = |layout: &Layout| {
        layout.pieces().map(|bytes| {
            let at = end;
            end = (end + bytes).next_multiple_of(ALIGN);
            at
        })
    };
    let places = layouts.iter().map(&mut of).collect();
    (places, end)
}

/// The payload of a weight of this backend and device.
///
/// # Errors
/// [`OpError::ForeignHandle`].
pub(crate) fn resident<'a>(weight: &'a Weight, device: &Arc<Device>) -> Result<&'a Resident, OpError> {
    let resident: Option<&Resident> = weight.payload();
    resident.filter(|r| r.is_on(device)).ok_or(OpError::ForeignHandle("a weight"))
}
