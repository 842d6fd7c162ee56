//! Which setting the refusal of an OpenAI-compatible server is about.
//!
//! Invariants: only a setting that was sent is named.

use serde_json::Value;

use super::ModelSettings;

impl ModelSettings {
    /// Returns the setting that a server's refusal is about, if it is one that is set: by the parameter that
    /// the refusal names, otherwise by the first one in its text.
    pub(crate) fn refused(&self, body: &str) -> Option<String> {
        let refusal = Refusal::of(body)?;
        let set = self.set_fields();
        let by_param = set.iter().find(|field| refusal.is_by_param(field));
        let found = by_param.or_else(|| set.iter().find(|field| names_field(&refusal.text, field)));
        found.map(|field| match self.extra.contains_key(field) {
            true => format!("extra.{field}"),
            false => field.clone(),
        })
    }

    /// Returns the fields that are sent for these settings, except the output limit.
    fn set_fields(&self) -> Vec<String> {
        let named = [
            ("temperature", self.temperature.is_some()),
            ("top_p", self.top_p.is_some()),
            ("reasoning_effort", self.reasoning_effort.is_some()),
            ("parallel_tool_calls", self.parallel_tool_calls.is_some()),
            ("tool_choice", self.tool_choice.is_some()),
            ("stop", self.stop.is_some()),
            ("seed", self.seed.is_some()),
        ];
        let named = named.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name.to_owned());
        named.chain(self.extra.keys().cloned()).collect()
    }
}

/// The body of a server's refusal.
struct Refusal {
    /// The parameter that the refusal is about.
    param: Option<String>,
    text: String,
}

impl Refusal {
    fn of(body: &str) -> Option<Self> {
        let body: Value = serde_json::from_str(body).ok()?;
        let error = body.get("error").unwrap_or(&body);
        let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self { param: text("param"), text: text("message").unwrap_or_else(|| error.to_string()) })
    }

    fn is_by_param(&self, field: &str) -> bool {
        self.param.as_deref().is_some_and(|param| is_field(param, field))
    }
}

/// Whether a server's refusal is about streaming.
pub(crate) fn refuses_stream(body: &str) -> bool {
    const FIELDS: [&str; 2] = ["stream", "stream_options"];
    let Some(refusal) = Refusal::of(body) else { return false };
    FIELDS.iter().any(|field| refusal.is_by_param(field))
        || (refusal.param.is_none() && FIELDS.iter().any(|field| names_field(&refusal.text, field)))
}

/// Whether a server's parameter is this field: `reasoning.effort` is `reasoning_effort`, `stop[0]` is `stop`.
fn is_field(param: &str, field: &str) -> bool {
    let param = param.split('[').next().unwrap_or(param);
    param == field || param.replace('.', "_") == field
}

/// Whether a text mentions a field as a name: in quotes, after `loc` or a colon, not as a word of a sentence.
fn names_field(text: &str, field: &str) -> bool {
    let quoted = |quote: char| text.contains(&format!("{quote}{field}{quote}"));
    quoted('\'')
        || quoted('"')
        || quoted('`')
        || (field.contains('_') && text.contains(field))
        || text.ends_with(&format!(": {field}"))
}
