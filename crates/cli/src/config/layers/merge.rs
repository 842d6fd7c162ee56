//! YAML values: reading, setting and merging them, and the file each one comes from.
//!
//! Invariants: merging goes key by key; `null` disables a setting, and an empty section changes nothing.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_norway::Value;

use super::permitted::{Rule, is_section, rule};
use crate::config::Config;
use crate::config::parser_messages::plain;
use crate::error::usage;
/// The sources of settings, by the parts of their names.
#[derive(Default)]
pub(super) struct Origins(pub(super) BTreeMap<Vec<String>, String>);

impl Origins {
    /// Records a layer as the source of all that it sets. An empty section sets nothing.
    pub(super) fn put(&mut self, layer: &Value, below: &Value, origin: Option<String>) {
        let Some(origin) = origin else { return };
        for (parts, value) in leaves(layer) {
            let is_section = get(below, &parts).is_some_and(Value::is_mapping);
            if !(is_section && (value.is_null() || value.is_mapping())) {
                self.0.insert(parts, origin.clone());
            }
        }
    }

    /// Like [`Self::put`], for the part of the layer that was applied.
    pub(super) fn put_taken(&mut self, layer: &Value, merged: &Value, origin: Option<String>) {
        let Some(origin) = origin else { return };
        for (parts, value) in leaves(layer) {
            if get(merged, &parts) == Some(value) {
                self.0.insert(parts, origin.clone());
            }
        }
    }
}

/// Returns each value that is not a section, with the parts of its name.
pub(crate) fn leaves(value: &Value) -> Vec<(Vec<String>, &Value)> {
    fn walk<'a>(value: &'a Value, parts: &[String], leaves: &mut Vec<(Vec<String>, &'a Value)>) {
        if let Value::Mapping(map) = value
            && !map.is_empty()
        {
            for (name, value) in map {
                let name = name.as_str().unwrap_or_default().to_owned();
                walk(value, &[parts, &[name]].concat(), leaves);
            }
        } else if !parts.is_empty() {
            leaves.push((parts.to_vec(), value));
        }
    }
    let mut leaves = Vec::new();
    walk(value, &[], &mut leaves);
    leaves
}

/// Returns the value with this name.
pub(crate) fn get<'a>(value: &'a Value, parts: &[String]) -> Option<&'a Value> {
    parts.iter().try_fold(value, |value, name| value.get(name.as_str()))
}

/// Returns each setting of a file's value with its name: `limits.steps_max`, `model`.
pub(crate) fn settings_of(value: &Value) -> Vec<(String, &Value)> {
    let Value::Mapping(map) = value else { return Vec::new() };
    let mut settings = Vec::new();
    for (name, value) in map {
        let Some(name) = name.as_str() else { continue };
        match (name, value) {
            (section_name, Value::Mapping(section)) if is_section(section_name) => {
                let named = section.iter().filter_map(|(key, value)| Some((key.as_str()?, value)));
                settings.extend(named.map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            _ => settings.push((name.to_owned(), value)),
        }
    }
    settings
}

/// Returns the setting with this name.
pub(crate) fn setting<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    key.split('.').try_fold(value, |value, name| value.get(name))
}

/// Sets the setting with this name.
pub(crate) fn set(value: &mut Value, key: &str, to: Value) {
    let parts: Vec<&str> = key.split('.').collect();
    set_parts(value, &parts, to);
}

/// Sets the setting whose name has these parts.
pub(crate) fn set_parts(value: &mut Value, parts: &[&str], to: Value) {
    let [name, rest @ ..] = parts else {
        *value = to;
        return;
    };
    if !value.is_mapping() {
        *value = Value::Mapping(serde_norway::Mapping::new());
    }
    let Value::Mapping(map) = value else { return };
    set_parts(map.entry((*name).into()).or_insert(Value::Null), rest, to);
}

/// Replaces `null` by the default for settings that cannot be `null`; for a limit of this kind, `null`
/// removes nothing. Returns whether there was one.
pub(super) fn unset_to_default(value: &mut Value, default: &Value, section: &str) -> bool {
    let (Value::Mapping(map), Value::Mapping(defaults)) = (value, default) else { return false };
    let mut has_unset = false;
    map.retain(|name, value| {
        let (Some(default), Some(name)) = (defaults.get(name), name.as_str()) else { return true };
        let key = format!("{section}{name}");
        if !value.is_null() {
            has_unset |= unset_to_default(value, default, &format!("{key}."));
            return true;
        }
        if default.is_null() || default.is_mapping() || can_be_null(&key) {
            return true;
        }
        has_unset = true;
        *value = default.clone();
        rule(&key) != Rule::Lower
    });
    has_unset
}

/// Whether this setting can be `null`.
pub(super) fn can_be_null(key: &str) -> bool {
    let alone = key
        .rsplit('.')
        .fold(Value::Null, |value, name| Value::Mapping([(Value::from(name), value)].into_iter().collect()));
    serde_norway::from_value::<Config>(alone).is_ok()
}

/// Merges `over` into `base`, key by key. `null` disables a setting; an empty section changes nothing.
pub(crate) fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Mapping(base), Value::Mapping(over)) => {
            for (key, value) in over {
                match base.get_mut(&key) {
                    Some(known) => merge(known, value),
                    None => {
                        base.insert(key, value);
                    }
                }
            }
        }
        (Value::Mapping(_), Value::Null) => {}
        (base, over) => *base = over,
    }
}

pub(super) fn typed(value: Value) -> Result<Config> {
    serde_norway::from_value(value)
        .map_err(|error| usage(format!("the configuration: {}", plain(&error.to_string()))))
}

pub(super) fn has_tag(value: &Value) -> bool {
    match value {
        Value::Tagged(_) => true,
        Value::Sequence(items) => items.iter().any(has_tag),
        Value::Mapping(map) => map.iter().any(|(key, value)| has_tag(key) || has_tag(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Whether the text has a tag that the parser resolves itself without reporting it: `!!str`,
/// `!!python/object:…`. Tags of other kinds are reported; inside strings and comments there are none.
pub(super) fn has_core_tag(text: &str) -> bool {
    const FAMILY: &str = "tag:yaml.org,2002:";
    if !text.contains("!!") && !text.contains(FAMILY) {
        return false;
    }
    let told = text.replace("!!", "!").replace(FAMILY, "!");
    serde_norway::from_str(&told).is_ok_and(|value| has_tag(&value))
}
