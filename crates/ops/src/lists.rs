//! The lists of a step that may have any length: pages, changes of logits, masks. A backend that brings them to a device keeps
//! room for them, and lays its inputs out anew when a step needs more.

use crate::{Bucket, PAGE_ROWS, Segment, StepInputs};
use std::sync::Arc;

/// Room for the lists of a step that have no length of their own, in a buffer that a plan keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Page numbers of all segments.
    pub pages: usize,
    /// Changes of single logits.
    pub adjust: usize,
    /// Words of different masks.
    pub masks: usize,
}

impl Capacity {
    /// What a plan begins with: every row a sequence of its own with all its pages, unless that is much.
    #[must_use]
    pub fn first(bucket: Bucket) -> Capacity {
        const MOST: usize = 1 << 16;
        let pages = bucket.context.div_ceil(PAGE_ROWS);
        let pages = bucket.rows.saturating_mul(pages).min(MOST).max(pages);
        Capacity { pages, adjust: 64, masks: 0 }
    }

    /// What a step needs.
    #[must_use]
    pub fn of(inputs: &StepInputs) -> Capacity {
        Capacity {
            pages: inputs.segments.iter().map(Segment::used_pages).sum(),
            adjust: inputs.draws.iter().map(|draw| draw.adjust.len()).sum(),
            masks: inputs.different_masks().iter().map(|mask| mask.len()).sum(),
        }
    }

    /// Whether there is room for what is needed.
    #[must_use]
    pub fn holds(self, needed: Capacity) -> bool {
        needed.pages <= self.pages && needed.adjust <= self.adjust && needed.masks <= self.masks
    }

    /// Room for what is needed, and for as much again where it grew.
    #[must_use]
    pub fn grown(self, needed: Capacity) -> Capacity {
        let grow = |have: usize, need: usize| if need > have { 2 * need } else { have };
        Capacity {
            pages: grow(self.pages, needed.pages),
            adjust: grow(self.adjust, needed.adjust),
            masks: grow(self.masks, needed.masks),
        }
    }
}

impl StepInputs {
    /// The different masks, in the order of their first use: sequences under one grammar share theirs.
    #[must_use]
    pub fn different_masks(&self) -> Vec<&Arc<[u32]>> {
        let mut different: Vec<&Arc<[u32]>> = Vec::new();
        for mask in self.draws.iter().filter_map(|draw| draw.mask.as_ref()) {
            if !different.iter().any(|known| Arc::ptr_eq(known, mask)) {
                different.push(mask);
            }
        }
        different
    }
}

impl Segment {
    /// How many pages the tokens lie in; it may name more.
    #[must_use]
    pub fn used_pages(&self) -> usize {
        self.pages.len().min((self.past + self.rows.len()).div_ceil(PAGE_ROWS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_grows_when_it_must() {
        let bucket = Bucket { rows: 20, logits: 2, context: 200 };
        let segment = |rows: std::ops::Range<usize>, past, pages: &[u32]| Segment {
            rows,
            slot: 0,
            pages: pages.to_vec(),
            past,
            accepted: 0,
            speculative: false,
        };
        // The last page of the second is not reached yet.
        let segments = vec![segment(0..17, 0, &[7]), segment(17..18, 64, &[9, 8, 2])];
        let needed = Capacity::of(&StepInputs { segments, ..StepInputs::default() });
        assert_eq!(needed, Capacity { pages: 3, ..Capacity::default() });
        let first = Capacity::first(bucket);
        assert_eq!(first.pages, 20 * 4);
        assert!(first.holds(needed));
        let small = Capacity { pages: 2, ..Capacity::default() };
        assert!(!small.holds(needed));
        assert_eq!(small.grown(needed), Capacity { pages: 6, ..Capacity::default() });
    }
}
