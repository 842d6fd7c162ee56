//! `greenroom config`: the effective values and their sources, the defaults as a file, and single settings.
//!
//! Invariants: the printed text is a valid configuration; an address's query is not shown.

use anyhow::Result;
use greenroom::provider::BaseUrl;
use serde_json::json;
use serde_norway::Value;

use crate::config::keys::{self, Setting};
use crate::config::layers::{Rule, get, is_section, leaves, own_file_shown, rule};
use crate::config::overrides::variable_of;
use crate::config::{Config, FILE_NAME, Loaded, shown_url};

mod edit;

use crate::agent;
use crate::agent::permissions::remembered::{Answers, FILE};
use crate::args::{ConfigArgs, ConfigCommand, Global};
use crate::config::surroundings::Surroundings;
use crate::config::trusted::{Answer, FolderTrust};
use crate::error::usage;
use greenroom_terminal::Screen;

/// The rules of earlier answers in JSON, beside the settings.
const ALWAYS: &str = "permissions.always";
/// The column of the sources.
const SOURCE_COLUMN: usize = 44;
/// The width of comments, in columns.
const COMMENT_COLUMNS: usize = 96;

/// Runs the command.
pub(crate) fn run(global: &Global, args: &ConfigArgs) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    if args.command.is_some() && (args.default || args.schema || args.json) {
        return Err(usage(
            "--default, --schema and --json of `config` apply to all settings; for one setting, use `config get KEY --json`",
        ));
    }
    match &args.command {
        None if args.default => screen.line(defaults()?.trim_end())?,
        None if args.schema => screen.pretty_json(&keys::schema())?,
        None => show(&mut screen, &agent::config(global)?, args.json)?,
        Some(ConfigCommand::Get { key, json }) => {
            let loaded = agent::config(global)?;
            let value = shown(&loaded.config)?;
            let parts = known(key)?;
            // A setting under an unknown name of the user does not exist; an unset one has no value.
            let value = get(&value, &parts).cloned().unwrap_or_default();
            if *json {
                let source = source_of(&loaded, &parts);
                screen.pretty_json(&json!({ "key": key, "value": to_json(&value)?, "source": source }))?;
            } else {
                let text = match value.as_str() {
                    Some(text) => text.to_owned(),
                    None => serde_norway::to_string(&value)?,
                };
                screen.line(text.trim_end())?;
            }
        }
        Some(ConfigCommand::Set { key, value, project }) => {
            let done = edit::set(global, key, &known(key)?, Some(value), *project)?;
            screen.line(done)?;
        }
        Some(ConfigCommand::Trust { folder: Some(folder), .. }) => {
            let (loaded, here) = (agent::config(global)?, Surroundings::here());
            let cannot = |error| usage(format!("{}: {error}", folder.display()));
            let folder = here.path(folder).canonicalize().map_err(cannot)?;
            let trust = FolderTrust::of(&loaded.config, &folder, &here);
            trust.keep(Answer::Trusted)?;
            let files = trust.files();
            let files = if files.is_empty() { "none now".to_owned() } else { files.join(", ") };
            screen.line(format!(
                "Files of {} for agents are read from now on: {files}.",
                trust.root().display()
            ))?;
        }
        Some(ConfigCommand::Trust { server: args, folder: None }) => {
            let (loaded, here) = (agent::config(global)?, Surroundings::here());
            let (key, address) = agent::confirm(&loaded.config, args, &here, &agent::data_dir(global)?)?;
            screen.line(format!("The key in {key} may be sent to {address} from now on."))?;
        }
        Some(ConfigCommand::Edit { project }) => return edit::open(global, *project),
        Some(ConfigCommand::Path { project }) => {
            screen.line(edit::place(global, *project)?.display().to_string())?
        }
        Some(ConfigCommand::Unset { key, project }) => {
            let done = edit::set(global, key, &known(key)?, None, *project)?;
            screen.line(done)?;
        }
    }
    Ok(0)
}

/// Sets a setting in the user's own file, or in the one named by `--config`. Returns what was done.
///
/// # Errors
/// There is no such setting, the value is invalid, or the file cannot be changed.
pub(crate) fn set(global: &Global, key: &str, value: &str) -> Result<String> {
    edit::set(global, key, &known(key)?, Some(value), false)
}

/// Sets an entry that the user has named, such as a server, in the user's own file, or in the one named by `--config`;
/// without a value, removes it. Returns what was done.
///
/// # Errors
/// The value is invalid, or the file cannot be changed.
pub(crate) fn set_entry(global: &Global, section: &str, name: &str, value: Option<&str>) -> Result<String> {
    let parts = [section.to_owned(), name.to_owned()];
    edit::set(global, &parts.join("."), &parts, value, false)
}

