//! Which kernel an op becomes, and how many blocks of how many threads it gets: pure functions of shapes.
//!
//! Grids are those of a plan's largest step; blocks beyond the step's own rows read its header and return.

use crate::Arch;
use crate::params::{
    Address, BLOCK_ROWS, Codes, GROUP, INPUT_UNITS, MAX_PARTS, Prepared, SAMPLE_SHARE, TENS_ROWS, TILE_ROWS, kv_format,
    wanted,
};
use crate::stream::Stream;
use crate::tens::Tens;
use crate::weight::Shape;
use onebit_ops::{Activations, KvFormat, OpError, PAGE_ROWS};
use std::ops::Range;

/// One kernel launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    pub kernel: String,
    pub grid: [u32; 3],
    /// Threads of a block, in one dimension.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// So many blocks that follow one another run together and see each other's shared memory; 1: each for itself.
    pub cluster: u32,
}

/// Threads of blocks that have no reason for another number.
const THREADS: usize = 256;

pub(crate) fn launch(kernel: impl Into<String>, grid: [usize; 3], threads: usize) -> Launch {
    Launch {
        kernel: kernel.into(),
        grid: grid.map(|n| n.max(1) as u32),
        threads: threads as u32,
        shared: 0,
        cluster: 1,
    }
}

/// The kernel that brings a step's inputs.
pub(crate) const INPUTS: &str = "inputs";

/// `inputs` for so many units, one a thread; `None` where they are more than a launch has room for.
pub(crate) fn inputs(units: usize) -> Option<Launch> {
    (units <= INPUT_UNITS).then(|| launch(INPUTS, [1; 3], units.next_multiple_of(32)))
}

/// `embed` for up to `rows` rows: four columns a thread.
pub(crate) fn embed(rows: usize, cols: usize) -> Launch {
    launch("embed", [rows, cols.div_ceil(4 * THREADS), 1], THREADS)
}

/// `pack`: four values a thread.
pub(crate) fn pack(rows: usize, cols: usize) -> Launch {
    launch("pack", [cols.div_ceil(4 * THREADS), rows, 1], THREADS)
}

/// `add`, `swiglu`, `sigmoid_mul` or `select_rows`: a value a thread.
pub(crate) fn pointwise(kernel: &str, rows: usize, cols: usize) -> Launch {
    launch(kernel, [cols.div_ceil(THREADS), rows, 1], THREADS)
}

/// Blocks of at most this many values are normed by one warp.
const WARP_NORM: usize = 512;

/// `rms_norm` or `gated_norm` of `heads` blocks of `dim` values a row.
pub(crate) fn norm(kernel: &str, rows: usize, heads: usize, dim: usize) -> Launch {
    if dim <= WARP_NORM {
        launch(format!("{kernel}_heads"), [heads.div_ceil(THREADS / 32), rows, 1], THREADS)
    } else {
        launch(format!("{kernel}_row"), [heads, rows, 1], THREADS)
    }
}

/// `rope`: one block a row.
pub(crate) fn rope(rows: usize) -> Launch {
    launch("rope", [rows, 1, 1], THREADS)
}

/// `delta_gates`.
pub(crate) fn delta_gates(rows: usize, heads: usize) -> Launch {
    launch("delta_gates", [heads.div_ceil(64), rows, 1], 64)
}

/// Least rows of a plan for steps that read prompts.
pub(crate) const PROMPT_ROWS: usize = 128;

// ---- products ------------------------------------------------------------------------------------------------------

/// Most activation rows of one pass over a weight, without matrix units.
pub(crate) const MOST_ROWS: usize = 8;

/// Activation rows, and blocks of the weight, of one thread block of the kernels for more.
const GROUPED_TILE: [usize; 2] = [32, 8];
const BATCH_TILE: [usize; 2] = [32, 1];
const WIDE_TILE: [usize; 2] = [32, 8];
const GROUP_TILE: [usize; 2] = [96, 6];

/// Most rows that are a batch.
const BATCH_ROWS: usize = 64;

/// Least rows for which four warps together are faster than each for itself (one H200, `lab/cuda/images`).
const GROUP_ROWS: usize = 145;

/// Shared memory of a thread block with a batch: two records of rows and codes for each of eight warps.
const BATCH_SHARED: u32 = 98304;

/// Of one with many rows: the records of any kind of codes; and its sums, where there is room.
const fn wide_shared(arch: Arch) -> u32 {
    const RECORDS: u32 = 46080;
    const SUMS: u32 = 32768;
    if matches!(arch, Arch::Sm75) { RECORDS } else { RECORDS + SUMS }
}

/// Of one whose warps multiply together: four times two records, in places of 1024 bytes, and its sums.
const GROUP_SHARED: u32 = 204_800;

/// Of one with many rows and biases: two records, and its sums.
const AFFINE_SHARED: u32 = 50176 + 32768;

