//! The codec of cached keys and values: what `KvFormat::round` says, as bytes.
//!
//! ```text
//! f32, f16   the values
//! q8         blocks of 32: f16 scale | 32 signed bytes
//! q4         blocks of 32: f16 scale | f16 minimum | 16 bytes, value j in the low nibble of byte j for j < 16, the
//!            high nibble of byte j - 16 from there on
//! ```

use super::vector::{LANES, Vector};
use onebit_ops::KvFormat;
use onebit_quant::float::{f16_to_f32, f32_to_f16};

/// Values of a block with its own scale.
pub(crate) const BLOCK: usize = 32;

/// Bytes of a block of floats.
pub(crate) const WIDE: usize = 4 * BLOCK;

/// Reads a stored block of `N` bytes, eight values at a time.
pub(crate) trait Stored<const N: usize> {
    /// Values `8 * at..8 * at + 8`.
    fn eight<V: Vector>(block: &[u8; N], at: usize) -> V;
}

pub(crate) struct F32;
impl Stored<WIDE> for F32 {
    #[inline(always)]
    fn eight<V: Vector>(block: &[u8; WIDE], at: usize) -> V {
        V::load_f32(&block.as_chunks().0[at])
    }
}

pub(crate) struct F16;
impl Stored<64> for F16 {
    #[inline(always)]
    fn eight<V: Vector>(block: &[u8; 64], at: usize) -> V {
        V::load_f16(&block.as_chunks().0[at])
    }
}

pub(crate) struct Q8;
impl Stored<34> for Q8 {
    #[inline(always)]
    fn eight<V: Vector>(block: &[u8; 34], at: usize) -> V {
        V::load_i8(&block[2..].as_chunks().0[at]).mul(V::splat_f16([block[0], block[1]]))
    }
}

pub(crate) struct Q4;
impl Stored<20> for Q4 {
    #[inline(always)]
    fn eight<V: Vector>(block: &[u8; 20], at: usize) -> V {
        let pairs = u64::from_le_bytes(block[4..].as_chunks().0[at % 2]);
        let codes = pairs >> (4 * (at / 2)) & 0x0f0f_0f0f_0f0f_0f0f;
        let (scale, min) = (V::splat_f16([block[0], block[1]]), V::splat_f16([block[2], block[3]]));
        // Rounded twice, as the oracle does.
        V::load_i8(&codes.to_le_bytes()).mul(scale).add(min)
    }
}

#[inline(always)]
pub(crate) fn kv_store<V: Vector>(format: KvFormat, x: &[f32], out: &mut [u8]) {
    match format {
        KvFormat::F32 => {
            for (v, to) in x.iter().zip(out.as_chunks_mut::<4>().0) {
                *to = v.to_le_bytes();
            }
        }
        KvFormat::F16 => {
            let ((xv, xt), (ov, ot)) = (x.as_chunks::<LANES>(), out.as_chunks_mut::<{ 2 * LANES }>());
            for (v, to) in xv.iter().zip(ov) {
                V::load(v).store_f16(to);
            }
            for (v, to) in xt.iter().zip(ot.as_chunks_mut::<2>().0) {
                *to = f32_to_f16(*v).to_le_bytes();
            }
        }
        KvFormat::Q8 => {
            for (x, to) in x.chunks(BLOCK).zip(out.as_chunks_mut::<34>().0) {
                store_q8::<V>(&filled(x), to);
            }
        }
        KvFormat::Q4 => {
            for (x, to) in x.chunks(BLOCK).zip(out.as_chunks_mut::<20>().0) {
                store_q4::<V>(&filled(x), to);
            }
        }
    }
}

/// A whole block whose missing values repeat the first one, which changes no bound.
fn filled(x: &[f32]) -> [f32; BLOCK] {
    let mut block = [x[0]; BLOCK];
    block[..x.len()].copy_from_slice(x);
    block
}

/// `(x - low) / scale` as integers between the bounds. NaN stays NaN up to the cast, which makes it zero.
#[inline(always)]
fn codes<V: Vector>(x: &[f32; LANES], low: f32, scale: f32, bounds: [f32; 2]) -> [i16; LANES] {
    let inverse = V::splat(if scale > 0.0 { 1.0 / scale } else { 0.0 });
    let code = V::load(x).sub(V::splat(low)).mul(inverse).round();
    V::splat(bounds[0]).max(V::splat(bounds[1]).min(code)).to_i16()
}

#[inline(always)]
fn store_q8<V: Vector>(x: &[f32; BLOCK], to: &mut [u8; 34]) {
    let (mut top, mut poison) = (V::zero(), V::zero());
    for x in x.as_chunks().0 {
        let v = V::load(x);
        top = v.abs().max(top);
        poison = poison.add(v.mul(V::zero()));
    }
    let scale = f32_to_f16(top.top() / 127.0 + poison.sum()).to_le_bytes();
    to[..2].copy_from_slice(&scale);
    let scale = f16_to_f32(u16::from_le_bytes(scale));
    for (x, to) in x.as_chunks().0.iter().zip(to[2..].as_chunks_mut::<LANES>().0) {
        for (to, code) in to.iter_mut().zip(codes::<V>(x, 0.0, scale, [-127.0, 127.0])) {
            *to = code as u8;
        }
    }
}

