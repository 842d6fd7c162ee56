//! Reads a schema: for each place in it that is a schema, the rules that it sets.
//!
//! Invariants: a schema refers only to its own content, and never to itself about the same value; a known
//! keyword has a valid value; unknown keywords are ignored.

use std::collections::HashMap;
use std::sync::Arc;

use greenroom_kernel::text::first_chars;
use serde_json::{Map, Number, Value};

use super::pattern::{NoPattern, Pattern};
use super::places::{DEPTH_MAX, NoPlaces, PlaceId, Places};
use super::rules::{Bound, Limit, Measure, Members, Node, NodeId, Rule, Type, Values, is_positive, shown};
use super::steps::{READING_MAX, Spent, Steps};

/// The maximum number of characters shown of a reference.
const REFERENCE_MAX: usize = 120;

/// Why a JSON value cannot be used as a schema.
#[derive(Debug)]
pub(super) enum NoSchema {
    Wrong { place: PlaceId, reason: String },
    TooDeep,
    Spent,
}

impl From<Spent> for NoSchema {
    fn from(_: Spent) -> Self {
        Self::Spent
    }
}

impl From<NoPlaces> for NoSchema {
    fn from(error: NoPlaces) -> Self {
        match error {
            NoPlaces::TooDeep => Self::TooDeep,
            NoPlaces::Spent => Self::Spent,
        }
    }
}

/// The peculiarities of a draft of JSON schema.
#[derive(Debug, Clone, Copy)]
struct Draft {
    /// Members beside `$ref` have no meaning.
    ref_stands_alone: bool,
    /// `items` may be a list, with `additionalItems` after it.
    items_may_be_list: bool,
    /// `exclusiveMinimum` and `exclusiveMaximum` are booleans, and the name of a schema is its `id`.
    is_fourth: bool,
}

impl Draft {
    /// The drafts, as `$schema` names them, without the scheme.
    const ALL: [(&'static str, Self); 5] = [
        ("json-schema.org/draft/2020-12/schema", Self::new(false, false, false)),
        ("json-schema.org/draft/2019-09/schema", Self::new(false, true, false)),
        ("json-schema.org/draft-07/schema", Self::new(true, true, false)),
        ("json-schema.org/draft-06/schema", Self::new(true, true, false)),
        ("json-schema.org/draft-04/schema", Self::new(true, true, true)),
    ];

    const fn new(ref_stands_alone: bool, items_may_be_list: bool, is_fourth: bool) -> Self {
        Self { ref_stands_alone, items_may_be_list, is_fourth }
    }

    fn of(schema: &Value) -> Result<Self, String> {
        let Some(name) = schema.get("$schema") else { return Ok(Self::ALL[0].1) };
        let uri = name.as_str().unwrap_or_default().trim_end_matches('#');
        let uri = uri.strip_prefix("https://").or_else(|| uri.strip_prefix("http://")).unwrap_or(uri);
        Self::ALL.iter().find(|(known, _)| *known == uri).map(|(_, draft)| *draft).ok_or_else(|| {
            format!(
                "{} is not a supported draft; leave `$schema` out for 2020-12, or name 2019-09, draft-07, draft-06 or draft-04",
                shown(name)
            )
        })
    }

    fn id_key(self) -> &'static str {
        if self.is_fourth { "id" } else { "$id" }
    }
}

/// Returns the rules of a schema, those of its root first.
///
/// # Errors
/// The error and its location, in one line.
pub(super) fn read(schema: &Value) -> Result<Vec<Node>, String> {
    let mut steps = Steps::new(READING_MAX);
    let places = match Places::new(schema, &mut steps) {
        Ok(places) => places,
        Err(error) => return Err(said(&NoSchema::from(error), None)),
    };
    let mut reader = Reader {
        draft: Draft::of(schema).map_err(|reason| format!("at `/$schema`: {reason}"))?,
        addresses: HashMap::new(),
        resource_of: Vec::new(),
        resources: HashMap::new(),
        anchors: HashMap::new(),
        nodes: HashMap::new(),
        unread: Vec::new(),
        patterns: HashMap::new(),
        places,
        steps,
    };
    reader.run().map_err(|error| said(&error, Some(&reader.places)))
}