/// Least records of a row that are cut into [`MOST_SLICES`].
const LONG: usize = 48;
pub(crate) const MOST_SLICES: usize = 16;

/// Equal slices of a row, each summed up for itself: the order of a row's sum. A function of the width alone.
pub(crate) fn slices(cols: usize) -> usize {
    if cols.div_ceil(GROUP) >= LONG { MOST_SLICES } else { MOST_SLICES / 2 }
}

/// A product as far as it decides which kernels run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    /// Most rows of activations.
    pub rows: usize,
    pub cols: usize,
    pub activations: Activations,
    /// Gate and up in one launch.
    pub swiglu: bool,
    pub arch: Arch,
    /// Most bytes of shared memory of a thread block.
    pub shared: u32,
    pub multiprocessors: u32,
    /// Whether blocks can run in clusters.
    pub clusters: bool,
}

/// The kernels of a part's product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Rows of activations in tiles; every format.
    Lanes,
    /// Few rows, of integers, with scales of whole records.
    Quads,
    /// The same with codes of one bit, through shared memory to the matrix units.
    Stream,
    /// Some tens of rows, on the matrix units with asynchronous copies.
    Batch,
    /// The same where four warps multiply together.
    Tens,
    /// Many rows, on the matrix units.
    Wide,
    /// The same where four warps multiply together.
    Group,
    /// Many rows of integers of eight bits for weights of four, with scales and biases of half a record.
    Affine,
    /// More rows than a few, scales of any kind.
    Grouped,
}

impl Kind {
    fn of(shape: Shape, product: &Product) -> Kind {
        let integers = shape.codes.is_packed() && product.activations != Activations::F32;
        // Codes of 8 bits do not leave the matrix units the bit that nine-bit inputs need.
        if !integers || shape.codes == Codes::Bits8 {
            return Kind::Lanes;
        }
        let stream = shape.codes == Codes::Bits1 && product.activations == Activations::I8G128 && shape.plain;
        let &Product { rows, arch, .. } = product;
        match rows {
            _ if rows > MOST_ROWS
                && arch >= Arch::Sm80
                && shape.affine
                && product.activations == Activations::I8G128 =>
            {
                Kind::Affine
            }
            _ if rows > MOST_ROWS && !shape.plain => Kind::Grouped,
            _ if Tens::runs(shape.codes, product) => Kind::Tens,
            // Codes of four bits have no room beside a batch.
            _ if rows > MOST_ROWS && rows <= BATCH_ROWS && arch >= Arch::Sm80 && shape.codes != Codes::Bits4 => {
                Kind::Batch
            }
            _ if rows >= GROUP_ROWS
                && arch == Arch::Sm90a
                && product.activations == Activations::I8G128
                && matches!(shape.codes, Codes::Bits1 | Codes::Bits2) =>
            {
                Kind::Group
            }
            _ if rows > MOST_ROWS => Kind::Wide,
            _ if shape.group != GROUP => Kind::Lanes,
            _ if stream && Stream::of(product).is_some() => Kind::Stream,
            _ => Kind::Quads,
        }
    }
}

/// Bits of [`wanted`] for a weight with these parts: dense ones meet floats whatever the activations.
pub(crate) fn prepared_kinds(shapes: &[Shape], product: &Product) -> u32 {
    let of = |shape: &Shape| match product.activations {
        Activations::I8G128 if shape.codes.is_packed() => {
            wanted::INT8
                | match Kind::of(*shape, product) {
                    Kind::Stream => wanted::PLANES,
                    Kind::Tens => wanted::TILES,
                    _ => 0,
                }
        }
        Activations::I9G128 if shape.codes.is_packed() => wanted::INT9,
        _ => wanted::FLOATS,
    };
    shapes.iter().fold(0, |all, shape| all | of(shape))
}

/// Where the prepared activations of up to `rows` rows of `cols` values lie from `base` on (256-byte aligned), and the
/// bytes that they take: whole tiles of [`MOST_ROWS`], or of [`TENS_ROWS`], since products read to the end of one. With base 0
/// it tells the bytes alone.
pub(crate) fn prepared(base: Address, rows: usize, cols: usize, kinds: u32) -> (Prepared, usize) {
    let padded = cols.next_multiple_of(GROUP);
    let mut end = 0usize;
    let mut take_tiles = |tile: usize, wanted_by: u32, bytes: usize| {
        if kinds & wanted_by == 0 {
            return 0;
        }
        let at = base + end as Address;
        end += (rows.next_multiple_of(tile) * bytes).next_multiple_of(256);
        at
    };
    let tiles = take_tiles(TENS_ROWS, wanted::TILES, padded);
    let beside = take_tiles(TENS_ROWS, wanted::TILES, padded / GROUP * 8);
    let mut take = |wanted_by, bytes| take_tiles(MOST_ROWS, wanted_by, bytes);
    let integers = wanted::INT8 | wanted::INT9;
    let out = Prepared {
        floats: take(wanted::FLOATS, padded * 4),
        float_sums: take(wanted::FLOATS, padded / 32 * 4),
        codes: take(integers, padded),
        low: take(wanted::INT9, padded / 32 * 4),
        planes: take(wanted::PLANES, padded),
        tiles,
        beside,
        scales: take(integers, padded / GROUP * 4),
        sums: take(integers, padded / 32 * 4),
        cols: cols as u32,
        padded: padded as u32,
        ..Prepared::default()
    };
    (out, end)
}

