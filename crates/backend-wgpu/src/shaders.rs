//! From `shaders/` to the text of a kernel: its constants, then the files that it includes, one after the other.

use onebit_ops::{Activations, KvFormat};
use onebit_quant::ParamType;
use std::fmt::Write;

/// A constant of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    Number(u32),
    Flag(bool),
}

/// How one binding of a kernel is used; the first one always holds its constants of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A file of kernels with what it includes and binds.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// Its entry point too.
    pub name: &'static str,
    files: &'static [&'static str],
    pub bindings: &'static [Access],
}

/// A kernel: a source with its constants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub source: &'static Source,
    pub constants: Vec<(&'static str, Value)>,
}

const ROWS: &str = include_str!("../shaders/rows.wgsl");
const SUM: &str = include_str!("../shaders/sum.wgsl");
const COMMON: &str = include_str!("../shaders/common.wgsl");
const KV: &str = include_str!("../shaders/kv.wgsl");
const HALF: &str = include_str!("../shaders/half.wgsl");
const KV_STORE: &str = include_str!("../shaders/kv_store.wgsl");
const LINEAR_HEAD: &str = include_str!("../shaders/linear_head.wgsl");
const LINEAR_BOUND: &str = include_str!("../shaders/linear_bound.wgsl");
const LINEAR_ONE: &str = include_str!("../shaders/linear_one.wgsl");
const ONE_BOUND: &str = include_str!("../shaders/one_bound.wgsl");
const ONE_STORE: &str = include_str!("../shaders/one_store.wgsl");
const ONE_NORM: &str = include_str!("../shaders/one_norm.wgsl");
const LINEAR_FEW: &str = include_str!("../shaders/linear.wgsl");
const LINEAR_STORE: &str = include_str!("../shaders/linear_store.wgsl");
const CONV_ONE: &str = include_str!("../shaders/conv_one.wgsl");
const LINEAR_PACKED: &str = include_str!("../shaders/linear_packed.wgsl");
const LINEAR_PREPARED: &str = include_str!("../shaders/linear_prepared.wgsl");
const ROUNDING: &str = include_str!("../shaders/rounding.wgsl");
const ROUNDING_FINISH: &str = include_str!("../shaders/rounding_finish.wgsl");
const ATTENTION_CORE: &str = include_str!("../shaders/attention_core.wgsl");
const DELTA_RULE: &str = include_str!("../shaders/delta_rule.wgsl");
const DELTA_INPUTS: &str = include_str!("../shaders/delta_inputs.wgsl");
const JOIN: &str = include_str!("../shaders/attention_join.wgsl");
const KEYS: &str = include_str!("../shaders/sample_keys.wgsl");

macro_rules! sources {
    ($($constant:ident $name:literal [$($file:expr),*] $($access:ident)*;)*) => {
        $(pub(crate) static $constant: Source = Source {
            name: $name,
            files: &[COMMON, $($file),*],
            bindings: &[$(Access::$access),*],
        };)*
    };
}

