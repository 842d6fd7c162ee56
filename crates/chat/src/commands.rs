//! The slash commands: one table for parsing, completion and `/help`; and the user's own commands.
//!
//! Invariants: an invalid command does nothing and says what it expects; a custom command is the text of a
//! prompt and can do nothing else, regardless of its author.

use std::path::{Path, PathBuf};

use greenroom::permissions::{Effect, Mode};
use greenroom_files as files;

use super::backend::HowToCompact;
use super::program::Skill;
use super::told::Told;
use greenroom_server::operations::RewindScope;

mod help;

#[cfg(test)]
mod tests;

pub use self::help::plain_help;
pub(crate) use self::help::{help, keys};

/// The prompt of `/init`.
pub const INIT: &str = include_str!("commands/init.md");
/// The largest file of a custom command, in bytes.
const CUSTOM_BYTES_MAX: u64 = 64 * 1024;
/// The folder of the user's custom commands, in their configuration folder.
const FOLDER: &str = "commands";
/// The folders of a project's custom commands.
const PROJECT_FOLDERS: [&str; 2] = [".greenroom/commands", ".claude/commands"];
/// The maximum number of custom commands from one folder.
const CUSTOM_MAX: usize = 200;

/// What a user can ask the chat to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the command of its name, which the table explains")]
pub enum Command {
    Compact(HowToCompact),
    Told(Told),
    /// The number of the compaction, counted from the oldest.
    UndoCompact(Option<u64>),
    Context,
    Status,
    Model(Option<String>),
    Effort(Option<String>),
    New,
    Resume(Option<String>),
    Continue,
    Fork(Option<String>),
    /// The goal of the new session.
    ContinueIn(String),
    Branch(Branching),
    Undo(GoingBack),
    /// Take back the last `/undo`.
    Redo,
    Tree,
    Export(Option<String>),
    Copy,
    Tools,
    Permissions(Permitting),
    Title(String),
    Skills,
    Theme(Option<String>),
    Keys,
    Help,
    Quit,
    /// A custom command: its prompt.
    Prompt(String),
}

/// What to do with the permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permitting {
    /// Show them.
    Show,
    /// Choose this mode.
    Mode(Mode),
    /// Choose this mode by a key: only the status line and a hint say so.
    Next(Mode),
    /// Add a rule for this session.
    Add(Effect, String),
}

/// Where a branch begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BranchStart {
    /// The user chooses it.
    #[default]
    Choose,
    /// At the beginning of the conversation.
    Start,
    /// After this entry.
    After(u64),
}

/// The options of a new branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Branching {
    /// Where it begins.
    pub start: BranchStart,
    /// The prompt that was chosen, which returns to the editor.
    pub prompt: Option<u64>,
    /// Whether to add a summary of the abandoned messages.
    pub summary: bool,
    /// What goes back.
    pub back: GoingBack,
}

/// What goes back with an undo or a branch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GoingBack {
    /// The conversation, the files, or both; `None` lets the user choose if there are files to bring back.
    pub scope: Option<RewindScope>,
    /// Whether files that somebody else changed are overwritten.
    pub overwrite: bool,
    /// Whether a run in progress is aborted first.
    pub abort: bool,
}

impl GoingBack {
    /// Takes an option. Returns whether it is one.
    fn takes(&mut self, word: &str) -> bool {
        match word {
            "--both" => self.scope = Some(RewindScope::Both),
            "--conversation" => self.scope = Some(RewindScope::Conversation),
            "--files" => self.scope = Some(RewindScope::Files),
            "--overwrite" => self.overwrite = true,
            _ => return false,
        }
        true
    }

