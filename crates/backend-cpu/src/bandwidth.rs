//! How fast this machine reads memory: the limit that decoding is measured against.

use crate::memory::Buffer;
use crate::threads::Pool;
use onebit_ops::OpError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Larger than any cache that a few cores share.
const BYTES: usize = 256 << 20;

/// One thread's stretch at a time.
const CHUNK: usize = 1 << 20;

/// Reads a buffer much larger than the caches with `threads` threads and returns the best of five passes in GB/s
/// (10^9 bytes).
///
/// # Errors
/// [`OpError::OutOfMemory`].
pub fn measure_read_bandwidth(threads: usize) -> Result<f64, OpError> {
    let mut buffer = Buffer::zeroed(BYTES, "the bandwidth probe")?;
    buffer.prefer_large_pages();
    // Untouched pages would all be one page of zeros.
    buffer.bytes_mut().fill(1);
    let pool = Pool::new(threads);
    let total = AtomicU64::new(0);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        pool.run(BYTES / CHUNK, &|i, _| {
            total.fetch_add(sum(&buffer.bytes()[i * CHUNK..(i + 1) * CHUNK]), Ordering::Relaxed);
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    std::hint::black_box(total);
    Ok(BYTES as f64 / best / 1e9)
}

/// Sum of the chunk's words, in enough chains to keep loads in flight.
fn sum(bytes: &[u8]) -> u64 {
    let mut chains = [0u64; 16];
    for line in bytes.as_chunks::<128>().0 {
        for (c, word) in chains.iter_mut().zip(line.as_chunks::<8>().0) {
            *c = c.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    chains.iter().fold(0, |s, c| s.wrapping_add(*c))
}
