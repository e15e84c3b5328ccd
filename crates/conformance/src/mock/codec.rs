//! Keys and values as bytes.
//!
//! ```text
//! F32   4 bytes a value          Q8   blocks of 32: scale (f16), 32 signed bytes
//! F16   2 bytes a value          Q4   blocks of 32: scale (f16), minimum (f16), 16 bytes, low nibble first
//! ```

use onebit_ops::KvFormat;

/// One head vector in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kv {
    pub(super) format: KvFormat,
    pub(super) dim: usize,
}

impl Kv {
    /// Writes the head of token `at` of a page.
    pub(super) fn store(self, head: &[f32], at: usize, page: &mut [u8]) {
        let size = self.format.head_bytes(self.dim);
        let mut bytes = Vec::with_capacity(size);
        let half = |v: f32| half::f16::from_f32(v);
        match self.format {
            KvFormat::F32 => head.iter().for_each(|v| bytes.extend(v.to_le_bytes())),
            KvFormat::F16 => head.iter().for_each(|v| bytes.extend(half(*v).to_le_bytes())),
            KvFormat::Q8 => {
                for block in head.chunks(32) {
                    let scale = half(block.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0);
                    let inverse = inverse(scale.to_f32());
                    bytes.extend(scale.to_le_bytes());
                    let code = |i: usize| block.get(i).map_or(0.0, |v| (v * inverse).round_ties_even());
                    bytes.extend((0..32).map(|i| code(i).clamp(-127.0, 127.0) as i8 as u8));
                }
            }
            KvFormat::Q4 => {
                for block in head.chunks(32) {
                    let min = half(block.iter().copied().fold(f32::INFINITY, f32::min));
                    let max = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let scale = half((max - min.to_f32()) / 15.0);
                    let inverse = inverse(scale.to_f32());
                    bytes.extend(scale.to_le_bytes());
                    bytes.extend(min.to_le_bytes());
                    let code = |i: usize| {
                        let steps = block.get(i).map_or(0.0, |v| ((v - min.to_f32()) * inverse).round_ties_even());
                        steps.clamp(0.0, 15.0) as u8
                    };
                    bytes.extend((0..16).map(|i| code(2 * i) | (code(2 * i + 1) << 4)));
                }
            }
        }
        page[at * size..(at + 1) * size].copy_from_slice(&bytes);
    }

    /// Reads the head of token `at` of a page.
    pub(super) fn load(self, at: usize, page: &[u8]) -> Vec<f32> {
        let size = self.format.head_bytes(self.dim);
        let bytes = &page[at * size..(at + 1) * size];
        let half = |b: &[u8]| half::f16::from_le_bytes([b[0], b[1]]).to_f32();
        let mut head: Vec<f32> = match self.format {
            KvFormat::F32 => super::kernel::floats(bytes),
            KvFormat::F16 => bytes.chunks_exact(2).map(half).collect(),
            KvFormat::Q8 => bytes
                .chunks_exact(34)
                .flat_map(|b| b[2..].iter().map(move |code| f32::from(*code as i8) * half(b)))
                .collect(),
            KvFormat::Q4 => bytes
                .chunks_exact(20)
                .flat_map(|b| {
                    let (scale, min) = (half(b), half(&b[2..]));
                    b[4..].iter().flat_map(move |pair| [pair & 15, pair >> 4].map(|c| f32::from(c) * scale + min))
                })
                .collect(),
        };
        head.truncate(self.dim);
        head
    }
}

fn inverse(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Rng;

    #[test]
    fn reads_back_what_the_oracle_rounds_to() {
        for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
            for dim in [32, 48, 128] {
                let codec = Kv { format, dim };
                let mut head = Rng::new("kv").normals(dim);
                let mut page = vec![0xff; 3 * format.head_bytes(dim)];
                codec.store(&head, 1, &mut page);
                format.round(&mut head);
                assert_eq!(codec.load(1, &page), head, "{format} {dim}");
            }
        }
    }
}