fn said(error: &NoSchema, places: Option<&Places<'_>>) -> String {
    match error {
        NoSchema::Wrong { place, reason } => {
            let path = places.map(|places| places.path(*place)).unwrap_or_default();
            if path.is_empty() { reason.clone() } else { format!("at `{path}`: {reason}") }
        }
        NoSchema::TooDeep => format!("it is nested more than {DEPTH_MAX} deep; make it flatter, with `$ref`"),
        NoSchema::Spent => {
            format!("it is too large: reading it takes more than {READING_MAX} steps; make it smaller")
        }
    }
}

struct Reader<'a> {
    places: Places<'a>,
    steps: Steps,
    draft: Draft,
    /// The places by the address of their content.
    addresses: HashMap<usize, PlaceId>,
    /// For each place the innermost enclosing schema with an `$id`, or the root.
    resource_of: Vec<PlaceId>,
    /// The schemas that have an `$id`.
    resources: HashMap<&'a str, PlaceId>,
    /// The schemas that have an anchor, by the enclosing schema with an `$id`.
    anchors: HashMap<(PlaceId, &'a str), PlaceId>,
    nodes: HashMap<PlaceId, NodeId>,
    /// The places whose schemas are known but not read yet, in the order of their numbers.
    unread: Vec<PlaceId>,
    patterns: HashMap<&'a str, Arc<Pattern>>,
}

fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

impl<'a> Reader<'a> {
    fn run(&mut self) -> Result<Vec<Node>, NoSchema> {
        for place in self.places.all() {
            if let Some(value) = self.places.value(place) {
                self.addresses.insert(address(value), place);
            }
        }
        for place in self.places.all() {
            self.note_resource(place);
            self.note_names(place);
        }
        self.node(Places::ROOT);
        let mut nodes: Vec<Node> = Vec::new();
        while let Some(&place) = self.unread.get(nodes.len()) {
            nodes.push(self.rules(place)?);
        }
        self.refuse_circles(&nodes)?;
        Ok(nodes)
    }

    /// Records the `$id` and the anchors of a place.
    fn note_names(&mut self, place: PlaceId) {
        let Some(Value::Object(map)) = self.places.value(place) else { return };
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        let id = text(self.draft.id_key());
        if let Some(id) = id.filter(|id| !id.starts_with('#')) {
            self.resources.entry(id.trim_end_matches('#')).or_insert(place);
        }
        let by_id = id.and_then(|id| id.strip_prefix('#'));
        for anchor in [by_id, text("$anchor"), text("$dynamicAnchor")].into_iter().flatten() {
            self.anchors.entry((self.resource(place), anchor)).or_insert(place);
        }
    }

    /// Finds the innermost schema with an `$id` around a place, or the root. That of its parent is already
    /// known.
    fn note_resource(&mut self, place: PlaceId) {
        let id = self.places.value(place).and_then(|value| value.get(self.draft.id_key()));
        let is_resource = id.and_then(Value::as_str).is_some_and(|id| !id.starts_with('#'));
        let around = self.resource_of.get(self.places.parent(place) as usize).copied();
        self.resource_of.push(around.filter(|_| !is_resource).unwrap_or(place));
    }

    fn resource(&self, place: PlaceId) -> PlaceId {
        self.resource_of[place as usize]
    }

    /// Returns the number of the schema at a place, which is read later.
    fn node(&mut self, place: PlaceId) -> NodeId {
        let next = NodeId::try_from(self.unread.len()).expect("there are fewer schemas than places");
        let known = *self.nodes.entry(place).or_insert(next);
        if known == next {
            self.unread.push(place);
        }
        known
    }

    fn place_of(&self, value: &Value) -> PlaceId {
        *self.addresses.get(&address(value)).expect("every part of the schema has a place")
    }

    fn wrong<T>(&self, value: &Value, reason: impl Into<String>) -> Result<T, NoSchema> {
        Err(NoSchema::Wrong { place: self.place_of(value), reason: reason.into() })
    }

