//! The fields of a block, each with its value as it came.
//!
//! Invariants: order and bytes of the values are kept, so that what is sent back is what came.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// An object whose values are not parsed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<(String, Box<RawValue>)>);

impl Fields {
    /// Returns the value of a field as it came.
    pub(crate) fn raw(&self, name: &str) -> Option<&str> {
        self.value(name).map(RawValue::get)
    }

    /// Returns the value of a field.
    pub(crate) fn value(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    /// Returns a field's value; `None` if it has none of this type.
    pub(crate) fn parsed<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(self.raw(name)?).ok()
    }

    /// Returns a field's text; `None` if it has none.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.parsed(name)
    }

    /// Returns a field's text, without a copy if nothing in it is escaped; `None` if it has none.
    pub(crate) fn text_ref(&self, name: &str) -> Option<Cow<'_, str>> {
        let raw = self.raw(name)?;
        match serde_json::from_str::<&str>(raw) {
            Ok(text) => Some(Cow::Borrowed(text)),
            Err(_) => serde_json::from_str(raw).ok().map(Cow::Owned),
        }
    }

    /// Removes a field.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(own, _)| own != name);
    }

    /// Removes a field and returns its text.
    pub(crate) fn take_text(&mut self, name: &str) -> Option<String> {
        let text = self.text(name);
        self.remove(name);
        text
    }

    /// Removes a field and returns its value as it came.
    pub(crate) fn take_raw(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(own, _)| own == name)?;
        Some(self.0.remove(at).1.get().to_owned())
    }

    /// Sets a field to a value.
    pub(crate) fn set(&mut self, name: &str, value: Box<RawValue>) {
        match self.0.iter_mut().find(|(own, _)| own == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Adds a delta's field: text is appended to text, and anything else replaces what was there. Returns how many bytes
    /// came.
    pub(crate) fn append(&mut self, name: &str, value: &RawValue) -> usize {
        let both = self.text(name).zip(serde_json::from_str::<String>(value.get()).ok());
        match both.and_then(|(old, new)| serde_json::value::to_raw_value(&(old + &new)).ok()) {
            Some(joined) => self.set(name, joined),
            None => self.set(name, value.to_owned()),
        }
        value.get().len()
    }

    /// Adds an item to a field's list. Returns how many bytes came.
    pub(crate) fn push(&mut self, name: &str, item: &RawValue) -> usize {
        let old = self.raw(name).map(str::trim).filter(|list| list.starts_with('[')).unwrap_or("[]");
        let inside = old[1..old.len() - 1].trim();
        let comma = if inside.is_empty() { "" } else { "," };
        if let Ok(list) = RawValue::from_string(format!("[{inside}{comma}{}]", item.get())) {
            self.set(name, list);
        }
        item.get().len()
    }

    /// Yields each field, with its value as it came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), &**value))
    }

    /// Keeps the fields with these names.
    pub(crate) fn only(mut self, names: &[&str]) -> Self {
        self.0.retain(|(name, _)| names.contains(&name.as_str()));
        self
    }

    /// Removes the fields whose values say nothing.
    pub(crate) fn without_blanks(mut self) -> Self {
        self.0.retain(|(_, value)| !matches!(value.get(), "null" | "[]"));
        self
    }

    /// Returns the object as JSON text.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("names and values are JSON")
    }

    /// Returns the object as JSON.
    pub(crate) fn into_raw(self) -> Box<RawValue> {
        to_raw_value(&self).expect("names and values are JSON")
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Fields::default();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    fields.set(&name, value);
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}
