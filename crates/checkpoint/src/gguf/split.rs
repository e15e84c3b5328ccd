//! Models cut into several GGUF files, `NAME-00001-of-00003.gguf`.

use super::header::Header;
use crate::error::Problem;
use crate::meta::Meta;

/// Stem, number (from 1) and count out of a split file's name; `None` for any other name.
#[must_use]
pub fn split_name(file_name: &str) -> Option<(&str, u32, u32)> {
    let rest = file_name.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let parse = |digits: &str| {
        let plain = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse().ok()).flatten()
    };
    let (number, count) = (parse(number)?, parse(count)?);
    (1..=count).contains(&number).then_some((stem, number, count))
}

/// Checks that the splits belong together: `split.no`, `split.count` and `split.tensors.count` where present, and
/// no tensor in two of them.
///
/// # Errors
/// [`Problem::Split`] or [`Problem::DuplicateTensor`].
pub fn check_splits(headers: &[&Header]) -> Result<(), Problem> {
    let number = |header: &Header, key: &str| header.metadata.get(key).map(Meta::from).and_then(Meta::as_u64);
    for (i, header) in headers.iter().enumerate() {
        let (at, count) = (i + 1, headers.len() as u64);
        if let Some(says) = number(header, "split.count")
            && says != count
            && says != 0
        {
            return Err(Problem::Split(format!(
                "{at} says that the model has {says} splits, the file names say {count}"
            )));
        }
        if let Some(says) = number(header, "split.no")
            && says != i as u64
        {
            return Err(Problem::Split(format!("{at} holds the content of split {}", says.saturating_add(1))));
        }
    }
    let total: usize = headers.iter().map(|h| h.tensors.len()).sum();
    if let Some(first) = headers.first()
        && let Some(says) = number(first, "split.tensors.count")
        && says != total as u64
    {
        return Err(Problem::Split(format!("files hold {total} tensors together, the first one promises {says}")));
    }
    Ok(())
}
