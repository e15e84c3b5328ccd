//! What the kernels are handed: `kernels/params.cuh`, field by field. `kernels/README.md` draws the memory that the
//! addresses lead to.

/// An address on the device; 0 where `params.cuh` speaks of null.
pub(crate) type Address = u64;

/// No such index.
pub(crate) const NONE: u32 = u32::MAX;

/// Rows of a block of a weight.
pub(crate) const BLOCK_ROWS: usize = 32;

/// Columns of a record of a weight, and of an activation group.
pub(crate) const GROUP: usize = 128;

/// Rows of a [`Tile`].
pub(crate) const TILE_ROWS: usize = 16;

/// Rows of a tile of [`Prepared::tiles`].
pub(crate) const TENS_ROWS: usize = 32;

/// Most parts of one launch of a product or of a table.
pub(crate) const MAX_PARTS: usize = 8;

/// How codes are stored: [`Part::format`].
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Codes {
    Bits1 = 0,
    Bits2 = 1,
    Bits4 = 2,
    Bits8 = 3,
    DenseF16 = 4,
    DenseBf16 = 5,
    DenseF32 = 6,
}

/// Stored type of scales and biases: [`Part::scale_type`].
pub(crate) mod param_type {
    pub(crate) const F16: u32 = 0;
    pub(crate) const BF16: u32 = 1;
    pub(crate) const F32: u32 = 2;
}

/// What `prepare` makes: bits of [`PrepareParams::wanted`].
pub(crate) mod wanted {
    pub(crate) const FLOATS: u32 = 1;
    pub(crate) const INT8: u32 = 2;
    pub(crate) const INT9: u32 = 4;
    pub(crate) const PLANES: u32 = 8;
    pub(crate) const TILES: u32 = 16;
}

/// What the values are that `prepare` takes: [`PrepareParams::input`].
pub(crate) mod input {
    pub(crate) const PLAIN: u32 = 0;
    /// Normed as a row.
    pub(crate) const NORM: u32 = 1;
    /// Normed by blocks of GROUP values, times silu(gate).
    pub(crate) const GATED_NORM: u32 = 2;
    /// Times sigmoid(gate).
    pub(crate) const SIGMOID: u32 = 3;
}

/// What happens to a product: [`LinearParams::epilogue`].
pub(crate) mod epilogue {
    pub(crate) const STORE: u32 = 0;
    pub(crate) const RESIDUAL: u32 = 1;
    /// There are two parts of equal rows, gate and up.
    pub(crate) const SWIGLU: u32 = 2;
}

/// [`AttentionParams::format`].
pub(crate) mod kv_format {
    pub(crate) const F32: u32 = 0;
    pub(crate) const F16: u32 = 1;
    pub(crate) const Q8: u32 = 2;
    pub(crate) const Q4: u32 = 3;
}

/// [`DeltaParams::map`].
pub(crate) mod head_map {
    pub(crate) const GROUPED: u32 = 0;
    pub(crate) const TILED: u32 = 1;
}

/// How much of the plan's largest step this one uses.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepHeader {
    pub rows: u32,
    pub logits: u32,
    pub segments: u32,
    pub tiles: u32,
    /// Memory of the host where the tokens that the step chooses are put as well; or 0.
    pub host: Address,
}

/// Units of 16 bytes that [`InputsParams`] have room for.
pub(crate) const INPUT_UNITS: usize = 240;

/// Of `inputs`: a step's inputs by value, and where they go.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputsParams {
    pub to: Address,
    pub units: u32,
    pub reserved: u32,
    pub data: [[u8; 16]; INPUT_UNITS],
}

impl Default for InputsParams {
    fn default() -> Self {
        InputsParams { to: 0, units: 0, reserved: 0, data: [[0; 16]; INPUT_UNITS] }
    }
}

