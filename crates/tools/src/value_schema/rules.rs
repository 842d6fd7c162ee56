//! A schema after reading: for each of its places the rules that a value there must follow.
//!
//! Invariants: a rule refers to other schemas by number, so that schemas can refer to one another in any way.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use greenroom_kernel::text::first_chars;
use serde_json::{Number, Value};

use super::pattern::Pattern;
use super::steps::{Spent, Steps};

#[cfg(test)]
mod tests;

/// The maximum number of characters shown of a value.
const SHOWN_MAX: usize = 80;

/// A schema within the schema: the number of its rules.
pub(super) type NodeId = u32;

/// The rules of one place in the schema.
pub(super) type Node = Vec<Rule>;

#[derive(Debug)]
pub(super) enum Rule {
    /// The schema `false`.
    Nothing,
    Types(Vec<Type>),
    OneOfValues(Values),
    Bound(Bound, Number),
    MultipleOf(Number),
    Size(Measure, Limit, u64),
    Pattern(Arc<Pattern>),
    UniqueItems,
    Required(Vec<String>),
    /// The names that a member requires beside it.
    DependentRequired(Vec<(String, Vec<String>)>),
    All(Vec<NodeId>),
    Any(Vec<NodeId>),
    One(Vec<NodeId>),
    Not(NodeId),
    If {
        condition: NodeId,
        then: Option<NodeId>,
        otherwise: Option<NodeId>,
    },
    DependentSchemas(Vec<(String, NodeId)>),
    Members(Members),
    Names(NodeId),
    Items {
        first: Vec<NodeId>,
        rest: Option<NodeId>,
    },
    Contains {
        node: NodeId,
        min: u64,
        max: Option<u64>,
    },
    UnevaluatedMembers(NodeId),
    UnevaluatedItems(NodeId),
}

/// `properties`, `patternProperties` and `additionalProperties`.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) named: HashMap<String, NodeId>,
    pub(super) patterns: Vec<(Arc<Pattern>, NodeId)>,
    pub(super) others: Option<NodeId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Type {
    pub(super) const ALL: [(&'static str, Self); 7] = [
        ("null", Self::Null),
        ("boolean", Self::Boolean),
        ("integer", Self::Integer),
        ("number", Self::Number),
        ("string", Self::String),
        ("array", Self::Array),
        ("object", Self::Object),
    ];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Returns the widest type of a value.
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Boolean,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::String,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        }
    }

    pub(super) fn has(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Integer, Value::Number(number)) => is_integer(number),
            (_, _) => self == Self::of(value),
        }
    }
}

/// A bound of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Minimum,
    Maximum,
    ExclusiveMinimum,
    ExclusiveMaximum,
}

impl Bound {
    pub(super) fn holds(self, number: &Number, limit: &Number) -> bool {
        let order = order(number, limit);
        match self {
            Self::Minimum => order != Ordering::Less,
            Self::Maximum => order != Ordering::Greater,
            Self::ExclusiveMinimum => order == Ordering::Greater,
            Self::ExclusiveMaximum => order == Ordering::Less,
        }
    }

    pub(super) fn sign(self) -> &'static str {
        match self {
            Self::Minimum => ">=",
            Self::Maximum => "<=",
            Self::ExclusiveMinimum => ">",
            Self::ExclusiveMaximum => "<",
        }
    }
}

/// The parts of a value that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    Characters,
    Items,
    Members,
}

impl Measure {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Characters => "characters",
            Self::Items => "items",
            Self::Members => "properties",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Min,
    Max,
}

/// The values of `enum`, or the one of `const`.
#[derive(Debug)]
pub(super) struct Values {
    canonical: HashSet<String>,
    has_nested: bool,
    /// Their text in error messages.
    pub(super) shown: String,
}

