//! `greenroom login`: keeps the key of a provider.
//!
//! Invariants: a key that its provider refuses is not kept; no key is shown, and none is read from an argument, which
//! other users can see.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Result;
use greenroom::provider::Provider as _;
use greenroom_chat::choose;
use greenroom_kernel::FailureClass;
use greenroom_terminal::{ColorChoice, Screen};

use crate::agent::choice::first_model;
use crate::agent::server::Server;
use crate::agent::{self, data_dir};
use crate::args::{Global, LoginArgs, ServerArgs};
use crate::commands::config;
use crate::config::surroundings::Surroundings;
use crate::config::{Loaded, kept_keys};
use crate::error::{self, secrets, usage};

#[cfg(test)]
mod tests;

/// How long a provider may take to check a key.
const CHECKED_WITHIN: Duration = Duration::from_secs(10);

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &LoginArgs) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    if greenroom_tools::origin::is_of_command() {
        return Err(usage("a command of a tool started this process, so it may not store a key"));
    }
    if args.forget {
        let loaded = agent::config(global)?;
        let name = args.provider.as_deref().unwrap_or(&loaded.config.provider);
        let variable = variable_of(&loaded, name)?;
        let was_kept = kept_keys::all().contains_key(&variable);
        let path = kept_keys::keep(&variable, None)?;
        let path = path.display();
        screen.line(match was_kept {
            true => format!("{path} no longer has a key for {name}."),
            false => format!("{path} had no key for {name}."),
        })?;
        return Ok(0);
    }
    // A user who sees the address and then gives the key confirms the address.
    let is_seen = is_terminal();
    let address = match &args.provider {
        Some(name) => address_of_file(global, name)?,
        None => None,
    };
    let Some(key) = read_key(global, address.as_deref()).await? else { return Ok(error::INTERRUPTED) };
    let provider = match args.provider.as_deref().or_else(|| provider_of(&key)) {
        Some(provider) => provider.to_owned(),
        None => {
            return Err(usage(
                "the provider of this key is unknown; name it: greenroom login openai, anthropic, google or a provider of \
                 your configuration",
            ));
        }
    };
    keep(global, &provider, &key, is_seen && address.is_some())
        .await?
        .iter()
        .try_for_each(|line| screen.line(line.as_str()))?;
    Ok(0)
}

/// Reads the key from the terminal, without showing it, or from a pipe. Returns `None` if the user left.
async fn read_key(global: &Global, address: Option<&str>) -> Result<Option<String>> {
    let color = Screen::stdout(global.color).has_color();
    let title = match address {
        Some(address) => format!("Paste the API key (not shown); it is sent to {address}"),
        None => "Paste the API key (it is not shown)".to_owned(),
    };
    let reading = tokio::task::spawn_blocking(move || {
        if is_terminal() {
            return choose::line(&[], &title, true, color).map(|answered| answered.value);
        }
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| Some(line.trim().to_owned()))
    });
    let key = reading.await??;
    if key.as_deref() == Some("") {
        return Err(usage("there is no key on standard input: pipe it in, or run this at a terminal"));
    }
    Ok(key)
}

fn is_terminal() -> bool {
    std::io::stdin().is_terminal() && Screen::stdout(ColorChoice::Never).is_terminal()
}

/// Returns the address of a provider if a file sets it.
fn address_of_file(global: &Global, provider: &str) -> Result<Option<String>> {
    let loaded = agent::config(global)?;
    let args = ServerArgs { provider: Some(provider.to_owned()), ..ServerArgs::default() };
    let server = Server::chosen(&loaded, &args, "", true, &Surroundings::here())?;
    Ok((!server.is_built_in()).then(|| server.base_url().to_string()))
}

/// Returns the provider whose keys have this form.
pub(crate) fn provider_of(key: &str) -> Option<&'static str> {
    let forms =
        [("sk-ant-", "anthropic"), ("AIza", "google"), ("sk-proj-", "openai"), ("sk-svcacct-", "openai")];
    let others = ["sk-or-", "sk-lf-"];
    let known = forms.into_iter().find(|(form, _)| key.starts_with(form)).map(|(_, provider)| provider);
    let is_plain = key.starts_with("sk-") && !others.iter().any(|form| key.starts_with(form));
    known.or_else(|| is_plain.then_some("openai"))
}

/// Checks a key with its provider, and keeps it. `is_confirmed`: the user has seen the address to which it is sent. If nothing chooses a provider yet, the configuration does from now
/// on. Returns what was done, a line each.
///
/// # Errors
/// The provider is unknown or refuses the key, or the key cannot be stored.
pub(crate) async fn keep(
    global: &Global,
    provider: &str,
    key: &str,
    is_confirmed: bool,
) -> Result<Vec<String>> {
    let loaded = agent::config(global)?;
    let variable = variable_of(&loaded, provider)?;
    secrets::note(&variable, key);
    let checked = check(global, &loaded, provider, key, is_confirmed).await?;
    let path = kept_keys::keep(&variable, Some(key))?;
    let mut said = vec![format!("The key for {provider} is stored in {}.", path.display())];
    if let Some(problem) = checked {
        said.push(format!("It was not checked: {problem}"));
    }
    if Surroundings::here().variable(&variable).is_some_and(|other| other != key) {
        said.push(format!("The variable {variable} is set to another key, which takes precedence."));
    }
    let chooses = |setting: &str| loaded.origins.contains_key(&vec![setting.to_owned()]);
    if !chooses("provider") && !chooses("model") {
        config::set(global, "provider", provider)?;
        if let Some(model) = first_model(provider) {
            config::set(global, "model", model)?;
            said.push(format!(
                "{model} of {provider} is used from now on; /model and `greenroom config` change that."
            ));
        }
    } else if loaded.own.provider != provider {
        said.push(format!("`greenroom config set provider {provider}` selects it."));
    }
    Ok(said)
}

/// Asks the provider for its models with this key. Returns why it could not be asked.
async fn check(
    global: &Global,
    loaded: &Loaded,
    provider: &str,
    key: &str,
    is_confirmed: bool,
) -> Result<Option<String>> {
    let args = ServerArgs { provider: Some(provider.to_owned()), ..ServerArgs::default() };
    let server = Server::chosen(loaded, &args, "", true, &Surroundings::here())?;
    let dir = data_dir(global)?;
    if is_confirmed {
        server.confirm(key, &dir)?;
    }
    let asked = server.provider_with_key(&args, key.to_owned(), &dir)?;
    match tokio::time::timeout(CHECKED_WITHIN, asked.served()).await {
        Ok(Ok(_)) => Ok(None),
        Ok(Err(error)) if error.failure.class == FailureClass::Auth => {
            Err(usage(format!("{provider} rejects this key, so it is not stored: {}", error.failure)))
        }
        Ok(Err(error)) => Ok(Some(error.failure.to_string())),
        Err(_) => Ok(Some(format!("{provider} did not answer within {CHECKED_WITHIN:?}"))),
    }
}

/// Returns the variable of a provider's key.
fn variable_of(loaded: &Loaded, provider: &str) -> Result<String> {
    let (settings, _) = loaded.own.provider(provider)?;
    settings.api_key_env.clone().ok_or_else(|| {
        usage(format!(
            "the provider {provider} has no key: `greenroom config set providers.{provider}.api_key_env NAME` gives its key a \
             name"
        ))
    })
}