/// Rows that alone fill a device with the blocks of `prepare`.
const FILLING_ROWS: usize = 97;

/// `prepare`: norm, rounding and sums of a product's input. The groups of a row are shared among several blocks, a group a
/// warp, where rows alone do not fill a device.
pub(crate) fn prepare(rows: usize, cols: usize) -> Launch {
    const THREADS: usize = 512;
    let blocks = if rows >= FILLING_ROWS { 1 } else { cols.div_ceil(GROUP).div_ceil(THREADS / 32) };
    launch("prepare", [rows, blocks, 1], THREADS)
}

/// Launches of one product, each for some consecutive parts of the weight, in order.
///
/// With `swiglu` there must be two parts of one format and of equal rows ([`fuses_swiglu`]).
pub(crate) fn linear(parts: &[Shape], product: &Product) -> Vec<(Range<usize>, Launch)> {
    let &Product { rows, cols, activations, swiglu, arch, .. } = product;
    let mut launches = Vec::new();
    let mut start = 0;
    while start < parts.len() {
        let codes = parts[start].codes;
        let kind = Kind::of(parts[start], product);
        let alike = |part: &&Shape| part.codes == codes && Kind::of(**part, product) == kind;
        let same = parts[start..].iter().take(MAX_PARTS).take_while(alike).count();
        let range = start..start + same;
        let blocks = |parts: &[Shape]| parts.iter().map(|p| p.rows.div_ceil(BLOCK_ROWS)).sum::<usize>();
        let blocks = if swiglu { blocks(&parts[start..=start]) } else { blocks(&parts[range.clone()]) };
        let inputs = match activations {
            Activations::I8G128 if codes.is_packed() => "_i8",
            Activations::I9G128 if codes.is_packed() => "_i9",
            _ if codes.is_packed() => "_f32",
            _ => "",
        };
        let name = codes.name();
        let tiled = |kernel: String, most: usize, threads: usize| {
            let tile = rows.next_power_of_two().min(most);
            launch(format!("linear_{kernel}_m{tile}"), [blocks, rows.div_ceil(tile), 1], threads)
        };
        let large = |kernel: &str, blocks: usize, [tile_rows, tile_blocks]: [usize; 2]| {
            let grid = [blocks.div_ceil(tile_blocks), rows.div_ceil(tile_rows), 1];
            launch(format!("linear_{name}{inputs}_{kernel}"), grid, THREADS)
        };
        // A warp a slice, of both products with `swiglu`, as far as a block has warps.
        let warps = 32 * (slices(cols) * if swiglu { 2 } else { 1 }).min(MOST_SLICES);
        launches.push((
            range,
            match kind {
                Kind::Lanes => tiled(format!("{name}{inputs}"), MOST_ROWS, THREADS),
                Kind::Quads => tiled(format!("{name}{inputs}_quads"), MOST_ROWS / 2, warps),
                Kind::Stream => {
                    let Some(usual) = Stream::of(product) else { unreachable!("found to stream") };
                    let kernel = if swiglu { "stream_pair" } else { "stream" };
                    let (name, stream) = match Stream::lean(product, blocks) {
                        Some((share, lean)) => (format!("linear_{name}_lean_pair_{share}"), lean),
                        None => (format!("linear_{name}_{kernel}_m{}", usual.tile), usual),
                    };
                    Launch { shared: stream.shared as u32, ..launch(name, [blocks, 1, 1], stream.threads) }
                }
                Kind::Grouped => large("grouped", blocks, GROUPED_TILE),
                // A pair of tiles is half a block of gate and of up.
                Kind::Wide => {
                    let launch = large("wide", if swiglu { 2 * blocks } else { blocks }, WIDE_TILE);
                    Launch { shared: wide_shared(arch), ..launch }
                }
                // Thread blocks that go on until nothing is left, one for each multiprocessor.
                Kind::Group => {
                    let launch = large("group", if swiglu { 2 * blocks } else { blocks }, GROUP_TILE);
                    let tiles = launch.grid[0] as usize * launch.grid[1] as usize;
                    let grid = [tiles.min(product.multiprocessors as usize) as u32, 1, 1];
                    Launch { shared: GROUP_SHARED, threads: 512, grid, ..launch }
                }
                Kind::Affine => {
                    let launch = large("affine", if swiglu { 2 * blocks } else { blocks }, WIDE_TILE);
                    Launch { shared: AFFINE_SHARED, ..launch }
                }
                Kind::Tens => {
                    let tiles = if swiglu { blocks } else { blocks.div_ceil(2) };
                    let Some(tens) = Tens::of(codes, product, tiles) else { unreachable!("found to be tens") };
                    let launch = launch(format!("linear_{name}_{}", tens.name()), tens.grid(), tens.threads());
                    Launch { shared: tens.shared as u32, cluster: tens.ranks as u32, ..launch }
                }
                Kind::Batch => {
                    let launch = large("batch", if swiglu { 2 * blocks } else { blocks }, BATCH_TILE);
                    Launch { shared: BATCH_SHARED, ..launch }
                }
            },
        ));
        start += same;
    }
    launches
}

