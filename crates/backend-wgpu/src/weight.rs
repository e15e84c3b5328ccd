//! Weights on the device: runs of parts that lie alike, cut into chunks that can be bound.

use crate::adapter::Device;
use crate::layout::{BLOCK_ROWS, Layout, Shape};
use crate::memory::Buffer;
use crate::repack::{Target, repack};
use onebit_ops::{OpError, UploadOptions, Weight, WeightInfo};
use onebit_quant::{Matrix, Packed, Symmetry};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are laid out and handed to the queue at a time.
const STAGE: usize = 16 << 20;

/// Threads that lay weights out; more would wait for memory.
const MOST_THREADS: usize = 8;

/// Blocks of rows that one dispatch multiplies with.
pub(crate) struct Chunk {
    pub buffer: Buffer,
    pub shape: Shape,
    /// Its first row in the weight.
    pub first_row: usize,
    pub rows: usize,
    /// Bytes of codes from the buffer's start; behind them, at `side_at`, come scales, biases and residuals.
    pub code_bytes: u64,
    pub side_at: u64,
    /// Words of the side at which biases, the residuals' ranges and the residuals begin.
    pub biases: u32,
    pub residual_first: u32,
    pub residuals: u32,
    pub has_residuals: bool,
}

impl Chunk {
    /// Blocks of rows.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(BLOCK_ROWS)
    }
}

/// The payload of a weight.
pub(crate) struct Resident {
    device: Arc<Device>,
    pub chunks: Vec<Chunk>,
}

impl Resident {
    /// Whether any part has packed codes.
    pub(crate) fn has_packed(&self) -> bool {
        self.chunks.iter().any(|c| matches!(c.shape.codes, crate::layout::Codes::Packed { .. }))
    }

    /// Whether any part has numbers.
    pub(crate) fn has_dense(&self) -> bool {
        self.chunks.iter().any(|c| matches!(c.shape.codes, crate::layout::Codes::Dense(_)))
    }
}

/// Parts of one layout whose blocks follow one another.
struct Run<'a> {
    parts: Vec<(&'a Matrix<'a>, Layout)>,
    first_row: usize,
    /// Of all parts together.
    layout: Layout,
}

/// A part, or several that are one matrix from here on.
enum Together<'a> {
    One(&'a Matrix<'a>),
    Several(Packed),
}

impl Together<'_> {
    fn matrix(&self) -> Matrix<'_> {
        match self {
            Together::One(matrix) => **matrix,
            Together::Several(packed) => packed.as_matrix(),
        }
    }
}

/// Bytes of codes up to which parts are copied together.
const SMALL: usize = 1 << 20;