sources! {
    PREPARE "prepare" [ROUNDING, ROUNDING_FINISH, JOIN, include_str!("../shaders/prepare.wgsl")] Read Read Read Write;
    LINEAR "linear" [ROWS, LINEAR_HEAD, LINEAR_BOUND, LINEAR_STORE, LINEAR_PREPARED, LINEAR_PACKED, LINEAR_FEW]
        Read Read Read Read Read Write;
    LINEAR_CONV "linear" [ROWS, LINEAR_HEAD, LINEAR_BOUND, include_str!("../shaders/linear_conv.wgsl"), CONV_ONE,
        LINEAR_PREPARED, LINEAR_PACKED, LINEAR_FEW] Read Read Read Read Read Write Read Write;
    WIDE "linear" [ROWS, LINEAR_HEAD, LINEAR_BOUND, LINEAR_STORE, LINEAR_PREPARED, LINEAR_PACKED,
        include_str!("../shaders/linear_wide.wgsl")] Read Read Read Read Read Write;
    DENSE "linear" [ROWS, LINEAR_HEAD, LINEAR_BOUND, LINEAR_STORE, include_str!("../shaders/linear_dense.wgsl")]
        Read Read Read Read Read Write;
    ONE "linear" [LINEAR_HEAD, LINEAR_BOUND, LINEAR_PACKED, include_str!("../shaders/one_prepared.wgsl"), ONE_STORE,
        LINEAR_ONE] Read Read Read Read Read Write;
    ONE_NORM_STORE "linear" [LINEAR_HEAD, ONE_BOUND, LINEAR_PACKED, ROUNDING, ONE_NORM, ONE_STORE, LINEAR_ONE]
        Read Read Read Read Write;
    ONE_NORM_CONV "linear" [LINEAR_HEAD, ONE_BOUND, LINEAR_PACKED, ROUNDING, ONE_NORM, CONV_ONE,
        include_str!("../shaders/one_conv.wgsl"), LINEAR_ONE] Read Read Read Read Write Read Write;
    EMBED "embed" [include_str!("../shaders/embed.wgsl")] Read Read Read Read Write;
    POINTWISE "pointwise" [ROWS, include_str!("../shaders/pointwise.wgsl")] Read Write;
    OUTPUT "output" [ROWS, include_str!("../shaders/output.wgsl")] Read Read Write;
    NORM "norm" [include_str!("../shaders/norm.wgsl")] Read Write;
    ROPE "rope" [include_str!("../shaders/rope.wgsl")] Read Write;
    GATES "gates" [include_str!("../shaders/gates.wgsl")] Read Read Write;
    CONV "conv" [CONV_ONE, include_str!("../shaders/conv.wgsl")] Read Read Write Write Write;
    DELTA "delta" [DELTA_RULE, DELTA_INPUTS, include_str!("../shaders/delta.wgsl")] Read Read Read Write Write Write;
    DELTA_ONE "delta_one"
        [ROUNDING, ROUNDING_FINISH, DELTA_RULE, DELTA_INPUTS, include_str!("../shaders/delta_one.wgsl")]
        Read Read Read Read Read Write Write;
    DELTA_MAKE "delta_make" [DELTA_RULE, DELTA_INPUTS, include_str!("../shaders/delta_make.wgsl")] Read Read Read Write;
    DELTA_ROWS "delta_rows" [DELTA_RULE, include_str!("../shaders/delta_rows.wgsl")] Read Read Read Write Write;
    APPEND "append" [KV, HALF, KV_STORE, include_str!("../shaders/append.wgsl")] Read Read Write;
    HEADS "heads" [KV, HALF, KV_STORE, include_str!("../shaders/heads.wgsl")] Read Read Read Write Write;
    ATTENTION "attention" [KV, JOIN, ATTENTION_CORE, include_str!("../shaders/attention.wgsl")] Read Read Read Write Write;
    ATTENTION_ONE "attention_one"
        [KV, HALF, ROUNDING, ROUNDING_FINISH, JOIN, ATTENTION_CORE, include_str!("../shaders/attention_one.wgsl")]
        Read Read Read Write Write Write;
    COMBINE "attention_combine" [JOIN, include_str!("../shaders/attention_combine.wgsl")] Read Read Write;
    SAMPLE_SCAN "sample_scan" [KEYS, include_str!("../shaders/sample_scan.wgsl")] Read Read Write;
    BANDWIDTH "bandwidth" [include_str!("../shaders/bandwidth.wgsl")] Read Write;
    MIX "mix_values" [ROWS, include_str!("../shaders/mix.wgsl")] Read Write;
    MODULATE "modulate" [SUM, include_str!("../shaders/modulate.wgsl")] Write;
    GROUP_SUMS "group_sums" [ROWS, SUM, include_str!("../shaders/group_sums.wgsl")] Read Read Write;
    GROUP_NORM "group_norm" [ROWS, SUM, include_str!("../shaders/group_norm.wgsl")] Read Read Read Read Write;
    CONV2D "conv2d" [include_str!("../shaders/conv2d.wgsl")] Read Read Write;
    FULL_ATTENTION "full_attention" [ROWS, include_str!("../shaders/full_attention.wgsl")] Read Write;
    SAMPLE "sample" [KEYS, include_str!("../shaders/sample.wgsl")] Read Read Read Write;
}

/// Rows of activations of one pass over a weight.
pub(crate) const ROW_COUNTS: [u32; 4] = [1, 2, 4, 8];

/// Slices of the columns that a workgroup of a product has: of 256 threads, or of 512.
pub(crate) const SLICES: [u32; 2] = [8, 16];

/// Rows of a tile of the kernel for many rows of integers.
pub(crate) const WIDE_ROWS: u32 = 64;

/// Rows from which on its tiles pay.
pub(crate) const WIDE_FROM: usize = 17;

