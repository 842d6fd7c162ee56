//! A chat without a key: what can be done now, in a few lines.
//!
//! Invariants: a key is not shown, is checked with its provider before it is kept, and is kept only where nobody else
//! can read it; a choice is written into the user's own configuration, so that the next start asks nothing.

use std::time::Duration;

use anyhow::Result;
use greenroom::provider::{HttpProvider, Provider as _, ServerOptions};
use greenroom_chat::choose::{self, Answered, Choice};
use greenroom_kernel::FailureClass;
use greenroom_terminal::input::Input;
use greenroom_terminal::{Interrupts, Screen};

use super::begin::ask;
use crate::agent::local::{self, Running};
use crate::args::{Global, ModelArgs};
use crate::commands::{config, login};
use crate::error;

/// How many models of a server are named.
const NAMED_MAX: usize = 3;
/// How long the list of models of a typed address is waited for.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Asks what answers instead, and completes the flags with it. Returns what was typed behind the answer, or `None` if
/// the user left.
///
/// # Errors
/// The terminal cannot be used, or the configuration cannot be changed.
pub(super) async fn without_key(
    global: &Global,
    args: &mut ModelArgs,
    interrupts: &Interrupts,
) -> Result<Option<Vec<Input>>> {
    let running = tokio::task::spawn_blocking(local::running_now).await?;
    let mut above = Vec::new();
    loop {
        let asked = ask(
            global,
            interrupts,
            std::mem::take(&mut above),
            "No API key found. Choose a model server:",
            choices(&running),
        )
        .await?;
        let Some(Answered { value, behind }) = asked else { return Ok(None) };
        let Some(value) = value else {
            let text =
                "Nothing was chosen. `greenroom login` stores a key, and `greenroom --simulate` needs none.";
            Screen::stderr(global.color).line(text)?;
            return Ok(None);
        };
        let done = match value.as_str() {
            "key" => key(global, args, interrupts).await?,
            "server" => server(global, args, interrupts).await?,
            "simulate" => {
                args.simulate = true;
                Done::Chosen(behind)
            }
            address => {
                let found = running.iter().find(|found| found.address == address);
                let name = found.map_or("local", |found| found.name).to_lowercase().replace([' ', '.'], "-");
                keep_server(global, &name, address)?;
                Done::Chosen(behind)
            }
        };
        match done {
            Done::Chosen(behind) => return Ok(Some(behind)),
            Done::Back(said) => above.extend(said),
            Done::Left => return Ok(None),
        }
    }
}

/// How a question ended.
enum Done {
    Chosen(Vec<Input>),
    /// The choice is offered again, below this line.
    Back(Option<String>),
    Left,
}

/// Returns what can be chosen: the servers that run here first.
fn choices(running: &[Running]) -> Vec<Choice> {
    let choice = |value: &str, label: &str, detail: &str| Choice {
        value: value.to_owned(),
        label: label.to_owned(),
        detail: detail.to_owned(),
        preview: Vec::new(),
    };
    let found = running.iter().map(|found| {
        let named: Vec<&str> = found.models.iter().take(NAMED_MAX).map(String::as_str).collect();
        let more = found.models.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let address = found.address.trim_start_matches("http://").trim_end_matches("/v1");
        choice(
            found.address,
            &format!("{} on this machine", found.name),
            &format!("{address}: {}{more}", named.join(", ")),
        )
    });
    let others = [
        choice(
            "key",
            "Paste an API key",
            "OpenAI, Anthropic or Google; stored in a file that only you can read",
        ),
        choice("server", "Another server", "the address of an API like OpenAI's"),
        choice("simulate", "A simulated model", "no key, no server, no cost: for a first look"),
    ];
    found.chain(others).collect()
}