/// Returns the parts of a setting's name.
fn known(key: &str) -> Result<Vec<String>> {
    keys::parts(key).ok_or_else(|| {
        let hint = keys::similar(key).map(|similar| format!("; did you mean {similar}?")).unwrap_or_default();
        usage(format!("there is no setting {key}{hint}; `greenroom config` lists them"))
    })
}

/// Returns the effective configuration without secrets.
fn shown(config: &Config) -> Result<Value> {
    Ok(serde_norway::to_value(config)?)
}

/// Returns the source of a setting; for a section, the sources of its parts.
fn source_of(loaded: &Loaded, parts: &[String]) -> String {
    let within = loaded.origins.iter().filter(|(setting, _)| setting.starts_with(parts));
    let sources: std::collections::BTreeSet<&str> = within.map(|(_, source)| source.as_str()).collect();
    if sources.is_empty() {
        return "default".to_owned();
    }
    Vec::from_iter(sources).join(", ")
}

/// Shows the rules that the user added with the answer "always", which are in a file of their own.
fn show_answers(screen: &mut Screen) -> Result<()> {
    let Some(own) = agent::own_folder() else { return Ok(()) };
    let file = own.join(FILE);
    match Answers::of_all(&own) {
        Ok(rules) if rules.values().all(Vec::is_empty) => {}
        Ok(rules) => {
            screen.line(format!("# Allowed with the answer \"always\" ({}):", file.display()))?;
            for (folder, rules) in &rules {
                for rule in rules {
                    screen.line(format!("#   in {}: {}", one_line(folder), one_line(rule)))?;
                }
            }
        }
        Err(error) => {
            screen.line(format!("# Every call of a tool is denied: {}", one_line(&format!("{error:#}"))))?
        }
    }
    Ok(())
}

/// A line break would end the comment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn show(screen: &mut Screen, loaded: &Loaded, as_json: bool) -> Result<()> {
    let value = shown(&loaded.config)?;
    if as_json {
        let value = with_model_settings(value);
        let settings: serde_json::Map<String, serde_json::Value> = leaves(&value)
            .into_iter()
            .map(|(parts, value)| {
                let source = source_of(loaded, &parts);
                Ok((parts.join("."), json!({ "value": to_json(value)?, "source": source })))
            })
            .collect::<Result<_>>()?;
        let mut settings = settings;
        if let Some((own, rules)) =
            agent::own_folder().and_then(|own| Some((own.clone(), Answers::of_all(&own).ok()?)))
            && rules.values().any(|rules| !rules.is_empty())
        {
            let source = own.join(FILE).display().to_string();
            settings.insert(ALWAYS.to_owned(), json!({ "value": rules, "source": source }));
        }
        return Ok(screen.pretty_json(&settings)?);
    }
    let names: Vec<String> = loaded.files.iter().map(|path| path.display().to_string()).collect();
    screen.line(if names.is_empty() {
        format!(
            "# There is no configuration file: neither ./{FILE_NAME} nor {}. Values without a source are defaults.",
            own_file_shown()
        )
    } else {
        format!("# From {}. Values without a source are defaults.", names.join(" and "))
    })?;
    for note in &loaded.notes {
        screen.line(format!("# {note}"))?;
    }
    if let Some(address) = Surroundings::here().variable("OPENAI_BASE_URL") {
        let shown = address.parse::<BaseUrl>().map_or_else(|error| error.to_string(), |url| shown_url(&url));
        screen.line(format!(
            "# OPENAI_BASE_URL is set ({shown}): that server is used, unless --base-url or --provider names another one."
        ))?;
    }
    let mut text = String::new();
    show_answers(screen)?;
    write(&mut text, &value, &[], &|parts, line| {
        let Some(source) = loaded.origins.get(parts) else { return line };
        format!("{line:<SOURCE_COLUMN$}  # {source}")
    })?;
    screen.line(text.trim_end())?;
    Ok(())
}