/// Dimensions of a head that attention has kernels for.
pub(crate) const HEAD_DIMS: [u32; 6] = [32, 64, 96, 128, 192, 256];

/// Dimensions up to which attention without a cache has kernels, and how many it adds up at a time.
pub(crate) const FULL_DIMS: [u32; 4] = [64, 128, 256, 512];
pub(crate) const FULL_VALUES: usize = 128;

/// Queries of one of its workgroups.
pub(crate) const FULL_QUERIES: usize = 32;

/// Pixels and channels of a workgroup of a convolution.
pub(crate) const CONV_TILE: usize = 64;

/// Values of a column of a delta-rule matrix that one of its eight threads keeps.
pub(crate) const KEPT: [u32; 4] = [4, 8, 16, 32];

impl Source {
    pub(crate) fn with(&'static self, constants: &[(&'static str, Value)]) -> Kernel {
        Kernel { source: self, constants: constants.to_vec() }
    }
}

impl Kernel {
    /// The whole text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.constants {
            // Writing to a string cannot fail.
            let _ = match value {
                Value::Number(n) => writeln!(text, "const {name}: u32 = {n}u;"),
                Value::Flag(flag) => writeln!(text, "const {name}: bool = {flag};"),
            };
        }
        for file in self.source.files {
            text.push_str(file);
        }
        text
    }

    /// Name and constants in one line, for reports.
    pub(crate) fn describe(&self) -> String {
        let constants = self.constants.iter().map(|(name, value)| match value {
            Value::Number(n) => format!("{name}={n}"),
            Value::Flag(flag) => format!("{name}={flag}"),
        });
        std::iter::once(self.source.name.to_owned()).chain(constants).collect::<Vec<_>>().join(" ")
    }
}

/// The number that kernels know a stored type by.
pub(crate) fn type_number(kind: ParamType) -> u32 {
    match kind {
        ParamType::F16 => 0,
        ParamType::BF16 => 1,
        ParamType::F32 => 2,
    }
}

/// The number that stands for packed codes, and for no biases.
pub(crate) const NO_TYPE: u32 = 3;

/// The number that kernels know a format of keys and values by.
pub(crate) fn kv_number(format: KvFormat) -> u32 {
    match format {
        KvFormat::F32 => 0,
        KvFormat::F16 => 1,
        KvFormat::Q8 => 2,
        KvFormat::Q4 => 3,
    }
}

/// What `prepare` makes of its input: KIND.
pub(crate) mod kinds {
    pub(crate) const FLOATS: u32 = 0;
    pub(crate) const PACKED: u32 = 1;
    pub(crate) const WHOLE: u32 = 2;
}

/// What `prepare` makes its input of: INPUT.
pub(crate) mod inputs {
    pub(crate) const PLAIN: u32 = 0;
    pub(crate) const NORM: u32 = 1;
    pub(crate) const GATED_NORM: u32 = 2;
    pub(crate) const SIGMOID: u32 = 3;
    pub(crate) const SWIGLU: u32 = 4;
}

/// Which op `pointwise` is: OP.
pub(crate) mod pointwise {
    pub(crate) const ADD: u32 = 0;
    pub(crate) const SWIGLU: u32 = 1;
    pub(crate) const SIGMOID_MUL: u32 = 2;
    pub(crate) const SELECT_ROWS: u32 = 3;
}

/// Which op `mix` is: OP.
pub(crate) mod mix {
    pub(crate) const COPY: u32 = 0;
    pub(crate) const GATED_ADD: u32 = 1;
    pub(crate) const ROTATE_PAIRS: u32 = 2;
}

/// What prepared values are for packed weights and these activations.
pub(crate) fn kind_of(activations: Activations, dot_products: bool) -> u32 {
    match activations {
        Activations::F32 => kinds::FLOATS,
        Activations::I8G128 if dot_products => kinds::PACKED,
        Activations::I8G128 | Activations::I9G128 => kinds::WHOLE,
    }
}

/// With the dimension of heads whose splits of attention it joins, where it does; and whether it is for rows with logits alone.
pub(crate) fn prepare(kind: u32, input: u32, joined: Option<u32>, selected: bool) -> Kernel {
    PREPARE.with(&[
        ("KIND", Value::Number(kind)),
        ("INPUT", Value::Number(input)),
        ("SELECTED", Value::Flag(selected)),
        ("JOINED", Value::Flag(joined.is_some())),
        ("DIM", Value::Number(joined.unwrap_or(4))),
    ])
}

