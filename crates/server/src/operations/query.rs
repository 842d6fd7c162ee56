//! Parameters in the path and the query of a URL.
//!
//! Invariants: a value is text and is read as the type of its parameter; an unknown or repeated parameter is an error.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use super::{Label, Pairs, Refused};

/// The query parameter with a label: `label=NAME:VALUE`, as often as needed.
pub(crate) const LABEL: &str = "label";

/// Reads the parameters of an operation.
pub(super) fn read<T: DeserializeOwned>(pairs: &[(String, String)]) -> Result<T, Refused> {
    // Where an operation has labels, a query has the parameter [`LABEL`] in their place.
    let invalid = |error: &dyn std::fmt::Display| {
        Refused::Parameters(error.to_string().replace("`labels`", &format!("`{LABEL}`")))
    };
    let text = serde_urlencoded::to_string(pairs).map_err(|error| invalid(&error))?;
    let pairs = form_urlencoded::parse(text.as_bytes());
    serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(pairs))
        .map_err(|error| invalid(&error))
}

/// Removes the labels from these pairs.
///
/// # Errors
/// One is not `NAME:VALUE`, or two have the same name.
pub(crate) fn take_labels(pairs: &mut Pairs) -> Result<BTreeMap<String, String>, Refused> {
    let mut labels = BTreeMap::new();
    let (given, others) = std::mem::take(pairs).into_iter().partition(|(name, _)| name == LABEL);
    *pairs = others;
    let given: Pairs = given;
    for (_, text) in given {
        let Label { name, value } = text.parse().map_err(Refused::Parameters)?;
        if labels.insert(name.clone(), value).is_some() {
            return Err(Refused::Parameters(format!("the label {name:?} is given twice")));
        }
    }
    Ok(labels)
}
