//! Where the tensors of a GGUF file lie: the offset table against the sizes, and what that says about type id 42.
//!
//! Writers put tensors back to back, each padded to the alignment, so the distance to the next offset is the padded
//! size. A reader with a wrong idea of one type would blame the next, innocent tensor; comparing size and distance
//! names the tensor that is really wrong.

use onebit_quant::Format;

use super::header::{Header, RawTensor, TensorType};
use crate::error::{Problem, clip};
use crate::tensor::{StoredType, TensorInfo};

/// What id 42 means in a model: [`Format::Q2_0G64`] or [`Format::Q2_0G128`]; `None` when no tensor has that id.
///
/// `headers` are all splits of one model. Each tensor of id 42 that has a neighbour after it is a witness: its
/// padded size under one of the two meanings equals the distance. Very small tensors fit both and say nothing. Only
/// when no offset decides, the distance of the last tensor to the end of the file is asked; it is the weaker witness
/// (a cut-off file lies) and does not count in a file of a single tensor, where nothing else supports it.
///
/// `group` is the user's override (64 or 128); [`Header::place`] still checks it against the offsets. `file_name`
/// only improves the message.
///
/// # Errors
/// [`Problem::AmbiguousQ2_0`], [`Problem::Q2_0Size`], or [`Problem::Config`] for another group than 64 and 128.
pub fn resolve_q2_0(headers: &[&Header], group: Option<u16>, file_name: &str) -> Result<Option<Format>, Problem> {
    let mut example = None;
    for header in headers {
        example = example.or(header.tensors.iter().find(|t| t.kind == TensorType::Q2_0));
    }
    let Some(example) = example else { return Ok(None) };
    match group {
        Some(64) => return Ok(Some(Format::Q2_0G64)),
        Some(128) => return Ok(Some(Format::Q2_0G128)),
        Some(other) => {
            return Err(Problem::Config {
                key: "q2_0 group".into(),
                why: format!("is {other}, but blocks of type id 42 hold 64 or 128 weights"),
            });
        }
        None => {}
    }
    let mut found = None;
    for header in headers {
        for (tensor, distance) in header.distances() {
            if let Some(distance) = distance {
                weigh(header, tensor, distance, false, &mut found)?;
            }
        }
    }
    if found.is_none() {
        for header in headers.iter().filter(|h| h.tensors.len() > 1) {
            if let Some((tensor, None)) = header.distances().last() {
                let rest = header.file_len.saturating_sub(header.data_start).saturating_sub(tensor.offset);
                weigh(header, tensor, rest, true, &mut found)?;
            }
        }
    }
    match found {
        Some(format) => Ok(Some(format)),
        None => Err(Problem::AmbiguousQ2_0 { tensor: clip(&example.name), hint: name_hint(file_name) }),
    }
}

/// Lets one tensor speak. `to_end` marks the distance to the end of the file, where the padding may be absent.
fn weigh(
    header: &Header,
    tensor: &RawTensor,
    distance: u64,
    to_end: bool,
    found: &mut Option<Format>,
) -> Result<(), Problem> {
    if tensor.kind != TensorType::Q2_0 {
        return Ok(());
    }
    let size = |format| StoredType::Block(format).tensor_bytes(&tensor.shape).map(|b| b as u64);
    let fits = |format| {
        size(format).is_some_and(|bytes| {
            let padded = bytes.next_multiple_of(header.alignment);
            distance == padded || (to_end && (bytes..padded).contains(&distance))
        })
    };
    let verdict = match (fits(Format::Q2_0G64), fits(Format::Q2_0G128)) {
        (true, true) => return Ok(()),
        (true, false) => Format::Q2_0G64,
        (false, true) => Format::Q2_0G128,
        // A file that is cut off or too long gets the better message from `place`.
        (false, false) if to_end => return Ok(()),
        (false, false) => return Err(q2_0_size(tensor, distance)),
    };
    match found {
        Some(earlier) if *earlier != verdict => Err(q2_0_size(tensor, distance)),
        _ => {
            *found = Some(verdict);
            Ok(())
        }
    }
}

