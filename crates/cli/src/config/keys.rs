//! The settings by name, derived from the configuration's types: `model`, `compaction.threshold`,
//! `providers.NAME.base_url`.
//!
//! Invariants: the meaning of a setting is written once, at its field; a placeholder for a user-defined name
//! is in capitals here.

use std::sync::LazyLock;

use greenroom_kernel::text::joined_words;
use serde_json::Value;

use super::Config;

/// The placeholder for a user-defined name in [`Setting::key`].
pub(crate) const NAME: &str = "NAME";

/// One setting.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Its full name.
    pub(crate) key: String,
    /// Its meaning.
    pub(crate) about: String,
    /// Its possible values, if only certain words are permitted.
    pub(crate) words: Vec<String>,
}

impl Setting {
    /// Whether its name contains a user-defined name.
    pub(crate) fn is_named(&self) -> bool {
        self.key.split('.').any(|part| part == NAME)
    }
}

/// Returns the schema of a configuration, for editors and other programs.
pub(crate) fn schema() -> Value {
    let generator = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    generator.into_root_schema_for::<Config>().to_value()
}

/// Returns the names of the settings without user-defined names.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    settings().iter().filter(|setting| !setting.is_named()).map(|setting| setting.key.as_str())
}

/// Returns all settings and sections, in the order of their types.
pub(crate) fn settings() -> &'static [Setting] {
    static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
        let schema = schema();
        let mut settings = Vec::new();
        walk(&schema, &schema, "", &mut settings);
        settings
    });
    &SETTINGS
}

fn walk(root: &Value, schema: &Value, prefix: &str, settings: &mut Vec<Setting>) {
    let Some(properties) = resolved(root, schema).get("properties").and_then(Value::as_object) else {
        return;
    };
    for (name, property) in properties {
        let key = format!("{prefix}{name}");
        let target = resolved(root, property);
        let about = [property, target].iter().find_map(|schema| schema.get("description")?.as_str());
        let entries = target.get("additionalProperties").filter(|entry| entry.is_object());
        settings.push(Setting {
            key: key.clone(),
            about: joined_words(about.unwrap_or_default()),
            words: words(root, target),
        });
        match entries {
            Some(entry) => walk(root, entry, &format!("{key}.{NAME}."), settings),
            None => walk(root, target, &format!("{key}."), settings),
        }
    }
}

/// Resolves a reference to a schema; for a nullable value, returns the schema of the value.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let target = |schema: &'a Value| {
        let name = schema.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
        root.get("$defs")?.get(name)
    };
    if let Some(target) = target(schema) {
        return resolved(root, target);
    }
    let one_of = schema.get("anyOf").and_then(Value::as_array);
    one_of.and_then(|schemas| schemas.iter().find_map(target)).map_or(schema, |schema| resolved(root, schema))
}

fn words(root: &Value, schema: &Value) -> Vec<String> {
    let schema = resolved(root, schema);
    let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    let described = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    let described = described.filter_map(|choice| choice.get("const"));
    listed.chain(described).filter_map(|word| Some(word.as_str()?.to_owned())).collect()
}

/// Splits a setting's name as the user writes it: `providers.a.b.base_url` has the parts `providers`, `a.b`
/// and `base_url`. Returns `None` if there is no such setting.
pub(crate) fn parts(key: &str) -> Option<Vec<String>> {
    settings().iter().find_map(|setting| {
        let Some((section, rest)) = setting.key.split_once(&format!(".{NAME}.")) else {
            return (setting.key == key).then(|| setting.key.split('.').map(str::to_owned).collect());
        };
        let name = key.strip_prefix(section)?.strip_prefix('.')?.strip_suffix(rest)?.strip_suffix('.')?;
        let quoted = |quote| name.strip_prefix(quote).and_then(|name: &str| name.strip_suffix(quote));
        let name = quoted('"').or_else(|| quoted('\'')).unwrap_or(name);
        let is_name = !name.is_empty() && !is_setting_of(section, name);
        let parts = || section.split('.').chain([name]).chain(rest.split('.')).map(str::to_owned).collect();
        is_name.then(parts)
    })
}

/// Whether an apparent name ends with a setting: `a.compaction` in `models.a.compaction.cut`.
fn is_setting_of(section: &str, name: &str) -> bool {
    settings().iter().any(|setting| {
        let own = setting.key.strip_prefix(&format!("{section}.{NAME}."));
        own.is_some_and(|own| name.ends_with(&format!(".{own}")))
    })
}

/// Returns the setting whose name is most similar to an unknown one.
pub(crate) fn similar(key: &str) -> Option<&'static str> {
    let last = key.rsplit('.').next().unwrap_or(key);
    let likeness = |known: &str| {
        let known_last = known.rsplit('.').next().unwrap_or(known);
        strsim::jaro_winkler(known, key).max(strsim::jaro_winkler(known_last, last) - 0.01)
    };
    let scored = settings().iter().map(|setting| (likeness(&setting.key), setting.key.as_str()));
    let (likeness, key) = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness > 0.85).then_some(key)
}