/// The rows of one sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Segment {
    pub first_row: u32,
    pub rows: u32,
    pub past: u32,
    /// Index of its first page in `Step::pages`.
    pub first_page: u32,
    pub slot: u32,
    /// Rows of the pending area `pending_read` that enter the state before this step.
    pub accepted: u32,
    pub speculative: u32,
    /// Pending areas: the one that holds the guesses of the step before, and another one that a speculative step fills.
    pub pending_read: u32,
    pub pending_write: u32,
}

/// Up to [`TILE_ROWS`] consecutive rows of one segment; every row of the step is in exactly one tile.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tile {
    pub segment: u32,
    /// Index in the segment of its first row.
    pub first: u32,
}

/// How one logit row becomes a token; see `onebit_ops` for what the numbers mean.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Draw {
    pub uniform: f64,
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub top_k: u32,
    /// Changes to single logits: a range of `Step::adjust`.
    pub adjust_first: u32,
    pub adjust_count: u32,
    /// First word of its mask in `Step::masks`, or NONE.
    pub mask_first: u32,
    pub reserved: u32,
}

/// A change to one logit.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Adjust {
    pub token: u32,
    pub bias: f32,
    pub divide: f32,
    pub subtract: f32,
}

/// What sampling gives for a logit row; `token` is [`NONE`] where the logits were not finite.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sampled {
    pub token: u32,
    pub logprob: f32,
}

/// The arrays of the step-input buffer.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Step {
    pub header: Address,
    /// One a row.
    pub tokens: Address,
    /// One a row: the logit row of the step before whose sampled token this row takes, or NONE.
    pub carried: Address,
    /// Three a row: time, height, width.
    pub positions: Address,
    /// One a row: its segment.
    pub row_segment: Address,
    /// One a logit row: its row.
    pub logit_rows: Address,
    pub segments: Address,
    pub tiles: Address,
    pub pages: Address,
    /// One a logit row.
    pub draws: Address,
    pub adjust: Address,
    pub masks: Address,
}

/// Columns of a temporary: `heads` blocks of `dim` values whose starts lie `head_stride` apart.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct View {
    pub data: Address,
    pub row_stride: u32,
    pub heads: u32,
    pub dim: u32,
    pub head_stride: u32,
}

/// What the rounded bias of one group of one row lacks.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Residual {
    /// Row in the block (5 bits) and group above.
    pub place: u32,
    pub value: f32,
}

/// One part of a weight, in one layout. Packed: `weight = factor * scale * (2 * code - center)` without biases,
/// `scale * code + bias` with them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    pub codes: Address,
    pub scales: Address,
    /// Null where they follow from the scales.
    pub biases: Address,
    /// Blocks + 1 indices into `residuals`, or null.
    pub residual_first: Address,
    pub residuals: Address,
    pub rows: u32,
    /// Its first row in the weight.
    pub first_row: u32,
    /// Blocks of the parts before it in the launch.
    pub first_block: u32,
    /// A value of `Codes`.
    pub format: u32,
    /// Columns that share a scale: 32, 64 or 128; 0 for dense.
    pub group: u32,
    /// Groups of a row, padded to whole records of GROUP columns.
    pub groups: u32,
    /// 16-byte units of codes in a row, padded to whole records when packed.
    pub units: u32,
    /// Values of `ParamType`.
    pub scale_type: u32,
    pub bias_type: u32,
    /// Half of what the stored scale is multiplied by.
    pub factor: f32,
    /// Twice the code whose weight is zero: 1, 2, 16, 256 for 1, 2, 4, 8 bits.
    pub center: u32,
    pub reserved: u32,
}

