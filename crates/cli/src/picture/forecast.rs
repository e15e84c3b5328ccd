//! How long a picture will take: the text encoder runs before the first step, and its speed tells that of the rest.

use onebit_engine::image::ImagePlan;
use onebit_models::image::ImagePart;
use std::time::Duration;

/// The expected time of all parts behind the text encoder; nothing for a plan without work. Machines differ in how much faster one
/// kind of work is than another, so it is a rough figure.
#[must_use]
pub fn rest(plan: &ImagePlan, encoder: Duration) -> Option<Duration> {
    let of = |encoder: bool| -> u64 {
        let parts = plan.parts.iter().filter(|p| (p.part == ImagePart::TextEncoder) == encoder);
        parts.map(|p| p.work).sum()
    };
    let seconds = encoder.as_secs_f64() * of(false) as f64 / of(true) as f64;
    // Anything else comes of a plan or a clock that says nothing.
    (seconds > 0.0 && seconds < 1e9).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_engine::image::PlanPart;

    #[test]
    fn the_rest_goes_as_fast_as_the_encoder() {
        let part = |part, work| PlanPart { part, weights: 0, temporaries: 0, copies: 0, operations: 0, work };
        let parts =
            vec![part(ImagePart::TextEncoder, 1_000), part(ImagePart::Transformer, 8_000), part(ImagePart::Vae, 2_000)];
        let plan = ImagePlan { parts, one_by_one: false, tiles: 1, decoder_runs: 1, peak: 0 };
        assert_eq!(rest(&plan, Duration::from_secs(2)), Some(Duration::from_secs(20)));
        assert_eq!(rest(&plan, Duration::ZERO), None);
        let empty = ImagePlan { parts: Vec::new(), ..plan };
        assert_eq!(rest(&empty, Duration::from_secs(1)), None);
    }
}
