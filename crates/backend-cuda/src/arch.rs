//! Which code path a device gets.

use crate::driver::fault;
use onebit_ops::OpError;

/// A code path: what the kernels were compiled for. A device runs the newest that it can, or the one that
/// `ONEBIT_CUDA_ARCH` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// Turing: integer dot products, the first integer matrix units.
    Sm75,
    /// Ampere: asynchronous copies, larger integer matrix instructions.
    Sm80,
    /// Ada.
    Sm89,
    /// Hopper with the instructions that no other generation has.
    Sm90a,
}

impl Arch {
    /// Every code path, oldest first.
    pub const ALL: [Arch; 4] = [Arch::Sm75, Arch::Sm80, Arch::Sm89, Arch::Sm90a];

    /// `75`, `80`, `89` or `90a`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm75 => "75",
            Arch::Sm80 => "80",
            Arch::Sm89 => "89",
            Arch::Sm90a => "90a",
        }
    }

    /// The path of this name; `90` is short for `90a`.
    #[must_use]
    pub fn named(name: &str) -> Option<Arch> {
        Self::ALL.into_iter().find(|arch| arch.name() == name || arch.name().strip_suffix('a') == Some(name))
    }

    /// Least compute capability of a device that runs it.
    #[must_use]
    pub const fn capability(self) -> (i32, i32) {
        match self {
            Arch::Sm75 => (7, 5),
            Arch::Sm80 => (8, 0),
            Arch::Sm89 => (8, 9),
            Arch::Sm90a => (9, 0),
        }
    }

    /// Whether a device of this compute capability runs it. Code for `90a` runs on 9.0 alone; the others also on
    /// everything newer.
    #[must_use]
    pub fn runs_on(self, capability: (i32, i32)) -> bool {
        if self == Arch::Sm90a { capability == self.capability() } else { capability >= self.capability() }
    }

    /// Whether it runs image models: attention without a cache wants more shared memory than older devices have.
    #[must_use]
    pub(crate) fn runs_images(self) -> bool {
        self >= Arch::Sm80
    }

    /// The newest path that a device runs.
    #[must_use]
    pub fn best(capability: (i32, i32)) -> Option<Arch> {
        Self::ALL.into_iter().rev().find(|arch| arch.runs_on(capability))
    }

    /// The path for a device: the one wished for, or the best.
    ///
    /// # Errors
    /// A device that is too old for any, or for the wish.
    pub(crate) fn choose(wish: Option<Arch>, device: &str, capability: (i32, i32)) -> Result<Arch, OpError> {
        let (major, minor) = capability;
        let Some(best) = Self::best(capability) else {
            let (least_major, least_minor) = Self::ALL[0].capability();
            return Err(fault(format!(
                "{device} has compute capability {major}.{minor}, and {least_major}.{least_minor} is needed (Turing, \
                 2018, or newer)"
            )));
        };
        match wish {
            Some(arch) if !arch.runs_on(capability) => Err(fault(format!(
                "ONEBIT_CUDA_ARCH={}: {device} has compute capability {major}.{minor} and cannot run it; {} is the best \
                 that it runs",
                arch.name(),
                best.name()
            ))),
            wish => Ok(wish.unwrap_or(best)),
        }
    }

    /// What `ONEBIT_CUDA_ARCH` asks for.
    ///
    /// # Errors
    /// A value that is no code path.
    pub(crate) fn from_environment() -> Result<Option<Arch>, OpError> {
        match std::env::var("ONEBIT_CUDA_ARCH") {
            Ok(name) if !name.is_empty() => Self::named(&name).map(Some).ok_or_else(|| {
                let known = Self::ALL.map(Arch::name).join(", ");
                fault(format!("ONEBIT_CUDA_ARCH={name}: wanted one of {known}"))
            }),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_generation_gets_its_path() {
        let best = |major, minor| Arch::best((major, minor)).map(Arch::name);
        assert_eq!(best(7, 0), None);
        assert_eq!(best(7, 5), Some("75"));
        assert_eq!(best(8, 6), Some("80"));
        assert_eq!(best(8, 9), Some("89"));
        assert_eq!(best(9, 0), Some("90a"));
        // Blackwell cannot run code that only Hopper understands.
        assert_eq!(best(10, 0), Some("89"));
        assert_eq!(best(12, 0), Some("89"));
    }

    #[test]
    fn a_path_can_be_forced_where_the_device_runs_it() {
        assert_eq!(Arch::named("90"), Some(Arch::Sm90a));
        assert_eq!(Arch::named("7"), None);
        assert_eq!(Arch::choose(Arch::named("75"), "a card", (9, 0)).unwrap(), Arch::Sm75);
        let error = Arch::choose(Arch::named("90"), "a card", (8, 0)).unwrap_err().to_string();
        assert!(error.contains("ONEBIT_CUDA_ARCH=90a: a card has compute capability 8.0"), "{error}");
        let error = Arch::choose(None, "an old card", (6, 1)).unwrap_err().to_string();
        assert!(error.contains("6.1, and 7.5 is needed"), "{error}");
    }
}