/// Activation rows as products read them: `padded` columns each, zeros behind `cols`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prepared {
    pub floats: Address,
    /// Sums of 32 floats.
    pub float_sums: Address,
    /// Rounded values; their halves rounded down, with nine bits.
    pub codes: Address,
    /// The lowest bits of 32 values, with nine bits: value e at bit e / 4 + 8 * (e % 4).
    pub low: Address,
    /// The eight binary digits of the values of a record, eight times 128 bits: digit d of value e of the 32 of word w at bit
    /// e / 4 + 8 * (e % 4) of word 4 d + w.
    pub planes: Address,
    /// The rounded values once more, in the order of Hopper's matrix units: for each TENS_ROWS rows and record 128 bytes a row.
    /// Columns 4 k.. of the 32 of word w stand in word w of the k-th 16 bytes; these are exchanged by the row's number modulo 8.
    pub tiles: Address,
    /// What goes with each of these: TENS_ROWS scales, and as many times the bits of 1.5 * 2^23 plus 64 times the sum of a
    /// row's codes.
    pub beside: Address,
    /// One for each GROUP.
    pub scales: Address,
    /// Sums of 32 rounded values.
    pub sums: Address,
    /// Sums of the squares of 32 values before they were multiplied with gains. Not null: `1 / rms` of the row, which they
    /// give, is still to be taken into the scales. The values as they came are needed where squares leave the range of floats.
    pub squares: Address,
    pub raw: Address,
    pub raw_stride: u32,
    pub eps: f32,
    pub cols: u32,
    /// A multiple of GROUP.
    pub padded: u32,
}

/// Of `embed`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EmbedParams {
    pub step: Step,
    /// What the step before sampled.
    pub sampled: Address,
    pub out: Address,
    pub cols: u32,
    pub part_count: u32,
    pub parts: [Part; MAX_PARTS],
    /// What makes the rows, which are whole groups then, the next product's input, but for their norm; or nothing is wanted.
    pub next: PrepareParams,
}

/// Of `add`, `swiglu` (a: gate, b: up), `sigmoid_mul` (a: x, b: gate) and `pack` (a alone).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PointwiseParams {
    /// The step's count that says how many rows there are.
    pub rows: Address,
    pub a: View,
    pub b: View,
    pub out: Address,
    pub out_stride: u32,
    pub reserved: u32,
}

/// Of `select_rows`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SelectRowsParams {
    pub step: Step,
    pub x: View,
    pub out: Address,
    pub out_stride: u32,
    pub reserved: u32,
}

/// Of `rms_norm_*`, and with z of `gated_norm_*`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NormParams {
    pub rows: Address,
    pub x: View,
    pub z: View,
    pub gain: Address,
    pub out: Address,
    pub out_stride: u32,
    pub eps: f32,
}

/// One pair of a rotary table.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RopePair {
    pub inv_freq: f32,
    /// 0 time, 1 height, 2 width.
    pub axis: u32,
}

/// Of `rope`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RopeParams {
    pub rows: Address,
    pub positions: Address,
    pub x: View,
    pub table: Address,
    pub out: Address,
    pub pairs: u32,
    pub attention_factor: f32,
    pub out_stride: u32,
    pub reserved: u32,
}

/// Of `prepare`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PrepareParams {
    pub rows: Address,
    pub x: View,
    pub gate: View,
    pub gain: Address,
    pub out: Prepared,
    pub eps: f32,
    /// Bits of [`wanted`].
    pub wanted: u32,
    /// A value of [`input`].
    pub input: u32,
    pub reserved: u32,
}

/// Of every `linear_*`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LinearParams {
    pub rows: Address,
    pub x: Prepared,
    pub residual: View,
    pub out: Address,
    pub out_stride: u32,
    /// A value of `Epilogue`. For SWIGLU there are two parts of equal rows: gate and up.
    pub epilogue: u32,
    pub part_count: u32,
    /// Equal slices of a row, summed up each for itself.
    pub slices: u32,
    /// Where its results go rounded, as the input of the next product; `planes` null: nowhere.
    pub next: Prepared,
    /// What they are multiplied with before; null: nothing.
    pub next_gain: Address,
    /// Its first columns are the channels of a convolution of one row, which runs at once; `weight` null: none. Its view of
    /// inputs is not looked at.
    pub conv: ConvParams,
    /// Of the streaming kernels: whether the kernel behind this one may begin only when this one has all of its input.
    pub alone: u32,
    pub reserved: u32,
    pub parts: [Part; MAX_PARTS],
}

