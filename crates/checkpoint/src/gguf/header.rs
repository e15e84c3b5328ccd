//! The GGUF header: key-values and the tensor table, checked entry by entry.

use std::collections::{BTreeMap, HashSet};

use onebit_quant::{Format, GgufType, QuantError};

use super::cursor::{Cursor, Stop, bad};
use super::value::Value;
use crate::error::{Problem, clip};
use crate::tensor::StoredType;
use crate::{Parsed, sniff};

/// Key, type and an empty string: the shortest key-value.
const MIN_KEY_VALUE: u64 = 8 + 4 + 1;
/// Name length, one letter, dimension count, one dimension, type and offset: the shortest tensor entry.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Longest key or tensor name: the format's own limit for keys.
const MAX_NAME: usize = 65_535;
/// Most dimensions of a tensor.
const MAX_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;

/// Type of a tensor as far as its id says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorType {
    /// The id names one type.
    Known(StoredType),
    /// Id 42, whose block is 64 or 128 ([`resolve_q2_0`](super::resolve_q2_0)).
    Q2_0,
}

/// One entry of the tensor table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTensor {
    /// Name.
    pub name: String,
    /// Row-major shape: the file's dimensions in reverse, none of them zero.
    pub shape: Vec<usize>,
    /// Type.
    pub kind: TensorType,
    /// Offset from the start of the data, a multiple of the alignment.
    pub offset: u64,
}

/// A parsed header.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// All key-values.
    pub metadata: BTreeMap<String, Value>,
    /// The tensor table in file order.
    pub tensors: Vec<RawTensor>,
    /// Alignment of data and tensors in bytes, a power of two.
    pub alignment: u64,
    /// Absolute offset of the data.
    pub data_start: u64,
    /// Length of the whole file.
    pub file_len: u64,
}

impl Header {
    /// Parses the header from the first bytes of a file of `file_len` bytes.
    ///
    /// Sizes of tensors are checked in [`Header::place`], because they depend on the meaning of type id 42.
    ///
    /// # Errors
    /// Any [`Problem`] of a file's beginning; a prefix that is merely too short is [`Parsed::NeedBytes`].
    pub fn parse(prefix: &[u8], file_len: u64) -> Result<Parsed<Self>, Problem> {
        sniff::check(prefix, file_len)?;
        match read(&mut Cursor::new(prefix, file_len), file_len) {
            Ok(header) => Ok(Parsed::Header(header)),
            Err(Stop::Need(bytes)) => Ok(Parsed::NeedBytes(bytes)),
            Err(Stop::Bad(problem)) => Err(problem),
        }
    }
}

fn read(cursor: &mut Cursor<'_>, file_len: u64) -> Result<Header, Stop> {
    let magic: [u8; 4] = cursor.array()?;
    if &magic != b"GGUF" {
        return Err(Stop::Bad(Problem::UnknownContainer(sniff::describe(&magic))));
    }
    let version = cursor.u32()?;
    match version {
        2 | 3 => {}
        v if matches!(v.swap_bytes(), 1..=3) => return Err(bad("it is big-endian, which is not supported")),
        v => return Err(bad(format!("version {v} is not supported, only 2 and 3"))),
    }
    let tensor_count = cursor.u64()?;
    let key_count = cursor.u64()?;
    cursor.check_count("the number of tensors", tensor_count, MIN_TENSOR)?;
    cursor.check_count("the number of key-values", key_count, MIN_KEY_VALUE)?;

    let mut metadata = BTreeMap::new();
    for _ in 0..key_count {
        let key = name(cursor, "key")?;
        let value = Value::read(cursor, key)?;
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(bad(format!("the key `{}` appears twice", clip(key))));
        }
    }
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(Value::U32(a)) if a.is_power_of_two() => u64::from(*a),
        Some(Value::U32(a)) => return Err(bad(format!("general.alignment is {a}, which is no power of two"))),
        Some(other) => return Err(bad(format!("general.alignment has type {}, not U32", other.type_name()))),
    };

    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..tensor_count {
        let tensor = read_tensor(cursor, alignment)?;
        if !names.insert(tensor.name.clone()) {
            return Err(Stop::Bad(Problem::DuplicateTensor(clip(&tensor.name))));
        }
        tensors.push(tensor);
    }
    let data_start = cursor.position().next_multiple_of(alignment);
    Ok(Header { version, metadata, tensors, alignment, data_start, file_len })
}

fn name<'a>(cursor: &mut Cursor<'a>, what: &str) -> Result<&'a str, Stop> {
    let name = cursor.string(&format!("a {what}"))?;
    if name.is_empty() {
        return Err(bad(format!("a {what} is empty")));
    }
    if name.len() > MAX_NAME {
        return Err(bad(format!("a {what} is {} bytes long, the limit is {MAX_NAME}", name.len())));
    }
    Ok(name)
}

fn read_tensor(cursor: &mut Cursor<'_>, alignment: u64) -> Result<RawTensor, Stop> {
    let name = name(cursor, "tensor name")?;
    let wrong = |why: String| Stop::Bad(Problem::tensor(name, why));
    let dims = cursor.u32()?;
    if !(1..=MAX_DIMS).contains(&dims) {
        return Err(wrong(format!("has {dims} dimensions, wanted 1 to {MAX_DIMS}")));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        let dim = cursor.u64()?;
        // A u64 dimension that is no usize cannot be in a file that this machine can map.
        shape.push(usize::try_from(dim).map_err(|_| wrong(format!("has a dimension of {dim}")))?);
    }
    let described = format!("{shape:?}");
    if shape.contains(&0) {
        return Err(wrong(format!("has a zero dimension in {described}")));
    }
    // Beyond 2^59 elements even one bit each would not fit in a file offset; this also makes later products safe.
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n >> 59 == 0);
    if elements.is_none() {
        return Err(wrong(format!("has dimensions {described}, whose product overflows")));
    }
    shape.reverse();
    let id = cursor.u32()?;
    let kind = tensor_type(id, name)?;
    let cols = shape[shape.len() - 1];
    if let Some(block) = block_of(kind)
        && !cols.is_multiple_of(block)
    {
        return Err(wrong(format!("has rows of {cols} elements, which are not whole blocks of {block}")));
    }
    let offset = cursor.u64()?;
    if !offset.is_multiple_of(alignment) {
        return Err(wrong(format!("starts at offset {offset}, which is not a multiple of the alignment {alignment}")));
    }
    Ok(RawTensor { name: name.to_owned(), shape, kind, offset })
}

/// Smallest block that rows must consist of; id 42 has at least 64.
fn block_of(kind: TensorType) -> Option<usize> {
    match kind {
        TensorType::Known(StoredType::Block(format)) => Some(format.group()),
        TensorType::Known(_) => None,
        TensorType::Q2_0 => Some(Format::Q2_0G64.group()),
    }
}

fn tensor_type(id: u32, tensor: &str) -> Result<TensorType, Stop> {
    if let Some(plain) = StoredType::plain_gguf(id) {
        return Ok(TensorType::Known(plain));
    }
    match Format::from_gguf_id(id) {
        Ok(GgufType::Format(format)) => Ok(TensorType::Known(format.into())),
        Ok(GgufType::Q2_0) => Ok(TensorType::Q2_0),
        Err(QuantError::UnknownGgufId { .. } | _) => {
            Err(Stop::Bad(Problem::UnknownType { id, tensor: clip(tensor), supported: Format::supported_gguf_ids() }))
        }
    }
}
