//! For tests of loops that read through pointers.

/// Whether this machine has the tier.
pub(super) fn detected(tier: &str) -> bool {
    super::Machine::detect().iter().any(|m| m.name() == tier)
}

/// Pseudo-random numbers of 24 bits.
pub(super) fn numbers(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    }
}

/// Bytes that end where the next page may not be touched.
pub(super) struct Guarded {
    base: *mut libc::c_void,
    len: usize,
}

const PAGE: usize = 4096;

impl Guarded {
    pub(super) fn new(bytes: &[u8]) -> Self {
        let len = bytes.len().next_multiple_of(PAGE) + PAGE;
        // SAFETY: a fresh private mapping; its last page is made inaccessible before anything points there.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.byte_add(len - PAGE), PAGE, libc::PROT_NONE), 0);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.byte_add(len - PAGE - bytes.len()).cast(), bytes.len());
            base
        };
        Guarded { base, len }
    }

    /// Where the last `bytes` of them begin.
    pub(super) fn start(&self, bytes: usize) -> *const u8 {
        // SAFETY: inside the mapping.
        unsafe { self.base.byte_add(self.len - PAGE - bytes).cast() }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.base, self.len) };
    }
}
