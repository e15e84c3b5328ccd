//! Memory for weights, caches and temporaries, and the handle through which tasks share it.

use onebit_ops::{OpError, SharedBytes};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer: a cache line, and the widest vector.
pub(crate) const ALIGN: usize = 64;

/// What the allocator is asked for. More than this and it would clear the pages itself instead of taking fresh ones
/// from the system, and a large pool would cost its whole size at once.
const SYSTEM_ALIGN: usize = 16;

/// A large page.
const LARGE_PAGE: usize = 2 << 20;

/// Bytes of one stretch of an [`Arena`]. What is not used of it takes addresses, not memory.
const STRETCH: usize = 256 << 20;

/// Zeroed bytes, aligned to 64. A large buffer occupies memory only where it has been written.
pub(crate) struct Buffer {
    base: NonNull<u8>,
    layout: Layout,
    skip: usize,
    len: usize,
}

// SAFETY: the buffer owns its memory, like a `Vec<u8>`.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zeroed bytes; `what` names them in the error.
    pub(crate) fn zeroed(len: usize, what: &str) -> Result<Buffer, OpError> {
        Self::aligned(len, ALIGN, what)
    }

    fn aligned(len: usize, align: usize, what: &str) -> Result<Buffer, OpError> {
        let failed = || OpError::OutOfMemory {
            what: what.to_owned(),
            backend: "cpu".to_owned(),
            wanted: len as u64,
            available: available_bytes(),
        };
        let size = len.checked_add(align).ok_or_else(failed)?;
        let layout = Layout::from_size_align(size, SYSTEM_ALIGN).map_err(|_| failed())?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(failed)?;
        let skip = base.as_ptr().align_offset(align);
        Ok(Buffer { base, layout, skip, len })
    }

    /// Asks the system for large pages, which a long stream reads faster.
    pub(crate) fn prefer_large_pages(&mut self) {
        #[cfg(target_os = "linux")]
        self.advise(libc::MADV_HUGEPAGE);
    }

    /// Gives advice about the whole pages of the usable bytes.
    #[cfg(target_os = "linux")]
    fn advise(&mut self, advice: libc::c_int) {
        const PAGE: usize = 4096;
        let first = self.base.as_ptr() as usize + self.skip;
        let (start, end) = (first.next_multiple_of(PAGE), (first + self.len) / PAGE * PAGE);
        if end > start {
            // SAFETY: the pages lie inside this buffer, which is borrowed exclusively. Neither advice leaves anything in
            // them but their bytes or zeros, and advice that is not taken changes nothing.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, advice) };
        }
    }

    /// Gives whole pages back to the system; what they held is lost.
    pub(crate) fn discard(&mut self) {
        #[cfg(target_os = "linux")]
        self.advise(libc::MADV_DONTNEED);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `skip + len` bytes were allocated and zeroed.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.skip), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(self.skip), self.len) }
    }

    /// The bytes as floats.
    pub(crate) fn floats(&self) -> &[f32] {
        // SAFETY: any bits are a float.
        unsafe { self.bytes().align_to::<f32>().1 }
    }

    /// The bytes as floats.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: any bits are a float.
        unsafe { self.bytes_mut().align_to_mut::<f32>().1 }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// Memory for what stays: pieces of long stretches, so that weights of all sizes share large pages without a gap.
#[derive(Default)]
pub(crate) struct Arena {
    /// The stretch that pieces are cut from, and where the next one begins.
    open: Option<(Arc<Buffer>, usize)>,
}

impl Arena {
    /// A zeroed piece, aligned to 64; `what` names it in the error.
    pub(crate) fn take(&mut self, len: usize, what: &str) -> Result<Piece, OpError> {
        let fits = |(buffer, next): &(Arc<Buffer>, usize)| buffer.len - next >= len;
        let (buffer, start) = match self.open.take().filter(fits) {
            Some(open) => open,
            None => {
                let mut buffer = Buffer::aligned(len.max(STRETCH), LARGE_PAGE, what)?;
                buffer.prefer_large_pages();
                (Arc::new(buffer), 0)
            }
        };
        // Lengths are below the stretch's, so this does not overflow.
        let next = (start + len).next_multiple_of(ALIGN).min(buffer.len);
        self.open = Some((buffer.clone(), next));
        Ok(Piece { buffer, start, len })
    }
}

/// A piece of an [`Arena`]; its stretch lives as long as any piece of it.
pub(crate) struct Piece {
    buffer: Arc<Buffer>,
    start: usize,
    len: usize,
}