/// Of `kv_append_*`, `attention_split_*`, `attention_ring_*`, `attention_rows_*` and `attention_combine*`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AttentionParams {
    pub step: Step,
    pub q: View,
    pub k: View,
    pub v: View,
    /// Page 0 of this layer.
    pub pages: Address,
    /// One partial result for each row, query head and split: maximum, sum, then `dim` values.
    pub partials: Address,
    /// Of `attention_one_*`: for each query head the splits that are done, 0 between kernels.
    pub counters: Address,
    pub out: Address,
    pub page_stride: u64,
    pub out_stride: u32,
    /// A value of `KvFormat`.
    pub format: u32,
    pub scale: f32,
    /// Splits of SPLIT_PAGES pages that the plan's context has.
    pub splits: u32,
    /// Of `attention_one_*`: 1 where keys are copied to shared memory, 2 where values are, too.
    pub staged: u32,
    pub short_splits: u32,
    /// What is made of the results at once, as a product's input, by the kernel that finishes them; `wanted` 0: nothing.
    pub next: PrepareParams,
}

/// Of `heads_append_*`: what lies between a projection and attention.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeadsParams {
    /// Its q, k and v are those of the projection.
    pub attention: AttentionParams,
    /// Null: no norm.
    pub q_gain: Address,
    pub k_gain: Address,
    pub table: Address,
    pub q_out: Address,
    pub q_eps: f32,
    pub k_eps: f32,
    pub pairs: u32,
    pub attention_factor: f32,
    pub q_stride: u32,
    pub reserved: u32,
}

/// Of `conv_silu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConvParams {
    pub step: Step,
    pub x: View,
    pub weight: Address,
    /// Of this layer in slot 0.
    pub windows: Address,
    /// Of this layer in pending area 0: raw inputs, one row of `channels` each.
    pub pending: Address,
    pub out: Address,
    /// Floats between slots and between areas.
    pub slot_stride: u64,
    pub pending_stride: u64,
    pub kernel: u32,
    pub out_stride: u32,
}

/// Of `delta_gates`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeltaGatesParams {
    pub rows: Address,
    pub a: View,
    pub b: View,
    pub decay_rate: Address,
    pub dt_bias: Address,
    pub log_decay: Address,
    pub beta: Address,
}

/// Of `gated_delta_*`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeltaParams {
    pub step: Step,
    pub q: View,
    pub k: View,
    pub v: View,
    /// Log decay and beta; or, where `decay_rate` is not null, what they are made of: a and b of [`DeltaGatesParams`].
    pub log_decay: View,
    pub beta: View,
    pub decay_rate: Address,
    pub dt_bias: Address,
    /// Of this layer in slot 0: (heads, key_dim, value_dim).
    pub states: Address,
    /// Of this layer in pending area 0: rows of raw keys (key heads, key_dim), values (heads, value_dim), log decays, betas.
    pub pending: Address,
    pub out: Address,
    /// Where `delta_make` puts what `delta_rows` reads.
    pub made: Address,
    pub slot_stride: u64,
    pub pending_stride: u64,
    /// Floats of a pending row.
    pub pending_row: u32,
    pub out_stride: u32,
    /// A value of `HeadMap`.
    pub map: u32,
    pub eps: f32,
    /// Where results are rounded: what makes them the next product's input, behind a gated norm.
    pub next: PrepareParams,
}

/// Logits that one block of `sample_scan` looks at, and the bytes of what it finds.
pub(crate) const SAMPLE_SHARE: usize = 2048;
pub(crate) const SAMPLE_SHARE_BYTES: usize = 24;

/// Of `sample_scan` and `sample`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SampleParams {
    pub step: Step,
    pub logits: View,
    /// A word for each logit.
    pub scratch: Address,
    /// Of each row, one after another: what blocks find in [`SAMPLE_SHARE`] logits each, [`SAMPLE_SHARE_BYTES`].
    pub shares: Address,
    pub sampled: Address,
}
/// Of `modulate` (a: scale, b: shift, of one row each) and `gated_add` (a: gate of one row, b: y).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MixParams {
    pub rows: Address,
    pub x: View,
    pub a: View,
    pub b: View,
    pub out: Address,
    pub out_stride: u32,
    pub eps: f32,
}