/// Parts of one format stand below each other. Where a small one does not fill its last block, the next takes its place there: a
/// run, and so a dispatch, less.
fn together<'a>(parts: &'a [Matrix<'a>]) -> Vec<Together<'a>> {
    let mut all: Vec<Together<'a>> = Vec::new();
    for part in parts {
        let last = all.last().map(Together::matrix).filter(|last| {
            let fills = last.rows.is_multiple_of(BLOCK_ROWS);
            !fills && last.format == part.format && last.codes.len() + part.codes.len() <= SMALL
        });
        match last {
            Some(last) => {
                let several = Packed {
                    format: part.format,
                    rows: last.rows + part.rows,
                    cols: part.cols,
                    codes: [last.codes, part.codes].concat(),
                    scales: [last.scales, part.scales].concat(),
                    biases: [last.biases, part.biases].concat(),
                };
                all.pop();
                all.push(Together::Several(several));
            }
            None => all.push(Together::One(part)),
        }
    }
    all
}

/// Puts matrices of equal width on the device as one weight.
///
/// # Errors
/// [`OpError::Shape`], [`OpError::OutOfMemory`].
pub(crate) fn upload(
    device: &Arc<Device>,
    name: &str,
    parts: &[Matrix<'_>],
    options: UploadOptions,
) -> Result<Weight, OpError> {
    let wrong = |what: String, wanted: String, got: String| OpError::Shape { op: "upload", what, wanted, got };
    let Some(first) = parts.first() else {
        return Err(wrong(name.to_owned(), "one part or more".to_owned(), "none".to_owned()));
    };
    if let Some(part) = parts.iter().find(|part| part.cols != first.cols) {
        return Err(wrong(format!("columns of `{name}`"), first.cols.to_string(), part.cols.to_string()));
    }
    let symmetry = |m: &Matrix<'_>| if options.keep_biases { Symmetry::Affine } else { m.symmetry() };
    let mut runs: Vec<Run<'_>> = Vec::new();
    let (mut ranges, mut rows, mut kernels, mut resident_bytes, mut shed_bytes) = (Vec::new(), 0, Vec::new(), 0, 0);
    for part in parts {
        ranges.push(rows..rows + part.rows);
        rows += part.rows;
    }
    let together = together(parts);
    let matrices: Vec<Matrix<'_>> = together.iter().map(Together::matrix).collect();
    let mut first_row = 0;
    for matrix in &matrices {
        let layout = Layout::of(matrix, symmetry(matrix));
        let kernel = layout.shape.name();
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
        let sizes = layout.block_bytes().iter().sum::<usize>() * layout.blocks();
        resident_bytes += (sizes + layout.residuals.len() * 8) as u64;
        shed_bytes += layout.shed_bytes;
        match runs.last_mut() {
            // Its first row begins a block.
            Some(run) if run.layout.shape == layout.shape && run.layout.rows.is_multiple_of(BLOCK_ROWS) => {
                let before = run.layout.rows;
                run.layout
                    .residuals
                    .extend(layout.residuals.iter().map(|r| onebit_quant::Residual { row: r.row + before, ..*r }));
                run.layout.rows += layout.rows;
                run.parts.push((matrix, layout));
            }
            _ => runs.push(Run { first_row, layout: layout.clone(), parts: vec![(matrix, layout)] }),
        }
        first_row += matrix.rows;
    }
    let mut chunks = Vec::new();
    for run in &runs {
        for blocks in cut(&run.layout, device.abilities.chunk) {
            chunks.push(fill(device, name, run, blocks)?);
        }
    }
    let info = WeightInfo {
        name: name.to_owned(),
        rows,
        cols: first.cols,
        parts: ranges,
        kernel: kernels.join("+"),
        resident_bytes,
        shed_bytes,
    };
    Ok(Weight::new(info, Box::new(Resident { device: device.clone(), chunks })))
}

/// Stretches of blocks whose codes and scales can be bound, and lie in one buffer.
fn cut(layout: &Layout, binding: u64) -> Vec<Range<usize>> {
    let [codes, scales, biases] = layout.block_bytes();
    // Residuals are at most one for each hundred groups, and eight bytes each: less than a tenth of the scales.
    let side = scales + biases + scales / 10 + 8;
    let most = ((binding as usize).saturating_sub(4096) / (codes + side)).max(1);
    let blocks = layout.blocks();
    (0..blocks).step_by(most).map(|first| first..(first + most).min(blocks)).collect()
}

fn fill(device: &Arc<Device>, name: &str, run: &Run<'_>, blocks: Range<usize>) -> Result<Chunk, OpError> {
    let [codes, scales, biases] = run.layout.block_bytes();
    let count = blocks.len();
    let (firsts, residuals) = run.layout.residual_words(blocks.clone());
    let has_residuals = !residuals.is_empty();
    let align = device.abilities.align;
    let code_bytes = (codes * count) as u64;
    let side_at = code_bytes.next_multiple_of(align);
    let (scales_end, biases_end) = (scales * count, (scales + biases) * count);
    let list_bytes = if has_residuals { (firsts.len() + residuals.len()) * 4 } else { 0 };
    let side_bytes = (biases_end + list_bytes).max(16);
    let buffer = Buffer::new(device, side_at + side_bytes as u64, &format!("weight `{name}`"))?;
    let mut stage = Vec::new();
    let together = (STAGE / (codes + scales + biases).max(1)).max(1);
    // Blocks of the run that come before each part.
    let mut before = 0;
    for (matrix, layout) in &run.parts {
        let own = before..before + layout.blocks();
        let mut at = own.start.max(blocks.start);
        while at < own.end.min(blocks.end) {
            let end = (at + together).min(own.end).min(blocks.end);
            let n = end - at;
            stage.resize((codes + scales + biases) * n, 0);
            let (code_part, rest) = stage.split_at_mut(codes * n);
            let (scale_part, bias_part) = rest.split_at_mut(scales * n);
            let target = Target { codes: code_part, scales: scale_part, biases: bias_part };
            let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
            repack(matrix, layout, at - before..end - before, target, threads);
            let first = at - blocks.start;
            buffer.write((codes * first) as u64, &stage[..codes * n]);
            buffer.write(side_at + (scales * first) as u64, &stage[codes * n..(codes + scales) * n]);
            buffer.write(side_at + (scales_end + biases * first) as u64, &stage[(codes + scales) * n..]);
            // What waits in the queue is a copy of its own: it is sent on its way and given back before more is made.
            device.queue.submit([]);
            if codes * n >= STAGE / 2 {
                device.wait()?;
            }
            at = end;
        }
        before = own.end;
    }
    if has_residuals {
        let words = firsts.iter().chain(&residuals).flat_map(|word| word.to_le_bytes());
        buffer.write(side_at + biases_end as u64, &words.collect::<Vec<u8>>());
    }
    device.look()?;
    let rows = (blocks.end * BLOCK_ROWS).min(run.layout.rows) - blocks.start * BLOCK_ROWS;
    Ok(Chunk {
        buffer,
        shape: run.layout.shape,
        first_row: run.first_row + blocks.start * BLOCK_ROWS,
        rows,
        code_bytes,
        side_at,
        biases: (scales_end / 4) as u32,
        residual_first: (biases_end / 4) as u32,
        residuals: (biases_end / 4 + firsts.len()) as u32,
        has_residuals,
    })
}

/// The payload of a weight of this backend and device.
///
/// # Errors
/// [`OpError::ForeignHandle`].
pub(crate) fn resident<'a>(weight: &'a Weight, device: &Arc<Device>) -> Result<&'a Resident, OpError> {
    let resident: Option<&Resident> = weight.payload();
    resident.filter(|r| Arc::ptr_eq(&r.device, device)).ok_or(OpError::ForeignHandle("a weight"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_quant::{Format, ParamType, pack};

    #[test]
    fn a_large_weight_is_cut_into_blocks_that_fit() {
        let format = Format::Affine { bits: 1, group: 128, scale: ParamType::F16, bias: ParamType::F16 };
        let packed = pack(format, 100, 256, &vec![0; 25_600], &[1.0; 200], &[-0.5; 200]).unwrap();
        let layout = Layout::of(&packed.as_matrix(), Symmetry::Exact);
        assert_eq!(layout.block_bytes(), [1024, 128, 0]);
        assert_eq!(cut(&layout, 1 << 20), vec![0..4]);
        assert_eq!(cut(&layout, 4096 + 2500), vec![0..2, 2..4]);
        assert_eq!(cut(&layout, 0), vec![0..1, 1..2, 2..3, 3..4]);
    }

    #[test]
    fn small_parts_of_one_format_fill_each_others_blocks() {
        let format = Format::Affine { bits: 1, group: 128, scale: ParamType::F16, bias: ParamType::F16 };
        let of =
            |rows: usize| pack(format, rows, 128, &vec![1; rows * 128], &vec![1.0; rows], &vec![-0.5; rows]).unwrap();
        let all = [64, 48, 48, 7].map(of);
        let matrices = all.each_ref().map(Packed::as_matrix);
        let rows: Vec<usize> = together(&matrices).iter().map(|t| t.matrix().rows).collect();
        assert_eq!(rows, [64, 96, 7]);
        let other = onebit_quant::quantize(Format::F32, 3, 128, &[0.0; 384]).unwrap();
        let matrices = [matrices[1], other.as_matrix(), matrices[3]];
        assert_eq!(together(&matrices).len(), 3);
    }

    /// The tables of published models exceed the 128 MiB that WebGPU guarantees: binary of the 27B, ternary of the 8B.
    #[test]
    fn every_chunk_of_a_published_table_fits_the_smallest_binding() {
        const BINDING: u64 = 128 << 20;
        for (bits, rows, cols) in [(1, 248_320, 5120), (2, 151_936, 4096)] {
            let shape = Shape::of_symmetric(bits, 128);
            let layout = Layout { shape, rows, cols, residuals: Vec::new(), shed_bytes: 0 };
            let block: usize = layout.block_bytes().iter().sum();
            let chunks = cut(&layout, BINDING);
            assert!(chunks.len() == 2, "{chunks:?}");
            assert!(chunks.iter().all(|blocks| (blocks.len() * block) as u64 <= BINDING), "{chunks:?}");
            assert_eq!(chunks.iter().map(Range::len).sum::<usize>(), layout.blocks());
        }
    }
}
