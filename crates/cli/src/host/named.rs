//! The agents of `serve` that have names in the configuration.
//!
//! Invariants: such an agent is what `greenroom run` with the same flags, in the same folder and environment, would use.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use anyhow::Result;
use greenroom::Agent;
use greenroom_server::Definer as _;
use tokio::sync::broadcast::{self, error::RecvError};

use super::agents::Agents;
use super::connect::definition;
use crate::agent::{choice, warn};
use crate::args::{Global, ModelArgs, ServerArgs};
use crate::config::AgentConfig;
use crate::config::layers::expanded;
use crate::config::surroundings::Surroundings;
use crate::error::usage;

/// Makes the agents of `serve` that have names. Their later warnings go to standard error.
pub(crate) async fn named_agents(
    global: &Global,
    flags: &ModelArgs,
    agents: &BTreeMap<String, AgentConfig>,
) -> Result<BTreeMap<String, Arc<Agent>>> {
    let makes = Agents::new(global);
    let mut definitions = Vec::new();
    for (name, config) in agents {
        let settings = [global.settings.clone(), config.settings.clone()].concat();
        let global = Global { settings, ..global.clone() };
        let named = |error: &dyn Display| usage(format!("serve.agents.{name}: {error}"));
        let mut flags = flags_of(config, flags, &Surroundings::here());
        choice::complete(&global, &mut flags).await.map_err(|error| named(&error))?;
        let definition = definition(&global, &flags, false, None).map_err(|error| named(&error))?;
        definitions.push((name, global, serde_json::to_value(definition).map_err(|error| named(&error))?));
    }
    // At once: each may have to wait for MCP servers.
    let defining = definitions.into_iter().map(|(name, global, definition)| {
        let defining = makes.define(definition);
        async move { (name, global, defining.await) }
    });
    let mut made = BTreeMap::new();
    for (name, global, defined) in futures_util::future::join_all(defining).await {
        let defined = defined.map_err(|problem| usage(format!("serve.agents.{name}: {problem}")))?;
        for warning in defined.warnings {
            warn(&global, &format!("serve.agents.{name}: {warning}"))?;
        }
        if let Some(mut news) = defined.news {
            let name = name.clone();
            tokio::spawn(async move {
                while let Some(warning) = next(&mut news).await {
                    // Nobody reads it if standard error is closed.
                    let _ = warn(&global, &format!("serve.agents.{name}: {warning}"));
                }
            });
        }
        made.insert(name.clone(), defined.agent);
    }
    Ok(made)
}

/// Returns the next warning; `None` if there are no more. Skips the warnings that were dropped because too many came at once.
async fn next(news: &mut broadcast::Receiver<String>) -> Option<String> {
    loop {
        match news.recv().await {
            Ok(warning) => return Some(warning),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return None,
        }
    }
}

/// Returns the flags of an agent. The command's own say where the model is, and which folder the tools have, unless the
/// agent's configuration does.
fn flags_of(config: &AgentConfig, command: &ModelArgs, surroundings: &Surroundings) -> ModelArgs {
    let AgentConfig {
        model,
        provider,
        system,
        append_system,
        workspace,
        no_tools,
        allow_write,
        allow_shell,
        mode,
        sandbox,
        settings: _,
    } = config.clone();
    let server = match provider {
        Some(_) => ServerArgs { provider, ..ServerArgs::default() },
        None => command.server.clone(),
    };
    let workspace = workspace.and_then(|folder| expanded(&folder, surroundings));
    ModelArgs {
        model,
        server,
        system,
        append_system,
        workspace: workspace.unwrap_or_else(|| command.workspace.clone()),
        no_tools,
        allow_write,
        allow_shell,
        mode,
        simulate: command.simulate,
        // The command's own is the least.
        sandbox: match (sandbox, command.sandbox) {
            (Some(own), Some(least)) if !own.is_within(least) => Some(least),
            (own, least) => own.or(least),
        },
        ..ModelArgs::bare()
    }
}

#[cfg(test)]
mod tests;
