//! Noise levels of a flow-matching sampler (Euler steps, exponential shift).
//!
//! Formula and constants: `FlowMatchEulerDiscreteScheduler` and `compute_empirical_mu` of diffusers. With
//! `s = 1 - i (1 - 1/n) / (n - 1)` for i in 0..n, the levels are `e^mu / (e^mu + 1/s - 1)`, and 0 at the end.

/// How strongly the levels are shifted towards noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shift {
    /// By the fitted value for the picture's size and the number of steps.
    Empirical,
    /// By this `mu`.
    Fixed(f64),
}

/// The fitted `mu` for `tokens` latent pixels and `steps` steps.
pub fn empirical_mu(tokens: usize, steps: usize) -> f64 {
    const LOW: [f64; 2] = [8.738_095_24e-5, 1.898_333_33];
    const HIGH: [f64; 2] = [0.000_169_27, 0.456_666_66];
    let line = |[slope, start]: [f64; 2]| slope * tokens as f64 + start;
    // At 10 and at 200 steps; linear between, and beyond.
    let (few, many) = (line(LOW), line(HIGH));
    if tokens > 4300 {
        return many;
    }
    let slope = (many - few) / 190.0;
    slope * steps as f64 + many - 200.0 * slope
}

/// `steps + 1` levels from 1 to 0.
pub fn sigmas(tokens: usize, steps: usize, shift: Shift) -> Vec<f64> {
    let mu = match shift {
        Shift::Empirical => empirical_mu(tokens, steps),
        Shift::Fixed(mu) => mu,
    };
    let last = 1.0 / steps as f64;
    let base = |i: usize| if steps > 1 { 1.0 - i as f64 * (1.0 - last) / (steps - 1) as f64 } else { 1.0 };
    let shifted = (0..steps).map(|i| mu.exp() / (mu.exp() + 1.0 / base(i) - 1.0));
    shifted.chain([0.0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of a run of the reference pipeline at 512x512.
    #[test]
    fn levels_of_four_steps_at_512() {
        assert!((empirical_mu(1024, 4) - 2.0307).abs() < 5e-5);
        let wanted = [1.0, 0.95809, 0.88398, 0.71750, 0.0];
        for (got, wanted) in sigmas(1024, 4, Shift::Empirical).iter().zip(wanted) {
            assert!((got - wanted).abs() < 5e-6, "{got} for {wanted}");
        }
    }

    #[test]
    fn large_pictures_do_not_depend_on_the_steps() {
        assert_eq!(empirical_mu(4301, 4), empirical_mu(4301, 50));
        assert_ne!(empirical_mu(4300, 4), empirical_mu(4300, 50));
    }

    #[test]
    fn a_fixed_shift_and_a_single_step() {
        assert_eq!(sigmas(64, 1, Shift::Fixed(3.0)), [1.0, 0.0]);
        assert!((sigmas(64, 4, Shift::Fixed(3.0))[3] - 0.870_048_5).abs() < 1e-6);
    }
}