    /// Parses its options.
    pub(crate) fn parse(name: &str, rest: &str) -> Result<Self, String> {
        let mut back = Self::default();
        let mut words = rest.split_whitespace().filter(|word| *word != "--abort");
        match words.find(|word| !back.takes(word)) {
            None => Ok(Self { abort: rest.split_whitespace().any(|word| word == "--abort"), ..back }),
            Some(_) => {
                Err(format!("/{name} takes --both, --conversation or --files, --overwrite and --abort"))
            }
        }
    }
}

impl Command {
    /// Whether the command opens a list to choose from, instead of doing something at once.
    pub(crate) fn picks(&self) -> bool {
        #[expect(clippy::wildcard_enum_match_arm, reason = "all others do something at once")]
        match self {
            Self::Model(None)
            | Self::Effort(None)
            | Self::Resume(None)
            | Self::Export(None)
            | Self::Theme(None) => true,
            Self::Undo(back) => back.scope.is_none(),
            Self::Branch(how) => how.start == BranchStart::Choose,
            _ => false,
        }
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static str,
    pub(crate) description: &'static str,
    /// Whether it needs a chat at a terminal.
    pub(crate) needs_terminal: bool,
}

const fn spec(name: &'static str, arguments: &'static str, description: &'static str) -> Spec {
    Spec { name, arguments, description, needs_terminal: false }
}

const fn drawn(name: &'static str, arguments: &'static str, description: &'static str) -> Spec {
    Spec { needs_terminal: true, ..spec(name, arguments, description) }
}

/// All built-in commands.
pub(crate) const COMMANDS: [Spec; 33] = [
    spec(
        "compact",
        "[focus] [--keep N] [--force]",
        "replace the older part of the conversation with a summary",
    ),
    spec("plan", "", "show what /compact would do"),
    spec("pin", "[entry]", "keep your last prompt, or an entry, verbatim through every compaction"),
    spec("unpin", "<entry>", "stop keeping an entry verbatim"),
    spec("pins", "", "list the pinned messages"),
    spec("context", "", "show what fills the context window, and the source of its size"),
    spec("status", "", "show session, folder, model and tokens"),
    spec("cost", "", "show the cost of the session so far"),
    spec("compactions", "[N]", "list the compactions, or show details of number N"),
    drawn("model", "[name]", "use another model from the next prompt on"),
    drawn("effort", "[level]", "set how long the model thinks: none to xhigh, or default"),
    drawn("new", "", "start a new session"),
    drawn("resume", "[id]", "resume another session"),
    spec("continue", "", "resume a prompt that has no complete answer, and start input that was held back"),
    spec("withdraw", "", "withdraw input that is queued or was held back"),
    drawn("fork", "[name]", "continue in a copy of this session"),
    drawn("continue-in", "<goal>", "continue in a new session with a goal and a summary of this one"),
    drawn(
        "branch",
        "[entry] [--summary] [--files]",
        "continue from an earlier entry of this session, optionally with a summary of the abandoned branch, or with \
         the files of that moment",
    ),
    spec(
        "undo",
        "[--files] [--conversation] [--overwrite] [--abort]",
        "take back the last prompt and everything after it: the conversation, the files, or both",
    ),
    drawn("redo", "", "reverse the last /undo"),
    spec("undo-compact", "[N]", "undo the newest compaction, or all compactions back to number N"),
    drawn("tree", "", "show the branches of this session"),
    drawn(
        "export",
        "[file]",
        "write the session as a file: Markdown if its name ends in .md, JSON Lines if it ends in .jsonl",
    ),
    drawn("copy", "", "copy the last answer to the clipboard"),
    drawn("tools", "", "list the tools of the model"),
    drawn(
        "permissions",
        "[mode] [allow|ask|deny RULE]",
        "show or set what the agent may do without asking: ask, accept_edits, read_only or everything, and the rules",
    ),
    drawn("title", "<text>", "name this session"),
    spec("init", "", "have the agent read this project and write its AGENTS.md"),
    drawn("skills", "", "list the available skills, and the project's instructions"),
    drawn("theme", "[name]", "use other colours in this chat: dark, light, high_contrast or colour_blind"),
    drawn("keys", "", "show the keys"),
    spec("help", "", "show this help"),
    spec("quit", "", "exit; the session is kept"),
];

/// The keys that `?` shows, in few words.
pub(crate) const SHEET: [(&str, &str); 15] = [
    ("Enter", "send; steers while the model works"),
    ("Alt+Enter", "send after the run"),
    ("↑, Alt+↑", "earlier prompts; take back queued input"),
    ("Esc", "clear the line, or interrupt; twice: back to a prompt"),
    ("Ctrl-O", "results, thoughts and summaries in full"),
    ("Shift+Tab", "permissions: ask, accept_edits, read_only"),
    ("Shift+Enter", "new line; also Ctrl-J, or \\ at the end of the line"),
    ("Ctrl-G", "edit the text in $EDITOR"),
    ("Ctrl-V", "attach a picture from the clipboard"),
    ("Ctrl-R", "search earlier prompts"),
    ("@", "attach a file"),
    ("!", "run a command; !! keeps it from the model"),
    ("/", "commands; /help lists all commands and keys"),
    ("Ctrl-C", "interrupt; twice: exit"),
    ("?", "press again to type a question mark"),
];

/// A custom command of the user or the project: a file `NAME.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Custom {
    pub(crate) name: String,
    /// The first line of its file.
    pub(crate) description: String,
    body: String,
}

