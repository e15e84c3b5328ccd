//! Norms, convolutions, decays and biases: small float tensors that the containers store differently.

use super::heads::{Direction, HeadOrder};
use super::names::Content;
use anyhow::{Result, anyhow};

/// Values of a float tensor as the other container stores them. `offset` is what an unconverted file leaves out of its
/// norm gains. The second result is the largest relative change of a decay, 0 for everything else.
pub(super) fn rewrite(
    content: Content,
    values: Vec<f32>,
    heads: Option<&HeadOrder>,
    direction: Direction,
    offset: f32,
) -> Result<(Vec<f32>, f64)> {
    let order = |order: Vec<usize>, per: usize| -> Result<Vec<f32>> {
        if order.len() * per != values.len() {
            return Err(anyhow!("it holds {} values, {} wanted by the head counts", values.len(), order.len() * per));
        }
        Ok(order.iter().flat_map(|&i| &values[i * per..(i + 1) * per]).copied().collect())
    };
    let heads = || heads.ok_or_else(|| anyhow!("it belongs to an architecture with value heads"));
    match content {
        Content::OffsetNorm => Ok((values.iter().map(|v| v + offset).collect(), 0.0)),
        Content::Norm | Content::Matrix(_) => Ok((values, 0.0)),
        Content::PerHead => Ok((order(heads()?.heads(direction), 1)?, 0.0)),
        Content::Conv => {
            let channels = heads()?.channels(direction);
            let kernel = values.len() / channels.len().max(1);
            Ok((order(channels, kernel)?, 0.0))
        }
        Content::Decay => {
            let moved = order(heads()?.heads(direction), 1)?;
            if direction == Direction::ToTiled {
                return Ok((moved.iter().map(|&a| decay(a)).collect(), 0.0));
            }
            let mut worst = 0.0f64;
            let logs = moved.iter().map(|&rate| {
                let log = log_of(rate)?;
                worst = worst.max((f64::from(decay(log)) / f64::from(rate) - 1.0).abs());
                Ok(log)
            });
            let logs = logs.collect::<Result<Vec<f32>>>()?;
            Ok((logs, worst))
        }
    }
}

/// `-exp(A_log)`, as models compute it at load.
fn decay(log: f32) -> f32 {
    -f64::from(log).exp() as f32
}

/// The `A_log` whose decay is this rate, exactly where there is one. binary16 values are tried first, because the packs
/// store them.
fn log_of(rate: f32) -> Result<f32> {
    if !(rate < 0.0 && rate.is_finite()) {
        return Err(anyhow!("it holds the decay rate {rate}, which is not negative"));
    }
    let log = (-f64::from(rate)).ln();
    let half = half::f16::from_f64(log).to_f32();
    let near = log as f32;
    let candidates = [half, near, near.next_up(), near.next_down()];
    let error = |&a: &f32| (f64::from(decay(a)) - f64::from(rate)).abs();
    let mut best = near;
    for candidate in candidates {
        if error(&candidate) < error(&best) || (candidate == half && error(&candidate) == error(&best)) {
            best = candidate;
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decays_made_from_logs_find_them_again() {
        for i in 0..400 {
            let log = half::f16::from_f32(i as f32 * 0.01 - 1.0).to_f32();
            assert_eq!(log_of(decay(log)).expect("a decay"), log, "{i}");
        }
    }

    #[test]
    fn any_decay_is_met_to_two_last_digits() {
        for i in 1..2000 {
            let rate = -(i as f32) * 0.0137;
            let error = f64::from(decay(log_of(rate).expect("a decay"))) / f64::from(rate) - 1.0;
            assert!(error.abs() < 2.5e-7, "{rate}: {error}");
        }
        assert!(log_of(0.0).is_err() && log_of(1.0).is_err() && log_of(f32::NAN).is_err());
    }
}
