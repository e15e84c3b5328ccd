//! Which instruction set this process may use.
//!
//! Detection happens at run time; no cargo feature and no compiler flag takes part. Holding a [`Tier`] is the proof
//! that the machine has it.

use crate::generic::Kernels;
use std::fmt;

/// A set of kernels that this machine can run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tier(Isa);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Isa {
    Portable,
    #[cfg(target_arch = "x86_64")]
    X86(crate::x86_64::Machine),
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Tier {
    /// Loops without any instruction beyond the target's baseline.
    pub const PORTABLE: Tier = Tier(Isa::Portable);

    /// Every tier of this machine, the best first.
    pub fn available() -> Vec<Tier> {
        let mut tiers = Vec::new();
        #[cfg(target_arch = "x86_64")]
        tiers.extend(crate::x86_64::Machine::detect().into_iter().map(|m| Tier(Isa::X86(m))));
        #[cfg(target_arch = "aarch64")]
        tiers.push(Tier(Isa::Neon));
        tiers.push(Tier::PORTABLE);
        tiers
    }

    /// The fastest tier of this machine.
    pub fn best() -> Tier {
        Tier::available()[0]
    }

    /// The tier of this name.
    ///
    /// # Errors
    /// [`TierError`] when there is none, or this machine does not have it.
    pub fn named(name: &str) -> Result<Tier, TierError> {
        let available = Tier::available();
        let found = available.iter().copied().find(|t| t.name() == name);
        found.ok_or_else(|| TierError {
            wanted: name.to_owned(),
            available: available.iter().map(|t| t.name()).collect(),
        })
    }

    /// `portable`, `avx2`, `avxvnni`, `avx512`, `avx512vnni`, `avx512amx` or `neon`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::X86(machine) => machine.name(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
        }
    }

    pub(crate) fn kernels(self) -> &'static Kernels {
        match self.0 {
            Isa::Portable => &crate::generic::PORTABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::X86(machine) => machine.kernels(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => &crate::aarch64::NEON,
        }
    }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tier was asked for by a name that this machine has no kernels for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierError {
    /// What was asked for.
    pub wanted: String,
    /// What there is, the best first.
    pub available: Vec<&'static str>,
}

impl fmt::Display for TierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no CPU tier `{}` on this machine; available: {}", self.wanted, self.available.join(", "))
    }
}

impl std::error::Error for TierError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_is_always_there_and_unknown_names_list_what_is() {
        assert_eq!(Tier::named("portable"), Ok(Tier::PORTABLE));
        let error = Tier::named("avx1024").unwrap_err().to_string();
        assert!(error.contains("`avx1024`") && error.contains("portable"), "{error}");
    }
}