impl Custom {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A description in one line.
    pub fn description(&self) -> &str {
        &self.description
    }
}

/// Returns the built-in commands of an editor, which has a list of commands and an end of its own: the name, the arguments
/// and a description of each.
pub fn of_editors() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let all = COMMANDS.iter().filter(|spec| !spec.needs_terminal && !matches!(spec.name, "help" | "quit"));
    all.map(|spec| (spec.name, spec.arguments, spec.description))
}

/// Parses a line that starts with a slash.
///
/// # Errors
/// The text says what is wrong with the line.
pub fn parse(line: &str, custom: &[Custom]) -> Result<Command, String> {
    let line = line.trim().strip_prefix('/').unwrap_or(line).trim_end();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    // A custom command cannot have the name of a built-in one, but may have a name that other agents use for it.
    if let Some(custom) = custom.iter().find(|custom| custom.name == name) {
        return Ok(Command::Prompt(custom.expand(rest)));
    }
    let name = usual(name);
    let optional = || (!rest.is_empty()).then(|| rest.to_owned());
    let command = match name {
        "compact" => return compact(rest),
        "model" => return Ok(Command::Model(optional())),
        "permissions" => return permissions(rest).map(Command::Permissions),
        "effort" => return Ok(Command::Effort(optional())),
        "theme" => return Ok(Command::Theme(optional())),
        "resume" => return Ok(Command::Resume(optional())),
        "fork" => return Ok(Command::Fork(optional())),
        "export" => return Ok(Command::Export(optional())),
        "branch" => return branch(rest),
        "undo" => return Ok(Command::Undo(GoingBack::parse(name, rest)?)),
        "undo-compact" => return Ok(Command::UndoCompact(number(name, rest)?)),
        "compactions" => return Ok(Command::Told(Told::Compactions(number(name, rest)?))),
        "pin" => return Ok(Command::Told(Told::Pin(entry(name, rest)?))),
        "unpin" => {
            let entry = entry(name, rest)?;
            return entry
                .map(|entry| Command::Told(Told::Unpin(entry)))
                .ok_or_else(|| "/unpin needs an entry; /pins lists the entries".to_owned());
        }
        "continue-in" if rest.is_empty() => return Err("/continue-in needs a goal".to_owned()),
        "continue-in" => return Ok(Command::ContinueIn(rest.to_owned())),
        "title" if rest.is_empty() => return Err("/title needs a text".to_owned()),
        "title" => return Ok(Command::Title(rest.to_owned())),
        "plan" => Command::Told(Told::Plan),
        "pins" => Command::Told(Told::Pins),
        "context" => Command::Context,
        "status" => Command::Status,
        "cost" => Command::Told(Told::Cost),
        "new" | "clear" => Command::New,
        "continue" => Command::Continue,
        "withdraw" => Command::Told(Told::Withdraw),
        "redo" => Command::Redo,
        "tree" => Command::Tree,
        "copy" => Command::Copy,
        "tools" => Command::Tools,
        "init" => Command::Prompt(INIT.to_owned()),
        "skills" => Command::Skills,
        "keys" => Command::Keys,
        "help" | "?" => Command::Help,
        "quit" | "exit" | "q" => Command::Quit,
        other => return Err(unknown(other, custom)),
    };
    if rest.is_empty() { Ok(command) } else { Err(format!("/{name} takes no arguments")) }
}