/// Whether a product of these parts can round its results as the input of a product over `next`, and that one reads no other
/// kind: both run as one launch of the streaming kernel, and every group of results has whole blocks.
pub(crate) fn rounds(parts: &[Shape], product: &Product, next: &[Shape], after: &Product) -> bool {
    let single = parts.len() == if product.swiglu { 2 } else { 1 };
    let stream = |parts: &[Shape], product| parts.iter().all(|part| Kind::of(*part, product) == Kind::Stream);
    single
        && product.clusters
        && parts[0].rows == after.cols
        && parts[0].rows.is_multiple_of(GROUP)
        && stream(parts, product)
        && stream(next, after)
}

/// Whether a product of one row runs as one launch that can do a convolution of its results, a channel a row of the weight.
pub(crate) fn convolves(parts: &[Shape], product: &Product) -> bool {
    let stream = parts.iter().all(|part| Kind::of(*part, product) == Kind::Stream);
    stream
        && parts.len() <= MAX_PARTS
        && !product.swiglu
        && product.rows == 1
        && Stream::of(product).is_some_and(|s| s.tile == 1)
}

/// Whether a product of these parts takes its norm as sums of squares beside its rounded input, from whoever made that.
pub(crate) fn takes_squares(parts: &[Shape], product: &Product) -> bool {
    product.cols.is_multiple_of(GROUP) && parts.iter().all(|part| Kind::of(*part, product) == Kind::Stream)
}

/// A streaming product with room for two of its blocks on a multiprocessor, where that is room for all of them. Behind a kernel with
/// few blocks its own begin early, as soon as there is room anywhere: with no more memory than they use they crowd where blocks of
/// the product in front end first, and the large product behind finds no room there.
pub(crate) fn spread(launch: Launch, parts: &[Shape], product: &Product) -> Launch {
    const BLOCKS: u32 = 2;
    // What the kernel declares and what the driver keeps of each block.
    const KEPT: u32 = 4 << 10;
    let streams = product.clusters && parts.iter().all(|part| Kind::of(*part, product) == Kind::Stream);
    let all = launch.grid[0] <= BLOCKS * product.multiprocessors;
    let shared = if streams && all { (product.shared / BLOCKS).saturating_sub(KEPT) } else { 0 };
    Launch { shared: launch.shared.max(shared), ..launch }
}

/// Blocks that hold a group of results.
pub(crate) const ROUNDING_CLUSTER: u32 = (GROUP / BLOCK_ROWS) as u32;

/// Whether a weight of these parts can be gate and up of one fused launch.
pub(crate) fn fuses_swiglu(parts: &[Shape]) -> bool {
    parts.len() == 2 && parts[0] == parts[1]
}

impl Codes {
    /// Whether scales, and integers for inputs, exist.
    pub(crate) fn is_packed(self) -> bool {
        !matches!(self, Codes::DenseF16 | Codes::DenseBf16 | Codes::DenseF32)
    }

    /// As in the names of kernels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Codes::Bits1 => "bits1",
            Codes::Bits2 => "bits2",
            Codes::Bits4 => "bits4",
            Codes::Bits8 => "bits8",
            Codes::DenseF16 => "f16",
            Codes::DenseBf16 => "bf16",
            Codes::DenseF32 => "f32",
        }
    }

    /// Weights in a 16-byte unit.
    pub(crate) fn per_unit(self) -> usize {
        match self {
            Codes::Bits1 => 128,
            Codes::Bits2 => 64,
            Codes::Bits4 => 32,
            Codes::Bits8 => 16,
            Codes::DenseF16 | Codes::DenseBf16 => 8,
            Codes::DenseF32 => 4,
        }
    }

    /// Units of a row of `cols` weights: packed rows are padded to whole records of [`GROUP`] columns.
    pub(crate) fn units(self, cols: usize) -> usize {
        let cols = if self.is_packed() { cols.next_multiple_of(GROUP) } else { cols };
        cols.div_ceil(self.per_unit())
    }
}

// ---- attention -----------------------------------------------------------------------------------------------------

/// Pages whose partial result is one: a split of the context.
pub(crate) const SPLIT_PAGES: usize = 4;

/// Warps of `attention_rows`, each with a row of its own.
const ROWS_A_BLOCK: usize = 4;

