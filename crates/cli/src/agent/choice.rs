//! The choice of the server and the model if the flags do not determine them.
//!
//! Invariants: a server or model that flags, variables or files name is used unchanged; a vendor is chosen by an
//! existing key; the model of any other server is one that it lists. No model is called.

use std::time::Duration;

use anyhow::Result;
use greenroom::internal::Catalog;
use greenroom::provider::Provider as _;
use greenroom_kernel::FailureClass;

use super::server::Server;
use super::{data_dir, load_config, named_model, warn};
use crate::args::{Global, ModelArgs};
use crate::config::surroundings::Surroundings;
use crate::config::{BUILT_IN, Config, DEFAULT_MODEL, Loaded, OPENAI};
use crate::error::usage;

#[cfg(test)]
mod tests;

/// How long a server may take to list its models.
const LISTED_WITHIN: Duration = Duration::from_secs(3);
/// How many models an error names.
const NAMED_MAX: usize = 12;

/// What is known before an agent is made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The flags name all that is needed.
    Made,
    /// The server lists several models, and none of them was asked for.
    OneOf {
        /// The server's address.
        address: String,
        models: Vec<String>,
    },
    /// No server can be asked, because there is no key.
    NoKey,
    /// The server does not list its models, so the default one is asked for.
    NotListed {
        /// The server's address.
        address: String,
        /// Why it lists none.
        reason: String,
        /// The default model.
        model: String,
        /// Whether a call fails for the same reason, and reports it.
        is_reported: bool,
    },
}

/// Returns the model with which a vendor's provider begins.
pub(crate) fn first_model(provider: &str) -> Option<&'static str> {
    match provider {
        OPENAI => Some(DEFAULT_MODEL),
        "anthropic" => Some("claude-sonnet-5"),
        "google" => Some("gemini-flash-latest"),
        _ => None,
    }
}

/// Completes the flags with the model, as far as it can be known.
///
/// # Errors
/// The configuration is invalid.
pub(crate) async fn complete(global: &Global, args: &mut ModelArgs) -> Result<Choice> {
    let here = Surroundings::here();
    let loaded = load_config(global, &here)?;
    if args.simulate || args.keyless {
        return Ok(Choice::Made);
    }
    let named = named_model(args, &here);
    if named.is_none() {
        args.model = vendors_model(&loaded, args, &here).map(str::to_owned);
    }
    let named = named.or_else(|| args.model.clone());
    let own_model = named.as_deref().unwrap_or(&loaded.own.model);
    let server = Server::chosen(&loaded, &args.server, own_model, true, &here)?;
    if server.lacks_key(&args.server) {
        return Ok(Choice::NoKey);
    }
    let set_by = |setting: &str| loaded.origins.get(&vec![setting.to_owned()]);
    let is_of_file = |origin: &String| loaded.files.iter().any(|file| file.display().to_string() == *origin);
    // Where a file names a provider, its model is that provider's, and another server may not have it.
    let is_others =
        server.name() != Some(&loaded.config.provider) && set_by("provider").is_some_and(is_of_file);
    let is_set = set_by("model").is_some_and(|by| !is_others || !is_of_file(by));
    if named.is_some() || is_set || server.is_built_in() {
        return Ok(Choice::Made);
    }
    // Why its key is missing, or must not be sent, is reported where the agent is made.
    let Ok(provider) = server.provider(&args.server, true, &data_dir(global)?) else {
        return Ok(Choice::Made);
    };
    let not_listed = |reason: String, is_reported: bool| {
        let (address, model) = (server.base_url().to_string(), loaded.config.model.clone());
        Ok(Choice::NotListed { address, reason, model, is_reported })
    };
    let served = match tokio::time::timeout(LISTED_WITHIN, provider.served()).await {
        Ok(Ok(served)) => served,
        Ok(Err(error)) => {
            let is_reported = matches!(error.failure.class, FailureClass::Auth | FailureClass::Timeout);
            return not_listed(error.failure.to_string(), is_reported);
        }
        Err(_) => return not_listed(format!("no answer within {LISTED_WITHIN:?}"), false),
    };
    let is_listed = !served.takes_any_name && served.find(&loaded.config.model).is_some();
    match &*served.models {
        [] => Ok(Choice::Made),
        _ if is_listed => Ok(Choice::Made),
        [only] => {
            args.model = Some(only.id.clone());
            Ok(Choice::Made)
        }
        models => {
            let models = models.iter().map(|model| model.id.clone()).collect();
            Ok(Choice::OneOf { address: server.base_url().to_string(), models })
        }
    }
}

