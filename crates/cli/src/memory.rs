//! Free memory: what the system could give, and what a control group leaves of it.

use sysinfo::{CGroupLimits, MemoryRefreshKind, RefreshKind, System};

/// Bytes that this process could still take without swapping.
#[must_use]
pub fn free() -> u64 {
    let system =
        System::new_with_specifics(RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()));
    let machine = system.available_memory();
    match group(&system) {
        // Files that the group has read count as used there, though they can be dropped: only the limit binds.
        Some(group) if group.total_memory > 0 => machine.min(group.total_memory.saturating_sub(group.rss)),
        _ => machine,
    }
}

/// Bytes of memory that the machine, or the control group, has.
#[must_use]
pub fn total() -> u64 {
    let system =
        System::new_with_specifics(RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()));
    let machine = system.total_memory();
    group(&system)
        .map_or(machine, |group| if group.total_memory > 0 { machine.min(group.total_memory) } else { machine })
}

/// The control group's limits; none where the machine's own memory cannot be read (no `/proc`).
fn group(system: &System) -> Option<CGroupLimits> {
    if system.total_memory() > 0 { system.cgroup_limits() } else { None }
}

/// The most memory that this process has held so far, where the system says.
#[must_use]
pub fn peak() -> Option<u64> {
    status("VmHWM:")
}

/// The memory that this process holds now, where the system says.
#[must_use]
pub fn resident() -> Option<u64> {
    status("VmRSS:")
}

fn status(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}
