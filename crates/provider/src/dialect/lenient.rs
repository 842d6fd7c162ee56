//! Readers of optional fields, which may have another type than the documented one.
//!
//! Invariants: none of them fails on valid JSON, so that an optional field never makes an answer unreadable.

use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Reads a value of another type as the default.
pub(super) fn lenient<'de, D: Deserializer<'de>, T: Default + DeserializeOwned>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = <&RawValue>::deserialize(deserializer)?.get();
    Ok(serde_json::from_str(text).unwrap_or_default())
}

/// Reads a count from a number, a whole float or a string of digits; anything else is `None`.
pub(super) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserializer.deserialize_any(CountVisitor)
}

/// Returns the count that a value stands for.
pub(super) fn count_of(value: &RawValue) -> Option<u64> {
    count(&mut serde_json::Deserializer::from_str(value.get())).ok().flatten()
}

struct CountVisitor;

impl<'de> Visitor<'de> for CountVisitor {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a count")
    }

    fn visit_u64<E>(self, count: u64) -> Result<Option<u64>, E> {
        Ok(Some(count))
    }

    fn visit_i64<E>(self, count: i64) -> Result<Option<u64>, E> {
        Ok(u64::try_from(count).ok())
    }

    fn visit_f64<E>(self, count: f64) -> Result<Option<u64>, E> {
        // Through text, because a cast could truncate silently.
        Ok(format!("{:.0}", count.max(0.0)).parse().ok())
    }

    fn visit_str<E>(self, count: &str) -> Result<Option<u64>, E> {
        Ok(count.trim().parse().ok())
    }

    fn visit_unit<E>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<u64>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<u64>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}
