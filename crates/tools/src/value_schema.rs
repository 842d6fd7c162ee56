//! JSON schemas that validate values: the forms of questions, and of answers.
//!
//! Invariants: a schema refers only to its own content, so that nothing is read from files or from the
//! network; errors state their location, in one line; reading a schema and checking a value take a bounded
//! number of steps for any input, and no memory or time beyond what these need.

use std::fmt;

use greenroom_kernel::text::joined_words;
use serde_json::Value;

use judge::Judge;
use places::{DEPTH_MAX, NoPlaces};
use rules::Node;
use steps::{CHECKING_MAX, SAYING_MAX, Steps};

mod judge;
mod pattern;
mod places;
mod read;
mod rules;
mod steps;
#[cfg(test)]
mod tests;

/// A JSON schema that validates values: draft 2020-12, unless its `$schema` names 2019-09, draft-07, draft-06
/// or draft-04.
///
/// Supported are `type`, `enum`, `const`, the bounds of numbers, lengths and counts, `multipleOf`, `pattern`, `properties`,
/// `patternProperties`, `additionalProperties`, `propertyNames`, `required`, `dependentRequired`, `dependentSchemas`,
/// `items`, `prefixItems`, `contains`, `uniqueItems`, `unevaluatedProperties`, `unevaluatedItems`, `allOf`, `anyOf`,
/// `oneOf`, `not`, `if`, `$ref`, `$defs`, `$anchor` and `$id` (which a `$ref` names as it is written), and what the older
/// drafts have instead. `$dynamicRef`, `$recursiveRef`, and patterns with look-around or back-references are refused.
/// `format`, `content…` and unknown keywords are not checked.
///
/// ```
/// use greenroom_tools::ValueSchema;
/// use serde_json::json;
///
/// let city = json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
/// let schema = ValueSchema::new(&city).expect("it is a schema");
/// assert_eq!(schema.check(&json!({ "name": "Oslo" })), Ok(()));
/// assert!(schema.check(&json!({ "name": 7 })).is_err_and(|reason| reason.contains("/name")));
/// ```
pub struct ValueSchema {
    nodes: Vec<Node>,
}

impl fmt::Debug for ValueSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueSchema").finish_non_exhaustive()
    }
}

impl ValueSchema {
    /// Reads a schema.
    ///
    /// # Errors
    /// The error and its location, in one line: it is not a JSON schema, it refers to something outside of it
    /// or to itself in a circle, or it is too large or too deeply nested.
    pub fn new(schema: &Value) -> Result<Self, String> {
        if !schema.is_object() {
            return Err("it must be an object".to_owned());
        }
        let nodes = read::read(schema).map_err(|reason| joined_words(&reason))?;
        Ok(Self { nodes })
    }

    /// Checks that a value fits the schema.
    ///
    /// # Errors
    /// The reasons and their locations, in one line for a person or a model; or that the value is too large
    /// or too deeply nested to be checked.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let mut judge = match Judge::new(&self.nodes, value, Steps::new(CHECKING_MAX)) {
            Ok(judge) => judge,
            Err(NoPlaces::Spent) => return Err(too_much()),
            Err(NoPlaces::TooDeep) => {
                return Err(format!("it is nested more than {DEPTH_MAX} deep; make it flatter"));
            }
        };
        match judge.fits() {
            Ok(true) => Ok(()),
            Ok(false) => Err(joined_words(&judge.reasons(Steps::new(SAYING_MAX)).join("; "))),
            Err(_) => Err(too_much()),
        }
    }
}

fn too_much() -> String {
    format!("checking it against the schema takes more than {CHECKING_MAX} steps; make it smaller")
}
