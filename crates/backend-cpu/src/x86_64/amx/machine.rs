//! Whether this process may use tiles.

use std::sync::OnceLock;

/// Whether the machine has AMX with bytes, and the system lets this process use it.
///
/// A process asks once; its threads share the permission.
pub(in crate::x86_64) fn detected() -> bool {
    static DETECTED: OnceLock<bool> = OnceLock::new();
    *DETECTED.get_or_init(|| machine_has_it() && permitted())
}

fn machine_has_it() -> bool {
    use std::arch::is_x86_feature_detected as has;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Intel's manual, volume 2, CPUID: leaf 7, EDX bits 24 (tiles) and 25 (bytes); leaf 1, ECX bit 27 (XGETBV).
    let (tiles, saved) = (0b11 << 24, 1 << 27);
    let leaves = __cpuid(0).eax;
    if leaves < 7 || __cpuid_count(7, 0).edx & tiles != tiles || __cpuid(1).ecx & saved == 0 || !has!("xsave") {
        return false;
    }
    // XCR0: the system saves the tiles' configuration (17) and contents (18).
    // SAFETY: the processor has the instruction, and the system has enabled it.
    let enabled = unsafe { std::arch::x86_64::_xgetbv(0) };
    enabled >> 17 & 0b11 == 0b11
}

/// Linux gives the memory to save tiles in only to processes that ask for it (`Documentation/arch/x86/xstate.rst`).
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers, and changes nothing but the permission.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}