/// Returns the defaults as a file, with a comment on each setting.
pub(super) fn defaults() -> Result<String> {
    let mut text = String::new();
    let head = format!(
        "Greenroom's settings and their defaults. Put your changes into {}, or name a file with --config; \
         ./{FILE_NAME} can select and tighten settings. Each can be given with --set KEY=VALUE, and each that is not of one \
         provider or one model by its variable, such as {}.",
        own_file_shown(),
        variable_of("compaction.threshold")
    );
    comment(&mut text, &head, 0);
    text.push('\n');
    let value = with_model_settings(shown(&Config::default())?);
    let mut first = true;
    write(&mut text, &value, &[], &|parts, line| {
        let Some(setting) = setting_of(parts) else { return line };
        let mut about = String::new();
        comment(&mut about, &explained(setting), parts.len() - 1);
        format!("{about}{line}")
    })?;
    let mut spaced = String::new();
    for line in text.lines() {
        let is_new_part = !line.starts_with(' ') && line.starts_with('#') && !spaced.ends_with("#\n");
        if is_new_part && !first && !previous_is_comment(&spaced) {
            spaced.push('\n');
        }
        first = false;
        spaced.push_str(line);
        spaced.push('\n');
    }
    Ok(spaced)
}

/// Adds the unset model settings, which have no defaults of ours.
fn with_model_settings(mut value: Value) -> Value {
    let Value::Mapping(map) = &mut value else { return value };
    let set = map.entry("model_settings".into()).or_insert(Value::Null);
    let mut all = serde_norway::Mapping::new();
    for name in keys::settings().iter().filter_map(|setting| setting.key.strip_prefix("model_settings.")) {
        let none = if name == "extra" { Value::Mapping(serde_norway::Mapping::new()) } else { Value::Null };
        all.insert(name.into(), set.get(name).cloned().unwrap_or(none));
    }
    *set = Value::Mapping(all);
    value
}

fn previous_is_comment(text: &str) -> bool {
    text.lines().last().is_none_or(|line| line.is_empty() || (line.starts_with('#')))
}

fn explained(setting: &Setting) -> String {
    let is_of_section = setting.key.split_once('.').is_some_and(|(section, _)| is_users(section));
    let own = if is_users(&setting.key) && !is_of_section { " In your own file only." } else { "" };
    format!("{}{own}", meaning(setting))
}

/// Whether only the user's own file may set it.
fn is_users(key: &str) -> bool {
    // A section of settings that have rules of their own has none.
    !is_section(key) && rule(key) == Rule::UsersAlone
}

/// Returns the meaning of a setting, with its possible words.
fn meaning(setting: &Setting) -> String {
    let about = setting.about.trim_end_matches('.');
    match setting.words.as_slice() {
        [] => format!("{about}."),
        words => format!("{about}. Values: {}.", words.join(", ")),
    }
}

/// Returns the setting with this name, whatever user-defined names it contains.
fn setting_of(parts: &[String]) -> Option<&'static Setting> {
    keys::settings().iter().find(|setting| {
        let known: Vec<&str> = setting.key.split('.').collect();
        known.len() == parts.len()
            && known.iter().zip(parts).all(|(known, part)| *known == keys::NAME || known == part)
    })
}

/// Writes a value as block-style YAML, one setting per line; `line` may extend each line.
fn write(
    text: &mut String,
    value: &Value,
    parts: &[String],
    line: &impl Fn(&[String], String) -> String,
) -> Result<()> {
    let Value::Mapping(map) = value else { return Ok(()) };
    for (name, value) in map {
        let name = name.as_str().unwrap_or_default().to_owned();
        let indent = "  ".repeat(parts.len());
        let shown_name = serde_norway::to_string(&Value::String(name.clone()))?;
        let parts = [parts, &[name]].concat();
        let head = format!("{indent}{}:", shown_name.trim_end());
        if matches!(value, Value::Mapping(map) if !map.is_empty()) {
            text.push_str(&line(&parts, head));
            text.push('\n');
            write(text, value, &parts, line)?;
        } else {
            text.push_str(&line(&parts, format!("{head} {}", flow(value)?)));
            text.push('\n');
        }
    }
    Ok(())
}

/// Formats a value in one line.
pub(super) fn flow(value: &Value) -> Result<String> {
    let is_scalar = !matches!(value, Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_));
    let text = serde_norway::to_string(value)?;
    let text = text.trim_end();
    // JSON is valid YAML in one line.
    if is_scalar && !text.contains('\n') {
        Ok(text.to_owned())
    } else {
        Ok(serde_json::to_string(&to_json(value)?)?)
    }
}

fn to_json(value: &Value) -> Result<serde_json::Value> {
    Ok(serde_json::to_value(value)?)
}

/// Adds a comment, wrapped between words.
fn comment(text: &mut String, about: &str, depth: usize) {
    let indent = "  ".repeat(depth);
    let mut line = String::new();
    for word in about.split_whitespace() {
        if !line.is_empty() && indent.len() + line.len() + word.len() + 3 > COMMENT_COLUMNS {
            text.push_str(&format!("{indent}# {line}\n"));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    text.push_str(&format!("{indent}# {line}\n"));
}

#[cfg(test)]
mod tests;
