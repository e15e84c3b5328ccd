//! Lookup tables: four activations become 16 sums, one for each pattern of four weight bits.
//!
//! A pattern selects the activations whose bit is set. Their sum, less the smallest that any pattern gives (the sum of
//! the negative ones), lies in 0..=1020 for nine-bit activations: ten bits, five for each of two byte tables. Eight
//! looked-up bytes of at most 31 then add up inside a byte. Eight-bit activations use the same tables.
//!
//! ```text
//! table of a quad: 16 low bytes (sum & 31) | 16 high bytes (sum >> 5)
//! ```

/// Bytes of a quad's table.
pub(super) const BYTES: usize = 32;

pub(super) fn build(values: &[i16], tables: &mut [u8]) {
    for (quad, table) in values.as_chunks::<4>().0.iter().zip(tables.as_chunks_mut::<BYTES>().0) {
        let smallest: i16 = quad.iter().map(|v| v.min(&0)).sum();
        let (low, high) = table.split_at_mut(16);
        for (pattern, (low, high)) in low.iter_mut().zip(high).enumerate() {
            let mut sum = -smallest;
            for (i, v) in quad.iter().enumerate() {
                sum += if pattern >> i & 1 == 1 { *v } else { 0 };
            }
            (*low, *high) = ((sum & 31) as u8, (sum >> 5) as u8);
        }
    }
}
