//! `greenroom completions`, and the requests of shells while the user types: commands, flags, session ids,
//! models, settings.
//!
//! Invariants: completion opens stores only for reading, creates nothing, asks no server and prints only
//! candidates; if something cannot be read, there are fewer candidates.

mod line;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _, complete,
};
use clap_complete::env::Shells;
use greenroom::internal::Catalog;
use greenroom_store::{Store, StoreOptions};
use greenroom_terminal::screen::{one_line, variable};
use greenroom_terminal::{ColorChoice, Screen};

use self::line::CommandLine;
use crate::args::{CompletionsArgs, Global, Options};
use crate::config::surroundings::Surroundings;
use crate::config::{Config, Overrides, load, setting_names};

/// The variable with which a shell's script requests candidates.
const VARIABLE: &str = "GREENROOM_COMPLETE";
/// The maximum number of sessions offered; the newest ones.
const SESSIONS_MAX: usize = 200;
/// How many columns of a title are shown after an id.
const TITLE_COLUMNS: usize = 40;

/// For a zsh that found the script in its `fpath`: there the file itself is the function that is called
/// first.
const ZSH_AUTOLOAD: &str =
    "\nif [[ $funcstack[1] == _greenroom ]]; then _clap_dynamic_completer_greenroom \"$@\"; fi\n";

/// For bash. Bash also splits a line at `:`, `=` and `@`, replaces only the text after the last of them, and
/// inserts candidates unquoted. So this program parses the line itself, and prints the text to insert. Files
/// after a redirection are completed by the shell.
const BASH: &str = r#"_greenroom() {
    local candidate
    COMPREPLY=()
    case $3 in
        [\<\>]*) compopt -o default +o nospace; return ;;
    esac
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <(GREENROOM_COMPLETE=bash PROGRAM -- "$COMP_LINE" "$COMP_POINT" "$2" 2> /dev/null)
    case ${COMPREPLY-} in
        *[=/:]) ;;
        *) compopt +o nospace ;;
    esac
} 2> /dev/null
complete -o nospace -o bashdefault -o nosort -F _greenroom greenroom 2> /dev/null ||
    complete -o nospace -o bashdefault -F _greenroom greenroom
"#;

/// The words of the line to complete, without quotes.
static WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// Answers a shell's request for candidates, if there is one. Called before anything is read or written.
pub(crate) fn answer_if_asked() -> bool {
    let Some(shell) = greenroom_tools::privacy::variable(VARIABLE) else { return false };
    let asked = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let asked: Vec<String> = asked.map(|word| word.to_string_lossy().into_owned()).collect();
    if shell == "bash" {
        let _ = answer_bash(&asked);
        return true;
    }
    // Zsh passes all words as they are on the line, fish only the last one.
    let unquoted = |word: &String| CommandLine::read(word).words.pop().unwrap_or_default();
    let is_quoted = |place: usize| shell == "zsh" || (shell == "fish" && place + 1 == asked.len());
    let words = asked.iter().enumerate();
    let words = words.map(|(place, word)| if is_quoted(place) { unquoted(word) } else { word.clone() });
    let words = WORDS.get_or_init(|| words.collect());
    let folder = std::env::current_dir().ok();
    let env = CompleteEnv::with_factory(command).var(VARIABLE);
    let arguments = ["greenroom", "--"].into_iter().chain(words.iter().map(String::as_str));
    env.try_complete(arguments, folder.as_deref()).is_ok_and(|asked| asked)
}

/// Prints candidates for a line of bash, which replaces the line's end: the request has the line, the
/// cursor's position in it in bytes, and that end. Returns `None` if the request is different.
fn answer_bash(asked: &[String]) -> Option<()> {
    let [text, cursor, replaced] = asked else { return None };
    let text = text.get(..cursor.parse().ok()?)?;
    let line = CommandLine::read(text);
    let words: Vec<OsString> = WORDS.get_or_init(|| line.words.clone()).iter().map(OsString::from).collect();
    let (last, folder) = (words.len() - 1, std::env::current_dir().ok());
    let candidates = complete(&mut command(), words, last, folder.as_deref()).unwrap_or_default();
    let written = candidates
        .iter()
        .filter_map(|candidate| Some(line.written(text, replaced, candidate.get_value().to_str()?)? + "\n"));
    Screen::stdout(ColorChoice::Never).script(written.collect::<String>().as_bytes()).ok()
}

/// Prints a shell's script unchanged.
pub(crate) fn run(global: &Global, args: &CompletionsArgs) -> Result<u8> {
    let shells = Shells::builtins();
    let name = args.shell.to_string();
    let shell = shells.completer(&name).ok_or_else(|| anyhow::anyhow!("no completions for {name}"))?;
    let mut script = Vec::new();
    if name == "bash" {
        let program = program().replace('\'', r"'\''");
        script.extend_from_slice(BASH.replace("PROGRAM", &format!("'{program}'")).as_bytes());
    } else {
        shell.write_registration(VARIABLE, "greenroom", "greenroom", &program(), &mut script)?;
    }
    if name == "zsh" {
        script.extend_from_slice(ZSH_AUTOLOAD.as_bytes());
    }
    Screen::stdout(global.color).script(&script)?;
    Ok(0)
}

/// Returns how the shell should call this program: as it was called now, in a form that works from every
/// folder.
fn program() -> String {
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let is_path = called.components().count() > 1;
    match std::env::current_dir() {
        Ok(folder) if is_path => folder.join(called).display().to_string(),
        Ok(_) | Err(_) => "greenroom".to_owned(),
    }
}