/// A product with packed weights.
pub(crate) struct Packed {
    pub bits: u32,
    pub group: u32,
    pub scale: ParamType,
    pub bias: Option<ParamType>,
    pub residuals: bool,
    pub integers: bool,
    pub adds: bool,
    /// Whether it does the convolution behind it: of few rows, to which nothing is added.
    pub convolves: bool,
    pub rows: u32,
    pub slices: u32,
}

impl Packed {
    pub(crate) fn kernel(&self) -> Kernel {
        let source = match (self.convolves, self.rows) {
            (true, _) => &LINEAR_CONV,
            (false, WIDE_ROWS) => &WIDE,
            (false, _) => &LINEAR,
        };
        source.with(&[
            ("BITS", Value::Number(self.bits)),
            ("GROUP", Value::Number(self.group)),
            ("SCALE", Value::Number(type_number(self.scale))),
            ("BIAS", Value::Number(self.bias.map_or(NO_TYPE, type_number))),
            ("RESIDUALS", Value::Flag(self.residuals)),
            ("INTEGERS", Value::Flag(self.integers)),
            ("EPILOGUE", Value::Number(u32::from(self.adds))),
            ("ROWS", Value::Number(self.rows)),
            ("SLICES", Value::Number(self.slices)),
        ])
    }
}

/// What a product of one row does of its neighbours' work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Around {
    /// Nothing: its input lies prepared.
    Prepared,
    /// The norm and the rounding of its input.
    Norm,
    /// And the convolution behind it.
    NormConv,
}

/// A product of one row of so many columns, whole records of them, with codes that [`has_one`] knows.
pub(crate) fn one(packed: &Packed, around: Around, cols: usize) -> Kernel {
    let source = match around {
        Around::Prepared => &ONE,
        Around::Norm => &ONE_NORM_STORE,
        Around::NormConv => &ONE_NORM_CONV,
    };
    let mut kernel = packed.kernel();
    kernel.source = source;
    // Behind no gate INPUT is not looked at.
    kernel.constants.extend([("COLS", Value::Number(cols as u32)), ("INPUT", Value::Number(inputs::NORM))]);
    kernel
}

/// Whether there are kernels for one row of these codes: of integers, in slices of a number that the norm's sums are cut for.
pub(crate) fn has_one(bits: u32, group: u32, integers: bool, slices: u32) -> bool {
    bits <= 2 && group == 128 && integers && SLICES.contains(&slices)
}

/// Bytes of workgroup memory of a kernel for one row of so many columns.
pub(crate) fn one_bytes(cols: usize, slices: u32) -> usize {
    // The row, scale and sum of each group, two sets of sums, and what is made in front and behind.
    cols + cols / 16 + 256 * slices as usize + 2048
}

pub(crate) fn dense(kind: ParamType, adds: bool, rows: u32, slices: u32) -> Kernel {
    DENSE.with(&[
        ("TYPE", Value::Number(type_number(kind))),
        ("EPILOGUE", Value::Number(u32::from(adds))),
        ("ROWS", Value::Number(rows)),
        ("SLICES", Value::Number(slices)),
    ])
}

/// Rows of a dense table.
pub(crate) fn embed_dense(kind: ParamType) -> Kernel {
    EMBED.with(&[
        ("TYPE", Value::Number(type_number(kind))),
        ("BITS", Value::Number(1)),
        ("GROUP", Value::Number(128)),
        ("SCALE", Value::Number(0)),
        ("BIAS", Value::Number(NO_TYPE)),
        ("RESIDUALS", Value::Flag(false)),
    ])
}

/// Rows of a packed table.
pub(crate) fn embed_packed(
    bits: u32,
    group: u32,
    scale: ParamType,
    bias: Option<ParamType>,
    residuals: bool,
) -> Kernel {
    EMBED.with(&[
        ("TYPE", Value::Number(NO_TYPE)),
        ("BITS", Value::Number(bits)),
        ("GROUP", Value::Number(group)),
        ("SCALE", Value::Number(type_number(scale))),
        ("BIAS", Value::Number(bias.map_or(NO_TYPE, type_number))),
        ("RESIDUALS", Value::Flag(residuals)),
    ])
}

