//! Choices that no property of an adapter decides: measured once on the device, kept beside what its driver has translated.

use crate::adapter::Found;
use crate::shaders::SLICES;
use std::fs;
use std::path::{Path, PathBuf};

/// How products are cut; `None` takes what is best on most devices of a kind. Results differ in the order of float sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tuning {
    /// Slices of the columns that a workgroup has: 8 or 16, of 32 threads each. More hide the wait for memory, and leave each
    /// thread fewer registers.
    pub slices: Option<u32>,
}

impl Tuning {
    /// Everything that there is to choose from.
    #[must_use]
    pub fn choices() -> Vec<Tuning> {
        SLICES.map(|slices| Tuning { slices: Some(slices) }).to_vec()
    }

    /// In words.
    #[must_use]
    pub fn describe(self) -> String {
        format!("{} slices", self.slices.map_or("the usual number of".to_owned(), |n| n.to_string()))
    }

    /// The choice that was kept for an adapter in a folder.
    pub(crate) fn read(folder: &Path, found: &Found) -> Option<Tuning> {
        let text = fs::read_to_string(place(folder, found)).ok()?;
        Tuning::choices().into_iter().find(|choice| choice.describe() == text)
    }

    /// Keeps the choice for an adapter in a folder.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn keep(self, folder: &Path, found: &Found) -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(place(folder, found), self.describe())
    }
}

fn place(folder: &Path, found: &Found) -> PathBuf {
    folder.join(found.file_name("tuning"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AdapterKind;

    #[test]
    fn a_choice_is_read_as_it_was_kept_and_by_its_own_adapter_alone() {
        let folder = std::env::temp_dir().join(format!("onebit-tuning-{}", std::process::id()));
        let found = |name: &str| Found {
            name: name.to_owned(),
            api: "none".to_owned(),
            kind: AdapterKind::Discrete,
            driver: String::new(),
        };
        for choice in Tuning::choices() {
            choice.keep(&folder, &found("a")).unwrap();
            assert_eq!(Tuning::read(&folder, &found("a")), Some(choice));
            assert_eq!(Tuning::read(&folder, &found("b")), None);
        }
        fs::write(place(&folder, &found("a")), "no choice").unwrap();
        assert_eq!(Tuning::read(&folder, &found("a")), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
