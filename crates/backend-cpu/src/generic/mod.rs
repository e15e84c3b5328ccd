//! The loops, written once over a vector of eight floats, and the table through which a tier offers them.

pub(crate) mod attention;
pub(crate) mod delta;
pub(crate) mod full_attention;
pub(crate) mod image;
pub(crate) mod kv;
pub(crate) mod packed;
pub(crate) mod quads;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod unpack;
pub(crate) mod vector;
pub(crate) mod wide;

use crate::layout::{BitOrder, Codes, PLAIN_ORDER, Segment};
use onebit_ops::KvFormat;
use packed::{FloatRows, GroupSum, IntRows};
use std::ops::Range;

/// A form of integer activations beside the integers themselves: tables to look sums up in, or bytes for tiles.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    /// Bytes for each four columns; 0 when the kernels read the integers alone.
    pub bytes: usize,
    /// Columns after which those of the next row follow, `[unit][row][columns]`; without, each row lies in one piece.
    pub unit: Option<usize>,
    /// Writes columns of one row: a unit, whose columns may end early at a row's end, or any groups of a row in one piece.
    pub build: fn(values: &[i16], out: &mut [u8]),
}

/// Blocks of 4 and 8 bits are multiplied by the integers alone, unless rows are many.
static NO_OPERAND: Operand = Operand { bytes: 0, unit: None, build: |_, _| {} };

impl Operand {
    /// Bytes of one row that lie together.
    pub(crate) fn piece_bytes(&self, cols: usize) -> usize {
        self.unit.unwrap_or(cols).div_ceil(4) * self.bytes
    }

    /// Bytes of one row.
    pub(crate) fn row_bytes(&self, cols: usize) -> usize {
        self.unit.map_or(1, |unit| cols.div_ceil(unit)) * self.piece_bytes(cols)
    }
}

/// Ternary weights as triples, three weights in five bits.
#[derive(Clone, Copy)]
pub(crate) struct Triples {
    /// Place of the rows.
    pub order: &'static BitOrder,
    pub operand: Operand,
}

/// How many activation rows are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Many {
    /// From how many on that is faster.
    pub fewest: fn(Codes) -> usize,
    pub operand: Operand,
}