impl Piece {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: inside the buffer, which lives as long as `self`; pieces do not overlap, so nobody writes here while
        // `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.first(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.len) }
    }

    fn first(&self) -> *mut u8 {
        // SAFETY: `take` keeps `start + len` within the buffer.
        unsafe { self.buffer.base.as_ptr().add(self.buffer.skip + self.start) }
    }
}

/// The bytes of a segment.
pub(crate) enum Bytes {
    Own(Piece),
    /// Of a mapped file, aligned to 64.
    File(SharedBytes),
}

impl Bytes {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Bytes::Own(piece) => piece.bytes(),
            Bytes::File(bytes) => bytes,
        }
    }
}

/// Memory that the system could still give, for messages.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).map_or(0, |kb| kb * 1024)
}

/// A slice that the tasks of one parallel phase write in pieces.
#[derive(Clone, Copy)]
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: the pieces are handed out by `piece`, whose callers promise that no two overlap.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// A piece that nobody writes.
    ///
    /// # Safety
    /// No mutable piece that is alive at the same time may overlap.
    pub(crate) unsafe fn shared(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice, and by the caller's promise nobody writes there.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// One piece.
    ///
    /// # Safety
    /// No two pieces that are alive at the same time may overlap.
    pub(crate) unsafe fn piece(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice, and by the caller's promise not aliased.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Numbers that any bytes are a value of.
///
/// # Safety
/// Every bit pattern must be a valid value, without padding.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: every pattern is a number.
unsafe impl Plain for f32 {}
// SAFETY: every pattern is a number.
unsafe impl Plain for f64 {}
// SAFETY: every pattern is a number.
unsafe impl Plain for i16 {}
// SAFETY: every pattern is a number.
unsafe impl Plain for u8 {}
// SAFETY: every pattern is a number.
unsafe impl Plain for usize {}
// SAFETY: two numbers without padding.
unsafe impl Plain for [f32; 2] {}

/// Cuts aligned slices off a byte buffer.
pub(crate) struct Carve<'a> {
    rest: &'a mut [u8],
}

/// Bytes that [`Carve::take`] uses for `len` values.
pub(crate) const fn carved_bytes<T>(len: usize) -> usize {
    (len * size_of::<T>()).next_multiple_of(ALIGN)
}

impl<'a> Carve<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Carve { rest: buffer }
    }

    /// The next `len` values, at a multiple of 64 bytes from the start.
    pub(crate) fn take<T: Plain>(&mut self, len: usize) -> &'a mut [T] {
        let (head, rest) = std::mem::take(&mut self.rest).split_at_mut(carved_bytes::<T>(len));
        self.rest = rest;
        // SAFETY: any bytes are a value of a plain type.
        let (before, values, _) = unsafe { head.align_to_mut::<T>() };
        assert!(before.is_empty(), "buffers start aligned");
        &mut values[..len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_exactly_long() {
        for len in [0, 1, 63, 64, 4097, 1 << 20] {
            let mut b = Buffer::zeroed(len, "a test").unwrap();
            assert_eq!(b.bytes().as_ptr() as usize % ALIGN, 0);
            assert_eq!(b.bytes().len(), len);
            assert!(b.bytes().iter().all(|v| *v == 0));
            b.bytes_mut().fill(1);
            assert_eq!(b.floats().len(), len / 4);
        }
        assert!(Buffer::zeroed(usize::MAX, "too much").is_err());
    }

    #[test]
    fn pieces_of_an_arena_are_aligned_and_do_not_overlap() {
        let mut arena = Arena::default();
        let mut pieces: Vec<Piece> = [1, 0, 64, 100, STRETCH / 2, STRETCH - 1, STRETCH + 1, 7]
            .into_iter()
            .map(|len| arena.take(len, "a test").unwrap())
            .collect();
        for piece in &mut pieces {
            assert_eq!(piece.bytes().as_ptr() as usize % ALIGN, 0);
            let len = piece.bytes().len();
            let ends = [0, len.saturating_sub(1)].map(|i| piece.bytes().get(i).copied().unwrap_or_default());
            assert_eq!(ends, [0, 0], "nobody wrote here before");
            if let [first, .., last] = piece.bytes_mut() {
                (*first, *last) = (1, 1);
            }
        }
        assert!(arena.take(usize::MAX, "too much").is_err());
    }
}