fn compact(rest: &str) -> Result<Command, String> {
    const WRONG: &str = "--keep needs a number of tokens, such as 20000";
    let (mut focus, mut how) = (Vec::new(), HowToCompact::default());
    let mut words = rest.split_whitespace();
    while let Some(word) = words.next() {
        if word == "--" {
            focus.extend(words.by_ref());
            break;
        }
        let Some(flag) = word.strip_prefix("--") else {
            focus.push(word);
            continue;
        };
        match flag.split_once('=').map_or((flag, None), |(flag, value)| (flag, Some(value))) {
            ("force", None) => how.force = true,
            ("keep" | "keep-recent", value) => {
                how.keep_recent = Some(value.or_else(|| words.next()).and_then(tokens).ok_or(WRONG)?);
            }
            _ => {
                return Err(format!(
                    "/compact has no option {word}; its options are --keep N and --force, and text after -- is the focus"
                ));
            }
        }
    }
    how.focus = (!focus.is_empty()).then(|| focus.join(" "));
    Ok(Command::Compact(how))
}

fn permissions(rest: &str) -> Result<Permitting, String> {
    let (first, rule) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let effect =
        [Effect::Allow, Effect::Ask, Effect::Deny].into_iter().find(|effect| effect.as_str() == first);
    match (effect, rule.trim()) {
        _ if rest.is_empty() => Ok(Permitting::Show),
        (Some(effect), rule) if !rule.is_empty() => Ok(Permitting::Add(effect, rule.to_owned())),
        // `ask` alone is the mode.
        (_, "") => match rest.parse() {
            Ok(mode) => Ok(Permitting::Mode(mode)),
            Err(_) => Err(format!(
                "/permissions {rest}: give a mode (ask, accept_edits, read_only, everything) or a rule, such as \
                 /permissions allow bash(cargo test *)"
            )),
        },
        (None | Some(_), _) => Err(format!("/permissions {rest}: a rule begins with allow, ask or deny")),
    }
}

fn branch(rest: &str) -> Result<Command, String> {
    const WRONG: &str = "/branch takes the number of an entry, as /tree shows it, --summary, and --both, --conversation or --files \
                         with --overwrite";
    let mut how = Branching::default();
    for word in rest.split_whitespace() {
        match word {
            "--summary" => how.summary = true,
            word if how.back.takes(word) => {}
            _ if how.start != BranchStart::Choose => return Err(WRONG.to_owned()),
            number => {
                how.start = BranchStart::After(number.trim_start_matches('#').parse().map_err(|_| WRONG)?)
            }
        }
    }
    Ok(Command::Branch(how))
}

/// Parses the number of a compaction, which may be absent.
fn number(name: &str, text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let number = text.parse().ok().filter(|number| *number > 0);
    let wrong = || format!("/{name} takes the number of a compaction, as /compactions lists it");
    number.map(Some).ok_or_else(wrong)
}