/// Warps that `attention_rows` should have at least to fill a device.
const FULL_DEVICE: usize = 2048;

/// Query heads of one reading of the keys.
const MOST_TOGETHER: usize = 4;
/// Warps of `attention_tile`, rows of one of them by the padded dimension of a head, and the shared memory of a thread block.
const TILE_WARPS: usize = 4;

fn attention_tile_queries(dim: usize) -> usize {
    if dim > 128 { 8 } else { 16 }
}

fn attention_tile_shared(dim: usize) -> usize {
    const KEY_DIMS: usize = 32;
    let stride = TILE_WARPS * attention_tile_queries(dim) + 4;
    (dim * stride + PAGE_ROWS * stride + 2 * KEY_DIMS * PAGE_ROWS) * size_of::<f32>()
}

/// Shared memory of a multiprocessor that every block takes beside its own.
const RESERVED: usize = 1 << 10;

/// Shared memory of a block of `attention_ring` for so many query heads of a key head, where there is such a kernel.
fn ring_shared(format: KvFormat, dim: usize, heads: usize) -> Option<usize> {
    // Dimensions of a piece of the keys and pieces of a warp's ring, as in `attention_ring.cu`.
    let (dims, stages) = match (format, dim, heads) {
        (KvFormat::F16, 256, 6) | (KvFormat::F16, 128, 4) => (32, 2),
        (KvFormat::Q8, 256, 6) | (KvFormat::Q8, 128, 4) => (64, 2),
        _ => return None,
    };
    let barrier = size_of::<u64>();
    let ring = stages * (PAGE_ROWS * format.head_bytes(dims) + barrier);
    // Weights, largest score and sum of a head, and two factors of each page.
    let of_head = (PAGE_ROWS + 2 + 2 * SPLIT_PAGES) * size_of::<f32>();
    Some(heads * dim * size_of::<f32>() + SPLIT_PAGES * (ring + heads * of_head))
}

/// Most thread blocks of splits of single heads, about what a large device holds at a time.
const FEW_SPLITS: usize = 1024;

/// At least the bytes of shared memory that `attention_one_*` declare.
const ONE_DECLARES: usize = 17 << 10;

/// Blocks of a head that `attention_one_*` has at least, as far as all have room at once: with much shared memory each, they keep the
/// product behind from beginning before those of the product in front have left their multiprocessors, where it would crowd
/// ([`spread`]). They end at once where there are no tokens for them (one H200, `lab/cuda/decode.md`).
const LEAST_BLOCKS: usize = 9;

/// Shape of an attention op in a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionShape {
    pub rows: usize,
    /// Most tokens of a sequence.
    pub context: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub format: KvFormat,
    pub arch: Arch,
    /// Most bytes of shared memory of a thread block.
    pub shared: u32,
    pub multiprocessors: u32,
}

/// Launches of an attention op, in order: appending to the pages, then one or two more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttentionLaunches {
    pub launches: Vec<Launch>,
    /// Bytes behind `AttentionParams::partials`; may be 0.
    pub partials_bytes: usize,
    /// `AttentionParams::splits`.
    pub splits: u32,
    /// Whether the results can become the input of a product at once: of the launches, and of `one`.
    pub rounds: [bool; 2],
    /// Of a step with one row and little to do: all of them as one, from queries and keys that are still to be normed and turned.
    pub one: Option<Launch>,
    /// `AttentionParams::staged` of that one.
    pub staged: u32,
    /// `AttentionParams::short_splits`.
    pub short_splits: u32,
}

