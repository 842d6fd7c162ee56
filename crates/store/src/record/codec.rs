//! Encoding and decoding of values, for all versions of the stored form.
//!
//! [`Stored`] defines how a type is stored in one version. Two macros implement it from a declaration that
//! lists the fields or variants in their stored order: [`stored_struct`] and [`stored_enum`]. They write from
//! borrowed data and read directly into the types that the rest of the program uses.
//!
//! Invariants: a field or variant that is missing in a declaration, or has another type there, is a compile
//! error. Decoded data is limited in size, and decoding never panics.

use std::sync::Arc;

use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};
use greenroom_kernel::EntryId;

/// How a type is stored in the version `V`.
pub(super) trait Stored<V>: Sized {
    /// Writes the value.
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError>;
    /// Reads a value.
    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError>;
}

/// The largest initial capacity of a list. Larger ones grow while they are read, so that a damaged length
/// allocates no more.
const CAPACITY_MAX: usize = 1_024;

/// Types whose bincode form is used directly.
macro_rules! plain {
    ($($type:ty),+) => {
        $(impl<V> Stored<V> for $type {
            fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
                self.encode(encoder)
            }

            fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
                Self::decode(decoder)
            }
        })+
    };
}

plain!(bool, u8, u16, u32, u64, i32, String, Arc<str>);

impl<V> Stored<V> for EntryId {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        self.0.encode(encoder)
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        u64::decode(decoder).map(Self)
    }
}

impl<V, T: Stored<V>> Stored<V> for Option<T> {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        self.is_some().encode(encoder)?;
        self.as_ref().map_or(Ok(()), |value| value.write(encoder))
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        if bool::decode(decoder)? { T::read(decoder).map(Some) } else { Ok(None) }
    }
}

impl<V, T: Stored<V>> Stored<V> for Vec<T> {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.len() as u64).encode(encoder)?;
        self.iter().try_for_each(|value| value.write(encoder))
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        let length = u64::decode(decoder)?;
        let length = usize::try_from(length).map_err(|_| DecodeError::OutsideUsizeRange(length))?;
        decoder.claim_container_read::<T>(length)?;
        let mut values = Self::with_capacity(length.min(CAPACITY_MAX));
        for _ in 0..length {
            decoder.unclaim_bytes_read(size_of::<T>());
            values.push(T::read(decoder)?);
        }
        Ok(values)
    }
}

/// Types that are stored as what they point to.
macro_rules! pointers {
    ($($pointer:ident),+) => {
        $(impl<V, T: Stored<V>> Stored<V> for $pointer<T> {
            fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
                (**self).write(encoder)
            }

            fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
                // The pointed-to value counts towards the limit too: a list of pointers claims the pointers
                // alone.
                decoder.claim_bytes_read(size_of::<T>())?;
                T::read(decoder).map(Self::new)
            }
        })+
    };
}

pointers!(Box, Arc);

/// Writes a list of strings as a `Vec<String>` is written.
pub(super) fn write_texts<'a, E: Encoder>(
    texts: impl ExactSizeIterator<Item = &'a str>,
    encoder: &mut E,
) -> Result<(), EncodeError> {
    (texts.len() as u64).encode(encoder)?;
    texts.into_iter().try_for_each(|text| text.encode(encoder))
}

/// Returns the error for a variant that the version does not have.
pub(super) fn unknown_variant(of: &str, number: u32) -> DecodeError {
    DecodeError::OtherString(format!("{of} has no variant {number} in this version"))
}

/// The error for a variant that the version does not declare.
pub(super) fn undeclared_variant(of: &str) -> EncodeError {
    EncodeError::OtherString(format!("this variant of {of} is not stored in this version"))
}

/// Stores a struct as its fields, in the order listed:
/// `stored_struct!(V1: Touched { path: String, touch: Touch });`
///
/// A field that the struct got after the version was frozen is not stored in that version. It is listed with
/// its value when such a record is read: `stored_struct!(V1: Touched { path: String } without { touch:
/// Touch::Read });`
macro_rules! stored_struct {
    (
        $version:ty: $type:path { $($field:ident: $stored:ty),+ $(,)? }
        $(without { $($absent:ident: $value:expr),+ $(,)? })?
    ) => {
        impl Stored<$version> for $type {
            fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
                let Self { $($field,)+ $($($absent: _,)+)? } = self;
                $(<$stored as Stored<$version>>::write($field, encoder)?;)+
                Ok(())
            }

            fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
                Ok(Self {
                    $($field: <$stored as Stored<$version>>::read(decoder)?,)+
                    $($($absent: $value,)+)?
                })
            }
        }
    };
}

/// Stores an enum as the number of its variant and then the variant's fields, in the order listed:
/// `stored_enum!(V1: Shape { 0 = Point, 1 = Circle(radius: u64), 2 = Square { side: u64 } });`
///
/// A field that a variant got after the version was frozen is `None` in that number, and stored in a later one:
/// `0 = Circle { radius: u64 } without { colour }, 3 = Circle { radius: u64, colour: Option<u32> }`.
///
/// `; _` at the end: the enum is `#[non_exhaustive]`, and a variant that is not declared is refused instead of written.
macro_rules! stored_enum {
    ($version:ty: $type:path { $(
        $number:literal = $variant:ident
            $(($inner:ident: $inner_type:ty))?
            $({ $($field:ident: $field_type:ty),+ $(,)? } $(without { $($absent:ident),+ })?)?
    ),+ $(,)? $(; $open:pat)? }) => {
        impl Stored<$version> for $type {
            fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
                match self {
                    $(Self::$variant $(($inner))? $({ $($field,)+ $($($absent: None,)+)? })? => {
                        <u32 as Stored<$version>>::write(&$number, encoder)?;
                        $(<$inner_type as Stored<$version>>::write($inner, encoder)?;)?
                        $($(<$field_type as Stored<$version>>::write($field, encoder)?;)+)?
                    })+
                    $($open => return Err(undeclared_variant(stringify!($type))),)?
                }
                Ok(())
            }

            fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
                Ok(match <u32 as Stored<$version>>::read(decoder)? {
                    $($number => Self::$variant
                        $((<$inner_type as Stored<$version>>::read(decoder)?))?
                        $({
                            $($field: <$field_type as Stored<$version>>::read(decoder)?,)+
                            $($($absent: None,)+)?
                        })?,)+
                    number => return Err(unknown_variant(stringify!($type), number)),
                })
            }
        }
    };
}

/// Stores types as an older version stores them: `unchanged!(V2 = V1: Touched, Usage);`
#[cfg_attr(
    not(test),
    expect(unused_macros, reason = "only a version after the first has something unchanged")
)]
macro_rules! unchanged {
    ($version:ty = $older:ty: $($type:ty),+ $(,)?) => {
        $(impl Stored<$version> for $type {
            fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
                <Self as Stored<$older>>::write(self, encoder)
            }

            fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
                <Self as Stored<$older>>::read(decoder)
            }
        })+
    };
}

#[cfg(test)]
pub(super) use unchanged;
pub(super) use {stored_enum, stored_struct};
