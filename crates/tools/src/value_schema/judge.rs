//! Decides whether a value follows the rules of a schema, in counted steps.
//!
//! Invariants: a schema is evaluated once for each place, and the verdict is kept, so that the cost is at
//! most the schemas times the places; nothing here is recursive, so that no depth overflows the stack;
//! exceeding the budget is reported as such.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::places::{Content, NoPlaces, PlaceId, Places};
use super::rules::{Limit, Measure, Node, NodeId, Rule, Type, are_unique, is_multiple, shown};
use super::steps::{Spent, Steps};

/// The maximum number of reasons reported for a value that does not fit.
const REASONS_MAX: usize = 16;

/// A schema and the place it is evaluated at.
type Evaluation = (NodeId, PlaceId);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The inner schemas are being evaluated.
    Open,
    /// The inner schemas are done; those for parts that no rule has evaluated are in progress, if there are
    /// any.
    OpenForRest,
    Fits,
    Misfits,
}

pub(super) struct Judge<'a> {
    nodes: &'a [Node],
    places: Places<'a>,
    /// The places of member names.
    names: HashMap<PlaceId, PlaceId>,
    verdicts: HashMap<Evaluation, Verdict>,
    steps: Steps,
}

impl<'a> Judge<'a> {
    pub(super) fn new(nodes: &'a [Node], value: &'a Value, mut steps: Steps) -> Result<Self, NoPlaces> {
        let places = Places::new(value, &mut steps)?;
        Ok(Self { nodes, places, names: HashMap::new(), verdicts: HashMap::new(), steps })
    }

    /// Whether the whole value fits the whole schema.
    pub(super) fn fits(&mut self) -> Result<bool, Spent> {
        let mut open = vec![(0, Places::ROOT)];
        while let Some(&at) = open.last() {
            self.steps.visit(1)?;
            let verdict = self.verdicts.get(&at).copied();
            let mut within = Vec::new();
            let next = match verdict {
                None => {
                    for rule in self.rules(at) {
                        self.add_inner(rule, at.1, &mut within)?;
                    }
                    if self.rules(at).iter().any(is_about_rest) {
                        Verdict::Open
                    } else if within.is_empty() {
                        open.pop();
                        self.verdict(at)?
                    } else {
                        Verdict::OpenForRest
                    }
                }
                Some(Verdict::Open) => {
                    for rule in self.rules(at) {
                        self.add_inner_of_rest(rule, at, &mut within)?;
                    }
                    Verdict::OpenForRest
                }
                Some(Verdict::OpenForRest) => {
                    open.pop();
                    self.verdict(at)?
                }
                Some(Verdict::Fits | Verdict::Misfits) => {
                    open.pop();
                    continue;
                }
            };
            self.verdicts.insert(at, next);
            open.extend(within.into_iter().filter(|at| !self.verdicts.contains_key(at)));
        }
        Ok(self.is_fit((0, Places::ROOT)))
    }

    #[cfg(test)]
    pub(super) fn steps_left(&self) -> u64 {
        self.steps.left()
    }

