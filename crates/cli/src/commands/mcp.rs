//! `greenroom mcp`: the MCP servers of the configuration with their tools; adds and removes one.
//!
//! Invariants: no model is called, and no host is asked: servers are connected for this command alone. A file that is
//! changed stays valid.

use std::path::Path;

use anyhow::Result;
use greenroom_mcp::Connection;
use greenroom_terminal::screen::one_line;
use greenroom_terminal::{Look, Row, Screen, format};
use serde_json::{Map, Value, json};

use super::config;
use crate::agent;
use crate::agent::mcp::connect_those;
use crate::args::{Global, McpArgs, McpCommand};
use crate::config::surroundings::Surroundings;
use crate::config::{Config, McpConfig, shown_url};
use crate::error::{USAGE, usage};

/// The section of the configuration with the servers.
const SECTION: &str = "mcp_servers";
/// How much of a tool's description is shown, in characters.
const DESCRIPTION_CHARS: usize = 100;

/// Runs the command. The exit code is not 0 if a server is not available.
pub(crate) async fn run(global: &Global, args: &McpArgs) -> Result<u8> {
    match &args.command {
        None => list(global, args).await,
        Some(McpCommand::Add { name, url, token_env, header, env, folder, tools, command }) => {
            let mut settings = Map::new();
            if let Some((program, arguments)) = command.split_first() {
                settings.insert("command".to_owned(), json!(program));
                if !arguments.is_empty() {
                    settings.insert("args".to_owned(), json!(arguments));
                }
            }
            for (key, flag, texts) in [("env", "--env", env), ("headers", "--header", header)] {
                if !texts.is_empty() {
                    settings.insert(key.to_owned(), pairs(flag, texts)?.into());
                }
            }
            if !tools.is_empty() {
                settings.insert("tools".to_owned(), json!(tools));
            }
            settings.extend(folder.iter().map(|folder| ("folder".to_owned(), json!(folder))));
            settings.extend(url.iter().map(|url| ("url".to_owned(), json!(url))));
            settings.extend(token_env.iter().map(|name| ("token_env".to_owned(), json!(name))));
            add(global, name, &settings.into()).await
        }
        Some(McpCommand::Remove { name }) => {
            let loaded = agent::config(global)?;
            if !loaded.config.mcp_servers.contains_key(name) {
                return Err(unknown(&loaded.config, name));
            }
            Screen::stdout(global.color).line(config::set_entry(global, SECTION, name, None)?)?;
            Ok(0)
        }
    }
}

async fn list(global: &Global, args: &McpArgs) -> Result<u8> {
    let loaded = agent::config(global)?;
    let config = &loaded.config;
    // Users of other programs type `mcp list`.
    let is_list = |name: &&String| *name == "list" && !config.mcp_servers.contains_key("list");
    let name = args.name.as_ref().filter(|name| !is_list(name));
    if let Some(name) = name.filter(|name| !config.mcp_servers.contains_key(*name)) {
        return Err(unknown(config, name));
    }
    let wanted = name;
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    let here = Surroundings::here();
    let found = connect_those(config, |name, _| is_wanted(name), &here.folder(), &here).await;
    let disabled = config.mcp_servers.iter().filter(|(name, server)| !server.enabled && is_wanted(name));
    let mut screen = Screen::stdout(global.color);
    let has_all = found.iter().all(|(_, connected)| connected.is_ok());
    if args.json {
        let mut listed: Vec<Value> = found.iter().map(|(name, connected)| as_json(name, connected)).collect();
        listed.extend(disabled.map(|(name, _)| json!({ "name": name, "enabled": false })));
        screen.pretty_json(&listed)?;
    } else if config.mcp_servers.is_empty() {
        screen.line("No MCP servers are configured. `greenroom mcp add --help` shows how to add one.")?;
    } else {
        for (name, connected) in &found {
            show(&mut screen, config, name, connected)?;
        }
        for (name, _) in disabled {
            screen.line(Row::styled(Look::DIM, format!("- {name}: disabled")))?;
        }
    }
    Ok(if has_all { 0 } else { USAGE })
}