/// Attention in integers over pages that lie as [`quads`] says.
pub(crate) struct Integers {
    /// Fills in the integers of some queries.
    pub round_queries: fn(queries: &mut attention::Queries<'_>),
    /// As `attend_page`.
    pub attend_page: fn(page: &attention::Page<'_>, queries: &mut attention::Queries<'_>),
}

/// Hands the list of generic loops to the macro `$then`, after `$extra`. One line here and the loop itself make a
/// kernel of every tier.
macro_rules! kernel_list {
    ($then:ident, $($extra:tt)*) => {
        $then! { [$($extra)*]
            /// Asks for all of these values at once: what another thread wrote is far away, and work between the loads
            /// would let few of them be on their way.
            fetch(x: &[f32]) = rows;
            /// `out = x * rsqrt(mean(x^2) + eps) * gain`, of the columns from `first` on that `out` has room for.
            rms_norm(x: &[f32], gain: &[f32], eps: f32, first: usize, out: &mut [f32]) = rows;
            /// `out = x * rsqrt(sum(x^2) + eps) * factor`.
            l2_norm(x: &[f32], eps: f32, factor: f32, out: &mut [f32]) = rows;
            /// `out = a + b`.
            add(a: &[f32], b: &[f32], out: &mut [f32]) = rows;
            /// `out = silu(gate) * up`.
            swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) = rows;
            /// `out = x * sigmoid(gate)`.
            sigmoid_mul(x: &[f32], gate: &[f32], out: &mut [f32]) = rows;
            /// `out *= silu(z)`.
            silu_scale(z: &[f32], out: &mut [f32]) = rows;
            /// One head: pairs `(i, i + n)` turned, the rest copied.
            rope(x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) = rows;
            /// `out[c] = silu(sum_j taps[j][c] * history[j][c])`; `cold` when history and taps come from memory.
            conv_silu(history: &[&[f32]], taps: &[&[f32]], cold: bool, out: &mut [f32]) = rows;
            /// `out = (1 + scale) (x - mean) rsqrt(var + eps) + shift`.
            modulate(x: &[f32], scale: &[f32], shift: &[f32], eps: f32, out: &mut [f32]) = image;
            /// `out = x + gate * y`.
            gated_add(x: &[f32], gate: &[f32], y: &[f32], out: &mut [f32]) = image;
            /// One head: pairs of neighbours turned.
            rotate_pairs(x: &[f32], angles: &[f32], out: &mut [f32]) = image;
            /// One pixel: `out = factor x + offset`, then SiLU where wanted.
            channel_norm(x: &[f32], affine: &[f32], silu: bool, out: &mut [f32]) = image;
            /// Adds rows to the sums of their columns and of their squares.
            channel_sums(rows: &[f32], sums: &mut [f64]) = image;
            /// The largest value of a row, and whether all are below infinity and none is NaN.
            survey(x: &[f32], out: &mut softmax::Survey) = softmax;
            /// `out = exp((x - top) / temperature)` for values up to `top`.
            soft_weights(x: &[f32], top: f32, temperature: f32, out: &mut [f32]) = softmax;
            /// Rounds a row to integers, with its scales and sums.
            quantize(x: &[f32], limit: i16, values: &mut [i16], scales: &mut [f32], sums: &mut [GroupSum]) = rows;
            /// Sums of 32 columns each.
            float_sums(x: &[f32], sums: &mut [f32]) = rows;
            /// The matmul over float activations: sums of a range of blocks for all rows of a tile,
            /// `[block][activation row][32]`.
            float_blocks(segment: &Segment, blocks: Range<usize>, x: &FloatRows<'_>, acc: &mut [f32]) = packed;
            /// Stores one head vector of the KV cache.
            kv_store(format: KvFormat, x: &[f32], out: &mut [u8]) = kv;
            /// Attention of some queries over the rows of one page.
            attend_page(page: &attention::Page<'_>, queries: &mut attention::Queries<'_>) = attention;
            /// Attention of groups of queries over one block of tokens of the same step.
            attend_block(block: &full_attention::Block<'_>, queries: &mut full_attention::Queries<'_>) = full_attention;
            /// The gated delta rule of one head over some tokens.
            delta_head(head: &mut delta::Head<'_>) = delta;
        }
    };
}

macro_rules! declare {
    ([] $($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $module:ident;)*) => {
        /// The kernels of one tier.
        pub(crate) struct Kernels {
            /// Place of the rows in 1-bit blocks.
            pub bits1_order: &'static BitOrder,
            /// Place of the rows in 2-bit blocks.
            pub bits2_order: &'static BitOrder,
            /// Blocks of bits whose lines lie in turn.
            pub together: usize,
            /// What the packed matmul reads of integer activations.
            pub operand: Operand,
            /// The same of many activation rows, where they are multiplied in another way.
            pub many: Option<Many>,
            /// Ternary weights in groups of 128 as triples, where five bits are looked up at once.
            pub triples: Option<Triples>,
            /// Attention over pages of blocks, where integers are faster; the pages that [`quads::fits`] lie for it then.
            pub integers: Option<&'static Integers>,
            /// The packed matmul over integer activations, otherwise as `float_blocks`.
            pub int_blocks: fn(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]),
            $($(#[$doc])* pub $name: fn($($arg: $type),*),)*
        }

        /// The kernels that every machine runs.
        pub(crate) static PORTABLE: Kernels = Kernels {
            bits1_order: &PLAIN_ORDER,
            bits2_order: &PLAIN_ORDER,
            together: 1,
            operand: Operand { bytes: 0, unit: None, build: |_, _| {} },
            many: None,
            triples: None,
            integers: None,
            int_blocks: packed::int_blocks::<vector::Array>,
            $($name: $module::$name::<vector::Array>,)*
        };
    };
}
kernel_list!(declare,);

impl Kernels {
    /// What `int_blocks` reads of so many activation rows, and whether they are many. All segments of a weight read the
    /// same.
    pub(crate) fn operand(&self, segments: &[Segment], rows: usize) -> (&Operand, bool) {
        if let Some(triples) = &self.triples
            && segments.iter().any(|s| s.layout.codes == Codes::Triples)
        {
            return (&triples.operand, false);
        }
        let packed = segments.iter().map(|s| s.layout.codes).filter(|codes| !matches!(codes, Codes::Dense(_)));
        match &self.many {
            Some(many) if rows >= packed.clone().map(many.fewest).max().unwrap_or(1) => (&many.operand, true),
            _ if packed.clone().all(|codes| matches!(codes, Codes::Block4 | Codes::Block8)) => (&NO_OPERAND, false),
            _ => (&self.operand, false),
        }
    }

    /// Most bytes of it for any number of rows up to `rows`.
    pub(crate) fn operand_bytes(&self, segments: &[Segment], rows: usize, cols: usize) -> usize {
        (1..=rows).map(|rows| rows * self.operand(segments, rows).0.row_bytes(cols)).max().unwrap_or(0)
    }
}

/// A table of the generic loops over one vector type, compiled with some target features. Reach it only with a proof
/// that the machine has them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! lifted_kernels {
    ([$vector:ty; $features:literal; $($field:ident: $value:expr),*]
     $($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) = $module:ident;)*) => {
        Kernels {
            $($field: $value,)*
            $($name: {
                #[target_feature(enable = $features)]
                fn lifted($($arg: $type),*) {
                    $module::$name::<$vector>($($arg),*);
                }
                // SAFETY: whoever holds this table has a proof that the machine has these features.
                |$($arg),*| unsafe { lifted($($arg),*) }
            },)*
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use {kernel_list, lifted_kernels};