pub(crate) fn norm(gated: bool, dim: usize) -> Kernel {
    let threads = match dim {
        128 if gated => 32,
        0..=256 => 64,
        _ => 256,
    };
    NORM.with(&[("GATED", Value::Flag(gated)), ("THREADS", Value::Number(threads))])
}

pub(crate) fn pointwise(op: u32) -> Kernel {
    POINTWISE.with(&[("OP", Value::Number(op))])
}

pub(crate) fn mix(op: u32) -> Kernel {
    MIX.with(&[("OP", Value::Number(op))])
}

pub(crate) fn conv2d(kind: ParamType) -> Kernel {
    CONV2D.with(&[("TYPE", Value::Number(type_number(kind)))])
}

pub(crate) fn full_attention(dim: u32) -> Kernel {
    FULL_ATTENTION.with(&[("DIM", Value::Number(dim))])
}

pub(crate) fn append(format: u32, dim: u32) -> Kernel {
    APPEND.with(&[("FORMAT", Value::Number(format)), ("DIM", Value::Number(dim))])
}

pub(crate) fn heads(format: u32, dim: u32) -> Kernel {
    HEADS.with(&[("FORMAT", Value::Number(format)), ("DIM", Value::Number(dim))])
}

pub(crate) fn attention(format: u32, dim: u32, split: bool) -> Kernel {
    ATTENTION.with(&attention_constants(format, dim, split, false))
}

/// For steps of sequences with a row each, whose keys and values are numbers. It may prepare the input of the product behind it:
/// of a kind, with its gate or without.
pub(crate) fn attention_one(format: u32, dim: u32, split: bool, round: Option<(u32, u32)>) -> Kernel {
    let (kind, input) = round.unwrap_or((kinds::FLOATS, inputs::PLAIN));
    let mut constants = attention_constants(format, dim, split, true).to_vec();
    constants.push(("ROUND", Value::Flag(round.is_some())));
    constants.extend([("KIND", Value::Number(kind)), ("INPUT", Value::Number(input))]);
    ATTENTION_ONE.with(&constants)
}