/// Parses the number of an entry, which may be absent.
fn entry(name: &str, text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || format!("/{name} takes the number of an entry, as /tree and /pins show it");
    text.trim_start_matches('#').parse().map(Some).map_err(|_| wrong())
}

/// Parses a number of tokens: `20000`, `20_000` or `20k`.
fn tokens(text: &str) -> Option<u64> {
    let text = text.replace(['_', ','], "");
    match text.strip_suffix(['k', 'K']) {
        Some(thousands) => thousands.parse::<u64>().ok()?.checked_mul(1_000),
        None => text.parse().ok(),
    }
}

/// Returns the command for a name that other agents have for it.
fn usual(name: &str) -> &str {
    match name {
        "rewind" | "checkpoint" => "branch",
        "rename" => "title",
        "sessions" => "resume",
        "usage" => "cost",
        "mode" | "approvals" => "permissions",
        "hotkeys" => "keys",
        name => name,
    }
}

fn unknown(name: &str, custom: &[Custom]) -> String {
    match name {
        "login" => {
            return "run `greenroom login` in another terminal to store a key; /model then lists its models"
                .to_owned();
        }
        "config" | "settings" => {
            return "run `greenroom config edit` in another terminal; most changes apply to the next prompt"
                .to_owned();
        }
        "mcp" => {
            return "run `greenroom mcp` in another terminal; it lists, adds and removes MCP servers; /tools lists the tools"
                .to_owned();
        }
        _ => {}
    }
    let names = COMMANDS.iter().map(|spec| spec.name).chain(custom.iter().map(|own| own.name.as_str()));
    let near = names.map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
    // A third of the letters may be wrong: `/theme` is not meant to be `/tree`.
    let near = near.filter(|(distance, known)| distance * 3 <= known.len().max(name.len()));
    match near {
        Some((_, known)) => format!("Unknown command /{name}; did you mean /{known}?"),
        None => format!("Unknown command /{name}; /help lists all commands"),
    }
}

/// Returns the commands whose names start with the typed text, and their descriptions.
pub(crate) fn completions(typed: &str, custom: &[Custom]) -> Vec<(String, String)> {
    let built_in = COMMANDS.iter().map(|spec| {
        let arguments =
            if spec.arguments.is_empty() { String::new() } else { format!("{} ", spec.arguments) };
        (spec.name.to_owned(), format!("{arguments}{}", spec.description))
    });
    let own = custom.iter().map(|own| (own.name.clone(), own.description.clone()));
    let mut found: Vec<_> = built_in.chain(own).filter(|(name, _)| name.starts_with(typed)).collect();
    // The command that is typed in full comes before those that begin like it.
    found.sort_by_key(|(name, _)| name != typed);
    found
}

impl Custom {
    /// Expands the prompt: `$ARGUMENTS` is all text after the name, `$1` its first word.
    fn expand(&self, arguments: &str) -> String {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let mut out = String::with_capacity(self.body.len() + arguments.len());
        let mut rest = self.body.as_str();
        let mut is_used = false;
        while let Some(place) = rest.find('$') {
            let (before, after) = rest.split_at(place);
            out.push_str(before);
            let digit = after.chars().nth(1).and_then(|c| c.to_digit(10)).filter(|digit| *digit > 0);
            if let Some(after) = after.strip_prefix("$ARGUMENTS") {
                out.push_str(arguments);
                (rest, is_used) = (after, true);
            } else if let Some(digit) = digit {
                let word = usize::try_from(digit).ok().and_then(|digit| words.get(digit - 1));
                out.push_str(word.copied().unwrap_or_default());
                (rest, is_used) = (after.get(2..).unwrap_or_default(), true);
            } else {
                out.push('$');
                rest = after.get(1..).unwrap_or_default();
            }
        }
        out.push_str(rest);
        if !is_used && !arguments.is_empty() {
            out.push_str("\n\n");
            out.push_str(arguments);
        }
        out.trim().to_owned()
    }
}