impl Values {
    pub(super) fn new(values: &[Value], steps: &mut Steps) -> Result<Self, Spent> {
        let mut canonical = HashSet::new();
        for value in values {
            canonical.insert(canonical_text(value, steps)?);
        }
        let shown: Vec<String> = values.iter().take(SHOWN_MAX).map(shown).collect();
        let shown = first_chars(&shown.join(", "), 2 * SHOWN_MAX);
        let shown = if values.len() == 1 { format!("want {shown}") } else { format!("want one of {shown}") };
        let has_nested = values.iter().any(is_nested);
        Ok(Self { canonical, has_nested, shown })
    }

    pub(super) fn contain(&self, value: &Value, steps: &mut Steps) -> Result<bool, Spent> {
        if is_nested(value) && !self.has_nested {
            return Ok(false);
        }
        Ok(self.canonical.contains(&canonical_text(value, steps)?))
    }
}

fn is_nested(value: &Value) -> bool {
    value.is_array() || value.is_object()
}

/// Whether no two items are equal.
pub(super) fn are_unique(items: &[Value], steps: &mut Steps) -> Result<bool, Spent> {
    let mut seen = HashSet::new();
    for item in items {
        if !seen.insert(canonical_text(item, steps)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns a text that equal values share, for any order of their members and any notation of numbers.
fn canonical_text(value: &Value, steps: &mut Steps) -> Result<String, Spent> {
    let mut text = String::new();
    write_canonical(value, &mut text, steps)?;
    Ok(text)
}

fn write_canonical(value: &Value, text: &mut String, steps: &mut Steps) -> Result<(), Spent> {
    steps.visit(2)?;
    match value {
        Value::Null | Value::Bool(_) => text.push_str(&value.to_string()),
        Value::Number(number) => match integer(number) {
            Some(integer) => text.push_str(&integer.to_string()),
            None => text.push_str(&number.to_string()),
        },
        Value::String(string) => {
            steps.read(string.len())?;
            write_string(string, text);
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write_canonical(item, text, steps)?;
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(map) => {
            steps.visit(map.len())?;
            let mut members: Vec<_> = map.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            text.push('{');
            for (name, value) in members {
                steps.read(name.len())?;
                write_string(name, text);
                write_canonical(value, text, steps)?;
                text.push(',');
            }
            text.push('}');
        }
    }
    Ok(())
}

/// Prefixes the length, so that no escapes are needed: they would make the text longer than what was counted.
fn write_string(string: &str, text: &mut String) {
    text.push_str(&string.len().to_string());
    text.push('"');
    text.push_str(string);
}

/// Returns a value shortened for display to a person or a model.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("{:?}", first_chars(text, SHOWN_MAX)),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Floats without a fraction below this are compared as integers.
const INTEGER_MAX: f64 = 1e30;

/// Returns a number as an integer, if it is one.
fn integer(number: &Number) -> Option<i128> {
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    let float = number.as_f64()?;
    #[expect(clippy::cast_possible_truncation, reason = "it has no fraction, and has room")]
    (float.fract() == 0.0 && float.abs() < INTEGER_MAX).then_some(float as i128)
}

fn is_integer(number: &Number) -> bool {
    integer(number).is_some() || number.as_f64().is_some_and(|float| float.fract() == 0.0)
}

fn order(a: &Number, b: &Number) -> Ordering {
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        return a.cmp(&b);
    }
    let float = |number: &Number| number.as_f64().unwrap_or(f64::NAN);
    float(a).partial_cmp(&float(b)).unwrap_or(Ordering::Equal)
}

/// Whether a number is greater than zero.
pub(super) fn is_positive(number: &Number) -> bool {
    order(number, &Number::from(0)) == Ordering::Greater
}

/// Whether a number is a multiple of another, as exactly as floats allow.
pub(super) fn is_multiple(number: &Number, of: &Number) -> bool {
    if let (Some(number), Some(of)) = (integer(number), integer(of)) {
        return number % of == 0;
    }
    let (Some(number), Some(of)) = (number.as_f64(), of.as_f64()) else { return false };
    let quotient = number / of;
    // Both numbers and their quotient were rounded.
    quotient.is_finite() && (quotient - quotient.round()).abs() <= 4.0 * f64::EPSILON * quotient.abs()
}