    fn rules(&self, at: Evaluation) -> &'a [Rule] {
        &self.nodes[at.0 as usize]
    }

    fn is_fit(&self, at: Evaluation) -> bool {
        self.verdicts.get(&at) == Some(&Verdict::Fits)
    }

    /// Adds the other schemas that a rule evaluates at a place or its parts. Those of `unevaluated…` come later.
    fn add_inner(
        &mut self,
        rule: &'a Rule,
        place: PlaceId,
        within: &mut Vec<Evaluation>,
    ) -> Result<(), Spent> {
        let before = within.len();
        match rule {
            Rule::All(nodes) | Rule::Any(nodes) | Rule::One(nodes) => {
                within.extend(nodes.iter().map(|node| (*node, place)));
            }
            Rule::Not(node) => within.push((*node, place)),
            Rule::If { condition, then, otherwise } => {
                within.push((*condition, place));
                within.extend(then.iter().chain(otherwise).map(|node| (*node, place)));
            }
            Rule::DependentSchemas(schemas) => {
                self.steps.look_up(schemas.iter().map(|(name, _)| name))?;
                let Some(Value::Object(map)) = self.places.value(place) else { return Ok(()) };
                let here = schemas.iter().filter(|(name, _)| map.contains_key(name));
                within.extend(here.map(|(_, node)| (*node, place)));
            }
            Rule::Members(members) => {
                for (name, part) in self.places.members(place) {
                    let known = within.len();
                    within.extend(members.named.get(name).map(|node| (*node, part)));
                    for (pattern, node) in &members.patterns {
                        if pattern.is_in(name, &mut self.steps)? {
                            within.push((*node, part));
                        }
                    }
                    if within.len() == known {
                        within.extend(members.others.map(|node| (node, part)));
                    }
                    self.steps.visit(1)?;
                    self.steps.read(name.len())?;
                }
            }
            Rule::Names(node) => {
                let members: Vec<_> = self.places.members(place).collect();
                for (name, part) in members {
                    let name = *self.names.entry(part).or_insert_with(|| self.places.add_name(part, name));
                    within.push((*node, name));
                }
            }
            Rule::Items { first, rest } => {
                if let Some(Value::Array(_)) = self.places.value(place) {
                    let nodes = first.iter().map(Some).chain(std::iter::repeat(rest.as_ref()));
                    let pairs = self.places.parts(place).zip(nodes);
                    within.extend(pairs.filter_map(|(part, node)| Some((*node?, part))));
                }
            }
            Rule::Contains { node, .. } => {
                if let Some(Value::Array(_)) = self.places.value(place) {
                    within.extend(self.places.parts(place).map(|part| (*node, part)));
                }
            }
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
            | Rule::UnevaluatedMembers(_)
            | Rule::UnevaluatedItems(_) => {}
        }
        self.steps.visit(1 + within.len() - before)
    }

    /// Adds the schemas of `unevaluatedProperties` and `unevaluatedItems`, for the parts that no other rule has
    /// evaluated.
    fn add_inner_of_rest(
        &mut self,
        rule: &'a Rule,
        at: Evaluation,
        within: &mut Vec<Evaluation>,
    ) -> Result<(), Spent> {
        let (Rule::UnevaluatedMembers(node) | Rule::UnevaluatedItems(node)) = rule else { return Ok(()) };
        if self.is_about_parts(rule, at.1) {
            let evaluated_parts = self.evaluated_parts(at)?;
            let parts = self.places.parts(at.1);
            self.steps.visit(parts.len())?;
            within.extend(parts.filter(|part| !evaluated_parts.contains(part)).map(|part| (*node, part)));
        }
        Ok(())
    }

    /// Returns the parts of a place that the schema, or one that it applies there, has evaluated.
    fn evaluated_parts(&mut self, at: Evaluation) -> Result<HashSet<PlaceId>, Spent> {
        let place = at.1;
        let mut evaluated_parts = HashSet::new();
        let mut seen = HashSet::from([at.0]);
        let mut open = vec![at.0];
        while let Some(node) = open.pop() {
            for rule in self.rules((node, place)) {
                let mut within = Vec::new();
                self.add_inner(rule, place, &mut within)?;
                match rule {
                    Rule::Members(_) | Rule::Items { .. } => {
                        evaluated_parts.extend(within.into_iter().map(|(_, part)| part));
                    }
                    Rule::Contains { .. } => {
                        let fit = within.into_iter().filter(|at| self.is_fit(*at));
                        evaluated_parts.extend(fit.map(|(_, part)| part));
                    }
                    Rule::UnevaluatedMembers(_) | Rule::UnevaluatedItems(_) if node != at.0 => {
                        if self.is_about_parts(rule, place) {
                            self.steps.visit(self.places.parts(place).len())?;
                            evaluated_parts.extend(self.places.parts(place));
                        }
                    }
                    Rule::If { condition, then, otherwise } => {
                        let holds = self.is_fit((*condition, place));
                        let branch = if holds { then } else { otherwise };
                        let applied = holds.then_some(condition).into_iter().chain(branch);
                        let fit = applied.filter(|node| self.is_fit((**node, place)));
                        open.extend(fit.filter(|node| seen.insert(**node)));
                    }
                    Rule::All(_) | Rule::Any(_) | Rule::One(_) | Rule::DependentSchemas(_) => {
                        let fit = within.into_iter().filter(|at| self.is_fit(*at));
                        open.extend(fit.map(|(node, _)| node).filter(|node| seen.insert(*node)));
                    }
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
                    | Rule::Not(_)
                    | Rule::Names(_)
                    | Rule::UnevaluatedMembers(_)
                    | Rule::UnevaluatedItems(_) => {}
                }
            }
        }
        Ok(evaluated_parts)
    }

    /// Whether `unevaluatedProperties` applies to an object, or `unevaluatedItems` to an array.
    fn is_about_parts(&self, rule: &Rule, place: PlaceId) -> bool {
        let is_about_members = matches!(rule, Rule::UnevaluatedMembers(_));
        self.places
            .value(place)
            .is_some_and(|value| if is_about_members { value.is_object() } else { value.is_array() })
    }

    /// Whether a place follows all rules of a schema, once the inner schemas are evaluated.
    fn verdict(&mut self, at: Evaluation) -> Result<Verdict, Spent> {
        for rule in self.rules(at) {
            if !self.holds(rule, at)? {
                return Ok(Verdict::Misfits);
            }
        }
        Ok(Verdict::Fits)
    }

    fn holds(&mut self, rule: &'a Rule, at: Evaluation) -> Result<bool, Spent> {
        self.steps.visit(1)?;
        let place = at.1;
        let of_name;
        let value = match self.places.content(place) {
            Content::Value(value) => value,
            Content::Name(name) => {
                self.steps.read(name.len())?;
                of_name = Value::from(name);
                &of_name
            }
        };
        Ok(match (rule, value) {
            (Rule::Nothing, _) => false,
            (Rule::Types(types), _) => types.iter().any(|kind| kind.has(value)),
            (Rule::OneOfValues(values), _) => values.contain(value, &mut self.steps)?,
            (Rule::Bound(bound, limit), Value::Number(number)) => bound.holds(number, limit),
            (Rule::MultipleOf(of), Value::Number(number)) => is_multiple(number, of),
            (Rule::Size(measure, limit, size), _) => match (self.size(*measure, value)?, limit) {
                (None, _) => true,
                (Some(has), Limit::Min) => has >= *size,
                (Some(has), Limit::Max) => has <= *size,
            },
            (Rule::Pattern(pattern), Value::String(text)) => pattern.is_in(text, &mut self.steps)?,
            (Rule::UniqueItems, Value::Array(items)) => are_unique(items, &mut self.steps)?,
            (Rule::Required(names), Value::Object(map)) => {
                self.steps.look_up(names)?;
                names.iter().all(|name| map.contains_key(name))
            }
            (Rule::DependentRequired(required), Value::Object(map)) => {
                for (name, names) in required {
                    self.steps.look_up(std::iter::once(name).chain(names))?;
                }
                let mut required = required.iter().filter(|(name, _)| map.contains_key(name));
                required.all(|(_, names)| names.iter().all(|name| map.contains_key(name)))
            }
            (Rule::Any(nodes), _) => nodes.iter().any(|node| self.is_fit((*node, place))),
            (Rule::One(nodes), _) => nodes.iter().filter(|node| self.is_fit((**node, place))).count() == 1,
            (Rule::Not(node), _) => !self.is_fit((*node, place)),
            (Rule::If { condition, then, otherwise }, _) => {
                let branch = if self.is_fit((*condition, place)) { then } else { otherwise };
                branch.is_none_or(|node| self.is_fit((node, place)))
            }
            (Rule::Contains { node, min, max }, Value::Array(_)) => {
                let fit = self.places.parts(place).filter(|part| self.is_fit((*node, *part))).count() as u64;
                fit >= *min && max.is_none_or(|max| fit <= max)
            }
            (Rule::All(_) | Rule::DependentSchemas(_) | Rule::Members(_) | Rule::Names(_), _)
            | (Rule::Items { .. } | Rule::UnevaluatedMembers(_) | Rule::UnevaluatedItems(_), _) => {
                let mut within = Vec::new();
                self.add_inner(rule, place, &mut within)?;
                self.add_inner_of_rest(rule, at, &mut within)?;
                within.into_iter().all(|at| self.is_fit(at))
            }
            // They do not apply to other types.
            (Rule::Bound(..) | Rule::MultipleOf(_) | Rule::Pattern(_) | Rule::UniqueItems, _)
            | (Rule::Required(_) | Rule::DependentRequired(_) | Rule::Contains { .. }, _) => true,
        })
    }

    /// Returns the size of a value; `None` if it is of another type.
    fn size(&mut self, measure: Measure, value: &Value) -> Result<Option<u64>, Spent> {
        let size = match (measure, value) {
            (Measure::Characters, Value::String(text)) => {
                self.steps.read(text.len())?;
                text.chars().count()
            }
            (Measure::Items, Value::Array(items)) => items.len(),
            (Measure::Members, Value::Object(map)) => map.len(),
            (_, _) => return Ok(None),
        };
        Ok(Some(size as u64))
    }

    /// Returns why the value does not fit: innermost reasons only, each with its location. If that exceeds
    /// `budget`, returns what was found so far.
    pub(super) fn reasons(&mut self, budget: Steps) -> Vec<String> {
        self.steps = budget;
        let mut reasons = Vec::new();
        let is_cut = self.find_reasons(&mut reasons).is_err();
        if reasons.is_empty() {
            reasons.push("it does not fit, and is too large to say where".to_owned());
        } else if is_cut {
            reasons.push("and more".to_owned());
        }
        reasons
    }

    fn find_reasons(&mut self, reasons: &mut Vec<String>) -> Result<(), Spent> {
        let mut seen = HashSet::new();
        let mut open = vec![(0, Places::ROOT)];
        while let Some(at) = open.pop() {
            if !seen.insert(at) {
                continue;
            }
            let mut inner = Vec::new();
            for rule in self.rules(at) {
                if self.holds(rule, at)? {
                    continue;
                }
                let mut within = Vec::new();
                self.add_inner(rule, at.1, &mut within)?;
                self.add_inner_of_rest(rule, at, &mut within)?;
                let Some(reason) = self.reason(rule, at.1, &mut within)? else {
                    inner.extend(within.into_iter().filter(|at| !self.is_fit(*at)));
                    continue;
                };
                let path = self.places.path(at.1);
                let reason = if path.is_empty() { reason } else { format!("at `{path}`: {reason}") };
                if reasons.contains(&reason) {
                    continue;
                }
                if reasons.len() == REASONS_MAX {
                    return Err(Spent);
                }
                reasons.push(reason);
            }
            // The first of them is processed next.
            open.extend(inner.into_iter().rev());
        }
        Ok(())
    }

    /// Describes a rule that does not hold; `None` if the inner schemas explain it.
    fn reason(
        &mut self,
        rule: &Rule,
        place: PlaceId,
        within: &mut Vec<Evaluation>,
    ) -> Result<Option<String>, Spent> {
        let of_name;
        let value = match self.places.content(place) {
            Content::Value(value) => value,
            Content::Name(name) => {
                of_name = Value::from(name);
                &of_name
            }
        };
        let said = match rule {
            Rule::Nothing => "it is not allowed here".to_owned(),
            Rule::Types(types) => {
                let types: Vec<&str> = types.iter().map(|kind| kind.name()).collect();
                let got = if types == ["integer"] { shown(value) } else { Type::of(value).name().to_owned() };
                format!("want {}, but got {got}", types.join(" or "))
            }
            Rule::OneOfValues(values) => format!("{}, but got {}", values.shown, shown(value)),
            Rule::Bound(bound, limit) => {
                format!("must be {} {limit}, but got {}", bound.sign(), shown(value))
            }
            Rule::MultipleOf(of) => format!("{} is not a multiple of {of}", shown(value)),
            Rule::Size(measure, limit, size) => {
                let has = self.size(*measure, value)?.unwrap_or_default();
                let limit = match limit {
                    Limit::Min => "at least",
                    Limit::Max => "at most",
                };
                format!("must have {limit} {size} {}, but has {has}", measure.name())
            }
            Rule::Pattern(pattern) => {
                let pattern = shown(&Value::from(pattern.text()));
                format!("{} does not match the pattern {pattern}", shown(value))
            }
            Rule::UniqueItems => "two of its items are equal".to_owned(),
            Rule::Required(names) => format!("missing properties {}", missing(names, value)),
            Rule::DependentRequired(required) => {
                let needs = required.iter().find(|(name, names)| {
                    value.get(name).is_some() && names.iter().any(|name| value.get(name).is_none())
                });
                let Some((name, names)) = needs else { return Ok(None) };
                let missing = missing(names, value);
                format!("missing properties {missing}, which {} requires", shown(&Value::from(name.as_str())))
            }
            Rule::One(_) if within.iter().any(|at| self.is_fit(*at)) => {
                "it fits more than one of the forms of `oneOf`, and must fit exactly one".to_owned()
            }
            Rule::Any(nodes) | Rule::One(nodes) if nodes.is_empty() => "no form is allowed here".to_owned(),
            Rule::Not(_) => "it fits what `not` excludes".to_owned(),
            Rule::Contains { min, max, .. } => {
                let fit = within.iter().filter(|at| self.is_fit(**at)).count();
                match max {
                    Some(max) if fit as u64 > *max => {
                        format!("{fit} items fit the schema of `contains`, and at most {max} may")
                    }
                    Some(_) | None => {
                        format!("{fit} items fit the schema of `contains`, and at least {min} must")
                    }
                }
            }
            Rule::If { condition, then, otherwise } => {
                let branch = if self.is_fit((*condition, place)) { then } else { otherwise };
                *within = branch.iter().map(|node| (*node, place)).collect();
                return Ok(None);
            }
            Rule::All(_)
            | Rule::Any(_)
            | Rule::One(_)
            | Rule::DependentSchemas(_)
            | Rule::Members(_)
            | Rule::Names(_)
            | Rule::Items { .. }
            | Rule::UnevaluatedMembers(_)
            | Rule::UnevaluatedItems(_) => return Ok(None),
        };
        Ok(Some(said))
    }
}

fn is_about_rest(rule: &Rule) -> bool {
    matches!(rule, Rule::UnevaluatedMembers(_) | Rule::UnevaluatedItems(_))
}

/// Returns the names that an object lacks.
fn missing(names: &[String], value: &Value) -> String {
    let lacks = names.iter().filter(|name| value.get(name).is_none()).take(REASONS_MAX);
    lacks.map(|name| shown(&Value::from(name.as_str()))).collect::<Vec<_>>().join(", ")
}
