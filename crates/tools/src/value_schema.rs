//! JSON schemas that values are checked against: the forms of questions, and of answers.
//!
//! Invariants: a schema refers only to what is in it, so that nothing is read from files or from the network; what is
//! wrong is said with its place, in one line.

use std::fmt;

use serde_json::Value;

#[cfg(test)]
mod tests;

/// The name under which a schema is compiled. It leads nowhere.
const NAME: &str = "schema:///value.json";

/// A JSON schema that values can be checked against: draft 2020-12, unless its `$schema` names another.
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
    schemas: boon::Schemas,
    index: boon::SchemaIndex,
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
    /// What is wrong with it and where, in one line: it is no object and no JSON schema, or it refers to something outside
    /// of it.
    pub fn new(schema: &Value) -> Result<Self, String> {
        if !schema.is_object() {
            return Err("it must be an object".to_owned());
        }
        let mut schemas = boon::Schemas::new();
        let mut compiler = boon::Compiler::new();
        compiler.set_default_draft(boon::Draft::V2020_12);
        compiler.use_loader(Box::new(NoLoader));
        compiler.add_resource(NAME, schema.clone()).map_err(|error| said(&error))?;
        let index = compiler.compile(NAME, &mut schemas).map_err(|error| said(&error))?;
        Ok(Self { schemas, index })
    }

    /// Whether a value fits it.
    ///
    /// # Errors
    /// Why it does not, with the places, in one line for a person or a model.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.schemas.validate(value, self.index).map_err(|error| causes(&error))
    }
}

/// Loads nothing.
struct NoLoader;

impl boon::UrlLoader for NoLoader {
    fn load(&self, _url: &str) -> Result<Value, Box<dyn std::error::Error>> {
        Err("a schema can refer only to what is in it".into())
    }
}

/// What is wrong with a schema.
fn said(error: &boon::CompileError) -> String {
    let text = match error {
        boon::CompileError::ValidationError { src, .. } => causes(src),
        boon::CompileError::LoadUrlError { .. }
        | boon::CompileError::InvalidMetaSchemaUrl { .. }
        | boon::CompileError::InvalidRegex { .. }
        | boon::CompileError::ParseUrlError { .. } => format!("{error:#}"),
        boon::CompileError::UnsupportedUrlScheme { .. }
        | boon::CompileError::UnsupportedDraft { .. }
        | boon::CompileError::MetaSchemaCycle { .. }
        | boon::CompileError::ParseIdError { .. }
        | boon::CompileError::ParseAnchorError { .. }
        | boon::CompileError::DuplicateId { .. }
        | boon::CompileError::DuplicateAnchor { .. }
        | boon::CompileError::InvalidJsonPointer(_)
        | boon::CompileError::JsonPointerNotFound(_)
        | boon::CompileError::AnchorNotFound { .. }
        | boon::CompileError::UnsupportedVocabulary { .. }
        | boon::CompileError::Bug(_) => error.to_string(),
    };
    one_line(&text.replace(NAME, ""))
}

/// What is wrong with a value, in the innermost places.
fn causes(error: &boon::ValidationError<'_, '_>) -> String {
    let mut causes = Vec::new();
    leaves(error, &mut causes);
    one_line(&causes.join("; "))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn leaves(error: &boon::ValidationError<'_, '_>, causes: &mut Vec<String>) {
    if error.causes.is_empty() {
        let place = error.instance_location.to_string();
        let place = if place.is_empty() { String::new() } else { format!("at `{place}`: ") };
        let cause = format!("{place}{}", error.kind);
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    error.causes.iter().for_each(|cause| leaves(cause, causes));
}
