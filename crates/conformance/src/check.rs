//! Comparing results, and collecting what failed.

use crate::Outcome;
use crate::bound::Near;
use crate::prng::Rng;
use onebit_ops::reference::Reference;
use onebit_ops::{Activations, Backend, FormatSupport, KvFormat};
use onebit_quant::Format;

/// A backend under test, the reference, and the failures so far.
pub(crate) struct Suite<'a> {
    group: &'static str,
    pub(crate) backend: &'a dyn Backend,
    pub(crate) reference: &'a Reference,
    outcome: Outcome,
}

impl<'a> Suite<'a> {
    pub(crate) fn new(group: &'static str, backend: &'a dyn Backend, reference: &'a Reference) -> Self {
        Suite { group, backend, reference, outcome: Outcome::default() }
    }

    pub(crate) fn finish(self) -> Outcome {
        self.outcome
    }

    /// The numbers of a case.
    pub(crate) fn rng(&self, case: &str) -> Rng {
        Rng::new(&format!("{}/{case}", self.group))
    }

    /// Activation kinds that the backend runs.
    pub(crate) fn activations(&self) -> Vec<Activations> {
        self.backend.caps().activations.clone()
    }

    /// KV formats that the backend runs.
    pub(crate) fn kv_formats(&self) -> Vec<KvFormat> {
        self.backend.caps().kv_formats.clone()
    }

    /// Those of the formats that the backend runs.
    pub(crate) fn supported(&self, formats: Vec<Format>) -> Vec<Format> {
        let runs = |f: &Format| matches!(self.backend.format_support(*f), FormatSupport::Kernel(_));
        formats.into_iter().filter(runs).collect()
    }

    /// Counts a comparison; a failure is kept with the case's name.
    pub(crate) fn require(&mut self, case: &str, holds: bool, what: impl FnOnce() -> String) {
        self.outcome.checks += 1;
        if !holds {
            self.outcome.failures.push(format!("{}/{case}: {}", self.group, what()));
        }
    }

    /// Every value within its own bound. `bound` is called for each index, in order. A value that is not a number
    /// fails, unless the reference has none there either.
    pub(crate) fn within(&mut self, case: &str, cols: usize, got: &[f32], want: &[f32], bound: impl Fn(usize) -> f64) {
        if got.len() != want.len() {
            return self.require(case, false, || format!("{} values, expected {}", got.len(), want.len()));
        }
        // Worst by how many bounds a value is away.
        let mut worst = (0, 0.0f64);
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let (g, w) = (f64::from(*g), f64::from(*w));
            let off =
                if g.is_nan() && w.is_nan() || g == w { 0.0 } else { (g - w).abs() / bound(i).max(f64::MIN_POSITIVE) };
            if off.is_nan() || off > worst.1 {
                worst = (i, if off.is_nan() { f64::INFINITY } else { off });
            }
        }
        let (i, off) = worst;
        self.require(case, off <= 1.0, || {
            format!(
                "row {} column {}: expected {:e}, got {:e}, bound {:.3e}",
                i / cols,
                i % cols,
                want[i],
                got[i],
                bound(i)
            )
        });
    }

    /// Every value within twice the error of its exact value: one share for the backend, one for the reference.
    pub(crate) fn near(&mut self, case: &str, got: &[f32], want: &[f32], exact: &[Vec<Near>]) {
        let cols = exact.first().map_or(1, |row| row.len().max(1));
        // The reference is held to the same arithmetic: it could be wrong, too.
        let value = |i: usize| exact[i / cols][i % cols].value;
        let astray = (0..want.len()).find(|i| {
            let off = (f64::from(want[*i]) - value(*i)).abs();
            off.is_nan() || off > exact[i / cols][i % cols].error
        });
        self.require(case, astray.is_none(), || {
            let i = astray.unwrap_or(0);
            format!("the reference is wrong at {i}: exactly {:e}, got {:e}", value(i), want[i])
        });
        self.within(case, cols, got, want, |i| 2.0 * exact[i / cols][i % cols].error);
    }

    /// Every value within `relative * |expected|` and a subnormal's worth.
    pub(crate) fn relative(&mut self, case: &str, cols: usize, got: &[f32], want: &[f32], relative: f64) {
        self.within(case, cols, got, want, |i| 2.0 * (relative * f64::from(want[i]).abs() + crate::bound::TINY));
    }

    /// Every value equal in all its bits.
    pub(crate) fn identical(&mut self, case: &str, cols: usize, got: &[f32], want: &[f32]) {
        let differs = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits());
        let (lengths, at) = ((got.len(), want.len()), differs.unwrap_or(0));
        self.require(case, lengths.0 == lengths.1 && differs.is_none(), || {
            if lengths.0 != lengths.1 {
                return format!("{} values, expected {}", lengths.0, lengths.1);
            }
            format!(
                "row {} column {}: expected {:e}, got {:e}, bound: equal bits",
                at / cols,
                at % cols,
                want[at],
                got[at]
            )
        });
    }
}