/// Returns the command line with completers for its values: the flags themselves know nothing of stores and
/// settings.
/// Without the name of a command, the flags are those of `chat`, and `-p` of `run`.
fn command() -> clap::Command {
    let mut command = Options::command();
    let of = |name: &str| command.find_subcommand(name).into_iter().flat_map(clap::Command::get_arguments);
    let own = |arg: &&clap::Arg| !arg.is_positional() && !arg.is_global_set();
    let of_chat = of("chat").filter(own);
    let front: Vec<clap::Arg> =
        of_chat.chain(of("run").filter(|arg| arg.get_id() == "prompt")).cloned().collect();
    command = command.args(front);
    completing(command, "")
}

fn completing(command: clap::Command, of: &str) -> clap::Command {
    let path = if of.is_empty() { String::new() } else { format!("{of} ") };
    command
        .mut_args(|arg| match completer(of, arg.get_id().as_str()) {
            Some(completer) => arg.add(ArgValueCompleter::new(completer)),
            None => arg,
        })
        .mut_subcommands(|below| {
            let name = format!("{path}{}", below.get_name());
            completing(below, &name)
        })
}

/// Returns the completer for the value of a flag or an argument.
fn completer(command: &str, arg: &str) -> Option<fn(&OsStr) -> Vec<CompletionCandidate>> {
    Some(match (command, arg) {
        ("", "settings") => assignments,
        ("compact", "id") => files_and_sessions,
        ("run", "output_schema") => files,
        ("models", "filter" | "forget") => models,
        ("simulate", _) => return None,
        (_, "model") => models,
        (_, "provider") => providers,
        (_, "effort") => efforts,
        ("config get" | "config set" | "config unset", "key") => settings,
        (_, "session" | "id" | "resume") => sessions,
        _ => return None,
    })
}

/// Completes stored sessions, the newest first, each with its title.
fn sessions(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let Some(store) = store() else { return Vec::new() };
    let mut sessions = store.list().unwrap_or_default();
    // Sessions of sub-agents are offered only after the start of an id.
    sessions.retain(|(id, head)| {
        id.starts_with(current) && (!current.is_empty() || head.parent_session.is_none())
    });
    sessions.sort_by_key(|(_, head)| std::cmp::Reverse(head.updated_at_ms));
    let candidates = sessions.into_iter().take(SESSIONS_MAX).enumerate().map(|(order, (id, head))| {
        let title = head.title.as_deref().or(head.opening.as_deref());
        let title = title.map(|title| one_line(title, TITLE_COLUMNS));
        let title = title.filter(|title| !title.is_empty()).map(Into::into);
        CompletionCandidate::new(id).help(title).display_order(Some(order))
    });
    candidates.collect()
}

/// Completes session files and stored sessions.
fn files_and_sessions(current: &OsStr) -> Vec<CompletionCandidate> {
    sessions(current).into_iter().chain(files(current)).collect()
}

/// Completes files.
fn files(current: &OsStr) -> Vec<CompletionCandidate> {
    PathCompleter::file().complete(current)
}

/// Completes the models of the current provider: those of the configuration and the catalogue.
fn models(current: &OsStr) -> Vec<CompletionCandidate> {
    let config = config();
    let name = said("--provider").unwrap_or_else(|| config.provider.clone());
    let provider = config.provider(&name).ok();
    let catalog = provider.map(|(provider, url)| provider.catalog_name(&name, url));
    let known = Catalog::bundled().models().iter();
    let of_catalog = known.filter(|model| catalog.as_deref() == Some(model.provider));
    let own = config.models.keys().cloned().chain([config.model.clone()]);
    beginning_with(current, own.chain(of_catalog.map(|model| model.model.to_owned())))
}

/// Completes the providers of the configuration.
fn providers(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, config().providers.into_keys())
}

/// Completes the settings of the configuration.
fn settings(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, setting_names().map(str::to_owned))
}

/// Completes the settings of the configuration, before a value.
fn assignments(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, setting_names().map(|name| format!("{name}=")))
}

/// Completes reasoning efforts.
fn efforts(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, ["none", "minimal", "low", "medium", "high", "xhigh"].map(str::to_owned))
}

fn beginning_with(current: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let mut names: Vec<String> = names.into_iter().filter(|name| name.starts_with(current)).collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Opens the store that the command would use, if it exists and can be read.
fn store() -> Option<Store> {
    let dir = match said("--data-dir") {
        Some(dir) => expanded(&dir),
        None => greenroom::internal::data_dir().ok()?,
    };
    // Opening for reading creates nothing, but would report a missing store.
    let options = StoreOptions { is_read_only: true, ..StoreOptions::new(dir) };
    options.dir.exists().then(|| Store::open(&options).ok())?.map(|(store, _)| store)
}

/// Loads the effective configuration, or the defaults if it cannot be read.
fn config() -> Config {
    let file = said("--config").map(|file| expanded(&file));
    let loaded =
        Overrides::read(&[], &Surroundings::here()).and_then(|overrides| load(file.as_deref(), overrides));
    loaded.map(|loaded| loaded.config).unwrap_or_default()
}

/// Returns the user's value of a flag on the line.
fn said(flag: &str) -> Option<String> {
    let words = WORDS.get()?;
    words.iter().enumerate().find_map(|(place, word)| {
        let value = match word.strip_prefix(flag)? {
            "" => words.get(place + 1)?,
            rest => rest.strip_prefix('=')?,
        };
        Some(value.to_owned())
    })
}

/// Expands a path as the shell would.
fn expanded(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), variable("HOME")) {
        (Some(below), Some(home)) => PathBuf::from(home).join(below),
        (Some(_), None) | (None, _) => PathBuf::from(path),
    }
}

/// Quotes a text as one word of a command line.
pub(crate) fn as_word(text: &str) -> String {
    line::quoted(text, None)
}