#[inline(always)]
fn store_q4<V: Vector>(x: &[f32; BLOCK], to: &mut [u8; 20]) {
    let (mut low, mut high) = (V::splat(f32::NEG_INFINITY), V::splat(f32::NEG_INFINITY));
    let mut poison = V::zero();
    for x in x.as_chunks().0 {
        let v = V::load(x);
        low = V::zero().sub(v).max(low);
        high = v.max(high);
        poison = poison.add(v.mul(V::zero()));
    }
    let min = f32_to_f16(-low.top()).to_le_bytes();
    let low = f16_to_f32(u16::from_le_bytes(min));
    let scale = f32_to_f16((high.top() - low) / 15.0 + poison.sum()).to_le_bytes();
    to[..2].copy_from_slice(&scale);
    to[2..4].copy_from_slice(&min);
    let scale = f16_to_f32(u16::from_le_bytes(scale));
    let (first, second) = x.split_at(BLOCK / 2);
    let halves = first.as_chunks().0.iter().zip(second.as_chunks().0);
    for ((a, b), to) in halves.zip(to[4..].as_chunks_mut::<LANES>().0) {
        let low_nibbles = codes::<V>(a, low, scale, [0.0, 15.0]);
        let high_nibbles = codes::<V>(b, low, scale, [0.0, 15.0]);
        for ((to, a), b) in to.iter_mut().zip(low_nibbles).zip(high_nibbles) {
            *to = (a | b << 4) as u8;
        }
    }
}

/// Widens one stored head vector to floats in whole blocks; beyond the vector they are any finite numbers.
#[inline(always)]
pub(crate) fn load<V: Vector>(format: KvFormat, bytes: &[u8], out: &mut [u8]) {
    match format {
        KvFormat::F32 => widen::<V, F32, WIDE>(bytes, out),
        KvFormat::F16 => widen::<V, F16, 64>(bytes, out),
        KvFormat::Q8 => widen::<V, Q8, 34>(bytes, out),
        KvFormat::Q4 => widen::<V, Q4, 20>(bytes, out),
    }
}

#[inline(always)]
fn widen<V: Vector, S: Stored<N>, const N: usize>(bytes: &[u8], out: &mut [u8]) {
    let (blocks, rest) = bytes.as_chunks::<N>();
    let (out, _) = out.as_chunks_mut::<WIDE>();
    for (block, to) in blocks.iter().zip(&mut *out) {
        widen_block::<V, S, N>(block, to);
    }
    if !rest.is_empty() {
        let mut last = [0; N];
        last[..rest.len()].copy_from_slice(rest);
        widen_block::<V, S, N>(&last, &mut out[blocks.len()]);
    }
}

#[inline(always)]
fn widen_block<V: Vector, S: Stored<N>, const N: usize>(block: &[u8; N], out: &mut [u8; WIDE]) {
    for (at, to) in out.as_chunks_mut().0.iter_mut().enumerate() {
        S::eight::<V>(block, at).store_f32(to);
    }
}

#[cfg(test)]
mod tests {
    use super::super::vector::Array;
    use super::*;

    fn widened(format: KvFormat, bytes: &[u8], out: &mut [f32]) {
        let mut wide = vec![0; out.len().div_ceil(BLOCK) * WIDE];
        load::<Array>(format, bytes, &mut wide);
        for (to, from) in out.iter_mut().zip(wide.as_chunks().0) {
            *to = f32::from_le_bytes(*from);
        }
    }

    #[test]
    fn what_is_not_finite_comes_back_as_not_finite() {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![0.5; 64];
                x[40] = bad;
                let mut bytes = vec![0; format.head_bytes(64)];
                kv_store::<Array>(format, &x, &mut bytes);
                let mut got = vec![0.0; 64];
                widened(format, &bytes, &mut got);
                assert!(!got[40].is_finite() && got[0].is_finite(), "{format} {bad}: {} {}", got[0], got[40]);
            }
        }
    }

    #[test]
    fn storing_and_loading_is_the_oracle_rounding() {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
            for dim in [8, 16, 32, 40, 64, 128, 256, 20] {
                for seed in 0..20 {
                    let x: Vec<f32> = (0..dim)
                        .map(|i| ((i * 37 + seed * 101) % 211) as f32 * 0.013 - 1.2 + 3.0 * f32::from(seed % 3 == 0))
                        .collect();
                    let mut bytes = vec![0xaa; format.head_bytes(dim)];
                    kv_store::<Array>(format, &x, &mut bytes);
                    let mut got = vec![0.0; dim];
                    widened(format, &bytes, &mut got);
                    let mut want = x;
                    format.round(&mut want);
                    assert_eq!(got, want, "{format} {dim}");
                }
            }
        }
    }
}
