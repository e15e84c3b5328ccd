//! Means and shares with 95% confidence intervals.
//!
//! Tokens of one document are not independent, so the interval of a figure over tokens comes from the spread between
//! units (documents, or windows of long ones), each of which is one observation: the variance of a ratio of sums,
//! `n/(n-1) * sum((s_i - mean * t_i)^2) / (sum t_i)^2`, and Student's t for n - 1 degrees of freedom.

/// Fewer units than this give no interval: it would say more about the few than about the text.
pub(super) const LEAST_UNITS: usize = 5;

/// The 97.5% point of the normal distribution.
const Z: f64 = 1.959_964;

/// Lower and upper end.
pub(super) type Interval = (f64, f64);

/// A mean over tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mean {
    pub(super) mean: f64,
    pub(super) interval: Option<Interval>,
}

/// How often something was so.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Share {
    pub(super) right: u64,
    pub(super) n: u64,
    pub(super) interval: Option<Interval>,
}

impl Share {
    /// Right answers of independent ones: Wilson's interval.
    pub(super) fn of(right: u64, n: u64) -> Share {
        Share { right, n, interval: (n > 0).then(|| wilson(right as f64 / n as f64, n as f64, Z)) }
    }

    /// Hits among tokens, unit by unit as (hits, tokens). Wilson's interval with the number of tokens divided by the
    /// design effect: how much wider the spread between units is than that of independent tokens.
    pub(super) fn of_units(units: &[(u64, u64)]) -> Share {
        let (right, n) = units.iter().fold((0, 0), |(a, b), (hits, tokens)| (a + hits, b + tokens));
        let sums: Vec<(f64, u64)> = units.iter().map(|(hits, tokens)| (*hits as f64, *tokens)).collect();
        let share = right as f64 / n as f64;
        let independent = share * (1.0 - share) / n as f64;
        let interval = variance(&sums).map(|variance| {
            let effect = if independent > 0.0 { (variance / independent).max(1.0) } else { 1.0 };
            wilson(share, n as f64 / effect, student(units.len() - 1))
        });
        Share { right, n, interval }
    }

    /// Right of all.
    pub(super) fn share(&self) -> f64 {
        self.right as f64 / self.n as f64
    }
}

impl Mean {
    /// A mean over tokens, unit by unit as (sum, tokens).
    pub(super) fn of_units(units: &[(f64, u64)]) -> Mean {
        let mean = ratio(units);
        let interval = variance(units).map(|variance| {
            let half = student(units.len() - 1) * variance.sqrt();
            (mean - half, mean + half)
        });
        Mean { mean, interval }
    }
}

fn ratio(units: &[(f64, u64)]) -> f64 {
    let (sum, tokens) = units.iter().fold((0.0, 0), |(a, b), (sum, tokens)| (a + sum, b + tokens));
    sum / tokens as f64
}

/// The variance of the ratio; `None` for too few units.
fn variance(units: &[(f64, u64)]) -> Option<f64> {
    if units.len() < LEAST_UNITS {
        return None;
    }
    let mean = ratio(units);
    let tokens: u64 = units.iter().map(|(_, tokens)| tokens).sum();
    let squares: f64 = units.iter().map(|(sum, tokens)| (sum - mean * *tokens as f64).powi(2)).sum();
    let n = units.len() as f64;
    Some(n / (n - 1.0) * squares / (tokens as f64).powi(2))
}

/// Wilson's interval of a share seen in `n` independent trials.
fn wilson(share: f64, n: f64, z: f64) -> Interval {
    let square = z * z / n;
    let centre = share + square / 2.0;
    let half = (share * (1.0 - share) * square + square * square / 4.0).sqrt();
    // At a share of 0 or 1 one end is exact but for rounding.
    (((centre - half) / (1.0 + square)).max(0.0), ((centre + half) / (1.0 + square)).min(1.0))
}

/// The 97.5% point of Student's distribution (Cornish-Fisher expansion in 1/degrees; within 0.4% from 4 degrees on).
fn student(degrees: usize) -> f64 {
    let (z, v) = (Z, degrees as f64);
    let powers: [f64; 4] = [3, 5, 7, 1].map(|n| z.powi(n));
    let [z3, z5, z7, z1] = powers;
    z + (z3 + z1) / (4.0 * v)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z1) / (96.0 * v.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z1) / (384.0 * v.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, wanted: f64, by: f64) {
        assert!((got - wanted).abs() <= by, "{got} for {wanted}");
    }

    #[test]
    fn student_against_its_table() {
        for (degrees, wanted) in [(4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)] {
            near(student(degrees), wanted, wanted * 0.004);
        }
    }

    #[test]
    fn wilson_against_published_values() {
        // 34 of 37 and 0 of 24, as in any table of the interval.
        let (low, high) = Share::of(34, 37).interval.expect("trials");
        near(low, 0.787, 0.001);
        near(high, 0.972, 0.001);
        let (low, high) = Share::of(0, 24).interval.expect("trials");
        assert_eq!(low, 0.0);
        near(high, 0.138, 0.001);
        assert_eq!(Share::of(0, 0).interval, None);
    }

    #[test]
    fn equal_units_give_the_textbook_interval_of_a_mean() {
        // Means 1..5 of 10 tokens each: mean 3, standard error sqrt(2.5 / 5).
        let units: Vec<(f64, u64)> = (1..=5).map(|i| (f64::from(i) * 10.0, 10)).collect();
        let Mean { mean, interval: Some((low, high)) } = Mean::of_units(&units) else { panic!("five units") };
        near(mean, 3.0, 1e-12);
        near(high - mean, 2.776 * 0.5f64.sqrt(), 0.01);
        near(mean - low, high - mean, 1e-12);
        assert_eq!(Mean::of_units(&units[..4]).interval, None);
    }

    #[test]
    fn clumped_hits_widen_the_interval_and_even_ones_do_not_narrow_it() {
        let width = |units: &[(u64, u64)]| {
            let (low, high) = Share::of_units(units).interval.expect("units");
            high - low
        };
        let (even, clumped) = ([(50, 100); 8], [(100, 100), (0, 100)].repeat(4));
        assert!(width(&clumped) > 5.0 * width(&even));
        let (low, high) = wilson(0.5, 800.0, student(7));
        near(width(&even), high - low, 1e-12);
        assert_eq!(Share::of_units(&[(10, 10); 6]).interval.map(|(_, high)| high), Some(1.0));
    }
}
