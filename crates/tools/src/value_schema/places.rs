//! The places of a value: each part of it has a number, so that a verdict on it can be kept.
//!
//! Invariants: the parts of an object or an array are numbered consecutively, in their order, and after it.

use std::ops::Range;

use greenroom_kernel::text::first_chars;
use serde_json::Value;

use super::steps::{Spent, Steps};

#[cfg(test)]
mod tests;

/// The maximum nesting depth of a schema and a value: the limit of `serde_json`.
pub(super) const DEPTH_MAX: u8 = 128;

/// The maximum number of characters shown of one name in a path.
const NAME_MAX: usize = 60;

/// The maximum number of characters shown of a path.
const PATH_MAX: usize = 240;

pub(super) type PlaceId = u32;

/// The content of a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Content<'a> {
    Value(&'a Value),
    /// The name of a member, for `propertyNames`.
    Name(&'a str),
}

/// How a place is reached from its parent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Token<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

#[derive(Debug)]
struct Place<'a> {
    content: Content<'a>,
    parent: PlaceId,
    token: Token<'a>,
    first_part: PlaceId,
    depth: u8,
}

/// Why the places of a value cannot be numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPlaces {
    TooDeep,
    Spent,
}

impl From<Spent> for NoPlaces {
    fn from(_: Spent) -> Self {
        Self::Spent
    }
}

#[derive(Debug)]
pub(super) struct Places<'a>(Vec<Place<'a>>);

impl<'a> Places<'a> {
    pub(super) const ROOT: PlaceId = 0;

    pub(super) fn new(root: &'a Value, steps: &mut Steps) -> Result<Self, NoPlaces> {
        let mut places = Self(Vec::new());
        places.push(Content::Value(root), Self::ROOT, Token::Root, 0);
        steps.visit(1)?;
        let mut next = 0;
        while let Some(place) = places.0.get(next) {
            let (content, depth) = (place.content, place.depth);
            let id = id_of(next);
            let first_part = id_of(places.0.len());
            places.0[next].first_part = first_part;
            let parts = Self::parts_of(content);
            if parts > 0 && depth == DEPTH_MAX {
                return Err(NoPlaces::TooDeep);
            }
            steps.visit(parts)?;
            match content {
                Content::Value(Value::Object(map)) => {
                    for (key, value) in map {
                        places.push(Content::Value(value), id, Token::Key(key), depth + 1);
                    }
                }
                Content::Value(Value::Array(items)) => {
                    for (index, value) in items.iter().enumerate() {
                        places.push(Content::Value(value), id, Token::Index(index), depth + 1);
                    }
                }
                Content::Value(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_))
                | Content::Name(_) => {}
            }
            next += 1;
        }
        Ok(places)
    }

    fn push(&mut self, content: Content<'a>, parent: PlaceId, token: Token<'a>, depth: u8) {
        self.0.push(Place { content, parent, token, first_part: 0, depth });
    }

    fn parts_of(content: Content<'_>) -> usize {
        match content {
            Content::Value(Value::Object(map)) => map.len(),
            Content::Value(Value::Array(items)) => items.len(),
            Content::Value(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_))
            | Content::Name(_) => 0,
        }
    }

    fn place(&self, id: PlaceId) -> &Place<'a> {
        &self.0[id as usize]
    }

    pub(super) fn content(&self, id: PlaceId) -> Content<'a> {
        self.place(id).content
    }

    /// Returns the value at a place; `None` for a name.
    pub(super) fn value(&self, id: PlaceId) -> Option<&'a Value> {
        match self.content(id) {
            Content::Value(value) => Some(value),
            Content::Name(_) => None,
        }
    }

    pub(super) fn parent(&self, id: PlaceId) -> PlaceId {
        self.place(id).parent
    }

    pub(super) fn token(&self, id: PlaceId) -> Token<'a> {
        self.place(id).token
    }

    /// Returns the members of an object, or the items of an array.
    pub(super) fn parts(&self, id: PlaceId) -> Range<PlaceId> {
        let place = self.place(id);
        place.first_part..place.first_part + id_of(Self::parts_of(place.content))
    }

    /// Returns the members of an object with their names.
    pub(super) fn members(&self, id: PlaceId) -> impl Iterator<Item = (&'a str, PlaceId)> {
        self.parts(id).filter_map(|part| match self.token(part) {
            Token::Key(key) => Some((key, part)),
            Token::Root | Token::Index(_) => None,
        })
    }

    pub(super) fn all(&self) -> Range<PlaceId> {
        Self::ROOT..id_of(self.0.len())
    }

    /// Adds a place for the name of a member.
    pub(super) fn add_name(&mut self, member: PlaceId, name: &'a str) -> PlaceId {
        let id = id_of(self.0.len());
        let Place { parent, token, depth, .. } = *self.place(member);
        self.push(Content::Name(name), parent, token, depth);
        id
    }

    /// Returns the path to a place as a JSON pointer, truncated if it is long.
    pub(super) fn path(&self, mut id: PlaceId) -> String {
        let mut names = Vec::new();
        let mut shown = 0;
        loop {
            match self.token(id) {
                Token::Root => break,
                Token::Key(key) => {
                    names.push(first_chars(key, NAME_MAX).replace('~', "~0").replace('/', "~1"))
                }
                Token::Index(index) => names.push(index.to_string()),
            }
            shown += names.last().map_or(0, String::len);
            if shown > PATH_MAX {
                names.push("…".to_owned());
                break;
            }
            id = self.parent(id);
        }
        names.iter().rev().fold(String::new(), |path, name| format!("{path}/{name}"))
    }
}

fn id_of(index: usize) -> PlaceId {
    PlaceId::try_from(index).expect("the budget ends far below as many places")
}
