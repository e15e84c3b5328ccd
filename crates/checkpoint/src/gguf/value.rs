//! The key-value types of a GGUF header.

use super::cursor::{Cursor, Stop, bad};
use crate::meta::Meta;

/// Deepest nesting of arrays that is read; real files have none.
const MAX_DEPTH: usize = 4;

macro_rules! value_types {
    ($($variant:ident, $type:ty, $id:literal;)*) => {
        /// A metadata value in its stored type.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Value {
            $(
                #[doc = concat!("Type id ", stringify!($id), ".")]
                $variant($type),
            )*
        }

        /// A metadata list in the stored type of its elements.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Array {
            $(
                #[doc = concat!("Elements of type id ", stringify!($id), ".")]
                $variant(Vec<$type>),
            )*
        }

        impl Value {
            pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, Stop> {
                match cursor.u32()? {
                    $($id => Ok(Self::$variant(<$type as Element>::read(cursor, key, 0)?)),)*
                    id => Err(bad(format!("`{key}` has the unknown value type {id}"))),
                }
            }

            pub(super) fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(v) => { out.extend_from_slice(&u32::to_le_bytes($id)); v.write(out); })*
                }
            }

            /// Name of the stored type.
            #[must_use]
            pub fn type_name(&self) -> &'static str {
                match self { $(Self::$variant(_) => stringify!($variant),)* }
            }
        }

        impl Array {
            /// Number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                match self { $(Self::$variant(v) => v.len(),)* }
            }

            /// Element `index`.
            #[must_use]
            pub fn get(&self, index: usize) -> Option<Meta<'_>> {
                match self { $(Self::$variant(v) => v.get(index).map(Element::meta),)* }
            }
        }

        impl Element for Array {
            // Element type and count.
            const MIN_BYTES: u64 = 12;

            fn read(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Self, Stop> {
                if depth >= MAX_DEPTH {
                    return Err(bad(format!("`{key}` nests lists more than {MAX_DEPTH} deep")));
                }
                match cursor.u32()? {
                    $($id => read_items(cursor, key, depth + 1).map(Self::$variant),)*
                    id => Err(bad(format!("`{key}` is a list of the unknown value type {id}"))),
                }
            }

            fn write(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(items) => {
                        out.extend_from_slice(&u32::to_le_bytes($id));
                        out.extend_from_slice(&(items.len() as u64).to_le_bytes());
                        items.iter().for_each(|item| item.write(out));
                    })*
                }
            }

            fn meta(&self) -> Meta<'_> {
                Meta::Array(crate::meta::MetaArray::Gguf(self))
            }
        }
    };
}

value_types! {
    U8, u8, 0;
    I8, i8, 1;
    U16, u16, 2;
    I16, i16, 3;
    U32, u32, 4;
    I32, i32, 5;
    F32, f32, 6;
    Bool, bool, 7;
    Str, String, 8;
    Array, Array, 9;
    U64, u64, 10;
    I64, i64, 11;
    F64, f64, 12;
}

impl Array {
    /// True without elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One value of a fixed type.
trait Element: Sized {
    /// Fewest bytes that a value takes in a file.
    const MIN_BYTES: u64;
    fn read(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Self, Stop>;
    fn write(&self, out: &mut Vec<u8>);
    fn meta(&self) -> Meta<'_>;
}

fn read_items<T: Element>(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Vec<T>, Stop> {
    let count = cursor.u64()?;
    cursor.check_count(&format!("the length of `{key}`"), count, T::MIN_BYTES)?;
    // Grown by pushing: nothing is allocated for elements that the prefix does not hold.
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(T::read(cursor, key, depth)?);
    }
    Ok(items)
}

macro_rules! number_elements {
    ($($type:ty => $meta:expr;)*) => {$(
        impl Element for $type {
            const MIN_BYTES: u64 = size_of::<$type>() as u64;

            fn read(cursor: &mut Cursor<'_>, _key: &str, _depth: usize) -> Result<Self, Stop> {
                cursor.array().map(<$type>::from_le_bytes)
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn meta(&self) -> Meta<'_> {
                $meta(*self)
            }
        }
    )*};
}

number_elements! {
    u8 => |v| Meta::Unsigned(u64::from(v));
    u16 => |v| Meta::Unsigned(u64::from(v));
    u32 => |v| Meta::Unsigned(u64::from(v));
    u64 => Meta::Unsigned;
    i8 => |v| Meta::from(i64::from(v));
    i16 => |v| Meta::from(i64::from(v));
    i32 => |v| Meta::from(i64::from(v));
    i64 => Meta::from;
    f32 => |v| Meta::Float(f64::from(v));
    f64 => Meta::Float;
}

impl Element for bool {
    const MIN_BYTES: u64 = 1;

    fn read(cursor: &mut Cursor<'_>, key: &str, _depth: usize) -> Result<Self, Stop> {
        match cursor.array()? {
            [0u8] => Ok(false),
            [1] => Ok(true),
            [other] => Err(bad(format!("`{key}` holds {other} where a truth value must be 0 or 1"))),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn meta(&self) -> Meta<'_> {
        Meta::Bool(*self)
    }
}

impl Element for String {
    const MIN_BYTES: u64 = 8;

    fn read(cursor: &mut Cursor<'_>, key: &str, _depth: usize) -> Result<Self, Stop> {
        cursor.string("a string value").map(str::to_owned).map_err(|stop| match stop {
            Stop::Bad(crate::Problem::Gguf(why)) => bad(format!("`{key}`: {why}")),
            other => other,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.len() as u64).to_le_bytes());
        out.extend_from_slice(self.as_bytes());
    }

    fn meta(&self) -> Meta<'_> {
        Meta::Str(self)
    }
}

/// Writes a string as keys and names are stored.
pub(super) fn write_string(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