    fn rules(&mut self, place: PlaceId) -> Result<Node, NoSchema> {
        self.steps.visit(4)?;
        let map = match self.places.value(place) {
            Some(Value::Bool(true)) => return Ok(Vec::new()),
            Some(Value::Bool(false)) => return Ok(vec![Rule::Nothing]),
            Some(Value::Object(map)) => map,
            Some(_) | None => {
                let reason = "want a schema: an object, `true` or `false`".to_owned();
                return Err(NoSchema::Wrong { place, reason });
            }
        };
        self.read_definitions(map)?;
        if self.draft.ref_stands_alone
            && let Some(reference) = map.get("$ref")
        {
            return Ok(vec![Rule::All(vec![self.reference(reference)?])]);
        }
        let mut rules = Vec::new();
        for (key, value) in map {
            self.steps.visit(1)?;
            self.steps.read(key.len())?;
            if let Some(rule) = self.rule(key, value, map)? {
                rules.push(rule);
            }
        }
        self.read_members(map, &mut rules)?;
        self.read_items(map, &mut rules)?;
        Ok(rules)
    }

    /// Schemas that are only referred to are read in any case, so that an invalid one is rejected.
    fn read_definitions(&mut self, map: &'a Map<String, Value>) -> Result<(), NoSchema> {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = map.get(key) {
                self.named_schemas(definitions)?;
            }
        }
        Ok(())
    }

    /// Reads the rule of one keyword. Keywords that only have a meaning together are read with the first of
    /// them.
    fn rule(
        &mut self,
        key: &str,
        value: &'a Value,
        map: &'a Map<String, Value>,
    ) -> Result<Option<Rule>, NoSchema> {
        let size = |measure, limit, size| Some(Rule::Size(measure, limit, size));
        Ok(match key {
            "$ref" => Some(Rule::All(vec![self.reference(value)?])),
            "$dynamicRef" | "$recursiveRef" => {
                return self.wrong(value, format!("`{key}` is not supported; use `$ref`"));
            }
            "type" => Some(Rule::Types(self.types(value)?)),
            "enum" => Some(Rule::OneOfValues(Values::new(self.list(value)?, &mut self.steps)?)),
            "const" => Some(Rule::OneOfValues(Values::new(std::slice::from_ref(value), &mut self.steps)?)),
            "minimum" => self.bound(value, map.get("exclusiveMinimum"), Bound::Minimum)?,
            "maximum" => self.bound(value, map.get("exclusiveMaximum"), Bound::Maximum)?,
            "exclusiveMinimum" => self.exclusive(value, Bound::ExclusiveMinimum)?,
            "exclusiveMaximum" => self.exclusive(value, Bound::ExclusiveMaximum)?,
            "multipleOf" => {
                let of = self.number(value)?;
                if !is_positive(&of) {
                    return self.wrong(value, format!("want a number above 0, but got {of}"));
                }
                Some(Rule::MultipleOf(of))
            }
            "minLength" => size(Measure::Characters, Limit::Min, self.count(value)?),
            "maxLength" => size(Measure::Characters, Limit::Max, self.count(value)?),
            "minItems" => size(Measure::Items, Limit::Min, self.count(value)?),
            "maxItems" => size(Measure::Items, Limit::Max, self.count(value)?),
            "minProperties" => size(Measure::Members, Limit::Min, self.count(value)?),
            "maxProperties" => size(Measure::Members, Limit::Max, self.count(value)?),
            "pattern" => Some(Rule::Pattern(self.pattern(value)?)),
            "uniqueItems" => self.boolean(value)?.then_some(Rule::UniqueItems),
            "required" => Some(Rule::Required(self.names(value)?)),
            "dependentRequired" => {
                let mut required = Vec::new();
                for (name, names) in self.object(value)? {
                    required.push((name.clone(), self.names(names)?));
                }
                Some(Rule::DependentRequired(required))
            }
            "allOf" => Some(Rule::All(self.schemas(value)?)),
            "anyOf" => Some(Rule::Any(self.schemas(value)?)),
            "oneOf" => Some(Rule::One(self.schemas(value)?)),
            "not" => Some(Rule::Not(self.schema(value))),
            "if" => Some(Rule::If {
                condition: self.schema(value),
                then: self.optional(map, "then"),
                otherwise: self.optional(map, "else"),
            }),
            "dependentSchemas" => Some(Rule::DependentSchemas(self.named_schemas(value)?)),
            "propertyNames" => Some(Rule::Names(self.schema(value))),
            "contains" => {
                let limit = |reader: &Self, key| map.get(key).map(|value| reader.count(value)).transpose();
                let (min, max) = (limit(self, "minContains")?.unwrap_or(1), limit(self, "maxContains")?);
                Some(Rule::Contains { node: self.schema(value), min, max })
            }
            "unevaluatedProperties" => Some(Rule::UnevaluatedMembers(self.schema(value))),
            "unevaluatedItems" => Some(Rule::UnevaluatedItems(self.schema(value))),
            // Annotations, keywords that are read with another one, and unknown keywords.
            _ => None,
        })
    }

    /// Reads the rule of `properties`, `patternProperties` and `additionalProperties`, and of `dependencies`
    /// in older drafts.
    fn read_members(&mut self, map: &'a Map<String, Value>, rules: &mut Vec<Rule>) -> Result<(), NoSchema> {
        let mut members = Members::default();
        if let Some(named) = map.get("properties") {
            members.named = self.named_schemas(named)?.into_iter().collect();
        }
        if let Some(patterns) = map.get("patternProperties") {
            for (pattern, schema) in self.object(patterns)? {
                let pattern = self.pattern_of(pattern, schema)?;
                members.patterns.push((pattern, self.schema(schema)));
            }
        }
        members.others = self.optional(map, "additionalProperties");
        if !members.named.is_empty() || !members.patterns.is_empty() || members.others.is_some() {
            rules.push(Rule::Members(members));
        }
        if let Some(dependencies) = map.get("dependencies").filter(|_| self.draft.ref_stands_alone) {
            let (mut required, mut schemas) = (Vec::new(), Vec::new());
            for (name, value) in self.object(dependencies)? {
                match value {
                    Value::Array(_) => required.push((name.clone(), self.names(value)?)),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                        schemas.push((name.clone(), self.schema(value)));
                    }
                }
            }
            rules.extend([Rule::DependentRequired(required), Rule::DependentSchemas(schemas)]);
        }
        Ok(())
    }

    /// Reads the rule of `prefixItems` and `items`, and of `items` and `additionalItems` in older drafts.
    fn read_items(&mut self, map: &'a Map<String, Value>, rules: &mut Vec<Rule>) -> Result<(), NoSchema> {
        let (first, rest) = match map.get("items") {
            Some(list @ Value::Array(_)) if self.draft.items_may_be_list => {
                (Some(list), self.optional(map, "additionalItems"))
            }
            Some(list @ Value::Array(_)) => {
                return self.wrong(
                    list,
                    "want a schema, but got an array; the schemas of the first items are `prefixItems`",
                );
            }
            Some(_) | None => (map.get("prefixItems"), self.optional(map, "items")),
        };
        let first = first.map(|first| self.schemas(first)).transpose()?.unwrap_or_default();
        if !first.is_empty() || rest.is_some() {
            rules.push(Rule::Items { first, rest });
        }
        Ok(())
    }

    fn schema(&mut self, value: &Value) -> NodeId {
        let place = self.place_of(value);
        self.node(place)
    }

    fn optional(&mut self, map: &Map<String, Value>, key: &str) -> Option<NodeId> {
        map.get(key).map(|value| self.schema(value))
    }

    fn schemas(&mut self, value: &'a Value) -> Result<Vec<NodeId>, NoSchema> {
        Ok(self.list(value)?.iter().map(|value| self.schema(value)).collect())
    }

    fn named_schemas(&mut self, value: &'a Value) -> Result<Vec<(String, NodeId)>, NoSchema> {
        let map = self.object(value)?;
        Ok(map.iter().map(|(name, value)| (name.clone(), self.schema(value))).collect())
    }

    fn object(&self, value: &'a Value) -> Result<&'a Map<String, Value>, NoSchema> {
        value.as_object().map_or_else(|| self.unwanted(value, "object"), Ok)
    }

    fn list(&self, value: &'a Value) -> Result<&'a [Value], NoSchema> {
        value.as_array().map_or_else(|| self.unwanted(value, "array"), |list| Ok(list.as_slice()))
    }

    fn boolean(&self, value: &Value) -> Result<bool, NoSchema> {
        value.as_bool().map_or_else(|| self.unwanted(value, "boolean"), Ok)
    }

    fn number(&self, value: &Value) -> Result<Number, NoSchema> {
        match value {
            Value::Number(number) => Ok(number.clone()),
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                self.unwanted(value, "number")
            }
        }
    }

    fn text(&self, value: &'a Value) -> Result<&'a str, NoSchema> {
        value.as_str().map_or_else(|| self.unwanted(value, "string"), Ok)
    }

    fn unwanted<T>(&self, value: &Value, want: &str) -> Result<T, NoSchema> {
        self.wrong(value, format!("want {want}, but got {}", Type::of(value).name()))
    }

    /// Reads a count.
    fn count(&self, value: &Value) -> Result<u64, NoSchema> {
        let number = self.number(value)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is an integer and not negative"
        )]
        let of_float = |float: f64| (float.fract() == 0.0 && float >= 0.0).then_some(float as u64);
        let count = number.as_u64().or_else(|| number.as_f64().and_then(of_float));
        count.map_or_else(|| self.wrong(value, format!("want an integer from 0 on, but got {number}")), Ok)
    }

    fn names(&self, value: &'a Value) -> Result<Vec<String>, NoSchema> {
        self.list(value)?.iter().map(|name| Ok(self.text(name)?.to_owned())).collect()
    }

    fn types(&self, value: &'a Value) -> Result<Vec<Type>, NoSchema> {
        let names = if value.is_array() { self.list(value)? } else { std::slice::from_ref(value) };
        let mut types = Vec::new();
        for name in names {
            let Some(kind) = Type::named(self.text(name)?) else {
                let known: Vec<&str> = Type::ALL.iter().map(|(name, _)| *name).collect();
                return self
                    .wrong(name, format!("want one of {}, but got {}", known.join(", "), shown(name)));
            };
            if !types.contains(&kind) {
                types.push(kind);
            }
        }
        Ok(types)
    }

    /// Reads a bound, which the fourth draft's `exclusive…` makes exclusive.
    fn bound(
        &self,
        value: &Value,
        exclusive: Option<&Value>,
        bound: Bound,
    ) -> Result<Option<Rule>, NoSchema> {
        let bound = match (bound, exclusive) {
            (Bound::Minimum, Some(Value::Bool(true))) => Bound::ExclusiveMinimum,
            (Bound::Maximum, Some(Value::Bool(true))) => Bound::ExclusiveMaximum,
            (bound, _) => bound,
        };
        Ok(Some(Rule::Bound(bound, self.number(value)?)))
    }

    fn exclusive(&self, value: &Value, bound: Bound) -> Result<Option<Rule>, NoSchema> {
        if self.draft.is_fourth {
            self.boolean(value)?;
            return Ok(None);
        }
        Ok(Some(Rule::Bound(bound, self.number(value)?)))
    }

    fn pattern(&mut self, value: &'a Value) -> Result<Arc<Pattern>, NoSchema> {
        let text = self.text(value)?;
        self.pattern_of(text, value)
    }

    /// Returns a pattern, which is read once even if it occurs several times.
    fn pattern_of(&mut self, text: &'a str, at: &Value) -> Result<Arc<Pattern>, NoSchema> {
        self.steps.read(text.len())?;
        if let Some(known) = self.patterns.get(text) {
            return Ok(Arc::clone(known));
        }
        match Pattern::new(text, &mut self.steps) {
            Ok(pattern) => {
                let pattern = Arc::new(pattern);
                self.patterns.insert(text, Arc::clone(&pattern));
                Ok(pattern)
            }
            Err(NoPattern::Wrong(reason)) => {
                let text = shown(&Value::from(text));
                self.wrong(at, format!("{text} cannot be checked as a pattern: {reason}"))
            }
            Err(NoPattern::Spent) => Err(NoSchema::Spent),
        }
    }

    /// Resolves a reference: `#/…`, `#name`, or an `$id` of this schema as written there, optionally followed
    /// by either.
    fn reference(&mut self, value: &'a Value) -> Result<NodeId, NoSchema> {
        let text = self.text(value)?;
        // Byte by byte, since it is decoded.
        self.steps.spend(text.len() as u64)?;
        let (uri, fragment) = text.split_once('#').unwrap_or((text, ""));
        let short = first_chars(text, REFERENCE_MAX);
        let resource = if uri.is_empty() {
            self.resource(self.place_of(value))
        } else {
            match self.resources.get(uri) {
                Some(resource) => *resource,
                None => {
                    let reason = format!("`{short}` leads outside; a schema can refer only to what is in it");
                    return self.wrong(value, reason);
                }
            }
        };
        let fragment = decoded(fragment);
        let place = if fragment.is_empty() {
            Some(resource)
        } else if let Some(pointer) = fragment.strip_prefix('/') {
            self.pointed(resource, pointer)?
        } else {
            self.anchors.get(&(resource, fragment.as_str())).copied()
        };
        match place {
            Some(place) => Ok(self.node(place)),
            None => self.wrong(value, format!("`{short}` leads to nothing in the schema")),
        }
    }

    fn pointed(&mut self, from: PlaceId, pointer: &str) -> Result<Option<PlaceId>, NoSchema> {
        let mut place = from;
        for token in pointer.split('/') {
            self.steps.visit(1)?;
            let token = token.replace("~1", "/").replace("~0", "~");
            let part = match self.places.value(place) {
                Some(Value::Object(map)) => map.get(&token),
                Some(Value::Array(items)) => token.parse::<usize>().ok().and_then(|index| items.get(index)),
                Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => None,
            };
            let Some(part) = part else { return Ok(None) };
            place = self.place_of(part);
        }
        Ok(Some(place))
    }

    /// Rejects schemas that lead to themselves about the same value: evaluating them would never end.
    fn refuse_circles(&mut self, nodes: &[Node]) -> Result<(), NoSchema> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Closed,
        }
        let mut marks = vec![Mark::New; nodes.len()];
        for start in 0..nodes.len() {
            let mut open = vec![start];
            while let Some(&node) = open.last() {
                self.steps.visit(1)?;
                if marks[node] != Mark::New {
                    marks[node] = Mark::Closed;
                    open.pop();
                    continue;
                }
                marks[node] = Mark::Open;
                for next in nodes[node].iter().flat_map(in_place) {
                    self.steps.visit(1)?;
                    match marks[next as usize] {
                        Mark::New => open.push(next as usize),
                        Mark::Open => {
                            let reason = "it leads to itself in a circle, so that no value could be checked"
                                .to_owned();
                            return Err(NoSchema::Wrong { place: self.unread[node], reason });
                        }
                        Mark::Closed => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the schemas that a rule applies to the same value.
fn in_place(rule: &Rule) -> Vec<NodeId> {
    match rule {
        Rule::All(nodes) | Rule::Any(nodes) | Rule::One(nodes) => nodes.clone(),
        Rule::Not(node) => vec![*node],
        Rule::If { condition, then, otherwise } => {
            [Some(*condition), *then, *otherwise].into_iter().flatten().collect()
        }
        Rule::DependentSchemas(schemas) => schemas.iter().map(|(_, node)| *node).collect(),
        Rule::Nothing
        | Rule::Types(_)
        | Rule::OneOfValues(_)
        | Rule::Bound(..)
        | Rule::MultipleOf(_)
        | Rule::Size(..)
        | Rule::Pattern(_)
        | Rule::UniqueItems
        | Rule::Required(_)
        | Rule::DependentRequired(_)
        | Rule::Members(_)
        | Rule::Names(_)
        | Rule::Items { .. }
        | Rule::Contains { .. }
        | Rule::UnevaluatedMembers(_)
        | Rule::UnevaluatedItems(_) => Vec::new(),
    }
}

/// Decodes the percent signs of a fragment.
fn decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