/// Most columns of a group norm.
pub(crate) const MOST_CHANNELS: usize = 1024;

/// Of `group_sums` and `group_norm`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupNormParams {
    pub rows: Address,
    pub x: View,
    pub gain: Address,
    pub bias: Address,
    /// Sum and sum of squares of each group of each chunk, as doubles.
    pub partials: Address,
    pub out: Address,
    pub groups: u32,
    pub eps: f32,
    /// Rows of a chunk, and how many chunks there are.
    pub chunk: u32,
    pub chunks: u32,
}

/// Of `full_attention`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct FullAttentionParams {
    pub rows: Address,
    pub q: View,
    pub k: View,
    pub v: View,
    pub out: Address,
    pub out_stride: u32,
    pub scale: f32,
    /// Keys that are seen at most; with `causal` none behind the row.
    pub keys: u32,
    pub causal: u32,
}

/// Of `largest_halves`, `split_halves` and `full_attention_halves`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HalvesParams {
    pub rows: Address,
    pub q: View,
    pub k: View,
    pub v: View,
    /// Of queries, keys and values.
    pub halves: [Address; 3],
    pub largest: Address,
    pub factors: Address,
    pub out: Address,
    pub out_stride: u32,
    pub scale: f32,
    /// Of a head, padded.
    pub dim: u32,
    pub padded_rows: u32,
}

/// Of `conv2d` and `conv2d_pieces`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conv2dParams {
    /// One block of columns.
    pub x: View,
    /// Without data: none.
    pub residual: View,
    /// Factors, then offsets of the channels; 0: none.
    pub affine: Address,
    pub bias: Address,
    pub out: Address,
    /// Dense.
    pub part: Part,
    /// Of the result.
    pub height: u32,
    pub width: u32,
    pub kernel: u32,
    /// How often a pixel of the input stands in each direction.
    pub times: u32,
    pub channels: u32,
    pub silu: u32,
    pub out_stride: u32,
    pub reserved: u32,
}

// The same numbers stand in `params.cuh`.
const _: () = {
    use std::mem::size_of;
    assert!(size_of::<StepHeader>() == 24);
    assert!(size_of::<InputsParams>() == 3856);
    assert!(size_of::<Segment>() == 36);
    assert!(size_of::<Tile>() == 8);
    assert!(size_of::<Draw>() == 40);
    assert!(size_of::<Adjust>() == 16);
    assert!(size_of::<Sampled>() == 8);
    assert!(size_of::<Step>() == 96);
    assert!(size_of::<View>() == 24);
    assert!(size_of::<Residual>() == 8);
    assert!(size_of::<Part>() == 88);
    assert!(size_of::<Prepared>() == 104);
    assert!(size_of::<EmbedParams>() == 1008);
    assert!(size_of::<PointwiseParams>() == 72);
    assert!(size_of::<SelectRowsParams>() == 136);
    assert!(size_of::<NormParams>() == 80);
    assert!(size_of::<RopePair>() == 8);
    assert!(size_of::<RopeParams>() == 72);
    assert!(size_of::<PrepareParams>() == 184);
    assert!(size_of::<LinearParams>() == 1160);
    assert!(size_of::<AttentionParams>() == 416);
    assert!(size_of::<ConvParams>() == 176);
    assert!(size_of::<DeltaGatesParams>() == 88);
    assert!(size_of::<DeltaParams>() == 480);
    assert!(size_of::<HeadsParams>() == 472);
    assert!(size_of::<SampleParams>() == 144);
    assert!(size_of::<MixParams>() == 96);
    assert!(size_of::<GroupNormParams>() == 80);
    assert!(size_of::<FullAttentionParams>() == 104);
    assert!(size_of::<HalvesParams>() == 144);
    assert!(size_of::<Conv2dParams>() == 192);
};
