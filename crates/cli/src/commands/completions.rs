//! `greenroom completions`, and what the shells ask while the user types: commands, flags, session ids, models, settings.
//!
//! Invariants: completing opens stores for reading only, makes nothing, asks no server and says nothing but candidates;
//! where something cannot be read, there are fewer of them.

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
use greenroom::provider::Catalog;
use greenroom_store::{Store, StoreOptions};
use greenroom_terminal::screen::{one_line, variable};
use greenroom_terminal::{ColorChoice, Screen};

use self::line::Line;
use crate::args::{CompletionsArgs, Global, Options};
use crate::config::surroundings::Surroundings;
use crate::config::{Config, Overrides, load, setting_names};

/// The variable with which a shell's script asks for candidates.
const VARIABLE: &str = "GREENROOM_COMPLETE";
/// The most sessions that are offered, the newest.
const SESSIONS_MAX: usize = 200;
/// How much of a title is shown beside an id, in columns.
const TITLE_COLUMNS: usize = 40;

/// For a zsh that found the script in its `fpath`: there the file itself is the function that is called first.
const ZSH_AUTOLOAD: &str =
    "\nif [[ $funcstack[1] == _greenroom ]]; then _clap_dynamic_completer_greenroom \"$@\"; fi\n";

/// For bash. It splits a line at `:`, `=` and `@` too, replaces only what follows the last of them, and puts candidates
/// on the line as they are: so this program reads the line itself, and prints what must stand there. Files where a
/// redirection leads are the shell's own to complete.
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

/// The words on the line that is completed, without quotes.
static WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// Answers a shell that asks for candidates, if one does. To be called before anything is read or written.
pub(crate) fn answer_if_asked() -> bool {
    let Some(shell) = greenroom_tools::privacy::variable(VARIABLE) else { return false };
    let asked = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let asked: Vec<String> = asked.map(|word| word.to_string_lossy().into_owned()).collect();
    if shell == "bash" {
        let _ = answer_bash(&asked);
        return true;
    }
    // Zsh gives all words as they stand on the line, and fish the last one.
    let unquoted = |word: &String| Line::read(word).words.pop().unwrap_or_default();
    let is_quoted = |place: usize| shell == "zsh" || (shell == "fish" && place + 1 == asked.len());
    let words = asked.iter().enumerate();
    let words = words.map(|(place, word)| if is_quoted(place) { unquoted(word) } else { word.clone() });
    let words = WORDS.get_or_init(|| words.collect());
    let folder = std::env::current_dir().ok();
    let env = CompleteEnv::with_factory(command).var(VARIABLE);
    let arguments = ["greenroom", "--"].into_iter().chain(words.iter().map(String::as_str));
    env.try_complete(arguments, folder.as_deref()).is_ok_and(|asked| asked)
}

/// Prints candidates for a line of bash, of which it replaces the end: what was asked is the line, the cursor's place in
/// it in bytes, and that end. `None` where that was not asked.
fn answer_bash(asked: &[String]) -> Option<()> {
    let [text, cursor, replaced] = asked else { return None };
    let text = text.get(..cursor.parse().ok()?)?;
    let line = Line::read(text);
    let words: Vec<OsString> = WORDS.get_or_init(|| line.words.clone()).iter().map(OsString::from).collect();
    let (last, folder) = (words.len() - 1, std::env::current_dir().ok());
    let candidates = complete(&mut command(), words, last, folder.as_deref()).unwrap_or_default();
    let written = candidates
        .iter()
        .filter_map(|candidate| Some(line.written(text, replaced, candidate.get_value().to_str()?)? + "\n"));
    Screen::stdout(ColorChoice::Never).script(written.collect::<String>().as_bytes()).ok()
}

/// Prints a shell's script, to the byte.
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

/// How the shell calls this program: as it was called now, so that it is found from every folder.
fn program() -> String {
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let is_path = called.components().count() > 1;
    match std::env::current_dir() {
        Ok(folder) if is_path => folder.join(called).display().to_string(),
        Ok(_) | Err(_) => "greenroom".to_owned(),
    }
}

/// The command line with what completes its values: the flags themselves know nothing of stores and settings.
fn command() -> clap::Command {
    completing(Options::command(), "")
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

/// What completes the value of a flag or an argument.
fn completer(command: &str, arg: &str) -> Option<fn(&OsStr) -> Vec<CompletionCandidate>> {
    Some(match (command, arg) {
        ("", "settings") => assignments,
        ("plan", "source") => files_and_sessions,
        ("run", "output_schema") => files,
        ("models", "filter" | "forget") => models,
        ("simulate", _) => return None,
        (_, "model") => models,
        (_, "provider") => providers,
        (_, "effort") => efforts,
        ("config get" | "config set" | "config unset", "key") => settings,
        (_, "session" | "id") => sessions,
        _ => return None,
    })
}

/// Stored sessions, the newest first, each with its title.
fn sessions(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let Some(store) = store() else { return Vec::new() };
    let mut sessions = store.list().unwrap_or_default();
    // Those of sub-agents are offered to who knows how they begin.
    sessions.retain(|(id, head)| {
        id.starts_with(current) && (!current.is_empty() || head.parent_session.is_none())
    });
    sessions.sort_by_key(|(_, head)| std::cmp::Reverse(head.updated_at_ms));
    let candidates = sessions.into_iter().take(SESSIONS_MAX).enumerate().map(|(order, (id, head))| {
        let title = head.title.or(head.opening).map(|title| one_line(&title, TITLE_COLUMNS));
        let title = title.filter(|title| !title.is_empty()).map(Into::into);
        CompletionCandidate::new(id).help(title).display_order(Some(order))
    });
    candidates.collect()
}

/// Session files, and stored sessions.
fn files_and_sessions(current: &OsStr) -> Vec<CompletionCandidate> {
    sessions(current).into_iter().chain(files(current)).collect()
}

/// Files.
fn files(current: &OsStr) -> Vec<CompletionCandidate> {
    PathCompleter::file().complete(current)
}

/// The models of the provider that would be asked: those of the configuration and of the catalogue.
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

/// The providers of the configuration.
fn providers(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, config().providers.into_keys())
}

/// The settings of the configuration.
fn settings(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, setting_names().map(str::to_owned))
}

/// The settings of the configuration, to be followed by a value.
fn assignments(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, setting_names().map(|name| format!("{name}=")))
}

/// How long a model may think.
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

/// The store that the command would look into, if there is one that can be read.
fn store() -> Option<Store> {
    let dir = match said("--data-dir") {
        Some(dir) => expanded(&dir),
        None => greenroom::internal::data_dir().ok()?,
    };
    // Opening one for reading makes nothing, but says why it is not there.
    let options = StoreOptions { is_read_only: true, ..StoreOptions::new(dir) };
    options.dir.exists().then(|| Store::open(&options).ok())?.map(|(store, _)| store)
}

/// The configuration that would hold, or the defaults where it cannot be read.
fn config() -> Config {
    let file = said("--config").map(|file| expanded(&file));
    let loaded =
        Overrides::read(&[], &Surroundings::here()).and_then(|overrides| load(file.as_deref(), overrides));
    loaded.map(|loaded| loaded.config).unwrap_or_default()
}

/// What the user gave for a flag, on the line that is completed.
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

/// A path as the shell would expand it.
fn expanded(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), variable("HOME")) {
        (Some(below), Some(home)) => PathBuf::from(home).join(below),
        (Some(_), None) | (None, _) => PathBuf::from(path),
    }
}

/// A text as one word of a command line.
pub(crate) fn as_word(text: &str) -> String {
    line::quoted(text, None)
}