/// What an attention op becomes.
///
/// # Errors
/// A head dimension that is no multiple of 8 or larger than 256.
pub(crate) fn attention(shape: AttentionShape) -> Result<AttentionLaunches, OpError> {
    let AttentionShape { rows, context, heads, kv_heads, dim, format, arch, shared, multiprocessors } = shape;
    if !dim.is_multiple_of(8) || dim == 0 || dim > 256 {
        return Err(OpError::Shape {
            op: "attention",
            what: "dimension of a head on cuda".to_owned(),
            wanted: "a multiple of 8 up to 256".to_owned(),
            got: dim.to_string(),
        });
    }
    let name = format_name(format);
    let append = launch(format!("kv_append_{name}"), [rows, kv_heads.div_ceil(4), 2], 128);
    // Values of one lane, and query heads that share a reading of the keys.
    let lane = (dim.div_ceil(32)).next_power_of_two().max(2);
    let group = heads / kv_heads;
    let splits = context.div_ceil(SPLIT_PAGES * PAGE_ROWS).max(1);
    // With little to do, a warp does one head: its own time is what counts then.
    let few = rows * heads * splits <= FEW_SPLITS;
    let together = if few { 1 } else { group.div_ceil(group.div_ceil(MOST_TOGETHER)) };
    let passes = kv_heads * group.div_ceil(together);
    let suffix = format!("{name}_d{}", lane * 32);
    let mut launches = vec![append];
    let (mut partials_bytes, mut short_splits) = (0, 0);
    let tiled = rows >= PROMPT_ROWS && arch >= Arch::Sm80;
    if tiled {
        let dim = (lane * 32).max(64);
        let tile = launch(format!("attention_tile_{name}_d{dim}"), [heads, step_tiles(rows), 1], 32 * TILE_WARPS);
        launches.push(Launch { shared: attention_tile_shared(dim) as u32, ..tile });
    }
    if !tiled && (splits == 1 || rows * passes < FULL_DEVICE) {
        let ring = (splits > 1 && !few && arch >= Arch::Sm90a).then(|| ring_shared(format, dim, group)).flatten();
        launches.push(match ring {
            Some(needed) => {
                let (most, blocks) = (shared as usize + RESERVED, rows * kv_heads * splits);
                // More memory than it needs where not every multiprocessor has as many blocks as have room: they would crowd.
                let each = blocks.div_ceil(multiprocessors as usize).clamp(2, most / (needed + RESERVED));
                let spread = each < most / (needed + RESERVED);
                let enough = match format {
                    KvFormat::F16 if !spread => 40,
                    _ if !spread => 16,
                    _ => 4,
                };
                short_splits = (enough / rows).min(splits);
                // A block a split and key head, or half of the heads of a short context.
                let grid = [rows, kv_heads * splits.max(2 * short_splits), 1];
                let kernel = format!("attention_ring_{suffix}_h{group}");
                Launch { shared: (most / each - RESERVED) as u32 / 128 * 128, ..launch(kernel, grid, 32 * SPLIT_PAGES) }
            }
            None => launch(format!("attention_split_{suffix}_h{together}"), [rows, passes, splits], 32 * SPLIT_PAGES),
        });
        if splits > 1 {
            launches.push(match rows * heads <= multiprocessors as usize {
                true => launch("attention_combine_few", [rows, heads, dim.div_ceil(GROUP)], 256),
                false => launch("attention_combine", [rows, heads, 1], 256),
            });
            partials_bytes = rows * heads * splits * (dim + 2) * 4;
        }
    } else {
        let grid = [rows.div_ceil(ROWS_A_BLOCK), passes, 1];
        launches.push(launch(format!("attention_rows_{suffix}_h{together}"), grid, 32 * ROWS_A_BLOCK));
    }
    // Keys, or keys and values, of a split are copied to shared memory where there is room beside what the kernel declares.
    let stage = SPLIT_PAGES * PAGE_ROWS * format.head_bytes(dim);
    let staged = (shared as usize).saturating_sub(ONE_DECLARES).checked_div(stage).unwrap_or(0).min(2);
    // A turn of the device; with more tokens a block has several splits, one after another.
    let one = (rows == 1 && few).then(|| Launch {
        shared: (staged * stage) as u32,
        ..launch(
            format!("attention_one_{suffix}"),
            [1, heads, splits.max(LEAST_BLOCKS).min(multiprocessors as usize / heads)],
            // Two warps a page where a lane has a pair of dimensions for each.
            32 * SPLIT_PAGES * if lane >= 4 { 2 } else { 1 },
        )
    });
    if one.is_some() {
        partials_bytes = heads * splits * (dim + 2) * 4;
    }
    // Whoever joins splits has whole groups of a head.
    let joins = launches.last().is_some_and(|last| last.kernel.starts_with("attention_combine")) && rows <= MOST_ROWS;
    let rounds = [joins, one.is_some()].map(|joins| joins && dim.is_multiple_of(GROUP));
    Ok(AttentionLaunches {
        launches,
        partials_bytes,
        splits: if tiled { 0 } else { splits as u32 },
        rounds,
        one,
        staged: staged as u32,
        short_splits: short_splits as u32,
    })
}

/// `heads_append_*`: a warp a row and head.
pub(crate) fn heads_append(rows: usize, heads: usize, format: KvFormat) -> Launch {
    launch(format!("heads_append_{}", format_name(format)), [rows, heads.div_ceil(4), 1], 128)
}

fn format_name(format: KvFormat) -> &'static str {
    match format {
        KvFormat::F32 => "f32",
        KvFormat::F16 => "f16",
        KvFormat::Q8 => "q8",
        KvFormat::Q4 => "q4",
    }
}

/// [`crate::params::AttentionParams::format`] of a format.
pub(crate) fn kv_format(format: KvFormat) -> u32 {
    match format {
        KvFormat::F32 => kv_format::F32,
        KvFormat::F16 => kv_format::F16,
        KvFormat::Q8 => kv_format::Q8,
        KvFormat::Q4 => kv_format::Q4,
    }
}

/// Bytes of one page in one layer, keys and values of all heads.
pub(crate) fn page_bytes(format: KvFormat, kv_heads: usize, dim: usize) -> usize {
    2 * kv_heads * PAGE_ROWS * format.head_bytes(dim)
}

