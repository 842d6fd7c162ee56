//! `/model`: the models that can answer, and the change to one.
//!
//! Invariants: a name means a model of the current provider before one of another provider; a model that no list
//! contains is used anyway, with a message.

use std::sync::Arc;

use greenroom_server::operations::ModelSummary;
use greenroom_terminal::format;
use greenroom_terminal::row::Look;

use super::does::{Outcome, Problem};
use super::{Done, TerminalChat, copies};
use crate::backend::Backend;
use crate::picker::{Item, Picker, Purpose};
use crate::program::OtherModel;

impl TerminalChat {
    pub(super) fn model_command(&mut self, name: Option<String>) {
        let backend = self.backend.clone();
        let now = self.model.status.model.clone();
        match name {
            None => {
                let others = self.program.other_models();
                self.spawn(async move { models(&backend, &now, others).await });
            }
            Some(name) => self.set_model(&name),
        }
    }

    /// Sets the model for the next prompts.
    fn set_model(&mut self, name: &str) {
        if self.model.is_busy() {
            return self
                .model
                .note(Look::WARN, "The model can be changed once the run or the compaction has ended");
        }
        let program = Arc::clone(&self.program);
        let (name, id) = (name.to_owned(), self.backend.id().to_owned());
        let backend = self.backend.clone();
        let others = program.other_models();
        self.spawn(async move {
            let (name, warning) = meant(&backend, name, &others).await;
            let permissions = backend.permissions().await?;
            let client = program.with_model(&name).await.map_err(Problem)?;
            let opened = copies::opened(client, &id, &permissions).await?;
            let warning = warning.map(|text| Done::Note(Look::WARN, text));
            Ok([Done::Changed(Box::new(opened), name)].into_iter().chain(warning).collect())
        });
    }
}

/// Returns the model that a name means: one of the present provider, or else one of another provider with this name; and
/// a warning if nothing lists it.
async fn meant(backend: &Backend, name: String, others: &[OtherModel]) -> (String, Option<String>) {
    // A server that lists nothing may have any model.
    let listed = backend.models().await.map(|listed| listed.models).unwrap_or_default();
    let is_known = listed.is_empty() || listed.iter().any(|model| model.id == name);
    // A name with its provider is meant as it is.
    if is_known || name.contains('/') {
        return (name, None);
    }
    let other =
        others.iter().find(|other| other.name.split_once('/').is_some_and(|(_, model)| model == name));
    match other {
        Some(other) => (other.name.clone(), None),
        None => {
            let warning = format!("The server does not list {name}; /model shows its list");
            (name, Some(warning))
        }
    }
}

/// Lists the provider's models, then those of other providers that the user has keys for.
async fn models(backend: &Backend, now: &str, others: Vec<OtherModel>) -> Outcome {
    let listed = backend.models().await?;
    let item = |model: ModelSummary| Item {
        detail: match (model.window, model.id == now) {
            (window, true) => format!("{}now", window.map(sized).unwrap_or_default()),
            (Some(window), false) => sized(window),
            (None, false) => String::new(),
        },
        label: model.id.clone(),
        value: model.id,
    };
    let other = |model: OtherModel| Item {
        detail: model.window.map(sized).unwrap_or_default(),
        label: model.name.clone(),
        value: model.name,
    };
    let items = listed.models.into_iter().map(item).chain(others.into_iter().map(other)).collect();
    let mut out = Vec::new();
    if let Some(problem) = listed.problem {
        out.push(Done::Note(Look::WARN, problem));
    }
    out.push(Done::Pick(Picker::new(Purpose::Model, "Choose a model", items)));
    Ok(out)
}

fn sized(window: u64) -> String {
    format!("{} tokens ", format::short(window))
}
