//! The reference against itself: it refuses what it should, and it lies within the bounds of the exact results.

use onebit_ops::reference::Reference;

onebit_conformance::conformance!(Reference::new);
