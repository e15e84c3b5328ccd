//! The next weight, fetched by threads that have nothing to do.
//!
//! Between two products of few rows lie some ten microseconds of small work, most of it on one thread, in which the
//! memory would rest. A thread that waits brings the beginning of its next task into its second-level cache meanwhile.
//! What is fetched is a guess: a thread may take another's tasks, and a wrong guess costs nothing but the fetch.

use crate::threads::Shares;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that a thread fetches: a part of the smallest second-level caches.
const BYTES: usize = 192 * 1024;

const LINE: usize = 64;

/// Where the tasks of a later phase begin to read. Written between phases, read at any time: nothing but prefetches,
/// which cannot fail, comes of it.
#[derive(Default)]
pub(crate) struct Ahead {
    base: AtomicUsize,
    tasks: AtomicUsize,
    threads: AtomicUsize,
    task: AtomicUsize,
    block: AtomicUsize,
    streams: AtomicUsize,
}

/// How far a thread has come.
#[derive(Default)]
pub(crate) struct Place {
    base: usize,
    offset: usize,
}

impl Ahead {
    /// Task `i` of a later phase reads `streams` blocks of `block` bytes side by side, from byte `i * task` of `data`. So
    /// many tasks are shared out to so many threads.
    pub(crate) fn expect(
        &self,
        data: &[u8],
        (tasks, threads): (usize, usize),
        task: usize,
        block: usize,
        streams: usize,
    ) {
        let last = Shares::first(tasks, threads, threads - 1) * task;
        let fits = last + streams * block <= data.len();
        self.tasks.store(tasks, Ordering::Relaxed);
        self.threads.store(threads, Ordering::Relaxed);
        self.task.store(task, Ordering::Relaxed);
        self.block.store(block, Ordering::Relaxed);
        self.streams.store(streams, Ordering::Relaxed);
        self.base.store(if fits { data.as_ptr().addr() } else { 0 }, Ordering::Relaxed);
    }

    /// Fetches a line of each stream; false when there is nothing to fetch.
    pub(crate) fn fetch(&self, thread: usize, place: &mut Place) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        if base == 0 {
            return false;
        }
        if place.base != base {
            *place = Place { base, offset: 0 };
        }
        let (block, streams) = (self.block.load(Ordering::Relaxed), self.streams.load(Ordering::Relaxed));
        if place.offset >= block.min(BYTES / streams.max(1)) {
            return false;
        }
        let (tasks, threads) = (self.tasks.load(Ordering::Relaxed), self.threads.load(Ordering::Relaxed).max(1));
        let first = base + Shares::first(tasks, threads, thread) * self.task.load(Ordering::Relaxed) + place.offset;
        for stream in 0..streams {
            prefetch(first + stream * block);
        }
        place.offset += LINE;
        true
    }
}

/// Brings a line into the second-level cache.
fn prefetch(address: usize) {
    let line = std::ptr::without_provenance::<i8>(address);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and faults at no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_fetches_its_part_once_and_nothing_beyond_the_data() {
        let data = vec![0u8; 64 * 1024];
        let ahead = Ahead::default();
        let mut place = Place::default();
        assert!(!ahead.fetch(0, &mut place));
        ahead.expect(&data, (2, 2), 32 * 1024, 4 * 1024, 8);
        assert_eq!((0..1000).take_while(|_| ahead.fetch(1, &mut place)).count(), 4 * 1024 / LINE);
        // Three tasks would reach beyond the end.
        ahead.expect(&data, (3, 3), 32 * 1024, 4 * 1024, 8);
        assert!(!ahead.fetch(2, &mut Place::default()));
    }
}
