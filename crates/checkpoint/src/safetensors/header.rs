//! The safetensors header.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::error::{Problem, clip};
use crate::tensor::{StoredType, TensorInfo};
use crate::{Parsed, sniff};

/// Bytes of the length field.
const LENGTH_FIELD: u64 = 8;

/// One tensor of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Element type.
    pub stored: StoredType,
    /// Row-major shape; empty for a scalar.
    pub shape: Vec<usize>,
    /// First byte, from the start of the data.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
}

/// A parsed and checked header.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The tensors in the order of the header.
    pub tensors: Vec<Entry>,
    /// `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// Absolute offset of the data.
    pub data_start: u64,
}

impl Header {
    /// Parses the header from the first bytes of a file of `file_len` bytes.
    ///
    /// The stored length is bounded by the file's length alone: headers of a hundred megabytes are legitimate.
    /// A successful parse proves that the tensors cover the data exactly: no gap, no overlap, no byte missing or
    /// left over.
    ///
    /// # Errors
    /// Any [`Problem`] of a file's beginning; a prefix that is merely too short is [`Parsed::NeedBytes`].
    pub fn parse(prefix: &[u8], file_len: u64) -> Result<Parsed<Self>, Problem> {
        sniff::check(prefix, file_len)?;
        if file_len < LENGTH_FIELD {
            return Err(Problem::Truncated { wanted: LENGTH_FIELD, got: file_len });
        }
        let Some((field, rest)) = prefix.split_first_chunk() else { return Ok(Parsed::NeedBytes(LENGTH_FIELD)) };
        let says = u64::from_le_bytes(*field);
        let limit = file_len - LENGTH_FIELD;
        if says > limit {
            // A real header whose file ends inside it is a broken download, anything else no safetensors file.
            return Err(if rest.starts_with(b"{\"") {
                Problem::Truncated { wanted: says.saturating_add(LENGTH_FIELD), got: file_len }
            } else {
                Problem::HeaderLength { says, limit }
            });
        }
        let data_start = LENGTH_FIELD + says;
        if rest.first().is_some_and(|&b| b != b'{') || says < 2 {
            return Err(Problem::HeaderLength { says, limit });
        }
        let Some(json) = usize::try_from(says).ok().and_then(|n| rest.get(..n)) else {
            return Ok(Parsed::NeedBytes(data_start));
        };
        let raw: RawHeader =
            serde_json::from_slice(json).map_err(|e| Problem::Json { part: "header", why: clip(&e.to_string()) })?;
        let tensors = raw.tensors.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        check_layout(&tensors, file_len - data_start, data_start)?;
        Ok(Parsed::Header(Self { tensors, metadata: raw.metadata, data_start }))
    }

    /// The tensors with absolute offsets; `file` becomes [`TensorInfo::file`].
    #[must_use]
    pub fn place(&self, file: usize) -> Vec<TensorInfo> {
        let place = |t: &Entry| TensorInfo {
            name: t.name.clone(),
            shape: t.shape.clone(),
            stored: t.stored,
            file,
            // The entry lies inside the file, so the sum does not overflow.
            offset: self.data_start + t.begin,
            bytes: t.end - t.begin,
        };
        self.tensors.iter().map(place).collect()
    }
}

/// The header as JSON has it; a visitor because a plain map would swallow duplicate names.
struct RawHeader {
    tensors: Vec<(String, RawEntry)>,
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader { tensors: Vec::new(), metadata: BTreeMap::new() };
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("`{}` appears twice", clip(&name))));
                    }
                    if name == "__metadata__" {
                        header.metadata = map.next_value()?;
                    } else {
                        let entry = map.next_value()?;
                        header.tensors.push((name, entry));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

fn entry((name, raw): (String, RawEntry)) -> Result<Entry, Problem> {
    let wrong = |why: String| Problem::tensor(&name, why);
    let stored = StoredType::from_safetensors(&raw.dtype)
        .ok_or_else(|| wrong(format!("has the unknown dtype `{}`", clip(&raw.dtype))))?;
    let overflow = || wrong(format!("has a shape {:?} that overflows", raw.shape));
    let shape = raw.shape.iter().map(|&d| usize::try_from(d)).collect::<Result<Vec<_>, _>>().map_err(|_| overflow())?;
    let bytes = stored.tensor_bytes(&shape).ok_or_else(overflow)? as u64;
    let (begin, end) = raw.data_offsets;
    if end.checked_sub(begin) != Some(bytes) {
        return Err(wrong(format!(
            "{} {shape:?} takes {bytes} bytes, but its offsets are {begin} to {end}",
            stored.name()
        )));
    }
    Ok(Entry { name, stored, shape, begin, end })
}

/// Checks that the tensors cover `0..data_len` exactly.
fn check_layout(tensors: &[Entry], data_len: u64, data_start: u64) -> Result<(), Problem> {
    let mut order: Vec<&Entry> = tensors.iter().collect();
    order.sort_by_key(|t| (t.begin, t.end));
    let mut at = 0;
    let mut before = None;
    for tensor in order {
        if tensor.begin != at {
            let what = if tensor.begin < at { "overlaps" } else { "leaves a gap after" };
            let neighbour =
                before.map_or_else(|| "the start of the data".into(), |t: &Entry| format!("`{}`", clip(&t.name)));
            return Err(Problem::tensor(
                &tensor.name,
                format!("starts at offset {} and {what} {neighbour}, which ends at {at}", tensor.begin),
            ));
        }
        at = tensor.end;
        before = Some(tensor);
    }
    let (wanted, got) = (data_start.saturating_add(at), data_start + data_len);
    match at.cmp(&data_len) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(Problem::Truncated { wanted, got }),
        std::cmp::Ordering::Less => Err(Problem::TrailingBytes { wanted, got }),
    }
}