async fn key(global: &Global, args: &ModelArgs, interrupts: &Interrupts) -> Result<Done> {
    let title = "Paste the API key (it is not shown)";
    let Some(Answered { value, behind }) = line(global, interrupts, title, true).await? else {
        return Ok(Done::Left);
    };
    let Some(key) = value else { return Ok(Done::Back(None)) };
    let provider = args.server.provider.as_deref().or_else(|| login::provider_of(&key));
    let provider = match provider {
        Some(provider) => provider.to_owned(),
        None => {
            let choices = ["openai", "anthropic", "google"].map(|name| Choice {
                value: name.to_owned(),
                label: name.to_owned(),
                detail: String::new(),
                preview: Vec::new(),
            });
            let asked =
                ask(global, interrupts, Vec::new(), "Choose the provider of this key:", choices.into())
                    .await?;
            match asked {
                Some(Answered { value: Some(provider), .. }) => provider,
                Some(_) => return Ok(Done::Back(None)),
                None => return Ok(Done::Left),
            }
        }
    };
    match login::keep(global, &provider, &key, false).await {
        Ok(said) => {
            said.iter().try_for_each(|line| Screen::stdout(global.color).line(line.as_str()))?;
            Ok(Done::Chosen(behind))
        }
        Err(error) => Ok(Done::Back(Some(format!("Error: {}", error::line(&error))))),
    }
}

async fn server(global: &Global, args: &mut ModelArgs, interrupts: &Interrupts) -> Result<Done> {
    let title = "The server's address, such as http://192.168.1.20:8000/v1";
    let Some(Answered { value, behind }) = line(global, interrupts, title, false).await? else {
        return Ok(Done::Left);
    };
    let Some(address) = value else { return Ok(Done::Back(None)) };
    let address = if address.contains("://") { address } else { format!("http://{address}") };
    match address.parse::<greenroom::provider::BaseUrl>() {
        // An address may contain a key; only a plain one is kept.
        Ok(url) if !url.has_query() && !address.contains('@') => {
            let answering = tokio::select! {
                biased;
                () = interrupts.next() => return Ok(Done::Left),
                answering = answering(&address) => answering,
            };
            match answering {
                Ok(address) => {
                    keep_server(global, "mine", &address)?;
                    Ok(Done::Chosen(behind))
                }
                Err(reason) => Ok(Done::Back(Some(format!("Error: {reason}. Nothing was stored.")))),
            }
        }
        Ok(_) => {
            args.server.base_url = Some(address);
            Ok(Done::Chosen(behind))
        }
        Err(error) => Ok(Done::Back(Some(format!("Error: {error}")))),
    }
}

/// Returns the address at which the server has its models: this one, or that with `/v1`.
async fn answering(address: &str) -> Result<String, String> {
    let typed = address.trim_end_matches('/');
    let longer = format!("{typed}/v1");
    let tried = if typed.ends_with("/v1") { vec![typed] } else { vec![typed, longer.as_str()] };
    let mut reasons = Vec::new();
    for address in tried {
        let base_url = address.parse::<greenroom::provider::BaseUrl>().map_err(|error| error.to_string())?;
        let provider = HttpProvider::new(ServerOptions { base_url, ..ServerOptions::default() });
        let provider = provider.map_err(|error| error.to_string())?;
        match tokio::time::timeout(ANSWERS_WITHIN, provider.served()).await {
            Ok(Ok(served)) if served.models.is_empty() => reasons.push(format!("{address} lists no models")),
            Ok(Ok(_)) => return Ok(address.to_owned()),
            // It is there, and wants a key.
            Ok(Err(error)) if error.failure.class == FailureClass::Auth => return Ok(address.to_owned()),
            Ok(Err(error)) => reasons.push(format!("{address}: {}", error.failure)),
            Err(_) => {
                reasons.push(format!("{address} does not answer within {} s", ANSWERS_WITHIN.as_secs()))
            }
        }
    }
    Err(reasons.join("; "))
}

/// Writes a server into the user's own configuration, and makes it the provider.
fn keep_server(global: &Global, name: &str, address: &str) -> Result<()> {
    config::set(global, &format!("providers.{name}.base_url"), address)?;
    let said = config::set(global, "provider", name)?;
    let file = said.split(": ").next().unwrap_or_default().to_owned();
    Ok(Screen::stdout(global.color).line(format!("{address} is now the provider `{name}` in {file}."))?)
}

/// Asks the user for a line; `None` if this command is interrupted.
async fn line(
    global: &Global,
    interrupts: &Interrupts,
    title: &str,
    is_secret: bool,
) -> Result<Option<Answered>> {
    let (title, color) = (title.to_owned(), Screen::stdout(global.color).has_color());
    let asking = tokio::task::spawn_blocking(move || choose::line(&[], &title, is_secret, color));
    tokio::select! {
        biased;
        () = interrupts.next() => Ok(None),
        answered = asking => Ok(Some(answered??)),
    }
}
