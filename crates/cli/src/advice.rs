//! What to do about a model that does not fit.

use anyhow::Error;
use onebit_engine::MemoryError;
use onebit_hub::packs::{PACKS, Pack, Support};
use onebit_ops::Backend;

/// The error with the model's name, the device, and which smaller pack there is.
#[must_use]
pub fn too_large(error: MemoryError, name: &str, parameters: u64, backend: &dyn Backend) -> Error {
    let own_memory = backend.free_memory().is_ok_and(|free| free.is_some());
    let place = if own_memory { format!(" on {}", backend.caps().device) } else { String::new() };
    let mut hints = Vec::new();
    if matches!(error, MemoryError::DoesNotFit { .. })
        && let Some(pack) = smaller(parameters)
    {
        hints.push(format!("the next smaller pack is {} ({})", pack.short, pack.mlx_repo));
    }
    let no_room = matches!(error, MemoryError::DoesNotFit { .. } | MemoryError::ContextDoesNotFit { .. });
    if own_memory && no_room {
        hints.push("--backend cpu uses the machine's memory".to_owned());
    }
    let hints = if hints.is_empty() { String::new() } else { format!("; {}", hints.join("; ")) };
    Error::msg(format!("{error}{hints}")).context(format!("{name}{place}"))
}

/// The largest pack with clearly fewer parameters; among equals that with fewer bits.
fn smaller(parameters: u64) -> Option<&'static Pack> {
    let smaller = PACKS.iter().filter(|p| p.support == Support::Text && p.params < parameters / 10 * 9);
    smaller.max_by_key(|pack| (pack.params, std::cmp::Reverse(pack.bits)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onebit_ops::reference::Reference;

    #[test]
    fn the_next_smaller_pack_is_named() {
        let short = |billions: u64| smaller(billions * 1_000_000_000).map(|pack| pack.short);
        assert_eq!(short(27), Some("bonsai-8b"));
        assert_eq!(short(1), None);
        let error = MemoryError::DoesNotFit { context: 1024, needed: 5 << 30, free: 4 << 30 };
        let text = format!("{:#}", too_large(error, "a 27B", 27_000_000_000, &Reference::new()));
        assert!(text.starts_with("a 27B: the model needs 5.00 GiB"), "{text}");
        assert!(text.ends_with("the next smaller pack is bonsai-8b (prism-ml/Bonsai-8B-mlx-1bit)"), "{text}");
    }
}
