//! The loops, written once over a vector of eight floats, and the table through which a tier offers them.

pub(crate) mod attention;
pub(crate) mod delta;
pub(crate) mod kv;
pub(crate) mod packed;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod unpack;
pub(crate) mod vector;

use crate::layout::{BitOrder, PLAIN_ORDER, Segment};
use onebit_ops::KvFormat;
use packed::{FloatRows, GroupSum, IntRows};
use std::ops::Range;

/// Hands the list of generic loops to the macro `$then`, after `$extra`. One line here and the loop itself make a
/// kernel of every tier.
macro_rules! kernel_list {
    ($then:ident, $($extra:tt)*) => {
        $then! { [$($extra)*]
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
            /// Bytes of lookup tables for each four columns of integer activations; 0 for none.
            pub table_bytes: usize,
            /// Builds the lookup tables of one row.
            pub build_tables: fn(values: &[i16], tables: &mut [u8]),
            /// The packed matmul over integer activations, otherwise as `float_blocks`.
            pub int_blocks: fn(segment: &Segment, blocks: Range<usize>, x: &IntRows<'_>, acc: &mut [f32]),
            $($(#[$doc])* pub $name: fn($($arg: $type),*),)*
        }

        /// The kernels that every machine runs.
        pub(crate) static PORTABLE: Kernels = Kernels {
            bits1_order: &PLAIN_ORDER,
            bits2_order: &PLAIN_ORDER,
            table_bytes: 0,
            build_tables: |_, _| {},
            int_blocks: packed::int_blocks::<vector::Array>,
            $($name: $module::$name::<vector::Array>,)*
        };
    };
}
kernel_list!(declare,);

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
