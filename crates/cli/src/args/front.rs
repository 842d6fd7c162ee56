//! The front door: what `greenroom` means without the name of a command.
//!
//! `greenroom [PROMPT]` is `chat`, and with `-p` it is `run`. The command is inserted before clap reads the line, so
//! each flag is declared and explained once, at its command.
//!
//! Invariants: a line that names a command is read as it stands; a word that could be a misspelt command never
//! becomes a prompt.

use std::ffi::{OsStr, OsString};

use clap::{Command, CommandFactory as _, FromArgMatches as _};

use super::{Command as Chosen, Options};

#[cfg(test)]
mod tests;

/// Why a command line cannot be used.
#[derive(Debug)]
pub(crate) enum Unparsed {
    /// clap's own output: a help, a version, or an error.
    Clap(clap::Error),
    /// Words that are neither a command nor a prompt.
    NoCommand(String),
}

/// Parses a command line. `is_watched`: whether input and output are a terminal, so that a chat can be drawn.
///
/// # Errors
/// [`Unparsed`].
pub(crate) fn parse(given: Vec<OsString>, is_watched: bool) -> Result<Options, Unparsed> {
    let commands = Options::command();
    let Some(at) = place_of_command(&commands, &given) else { return read(given) };
    let with = |command: &str| {
        let mut line = given.clone();
        line.insert(at, command.into());
        line
    };
    // A misspelt command comes with flags of its own.
    let word = given.get(at).and_then(|word| word.to_str()).filter(|word| !word.starts_with('-'));
    let is_near = |word: &&str| !word.contains(char::is_whitespace) && nearest(&commands, word).is_some();
    if let Some(word) = word.filter(is_near) {
        check_words(&commands, &[word.to_owned()]).map_err(Unparsed::NoCommand)?;
    }
    let asks_once = given[at..].iter().take_while(|word| *word != "--").any(|word| names_prompt(word));
    let options = read(with(if asks_once { "run" } else { "chat" }))?;
    let Chosen::Chat(chat) = &options.command else { return Ok(options) };
    check_words(&commands, &chat.prompt).map_err(Unparsed::NoCommand)?;
    let is_piped = !chat.prompt.is_empty() && chat.resume.is_none();
    // A prompt with piped input is answered once, and the input belongs to it.
    if is_piped && !is_watched { read(with("run")) } else { Ok(options) }
}

fn read(line: Vec<OsString>) -> Result<Options, Unparsed> {
    let matches = Options::command().try_get_matches_from(line).map_err(Unparsed::Clap)?;
    let mut options = Options::from_arg_matches(&matches).map_err(Unparsed::Clap)?;
    let is_given = matches.subcommand().is_some_and(|(_, of_command)| {
        of_command.try_contains_id("workspace").is_ok()
            && of_command.value_source("workspace") == Some(clap::parser::ValueSource::CommandLine)
    });
    if let Some(model) = options.command.model_mut() {
        model.is_workspace_given = is_given;
    }
    Ok(options)
}

/// Returns where a command must be inserted; `None` if the line names one, or asks for help or the version.
fn place_of_command(commands: &Command, given: &[OsString]) -> Option<usize> {
    let globals: Vec<&clap::Arg> = commands.get_arguments().filter(|arg| arg.is_global_set()).collect();
    let mut at = 1;
    while let Some(word) = given.get(at) {
        let Some(word) = word.to_str() else { return Some(at) };
        if matches!(word, "-h" | "--help" | "-V" | "--version") {
            return None;
        }
        if !word.starts_with('-') || word == "-" {
            let is_command = word == "help" || commands.find_subcommand(word).is_some();
            return (!is_command).then_some(at);
        }
        let (name, has_value) = match word.split_once('=') {
            Some((name, _)) => (name, true),
            None => (word, false),
        };
        let is_named = |arg: &&&clap::Arg| {
            let long = name.strip_prefix("--");
            let short = name.strip_prefix('-').filter(|short| !short.starts_with('-'));
            let is_short = |own: char| {
                short.is_some_and(|short| !short.is_empty() && short.chars().all(|char| char == own))
            };
            (long.is_some() && arg.get_long() == long) || arg.get_short().is_some_and(is_short)
        };
        let Some(global) = globals.iter().find(is_named) else { return Some(at) };
        at += if global.get_action().takes_values() && !has_value { 2 } else { 1 };
    }
    Some(at)
}

/// Whether a word is the flag `-p`, alone, with its value, or with other flags.
fn names_prompt(word: &OsStr) -> bool {
    let Some(word) = word.to_str() else { return false };
    let is_long = word == "--prompt" || word.starts_with("--prompt=");
    let short = word.strip_prefix('-').filter(|short| !short.starts_with('-'));
    is_long || short.is_some_and(|short| short.trim_start_matches(['c', 'v']).starts_with('p'))
}

/// Checks that the words of a line without a command can only be meant as a prompt.
fn check_words(commands: &Command, words: &[String]) -> Result<(), String> {
    let [first, rest @ ..] = words else { return Ok(()) };
    if first.contains(char::is_whitespace) {
        return Ok(());
    }
    let near = nearest(commands, first);
    if near.is_none() && !rest.is_empty() {
        return Ok(());
    }
    let near = near.map_or_else(|| ".".to_owned(), |name| format!("; did you mean `greenroom {name}`?"));
    let prompt = quoted(&words.join(" "));
    Err(format!("there is no command `{first}`{near} To send it as a prompt: greenroom chat {prompt}"))
}

/// Returns the command that a word is a misspelling or the beginning of.
fn nearest<'a>(commands: &'a Command, word: &str) -> Option<&'a str> {
    let word = word.to_lowercase();
    let visible = || commands.get_subcommands().map(Command::get_name).chain(["help"]);
    let begins = visible().find(|name| word.len() >= 3 && name.starts_with(&word));
    let distance = |name: &&str| strsim::osa_distance(name, &word);
    // In a short word, two changes make any other one.
    let allowed = |name: &&str| if word.len().min(name.len()) <= 4 { 1 } else { 2 };
    let near = visible().filter(|name| distance(name) <= allowed(name)).min_by_key(distance);
    begins.or(near)
}

/// Quotes a text for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
