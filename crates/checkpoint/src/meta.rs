//! One view of metadata for both containers: `config.json` values and GGUF key-values.

use serde_json::Value as Json;

use crate::gguf::{Array, Value};

/// A typed scalar, string or list out of `config.json` or a GGUF header.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Meta<'a> {
    /// JSON null.
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer that is not negative.
    Unsigned(u64),
    /// A negative integer.
    Signed(i64),
    /// A number with a fraction or exponent; GGUF's F32 is widened exactly.
    Float(f64),
    /// A string.
    Str(&'a str),
    /// A list.
    Array(MetaArray<'a>),
    /// A JSON object; look inside with a dotted path.
    Object(&'a serde_json::Map<String, Json>),
}

/// A list of [`Meta`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetaArray<'a> {
    /// From `config.json`.
    Json(&'a [Json]),
    /// From a GGUF header.
    Gguf(&'a Array),
}

impl<'a> Meta<'a> {
    /// A whole number that is not negative; floats without a fraction count (JSON writers differ).
    #[must_use]
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Self::Unsigned(v) => Some(v),
            // Up to 2^53 every whole float is exact.
            Self::Float(v) if v.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&v) => Some(v as u64),
            _ => None,
        }
    }

    /// As [`Meta::as_u64`], as a size.
    #[must_use]
    pub fn as_usize(self) -> Option<usize> {
        self.as_u64().and_then(|v| usize::try_from(v).ok())
    }

    /// Any number.
    #[must_use]
    pub fn as_f64(self) -> Option<f64> {
        match self {
            Self::Unsigned(v) => Some(v as f64),
            Self::Signed(v) => Some(v as f64),
            Self::Float(v) => Some(v),
            _ => None,
        }
    }

    /// A truth value.
    #[must_use]
    pub fn as_bool(self) -> Option<bool> {
        if let Self::Bool(v) = self { Some(v) } else { None }
    }

    /// A string.
    #[must_use]
    pub fn as_str(self) -> Option<&'a str> {
        if let Self::Str(v) = self { Some(v) } else { None }
    }

    /// A list.
    #[must_use]
    pub fn as_array(self) -> Option<MetaArray<'a>> {
        if let Self::Array(v) = self { Some(v) } else { None }
    }

    /// The value at a dotted path inside this one (JSON objects only); the empty path is the value itself.
    #[must_use]
    pub fn get(self, path: &str) -> Option<Meta<'a>> {
        if path.is_empty() {
            return Some(self);
        }
        let (head, rest) = path.split_once('.').unwrap_or((path, ""));
        let Self::Object(map) = self else { return None };
        Meta::from(map.get(head)?).get(rest)
    }
}

impl<'a> MetaArray<'a> {
    /// Number of elements.
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Self::Json(items) => items.len(),
            Self::Gguf(items) => items.len(),
        }
    }

    /// True without elements.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Element `index`.
    #[must_use]
    pub fn get(self, index: usize) -> Option<Meta<'a>> {
        match self {
            Self::Json(items) => items.get(index).map(Meta::from),
            Self::Gguf(items) => items.get(index),
        }
    }

    /// All elements in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Meta<'a>> {
        (0..self.len()).map(move |i| self.get(i).unwrap_or(Meta::Null))
    }

    /// All elements as sizes; `None` when one is not.
    #[must_use]
    pub fn to_usizes(self) -> Option<Vec<usize>> {
        self.iter().map(Meta::as_usize).collect()
    }

    /// All elements as strings; `None` when one is not.
    #[must_use]
    pub fn to_strs(self) -> Option<Vec<&'a str>> {
        self.iter().map(Meta::as_str).collect()
    }
}

impl<'a> From<&'a Json> for Meta<'a> {
    fn from(value: &'a Json) -> Self {
        match value {
            Json::Null => Self::Null,
            Json::Bool(v) => Self::Bool(*v),
            Json::Number(n) => match (n.as_u64(), n.as_i64()) {
                (Some(v), _) => Self::Unsigned(v),
                (None, Some(v)) => Self::Signed(v),
                // serde_json numbers that are no integers are floats.
                (None, None) => Self::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(v) => Self::Str(v),
            Json::Array(v) => Self::Array(MetaArray::Json(v)),
            Json::Object(v) => Self::Object(v),
        }
    }
}

impl<'a> From<&'a Value> for Meta<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::U8(v) => Self::Unsigned((*v).into()),
            Value::U16(v) => Self::Unsigned((*v).into()),
            Value::U32(v) => Self::Unsigned((*v).into()),
            Value::U64(v) => Self::Unsigned(*v),
            Value::I8(v) => Self::from(i64::from(*v)),
            Value::I16(v) => Self::from(i64::from(*v)),
            Value::I32(v) => Self::from(i64::from(*v)),
            Value::I64(v) => Self::from(*v),
            Value::F32(v) => Self::Float((*v).into()),
            Value::F64(v) => Self::Float(*v),
            Value::Bool(v) => Self::Bool(*v),
            Value::Str(v) => Self::Str(v),
            Value::Array(v) => Self::Array(MetaArray::Gguf(v)),
        }
    }
}

impl From<i64> for Meta<'_> {
    fn from(v: i64) -> Self {
        u64::try_from(v).map_or(Self::Signed(v), Self::Unsigned)
    }
}