/// Blocks that share the tiles of a step: one each, but for steps of very many short segments.
fn step_tiles(rows: usize) -> usize {
    rows.min(rows.div_ceil(TILE_ROWS) + 31)
}

// ---- recurrent state -----------------------------------------------------------------------------------------------

/// `conv_silu`: tiles are shared among the blocks of the second dimension.
///
/// # Errors
/// A kernel that reaches back further than a tile.
pub(crate) fn conv_silu(rows: usize, channels: usize, kernel: usize) -> Result<Launch, OpError> {
    if kernel > TILE_ROWS {
        return Err(OpError::Shape {
            op: "conv_silu",
            what: "kernel size on cuda".to_owned(),
            wanted: format!("up to {TILE_ROWS}"),
            got: kernel.to_string(),
        });
    }
    Ok(launch("conv_silu", [channels.div_ceil(128), step_tiles(rows), 1], 128))
}

// ---- image models --------------------------------------------------------------------------------------------------

/// `modulate`, `gated_add` or `rotate_pairs`: a block a row.
pub(crate) fn each_row(kernel: &str, rows: usize) -> Launch {
    launch(kernel, [rows, 1, 1], THREADS)
}

/// Rows of a chunk of a group norm's statistics.
pub(crate) const NORM_CHUNK: usize = 64;

/// `group_sums`, then `group_norm`.
pub(crate) fn group_norm(rows: usize, groups: usize) -> [Launch; 2] {
    [launch("group_sums", [rows.div_ceil(NORM_CHUNK), 1, 1], THREADS), launch("group_norm", [groups, 1, 1], THREADS)]
}

/// `full_attention`: some queries of one head a block, and a slice of the values where heads are wide.
///
/// # Errors
/// A head dimension above 512.
pub(crate) fn full_attention(rows: usize, heads: usize, dim: usize) -> Result<Launch, OpError> {
    const WARPS: usize = 4;
    const KEYS: usize = 64;
    const KEY_DIMS: usize = 32;
    if dim > 512 {
        return Err(OpError::Shape {
            op: "full_attention",
            what: "dimension of a head on cuda".to_owned(),
            wanted: "up to 512".to_owned(),
            got: dim.to_string(),
        });
    }
    let padded = dim.next_power_of_two().max(64);
    let queries = WARPS * if padded > 128 { 8 } else { 16 };
    let shared = ((padded + KEYS) * (queries + 4) + 2 * KEY_DIMS * KEYS) * size_of::<f32>();
    let grid = [heads, rows.div_ceil(queries), dim.div_ceil(256)];
    Ok(Launch { shared: shared as u32, ..launch(format!("full_attention_d{padded}"), grid, 32 * WARPS) })
}

/// Attention between all rows on the matrix units, and the memory that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Halves {
    /// `largest_halves`, `split_halves`, `full_attention_halves`.
    pub launches: [Launch; 3],
    /// Of a head, padded, and rows of each head's halves.
    pub dim: usize,
    pub padded_rows: usize,
    /// Blocks of rows that the first two have.
    pub blocks: usize,
}

/// `full_attention` on the matrix units; `None` for a few rows, and where a block's queries have no room.
pub(crate) fn full_attention_halves(rows: usize, heads: usize, dim: usize, most_shared: u32) -> Option<Halves> {
    const ROWS: usize = 64;
    const KEYS: usize = 32;
    const STAGES: usize = 4;
    const CHUNK: usize = 128;
    let dim = dim.next_power_of_two().max(64);
    let chunk = dim.min(CHUNK);
    // High and low halves of each value.
    let shared = (ROWS * dim + STAGES * KEYS * chunk) * size_of::<f32>();
    if rows < ROWS || dim > 512 || shared > most_shared as usize {
        return None;
    }
    let blocks = rows.div_ceil(ROWS);
    let attention = launch(format!("full_attention_halves_d{dim}"), [blocks, heads, dim / chunk], 128);
    let split = |kernel: &str| launch(kernel, [blocks, heads, 3], THREADS);
    let launches = [split("largest_halves"), split("split_halves"), Launch { shared: shared as u32, ..attention }];
    Some(Halves { launches, dim, padded_rows: blocks * ROWS, blocks })
}

/// What decides about the kernel of a convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Convolution {
    /// Of the result.
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub outputs: usize,
    pub kernel: usize,
    pub codes: Codes,
    /// Whether a row of the input begins at 16 bytes.
    pub aligned: bool,
}