fn attention_constants(format: u32, dim: u32, split: bool, own: bool) -> [(&'static str, Value); 4] {
    [
        ("FORMAT", Value::Number(format)),
        ("DIM", Value::Number(dim)),
        ("SPLIT", Value::Flag(split)),
        ("OWN", Value::Flag(own)),
    ]
}

/// For few rows; MADE says whether it makes its gates.
pub(crate) fn delta(kept: u32, made: bool) -> Kernel {
    DELTA.with(&[("KEPT", Value::Number(kept)), ("MADE", Value::Flag(made))])
}

/// For sequences with a row each, up to the input of a kind of the product behind it; WHOLE where keys fill what is kept.
pub(crate) fn delta_one(kept: u32, whole: bool, made: bool, kind: u32) -> Kernel {
    DELTA_ONE.with(&[
        ("KEPT", Value::Number(kept)),
        ("WHOLE", Value::Flag(whole)),
        ("MADE", Value::Flag(made)),
        ("KIND", Value::Number(kind)),
        ("INPUT", Value::Number(inputs::GATED_NORM)),
    ])
}

/// For many rows, what their heads share.
pub(crate) fn delta_make(kept: u32, made: bool) -> Kernel {
    DELTA_MAKE.with(&[("KEPT", Value::Number(kept)), ("MADE", Value::Flag(made))])
}

/// For many rows, behind it.
pub(crate) fn delta_rows(kept: u32) -> Kernel {
    DELTA_ROWS.with(&[("KEPT", Value::Number(kept))])
}

pub(crate) fn sample(threads: u32) -> Kernel {
    SAMPLE.with(&[("THREADS", Value::Number(threads))])
}

/// Every kernel for every layout and set of abilities: name and text. For checks that need no device.
#[must_use]
pub fn every() -> Vec<(String, String)> {
    const KINDS: [u32; 3] = [kinds::FLOATS, kinds::PACKED, kinds::WHOLE];
    const TYPES: [ParamType; 3] = [ParamType::F16, ParamType::BF16, ParamType::F32];
    let mut all = Vec::new();
    for kind in KINDS {
        all.extend((inputs::PLAIN..=inputs::SWIGLU).map(|input| prepare(kind, input, None, false)));
        all.push(prepare(kind, inputs::NORM, None, true));
        all.extend([inputs::PLAIN, inputs::SIGMOID].map(|input| prepare(kind, input, Some(128), false)));
    }
    for rows in ROW_COUNTS.into_iter().chain([WIDE_ROWS]) {
        // Both numbers of slices, with one epilogue each.
        for (adds, slices) in [(false, SLICES[0]), (true, SLICES[1])] {
            if rows != WIDE_ROWS {
                all.extend(TYPES.map(|kind| dense(kind, adds, rows, slices)));
            }
            for (bits, group) in [1, 2, 4, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group))) {
                for integers in if rows == WIDE_ROWS { vec![true] } else { vec![false, true] } {
                    // Every stored type once; with biases, with residuals, and with neither.
                    for (scale, bias, residuals) in [
                        (ParamType::F16, None, false),
                        (ParamType::F16, None, true),
                        (ParamType::BF16, Some(ParamType::F32), false),
                        (ParamType::F32, Some(ParamType::F16), false),
                        (ParamType::F16, Some(ParamType::BF16), false),
                    ] {
                        let few = rows != WIDE_ROWS;
                        for convolves in if few && !adds { vec![false, true] } else { vec![false] } {
                            let packed =
                                Packed { bits, group, scale, bias, residuals, integers, adds, convolves, rows, slices };
                            all.push(packed.kernel());
                        }
                    }
                }
            }
        }
    }
    for (bits, slices) in [1, 2].into_iter().flat_map(|bits| SLICES.map(|slices| (bits, slices))) {
        for (scale, bias, residuals) in [
            (ParamType::F16, None, false),
            (ParamType::F16, None, true),
            (ParamType::BF16, Some(ParamType::F32), false),
        ] {
            let of = |adds: bool, around: Around, cols: usize| {
                let (group, rows) = (128, 1);
                let (integers, convolves) = (true, false);
                one(
                    &Packed { bits, group, scale, bias, residuals, integers, adds, convolves, rows, slices },
                    around,
                    cols,
                )
            };
            all.extend([256, 1536, 8704].map(|cols| of(true, Around::Prepared, cols)));
            all.extend([Around::Norm, Around::NormConv].map(|around| of(false, around, 2560)));
        }
    }
    all.extend(TYPES.map(embed_dense));
    for (bits, group) in [1, 2, 4, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|group| (bits, group))) {
        all.push(embed_packed(bits, group, ParamType::F16, None, true));
        all.extend(TYPES.map(|kind| embed_packed(bits, group, kind, Some(kind), false)));
    }
    all.extend((pointwise::ADD..=pointwise::SELECT_ROWS).map(pointwise));
    for gated in [false, true] {
        all.extend([64, 128, 1024].map(|dim| norm(gated, dim)));
    }
    all.extend([&OUTPUT, &ROPE, &GATES, &CONV, &COMBINE, &SAMPLE_SCAN, &BANDWIDTH].map(|source| source.with(&[])));
    all.extend([&MODULATE, &GROUP_SUMS, &GROUP_NORM].map(|source| source.with(&[])));
    all.extend((mix::COPY..=mix::ROTATE_PAIRS).map(mix));
    all.extend(TYPES.map(conv2d));
    all.extend(FULL_DIMS.map(full_attention));
    all.extend([256, 512].map(sample));
    for kept in KEPT {
        all.push(delta_rows(kept));
        all.extend([false, true].into_iter().flat_map(|made| [delta(kept, made), delta_make(kept, made)]));
        all.extend(KINDS.into_iter().flat_map(|kind| [false, true].map(|made| delta_one(kept, made, made, kind))));
    }
    for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4].map(kv_number) {
        all.extend(HEAD_DIMS.map(|dim| append(format, dim)));
        all.extend(HEAD_DIMS.map(|dim| heads(format, dim)));
        all.extend(HEAD_DIMS.iter().flat_map(|dim| [false, true].map(|split| attention(format, *dim, split))));
    }
    for format in [KvFormat::F32, KvFormat::F16].map(kv_number) {
        all.extend(
            HEAD_DIMS.iter().flat_map(|dim| [false, true].map(|split| attention_one(format, *dim, split, None))),
        );
        for kind in KINDS {
            let of = |input: u32| [128, 256].map(|dim| attention_one(format, dim, false, Some((kind, input))));
            all.extend([inputs::PLAIN, inputs::SIGMOID].into_iter().flat_map(of));
        }
    }
    all.into_iter().map(|kernel| (kernel.describe(), kernel.text())).collect()
}
