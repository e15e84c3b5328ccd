//! x86-64: what the compiler does not find in the generic loops.
//!
//! | tier | packed bits | blocks of 4 and 8 bits | attention over such blocks |
//! |---|---|---|---|
//! | `avx2` | byte tables (`avx2`) | `vpmaddwd` | floats |
//! | `avxvnni` | byte tables (`avx2`) | `vpdpwssd`, VEX | floats |
//! | `avx512` | word tables (`avx512`), ternary weights as triples | `vpmaddwd` | `vpmaddwd` |
//! | `avx512vnni` | the same | `vpdpwssd`, EVEX, for many rows `vpdpbusd` in 512 bits (`avx512`) | `vpdpbusd` |
//! | `avx512amx` | word tables, no triples, for few activation rows; tiles of bytes for more (`amx`) | the same | the same |

mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
mod block;
#[cfg(all(test, target_os = "linux"))]
mod guard;
mod quads;

use crate::generic::packed::{FloatRows, GroupSum};
use crate::generic::{
    Kernels, Many, Operand, Triples, attention, delta, full_attention, image, kernel_list, kv, lifted_kernels, packed,
    rows, softmax,
};
use crate::layout::{Codes, GROUP, Segment};
use avx2::F32x8;
use onebit_ops::KvFormat;
use std::ops::Range;

/// A tier of x86-64, and the proof that this machine has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine(Set);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Avx512Amx,
    Avx512Vnni,
    Avx512,
    AvxVnni,
    Avx2,
}

impl Machine {
    /// Every tier that this machine has, the best first.
    pub(crate) fn detect() -> Vec<Machine> {
        use std::arch::is_x86_feature_detected as has;
        if !(has!("avx2") && has!("fma") && has!("f16c")) {
            return Vec::new();
        }
        let wide = has!("avx512f") && has!("avx512bw") && has!("avx512vl");
        let vnni = wide && has!("avx512vnni");
        let sets = [
            (Set::Avx512Amx, vnni && has!("avx512vbmi") && has!("avx512bitalg") && has!("gfni") && amx::detected()),
            (Set::Avx512Vnni, vnni),
            (Set::Avx512, wide),
            (Set::AvxVnni, has!("avxvnni")),
            (Set::Avx2, true),
        ];
        sets.into_iter().filter(|(_, has)| *has).map(|(set, _)| Machine(set)).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Set::Avx512Amx => "avx512amx",
            Set::Avx512Vnni => "avx512vnni",
            Set::Avx512 => "avx512",
            Set::AvxVnni => "avxvnni",
            Set::Avx2 => "avx2",
        }
    }

    pub(crate) fn kernels(self) -> &'static Kernels {
        match self.0 {
            Set::Avx512Amx => &AVX512_AMX,
            Set::Avx512Vnni if deep_first_level() => &AVX512_VNNI_STREAM,
            Set::Avx512Vnni => &AVX512_VNNI,
            Set::Avx512 => &AVX512,
            Set::AvxVnni => &AVX_VNNI,
            Set::Avx2 => &AVX2,
        }
    }
}

/// Whether the first-level cache has places for many lines on their way: an AMD of Zen 5 or later, where that was measured
/// (`lab/cpu`).
fn deep_first_level() -> bool {
    use std::arch::x86_64::__cpuid;
    use std::sync::OnceLock;
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // AMD's manual, volume 3, CPUID: leaf 0, the vendor's name; leaf 1, EAX, the family and what is added to it.
        let (vendor, signature) = (__cpuid(0), __cpuid(1).eax);
        let amd = [vendor.ebx, vendor.edx, vendor.ecx] == [*b"Auth", *b"enti", *b"cAMD"].map(u32::from_le_bytes);
        amd && (signature >> 8 & 0xf) + (signature >> 20 & 0xff) >= 0x1a
    })
}

const TRIPLES: Triples = Triples {
    order: &avx512::bits::BITS1_ORDER,
    operand: Operand {
        bytes: avx512::triples::BYTES * 4 / GROUP,
        unit: None,
        // SAFETY: whoever holds a table with this has a proof that the machine has these features.
        build: |values, tables| unsafe { avx512::triples::build(values, tables) },
    },
};