/// Loads the custom commands of these folders; the first command with a name wins. Unreadable files are
/// skipped. A skill whose name is no command's is a command that asks for it.
pub(crate) fn load(folders: &[CommandFolder], skills: &[Skill]) -> Vec<Custom> {
    let mut found: Vec<Custom> = Vec::new();
    for folder in folders {
        if folder.leads_out() {
            continue;
        }
        let Ok(files) = std::fs::read_dir(&folder.path) else { continue };
        let mut paths: Vec<_> = files.flatten().map(|file| file.path()).collect();
        paths.sort();
        for path in paths.into_iter().take(CUSTOM_MAX) {
            let Some(custom) = read(&path, folder.project.is_none()) else { continue };
            let is_taken = COMMANDS.iter().any(|spec| spec.name == custom.name)
                || found.iter().any(|known| known.name == custom.name);
            if !is_taken {
                found.push(custom);
            }
        }
    }
    for Skill { name, description } in skills {
        let is_taken =
            COMMANDS.iter().any(|spec| spec.name == name) || found.iter().any(|known| known.name == *name);
        if !is_taken {
            let body = format!("Use the skill `{name}`.");
            found.push(Custom { name: name.clone(), description: format!("skill: {description}"), body });
        }
    }
    found
}

/// Returns the custom commands: the user's own, those of a project that the user trusts, and those that ask for skills.
pub fn custom(own_folder: Option<&Path>, project: Option<&Path>, skills: &[Skill]) -> Vec<Custom> {
    let own = own_folder.map(|folder| CommandFolder { path: folder.join(FOLDER), project: None });
    let of_project = project.into_iter().flat_map(|project| {
        PROJECT_FOLDERS
            .map(|path| CommandFolder { path: project.join(path), project: Some(project.to_owned()) })
    });
    load(&own.into_iter().chain(of_project).collect::<Vec<_>>(), skills)
}

/// A folder of custom commands.
pub(crate) struct CommandFolder {
    pub(crate) path: PathBuf,
    /// The project of the folder; `None` for the user's own. A project's symbolic links are not followed,
    /// because they could lead to any file of the user.
    pub(crate) project: Option<PathBuf>,
}

impl CommandFolder {
    /// Whether the path inside the project contains a symbolic link.
    fn leads_out(&self) -> bool {
        let Some(project) = &self.project else { return false };
        let inside = self.path.strip_prefix(project).unwrap_or(&self.path);
        let mut here = project.clone();
        inside.components().any(|part| {
            here.push(part);
            std::fs::symlink_metadata(&here).is_ok_and(|metadata| metadata.is_symlink())
        })
    }
}

fn read(path: &Path, follows: bool) -> Option<Custom> {
    let name = path.file_name()?.to_str()?.strip_suffix(".md")?;
    let is_plain = !name.is_empty()
        && name.len() <= 40
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    if !is_plain {
        return None;
    }
    let (file, _) = files::open(path, follows).ok()?;
    let body = String::from_utf8(files::read_all(file, CUSTOM_BYTES_MAX).ok()?).ok()?;
    // Editors on other systems write CRLF line ends and a byte order mark.
    let (description, body) = described(&body.trim_start_matches('\u{feff}').replace("\r\n", "\n"));
    Some(Custom { name: name.to_owned(), description, body })
}

/// Returns a command's description and prompt. The description is in front matter (`---`, `description: …`,
/// `---`), or else is the first line.
fn described(text: &str) -> (String, String) {
    if let Some(rest) = text.strip_prefix("---\n")
        && let Some((head, body)) = rest.split_once("\n---")
    {
        let description = head.lines().find_map(|line| line.strip_prefix("description:"));
        let description = description.unwrap_or_default().trim().trim_matches('"');
        return (description.to_owned(), body.trim_start_matches('-').trim_start().to_owned());
    }
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    (first.trim_start_matches('#').trim().to_owned(), text.to_owned())
}
