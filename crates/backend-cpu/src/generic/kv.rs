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
const BLOCK: usize = 32;

/// Zero, or NaN when a value is not finite: a block's scale then carries the fault on.
fn poison(x: &[f32]) -> f32 {
    x.iter().map(|v| v * 0.0).sum()
}

pub(crate) fn kv_store<V: Vector>(format: KvFormat, x: &[f32], out: &mut [u8]) {
    match format {
        KvFormat::F32 => {
            for (v, to) in x.iter().zip(out.as_chunks_mut::<4>().0) {
                *to = v.to_le_bytes();
            }
        }
        KvFormat::F16 => {
            for (v, to) in x.iter().zip(out.as_chunks_mut::<2>().0) {
                *to = f32_to_f16(*v).to_le_bytes();
            }
        }
        KvFormat::Q8 => {
            for (x, to) in x.chunks(BLOCK).zip(out.chunks_mut(34)) {
                let scale = f32_to_f16(x.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0 + poison(x));
                to[..2].copy_from_slice(&scale.to_le_bytes());
                let scale = f16_to_f32(scale);
                let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                for (v, to) in x.iter().zip(&mut to[2..]) {
                    *to = (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
                }
            }
        }
        KvFormat::Q4 => {
            for (x, to) in x.chunks(BLOCK).zip(out.chunks_mut(20)) {
                let min = f32_to_f16(x.iter().fold(f32::INFINITY, |m, v| m.min(*v)));
                let max = x.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
                let low = f16_to_f32(min);
                let scale = f32_to_f16((max - low) / 15.0 + poison(x));
                to[..2].copy_from_slice(&scale.to_le_bytes());
                to[2..4].copy_from_slice(&min.to_le_bytes());
                to[4..].fill(0);
                let scale = f16_to_f32(scale);
                let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                for (j, v) in x.iter().enumerate() {
                    let code = ((v - low) * inverse).round_ties_even().clamp(0.0, 15.0) as u8;
                    to[4 + j % 16] |= code << (4 * (j / 16));
                }
            }
        }
    }
}

/// Widens one stored head vector.
#[inline(always)]
pub(crate) fn load<V: Vector>(format: KvFormat, bytes: &[u8], out: &mut [f32]) {
    match format {
        KvFormat::F32 => {
            for (to, from) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *to = f32::from_le_bytes(*from);
            }
        }
        KvFormat::F16 => {
            let (ov, ot) = out.as_chunks_mut::<LANES>();
            let (bv, bt) = bytes.as_chunks::<{ 2 * LANES }>();
            for (to, from) in ov.iter_mut().zip(bv) {
                V::load_f16(from).store(to);
            }
            for (to, from) in ot.iter_mut().zip(bt.as_chunks::<2>().0) {
                *to = f16_to_f32(u16::from_le_bytes(*from));
            }
        }
        KvFormat::Q8 => {
            for (out, from) in out.chunks_mut(BLOCK).zip(bytes.chunks(34)) {
                let scale = f16_to_f32(u16::from_le_bytes([from[0], from[1]]));
                let (ov, ot) = out.as_chunks_mut::<LANES>();
                let (bv, _) = from[2..].as_chunks::<LANES>();
                for (to, from) in ov.iter_mut().zip(bv) {
                    V::load_i8(from).mul(V::splat(scale)).store(to);
                }
                let at = 2 + ov.len() * LANES;
                for (to, from) in ot.iter_mut().zip(&from[at..]) {
                    *to = f32::from(*from as i8) * scale;
                }
            }
        }
        KvFormat::Q4 => {
            for (out, from) in out.chunks_mut(BLOCK).zip(bytes.chunks(20)) {
                let number = |i: usize| f16_to_f32(u16::from_le_bytes([from[2 * i], from[2 * i + 1]]));
                let (scale, min) = (V::splat(number(0)), V::splat(number(1)));
                let mut codes = [0u8; BLOCK];
                for (j, byte) in from[4..].iter().enumerate() {
                    codes[j] = byte & 15;
                    codes[j + 16] = byte >> 4;
                }
                let mut values = [0.0; BLOCK];
                for (to, from) in values.as_chunks_mut::<LANES>().0.iter_mut().zip(codes.as_chunks::<LANES>().0) {
                    // Rounded twice, as the oracle does.
                    V::load_i8(from).mul(scale).add(min).store(to);
                }
                out.copy_from_slice(&values[..out.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::vector::Array;
    use super::*;

    #[test]
    fn what_is_not_finite_comes_back_as_not_finite() {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![0.5; 64];
                x[40] = bad;
                let mut bytes = vec![0; format.head_bytes(64)];
                kv_store::<Array>(format, &x, &mut bytes);
                let mut got = vec![0.0; 64];
                load::<Array>(format, &bytes, &mut got);
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
                    load::<Array>(format, &bytes, &mut got);
                    let mut want = x;
                    format.round(&mut want);
                    assert_eq!(got, want, "{format} {dim}");
                }
            }
        }
    }
}