/// Adds a server, and connects to it.
async fn add(global: &Global, name: &str, settings: &Value) -> Result<u8> {
    if agent::config(global)?.config.mcp_servers.contains_key(name) {
        return Err(usage(format!(
            "there is an MCP server {name} already; `greenroom mcp remove {name}` removes it, and `greenroom config edit` opens \
             the file"
        )));
    }
    let mut screen = Screen::stdout(global.color);
    screen.line(config::set_entry(global, SECTION, name, Some(&settings.to_string()))?)?;
    let arguments = settings["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(relative) = arguments.into_iter().find(|text| *text == "." || text.starts_with("./")) {
        screen.line(format!(
            "Note: the program starts in your home folder, so `{relative}` is there; {{workspace}} stands for the folder of the \
             agent's tools."
        ))?;
    }
    let (loaded, here) = (agent::config(global)?, Surroundings::here());
    let found = connect_those(&loaded.config, |known, _| known == name, &here.folder(), &here).await;
    let has_all = found.iter().all(|(_, connected)| connected.is_ok());
    for (name, connected) in &found {
        show(&mut screen, &loaded.config, name, connected)?;
    }
    if !has_all {
        screen.line(format!("It was added nevertheless; `greenroom mcp remove {name}` removes it."))?;
    }
    Ok(if has_all { 0 } else { USAGE })
}

fn show(
    screen: &mut Screen,
    config: &Config,
    name: &str,
    connected: &Result<Connection, String>,
) -> Result<()> {
    let connection = match connected {
        Ok(connection) => connection,
        Err(reason) => {
            return Ok(screen
                .line(Row::new("✗", Look::BAD).and(&format!(" {}", one_line(reason, 400)), Look::PLAIN))?);
        }
    };
    let (place, title) = (config.mcp_servers.get(name).map(place), connection.title().map(str::to_owned));
    let about = [title, place].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let tools = connection.tools();
    let count = format::count(tools.len() as u64, "tool");
    screen.line(
        Row::new("✓", Look::GOOD).and(&format!(" {name}: {count} ({})", one_line(&about, 120)), Look::PLAIN),
    )?;
    for spec in tools.specs().iter() {
        let row = Row::new(&format!("  {}", spec.name), Look::PLAIN);
        let description = one_line(&spec.description, DESCRIPTION_CHARS);
        screen.line(row.and(&format!("  {description}"), Look::DIM))?;
    }
    for why in connection.left_out() {
        screen.line(Row::styled(Look::DIM, format!("  {}", one_line(why, 400))))?;
    }
    Ok(())
}

fn as_json(name: &str, connected: &Result<Connection, String>) -> Value {
    match connected {
        Ok(connection) => {
            let tools = connection.tools();
            let tools: Vec<Value> = tools
                .specs()
                .iter()
                .map(|spec| {
                    let is_read_only = tools.get(&spec.name).is_some_and(|tool| tool.is_read_only());
                    json!({ "name": spec.name, "description": spec.description, "read_only": is_read_only })
                })
                .collect();
            json!({ "name": name, "server": connection.title(), "tools": tools, "left_out": connection.left_out() })
        }
        Err(reason) => json!({ "name": name, "error": reason }),
    }
}

/// Returns where a server is, for people.
fn place(server: &McpConfig) -> String {
    match (&server.command, &server.url) {
        (Some(command), _) => {
            let program = Path::new(command).file_name().map(|name| name.to_string_lossy().into_owned());
            let program = program.unwrap_or_else(|| command.clone());
            std::iter::once(program).chain(server.args.iter().cloned()).collect::<Vec<_>>().join(" ")
        }
        (None, Some(url)) => shown_url(url),
        (None, None) => String::new(),
    }
}

fn pairs(flag: &str, texts: &[String]) -> Result<Map<String, Value>> {
    let pair = |text: &String| {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            usage(format!(
                "{flag} {text:?}: write NAME=VALUE, or NAME=env:VARIABLE for the value of a variable of yours"
            ))
        })?;
        Ok((name.to_owned(), json!(value)))
    };
    texts.iter().map(pair).collect()
}

fn unknown(config: &Config, name: &str) -> anyhow::Error {
    let known: Vec<&str> = config.mcp_servers.keys().map(String::as_str).collect();
    let known = if known.is_empty() {
        "none is configured".to_owned()
    } else {
        format!("there are {}", known.join(", "))
    };
    usage(format!("there is no MCP server {name}; {known}"))
}