/// `conv2d`: on the matrix units where weights are bf16 and channels come in whole pieces.
pub(crate) fn conv2d(of: Convolution) -> Launch {
    let Convolution { height, width, channels, outputs, kernel, codes, aligned } = of;
    // Channels of a turn, and the bytes of two turns: the pixels that a rectangle of 8 x 16 sees, and the weights.
    let (together, seen) = if kernel == 3 { (16, 10 * 18) } else { (32, 8 * 16) };
    if codes == Codes::DenseBf16 && channels.is_multiple_of(together) && aligned {
        const OUTPUTS: usize = 128;
        let grid = [height.div_ceil(8) * width.div_ceil(16), outputs.div_ceil(OUTPUTS), 1];
        let turn = seen * together * 4 + kernel * kernel * together * OUTPUTS * 2;
        let shared = 2 * turn as u32;
        return Launch { shared, ..launch(format!("conv2d_pieces_k{kernel}"), grid, THREADS) };
    }
    const PIXELS: usize = 128;
    const OUTPUTS: usize = 64;
    let grid = [(height * width).div_ceil(PIXELS), outputs.div_ceil(OUTPUTS), 1];
    launch(format!("conv2d_{}", codes.name()), grid, THREADS)
}

// ---- the choice of a token -----------------------------------------------------------------------------------------

/// `sample_scan` and `sample` for up to `logits` rows; `SampleParams::scratch` holds `logits * vocab` words.
pub(crate) fn sample(logits: usize, vocab: usize) -> [Launch; 2] {
    let scan = launch("sample_scan", [vocab.div_ceil(SAMPLE_SHARE), logits, 1], THREADS);
    [scan, launch("sample", [logits, 1, 1], 1024)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BINARY: Shape = Shape { codes: Codes::Bits1, group: 128, rows: 64, plain: true, affine: false };

    fn product(rows: usize, cols: usize, activations: Activations, swiglu: bool, arch: Arch) -> Product {
        let shared = if arch == Arch::Sm90a { 227 << 10 } else { 99 << 10 };
        Product { rows, cols, activations, swiglu, arch, shared, multiprocessors: 132, clusters: true }
    }

    fn kernels(parts: &[Shape], product: &Product) -> Vec<Launch> {
        linear(parts, product).into_iter().map(|(_, launch)| launch).collect()
    }

    #[test]
    fn few_rows_take_the_matrix_units_where_they_take_bits() {
        let name = |rows, kind, arch| kernels(&[BINARY], &product(rows, 4096, kind, false, arch))[0].kernel.clone();
        let (eight, nine) = (Activations::I8G128, Activations::I9G128);
        assert_eq!(name(1, eight, Arch::Sm80), "linear_bits1_stream_m1");
        assert_eq!(name(5, eight, Arch::Sm90a), "linear_bits1_stream_m8");
        assert_eq!(name(1, eight, Arch::Sm75), "linear_bits1_i8_quads_m1");
        assert_eq!(name(5, nine, Arch::Sm90a), "linear_bits1_i9_quads_m4");
        assert_eq!(name(9, eight, Arch::Sm90a), "linear_bits1_tens16_split3");
        assert_eq!(name(96, eight, Arch::Sm90a), "linear_bits1_tens32_split3");
        assert_eq!(name(9, nine, Arch::Sm90a), "linear_bits1_i9_batch");
        assert_eq!(name(9, eight, Arch::Sm89), "linear_bits1_i8_batch");
        assert_eq!(name(9, eight, Arch::Sm75), "linear_bits1_i8_wide");
        assert_eq!(name(65, nine, Arch::Sm90a), "linear_bits1_i9_wide");
        assert_eq!(name(65, eight, Arch::Sm89), "linear_bits1_i8_wide");
        assert_eq!(name(145, eight, Arch::Sm90a), "linear_bits1_i8_group");
        assert_eq!(name(145, eight, Arch::Sm89), "linear_bits1_i8_wide");
        assert_eq!(name(3, Activations::F32, Arch::Sm90a), "linear_bits1_f32_m4");
    }

    #[test]
    fn scales_of_less_than_a_record_take_a_lane_a_row() {
        let parts = [BINARY, Shape { group: 64, ..BINARY }, BINARY, Shape { plain: false, ..BINARY }];
        let all = kernels(&parts, &product(2, 4096, Activations::I8G128, false, Arch::Sm90a));
        let names: Vec<&str> = all.iter().map(|launch| launch.kernel.as_str()).collect();
        let stream = "linear_bits1_stream_m2";
        assert_eq!(names, [stream, "linear_bits1_i8_m2", stream, "linear_bits1_i8_quads_m2"]);
    }

    #[test]
    fn a_warp_has_a_slice_as_far_as_a_block_has_warps() {
        let threads = |cols, parts: &[Shape], swiglu| {
            kernels(parts, &product(1, cols, Activations::I9G128, swiglu, Arch::Sm90a))[0].threads
        };
        assert_eq!((slices(5120), slices(6144)), (8, 16));
        assert_eq!(threads(5120, &[BINARY], false), 256);
        assert_eq!(threads(5120, &[BINARY; 2], true), 512);
        assert_eq!(threads(6144, &[BINARY], false), 512);
        assert_eq!(threads(6144, &[BINARY; 2], true), 512);
    }
}