/// Keeps a model that the user has chosen, if the configuration chooses its server and no model yet.
///
/// # Errors
/// Those of `set`, which writes it.
pub(crate) fn keep_model(
    global: &Global,
    args: &ModelArgs,
    model: &str,
    set: impl FnOnce(&str) -> Result<String>,
) -> Result<()> {
    let here = Surroundings::here();
    let loaded = load_config(global, &here)?;
    let chooses = |setting: &str| loaded.origins.contains_key(&vec![setting.to_owned()]);
    let has_flags = args.server.provider.is_some() || args.server.base_url.is_some();
    if chooses("provider") && !chooses("model") && !has_flags && here.variable("OPENAI_BASE_URL").is_none() {
        set(model)?;
    }
    Ok(())
}

/// Completes the flags for a command that cannot ask.
///
/// # Errors
/// Those of [`complete`]; or the server lists several models, and none was named. A missing key is reported where
/// the agent is made.
pub(crate) async fn complete_unasked(global: &Global, args: &mut ModelArgs) -> Result<()> {
    match complete(global, args).await? {
        // A missing key is reported where the agent is made.
        Choice::Made | Choice::NoKey | Choice::NotListed { is_reported: true, .. } => Ok(()),
        Choice::NotListed { address, reason, model, is_reported: false } => {
            warn_unchecked(global, &address, &reason, &model)
        }
        Choice::OneOf { address, models } => {
            let more = models.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
            let models: Vec<&str> = models.iter().take(NAMED_MAX).map(String::as_str).collect();
            Err(usage(format!(
                "{address} lists several models; name one with --model:\n  {}{more}",
                models.join("\n  ")
            )))
        }
    }
}

/// Warns that the default model is asked for at a server that may not have it.
///
/// # Errors
/// Standard error is closed.
pub(crate) fn warn_unchecked(global: &Global, address: &str, reason: &str, model: &str) -> Result<()> {
    warn(global, &format!("{address} does not list its models, so {model} is used unchecked: {reason}"))
}

/// Returns the model of the vendor that a flag names, or else of the one whose key is there, unless something names
/// another model or server.
fn vendors_model(loaded: &Loaded, args: &ModelArgs, here: &Surroundings) -> Option<&'static str> {
    let is_set = |key: &str| loaded.origins.contains_key(&vec![key.to_owned()]);
    let has_default_model = !is_set("model");
    if let Some(provider) = &args.server.provider {
        // The model of the configuration belongs to the provider that it chooses, unless this one has it too.
        let has_it = Catalog::bundled().find(provider, &loaded.config.model).is_some();
        let is_open = has_default_model || (*provider != loaded.own.provider && !has_it);
        return first_model(provider).filter(|model| is_open && *model != loaded.config.model);
    }
    let has_server = args.server.base_url.is_some() || here.variable("OPENAI_BASE_URL").is_some();
    if has_server || !has_default_model {
        return None;
    }
    if is_set("provider") {
        return first_model(&loaded.own.provider).filter(|model| *model != DEFAULT_MODEL);
    }
    let with_key = BUILT_IN.into_iter().find(|name| has_key(&loaded.own, name, here));
    with_key.and_then(first_model).filter(|model| *model != DEFAULT_MODEL)
}

/// Returns the name of the provider that these flags choose; `None` for an address without a name.
pub(crate) fn server_name(loaded: &Loaded, args: &ModelArgs, here: &Surroundings) -> Option<String> {
    let named = named_model(args, here);
    let own_model = named.as_deref().unwrap_or(&loaded.own.model);
    let server = Server::chosen(loaded, &args.server, own_model, !args.simulate, here).ok()?;
    server.name().filter(|_| !args.simulate).map(str::to_owned)
}

/// Returns the server that these flags choose, for the user.
pub(crate) fn server_shown(global: &Global, args: &ModelArgs) -> Option<String> {
    if args.simulate {
        return Some("the simulation in this process".to_owned());
    }
    let here = Surroundings::here();
    let loaded = load_config(global, &here).ok()?;
    let named = named_model(args, &here);
    let own_model = named.as_deref().unwrap_or(&loaded.own.model);
    let server = Server::chosen(&loaded, &args.server, own_model, true, &here).ok()?;
    let url = server.base_url();
    Some(server.name().map_or_else(|| url.to_string(), |name| format!("{name} ({url})")))
}

/// Whether a key of a provider is there.
pub(crate) fn has_key(config: &Config, provider: &str, here: &Surroundings) -> bool {
    let of_settings = config.providers.get(provider).and_then(|settings| {
        let command = settings.key_command.as_ref().map(|_| ());
        command.or_else(|| here.variable(settings.api_key_env.as_deref()?).map(drop))
    });
    let usual = Catalog::bundled().provider(provider);
    let usual = usual.into_iter().flat_map(|info| info.key_variables.iter());
    of_settings.is_some() || usual.into_iter().any(|variable| here.variable(variable).is_some())
}
