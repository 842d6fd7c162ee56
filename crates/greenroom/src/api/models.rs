//! The known facts about a provider's models, and their sources.
//!
//! Invariants: a listing requests only the server's list of models; a server that does not reply hides no
//! fact from the catalogue or the store.

use std::collections::BTreeSet;

use greenroom_kernel::usage::{KnownWindows, Window};
use greenroom_provider::catalog::{Catalog, Prices};
use greenroom_provider::{ProviderError, Served};

use crate::agent::Agent;
use crate::core::deps::Deps;
use crate::values::error::Result;

/// The models of one provider.
#[derive(Debug)]
#[non_exhaustive]
pub struct Models {
    /// The server's address, or the provider's name if it has no address.
    pub origin: String,
    /// The models, by name.
    pub models: Vec<KnownModel>,
    /// Why the server did not list its models. Then the models are those of the catalogue.
    pub problem: Option<ProviderError>,
}

/// The known facts about one model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct KnownModel {
    /// The name in requests.
    pub id: String,
    /// The window that sessions use, in tokens, and its source.
    pub window: Window,
    /// The limit that the server named when it refused a request, in tokens. It is kept until the server
    /// accepts more, or until it is forgotten.
    pub learned_tokens: Option<u64>,
    /// The output limit, in tokens.
    pub output_tokens: Option<u64>,
    /// The prices.
    pub prices: Option<Prices>,
    /// The source of the output limit and the prices.
    pub source: FactSource,
}

/// The source of a fact about a model.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FactSource {
    /// The prices that the program or the user has set; the output limit may still be the server's or the catalogue's.
    Settings,
    /// The server's list of models.
    Server,
    /// The model catalogue.
    Catalog,
    /// The model is unknown.
    Unknown,
}

/// Returns the known facts about the models of this agent's provider.
pub(crate) async fn models(deps: &Deps, agent: &Agent) -> Result<Models> {
    let lane = deps.lane(agent).ok_or_else(|| deps.unknown_provider(agent))?;
    let (served, problem) = match lane.provider.served().await {
        Ok(served) => (served, None),
        Err(error) => (Served::default(), Some(error)),
    };
    let provider = lane.provider.name();
    let learned = deps.learned.limits(lane.origin());
    let mut names: BTreeSet<String> = served.models.iter().map(|model| model.id.clone()).collect();
    names.extend(learned.iter().map(|(model, _)| model.clone()));
    names.insert(agent.model.clone());
    names.extend(agent.prices.keys().chain(deps.prices.keys()).cloned());
    if served.models.is_empty() {
        names.extend({
            let known = Catalog::bundled().models().iter();
            known.filter(|info| info.provider == provider).map(|info| info.model.to_owned())
        });
    }
    let settings = deps.settings(agent);
    let of = |id: String| {
        let told = served.find(&id).cloned();
        let info = deps.priced(agent, provider, &id);
        let is_set = agent.prices.contains_key(&id) || deps.prices.contains_key(&id);
        let window = |limit| {
            let told = told.as_ref();
            let known = KnownWindows {
                setting: agent.window_of(&id),
                served: told.and_then(|told| told.window_tokens),
                catalog: info.as_ref().and_then(|info| info.window_tokens()),
                trained: told.and_then(|told| told.trained_tokens),
                learned: limit,
            };
            Window::resolve(&settings, known)
        };
        let listed_window = told.as_ref().and_then(|told| told.window_tokens);
        let holds = deps.learned.limit(lane.origin(), &id, listed_window, deps.now_ms());
        let says = told.as_ref().filter(|told| told.output_tokens.is_some() || told.prices.is_some());
        let source = match (says, &info) {
            _ if is_set => FactSource::Settings,
            (Some(_), _) => FactSource::Server,
            (None, Some(_)) => FactSource::Catalog,
            (None, None) => FactSource::Unknown,
        };
        KnownModel {
            window: window(holds),
            learned_tokens: learned.iter().find(|(model, _)| *model == id).map(|(_, tokens)| *tokens),
            output_tokens: says
                .and_then(|says| says.output_tokens)
                .or_else(|| info.as_ref().and_then(|info| info.output_tokens)),
            prices: says
                .and_then(|says| says.prices)
                .filter(|_| !is_set)
                .or_else(|| info.as_ref().and_then(|info| info.prices)),
            source,
            id,
        }
    };
    Ok(Models { origin: lane.origin().to_owned(), models: names.into_iter().map(of).collect(), problem })
}
