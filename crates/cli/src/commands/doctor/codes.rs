//! Counting the codes of packed matrices: a ternary pack never uses the fourth.

use onebit_quant::{Format, MAX_GROUP, Matrix};

/// How often each 2-bit code occurs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts(pub(super) [u64; 4]);

impl Counts {
    /// Adds the codes of a 2-bit matrix.
    pub(super) fn add(&mut self, matrix: &Matrix<'_>) {
        if let Format::Affine { bits: 2, .. } = matrix.format {
            self.add_words(matrix.codes);
            return;
        }
        let mut codes = [0u8; MAX_GROUP];
        let size = matrix.format.group();
        for row in 0..matrix.rows {
            for group in 0..matrix.groups_per_row() {
                matrix.group(row, group, &mut codes);
                codes[..size].iter().for_each(|&c| self.0[usize::from(c & 3)] += 1);
            }
        }
    }

    /// Four codes a byte, counted eight bytes at a time.
    fn add_words(&mut self, bytes: &[u8]) {
        const LOW: u64 = 0x5555_5555_5555_5555;
        let mut count = |word: u64, codes: u64| {
            let (low, high) = (word & LOW, (word >> 1) & LOW);
            let [one, two, three] = [low & !high, high & !low, low & high].map(|w| u64::from(w.count_ones()));
            self.0[0] += codes - one - two - three;
            self.0[1] += one;
            self.0[2] += two;
            self.0[3] += three;
        };
        let words = bytes.chunks_exact(8);
        words.remainder().iter().for_each(|&byte| count(u64::from(byte), 4));
        words.for_each(|w| count(u64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]), 32));
    }

    /// Share of one code.
    pub(super) fn share(&self, code: usize) -> f64 {
        self.0[code] as f64 / self.0.iter().sum::<u64>().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::{Random, affine};
    use super::*;
    use onebit_quant::{Exactness, reencode};

    #[test]
    fn words_and_blocks_count_alike() {
        let packed = affine(5, 384, 2, 128, false, &mut Random::new(7));
        let mut words = Counts::default();
        words.add(&packed.as_matrix());
        assert_eq!((words.0.iter().sum::<u64>(), words.0[3]), (5 * 384, 0));
        let blocks = reencode(&packed.as_matrix(), Format::Pq2_0, Exactness::Exact).expect("symmetric").matrix;
        let mut counted = Counts::default();
        counted.add(&blocks.as_matrix());
        assert_eq!(words, counted);
        let mut odd = Counts::default();
        odd.add_words(&[0b1110_0100, 0xff]);
        assert_eq!(odd.0, [1, 1, 1, 5]);
    }
}