fn q2_0_size(tensor: &RawTensor, got: u64) -> Problem {
    let size = |format| StoredType::Block(format).tensor_bytes(&tensor.shape).unwrap_or(0) as u64;
    Problem::Q2_0Size { tensor: clip(&tensor.name), got, g64: size(Format::Q2_0G64), g128: size(Format::Q2_0G128) }
}

/// What published file names suggest. Names lie, so this never decides.
fn name_hint(file_name: &str) -> String {
    let lower = file_name.to_ascii_lowercase();
    if lower.contains("q2_0_g64") {
        " (the file name suggests 64)".into()
    } else if lower.contains("q2_0") {
        " (the file name suggests 128)".into()
    } else {
        String::new()
    }
}

impl Header {
    /// Tensors in offset order, each with the distance to the next one.
    fn distances(&self) -> Vec<(&RawTensor, Option<u64>)> {
        let mut order: Vec<&RawTensor> = self.tensors.iter().collect();
        order.sort_by_key(|t| t.offset);
        let next = order.iter().skip(1).map(|t| Some(t.offset)).chain([None]);
        order.iter().zip(next).map(|(t, next)| (*t, next.map(|n| n - t.offset))).collect()
    }

    /// Checks every size against the offset table and the file length, and returns the tensors in file order.
    ///
    /// `q2_0` is the answer of [`resolve_q2_0`]; `file` becomes [`TensorInfo::file`].
    ///
    /// # Errors
    /// [`Problem::Tensor`] naming the tensor whose size and place disagree, [`Problem::Truncated`],
    /// [`Problem::TrailingBytes`].
    pub fn place(&self, q2_0: Option<Format>, file: usize) -> Result<Vec<TensorInfo>, Problem> {
        let order = self.distances();
        if let Some((first, _)) = order.first()
            && first.offset != 0
        {
            return Err(Problem::tensor(
                &first.name,
                format!("starts at offset {}, but nothing lies before it", first.offset),
            ));
        }
        let mut end = self.data_start;
        for (tensor, distance) in order {
            let info = self.tensor_info(tensor, q2_0, file)?;
            let padded = info.bytes.next_multiple_of(self.alignment);
            if let Some(distance) = distance
                && distance != padded
            {
                let (what, bytes) = (info.describe(), info.bytes);
                return Err(Problem::tensor(
                    &tensor.name,
                    format!(
                        "{what} takes {bytes} bytes ({padded} padded), but the next tensor starts {distance} bytes after it"
                    ),
                ));
            }
            end = info.offset.checked_add(info.bytes).ok_or_else(|| too_far(tensor))?;
        }
        let got = self.file_len;
        if got < end {
            return Err(Problem::Truncated { wanted: end, got });
        }
        let padded = end.next_multiple_of(self.alignment);
        if got > padded {
            return Err(Problem::TrailingBytes { wanted: padded, got });
        }
        self.tensors.iter().map(|tensor| self.tensor_info(tensor, q2_0, file)).collect()
    }

    fn tensor_info(&self, tensor: &RawTensor, q2_0: Option<Format>, file: usize) -> Result<TensorInfo, Problem> {
        let stored = match (tensor.kind, q2_0) {
            (TensorType::Known(stored), _) => stored,
            (TensorType::Q2_0, Some(format)) => StoredType::Block(format),
            (TensorType::Q2_0, None) => {
                return Err(Problem::AmbiguousQ2_0 { tensor: clip(&tensor.name), hint: String::new() });
            }
        };
        let bytes = stored.tensor_bytes(&tensor.shape).ok_or_else(|| {
            Problem::tensor(
                &tensor.name,
                format!("{} {:?} has rows that are not whole blocks", stored.name(), tensor.shape),
            )
        })?;
        let offset = self.data_start.checked_add(tensor.offset).ok_or_else(|| too_far(tensor))?;
        Ok(TensorInfo {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            stored,
            file,
            offset,
            bytes: bytes as u64,
        })
    }
}

fn too_far(tensor: &RawTensor) -> Problem {
    Problem::tensor(&tensor.name, format!("starts at offset {}, beyond any file", tensor.offset))
}