/// A table of kernels with the bits of one folder one of the block loops, and attention in integers.
macro_rules! tier {
    ($(#[$doc:meta])* $table:ident, $folder:ident, $blocks:path, $triples:expr, $integers:expr, $features:literal) => {
        $(#[$doc])*
        static $table: Kernels = kernel_list!(
            lifted_kernels,
            F32x8; $features;
            bits1_order: &$folder::bits::BITS1_ORDER,
            bits2_order: &$folder::bits::BITS2_ORDER,
            together: 1,
            operand: Operand {
                bytes: $folder::tables::BYTES * 4 / $folder::tables::COLUMNS,
                unit: None,
                // SAFETY: whoever holds this table has a proof that the machine has these features.
                build: |values, tables| unsafe { $folder::tables::build(values, tables) },
            },
            many: None,
            triples: $triples,
            integers: $integers,
            int_blocks: |segment, blocks, x, acc| {
                // SAFETY: whoever holds this table has a proof that the machine has these features.
                unsafe {
                    match segment.layout.codes {
                        Codes::Bits1 | Codes::Bits2 | Codes::Triples => $folder::bits::int_blocks(segment, blocks, x, acc),
                        _ => $blocks(segment, blocks, x, acc),
                    }
                }
            }
        );
    };
}

tier!(
    /// AVX2 with FMA and F16C: every x86 machine since 2015 or so.
    AVX2, avx2, block::plain::int_blocks, None, None, "avx2,fma,f16c"
);
tier!(
    /// Machines with AVX-VNNI and without AVX-512: laptops since 2021.
    AVX_VNNI, avx2, block::vex::int_blocks, None, None, "avx2,fma,f16c,avxvnni"
);
tier!(
    /// AVX-512 with BW and VL: Intel servers since 2017.
    AVX512_LOOPS, avx512, block::plain::int_blocks, Some(TRIPLES), Some(&quads::WIDE),
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl"
);
tier!(
    /// The same with VNNI: Intel servers since 2019, AMD since Zen 4.
    AVX512_VNNI_LOOPS, avx512, avx512::blocks::int_blocks, Some(TRIPLES), Some(&quads::EVEX),
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni"
);

/// Dense weights against floats in 512 bits, which the generic loops do not use.
const WIDE_FLOATS: fn(&Segment, Range<usize>, &FloatRows<'_>, &mut [f32]) = |segment, blocks, x, acc| {
    // SAFETY: the tables that hold this are of machines with these features, of which whoever holds one has a proof.
    unsafe { avx512::floats::float_blocks(segment, blocks, x, acc) }
};

/// Attention between the rows of a step in 512 bits, with the bits of the generic loop.
const WIDE_ATTENTION: fn(&full_attention::Block<'_>, &mut full_attention::Queries<'_>) = |block, queries| {
    // SAFETY: as above.
    unsafe { avx512::full_attention::attend_block(block, queries) }
};

static AVX512: Kernels = Kernels { float_blocks: WIDE_FLOATS, attend_block: WIDE_ATTENTION, ..AVX512_LOOPS };
static AVX512_VNNI: Kernels = Kernels {
    many: Some(avx512::blocks::MANY),
    float_blocks: WIDE_FLOATS,
    attend_block: WIDE_ATTENTION,
    ..AVX512_VNNI_LOOPS
};

/// The same on a machine whose first-level cache has places for many lines on their way: one long stream is the fastest
/// there.
static AVX512_VNNI_STREAM: Kernels = Kernels { together: avx512::bits::SET, ..AVX512_VNNI };

/// The same with tiles of bytes: Intel servers since 2023.
static AVX512_AMX: Kernels = Kernels {
    many: Some(Many { fewest: amx::fewest, operand: amx::OPERAND }),
    // Bytes of tiles are made of planes.
    triples: None,
    int_blocks: |segment, blocks, x, acc| {
        if x.many {
            // SAFETY: whoever holds this table has a proof that the machine has these features.
            unsafe { amx::int_blocks(segment, blocks, x, acc) }
        } else {
            (AVX512_VNNI.int_blocks)(segment, blocks, x, acc);
        }
    },
    ..AVX512_VNNI
};
