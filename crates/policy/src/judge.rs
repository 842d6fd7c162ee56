//! Judges a call by the rules and the mode.
//!
//! Invariants: deny, then the read-only mode, then ask, then allow, then the mode. Of a command each part is
//! judged, and the strictest verdict counts; what cannot be read asks wherever a rule or the mode could have
//! objected.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::mode::Mode;
use crate::offer;
use crate::pattern::Match;
use crate::policy::Policy;
use crate::programs;
use crate::rule::{Effect, Pattern, PolicyRule, Subject};
use crate::shell::{self, Script, Simple, Word};

/// A tool call to judge.
#[derive(Debug, Clone)]
#[must_use]
pub struct Call<'a> {
    tool: &'a str,
    arguments: &'a Value,
    is_read_only: bool,
    resolved: Option<&'a Path>,
}

impl<'a> Call<'a> {
    /// Creates a call of a tool.
    pub fn new(tool: &'a str, arguments: &'a Value) -> Self {
        Self { tool, arguments, is_read_only: false, resolved: None }
    }

    /// Sets whether the tool declares that it changes nothing.
    pub fn read_only(self, is_read_only: bool) -> Self {
        Self { is_read_only, ..self }
    }

    /// Sets the absolute path that the call's path leads to, with links resolved.
    pub fn resolved(self, path: Option<&'a Path>) -> Self {
        Self { resolved: path, ..self }
    }

    /// Returns the path in the arguments of the tools that read and change files; the workspace itself if they
    /// name none.
    pub fn path(&self) -> Option<&'a str> {
        let has_path = matches!(self.tool, "read" | "list" | "grep" | "write" | "edit");
        has_path.then(|| self.arguments.get("path").and_then(Value::as_str).unwrap_or("."))
    }
}

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It runs.
    Allow,
    /// A person is asked first.
    Ask(Question),
    /// It does not run. The reason is for the model and for people, a clause without a full stop.
    Deny(String),
}

/// What a person is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    /// Why it asks, as a clause: a rule, or what could not be read.
    pub why: Option<String>,
    /// The rules that together would allow the call, and similar ones, without asking; empty if there are none.
    pub offers: Vec<String>,
    /// The parts of the call that need the approval: commands, redirections.
    pub parts: Vec<String>,
}

/// Commands that change nothing and show nothing but names.
const HARMLESS: [&str; 5] = ["pwd", "true", "false", ":", "echo"];

/// Variables that have programs run what is not in the command.
const LOADING: [&str; 10] = [
    "BASH_ENV", "ENV", "PS4", "PROMPT_COMMAND", "SHELLOPTS", "BASHOPTS", "LD_PRELOAD", "LD_AUDIT",
    "LD_LIBRARY_PATH", "PATH",
];

/// Variables of bash that are numbers: what is assigned is evaluated, so it can run commands.
const NUMBERS: [&str; 5] = ["SECONDS", "RANDOM", "SRANDOM", "OPTIND", "HISTCMD"];

/// How deep texts of commands within commands are read.
const TEXTS_MAX: usize = 8;

/// The judgement of a part of a call.
enum Part {
    Allowed,
    Asks { why: Option<String>, offer: Option<String> },
    Denied(String),
}

impl Policy {
    /// Judges a call.
    pub fn judge(&self, call: &Call<'_>) -> Verdict {
        if let Some(problem) = self.problem() {
            return Verdict::Deny(format!(
                "the permissions cannot be read, so nothing is allowed: {problem}"
            ));
        }
        match call.tool {
            "bash" => self.judge_command(call.arguments.get("command").and_then(Value::as_str)),
            "read" | "list" | "grep" => self.judge_file(call, &Subject::Read),
            "write" | "edit" => self.judge_file(call, &Subject::Write),
            _ => verdict([(call.tool.to_owned(), self.judge_tool(call))]),
        }
    }

    fn judge_tool(&self, call: &Call<'_>) -> Part {
        let rule = |effect| self.of(effect).find(|rule| rule.names(call.tool));
        let is_free = call.is_read_only || self.trusts(call.tool);
        if let Some(rule) = rule(Effect::Deny) {
            return Part::Denied(denied_by(rule));
        }
        if self.mode() == Mode::ReadOnly && !is_free {
            return Part::Denied(read_only());
        }
        if let Some(rule) = rule(Effect::Ask) {
            return Part::Asks { why: Some(asked_by(rule)), offer: None };
        }
        if is_free || self.mode() == Mode::Everything || rule(Effect::Allow).is_some() {
            return Part::Allowed;
        }
        let is_name = call.tool.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        Part::Asks { why: None, offer: is_name.then(|| call.tool.to_owned()) }
    }

    fn judge_file(&self, call: &Call<'_>, subject: &Subject) -> Verdict {
        let path = self.folders().absolute(call.path().unwrap_or("."));
        let part = self.judge_path(&path, call.resolved, subject, false);
        verdict([(self.folders().shown(&path), part)])
    }

    /// Judges the reading or changing of a file by a tool, or by the redirection of a command. Rules that object count
    /// for the path and for where it leads; rules that allow must hold for both.
    fn judge_path(
        &self,
        path: &Path,
        resolved: Option<&Path>,
        subject: &Subject,
        is_redirection: bool,
    ) -> Part {
        let resolved = resolved.unwrap_or(path);
        let matches = |rule: &PolicyRule, path: &Path| {
            rule.subject() == subject
                && match rule.pattern() {
                    Pattern::Any => true,
                    Pattern::Path(pattern) => pattern.matches(path),
                    Pattern::Words(_) => false,
                }
        };
        let objects = |effect| self.of(effect).find(|rule| matches(rule, path) || matches(rule, resolved));
        if let Some(rule) = objects(Effect::Deny) {
            return Part::Denied(denied_by(rule));
        }
        let is_read = *subject == Subject::Read;
        if self.mode() == Mode::ReadOnly && !is_read {
            return Part::Denied(read_only());
        }
        if let Some(rule) = objects(Effect::Ask) {
            return Part::Asks { why: Some(asked_by(rule)), offer: None };
        }
        // The workspace may have two names, of which the tools know both: one of them leads through a link.
        let is_inside = self.folders().holds(path) || self.folders().holds(resolved);
        // The file tools refuse what is outside, so nobody need be asked.
        let is_refused = !is_inside && !is_redirection;
        let is_protected = is_redirection && (self.protects(path) || self.protects(resolved));
        let is_free =
            is_refused || is_inside && (is_read || self.mode() >= Mode::AcceptEdits && !is_protected);
        let is_allowed =
            || [path, resolved].iter().all(|path| self.of(Effect::Allow).any(|rule| matches(rule, path)));
        if is_free || self.mode() == Mode::Everything || is_allowed() {
            return Part::Allowed;
        }
        let name = if is_read { "read" } else { "write" };
        let shown = self.folders().shown(path);
        let is_plain = !shown.is_empty()
            && !shown.starts_with('~')
            && !shown.contains(['*', '?', '[', '{', '\\', '(', ')']);
        let offer = is_plain.then(|| format!("{name}({})", offer::of_path(&shown)));
        Part::Asks { why: None, offer }
    }

    fn judge_command(&self, command: Option<&str>) -> Verdict {
        let rules = || self.of(Effect::Deny).chain(self.of(Effect::Ask));
        let about = |rule: &&PolicyRule| {
            *rule.subject() == Subject::Bash || matches!(rule.pattern(), Pattern::Path(_))
        };
        let objects = || rules().any(|rule| about(&rule));
        let every = |effect| {
            self.of(effect)
                .find(|rule| *rule.subject() == Subject::Bash && matches!(rule.pattern(), Pattern::Any))
        };
        if let Some(rule) = every(Effect::Deny) {
            return Verdict::Deny(denied_by(rule));
        }
        if self.mode() == Mode::ReadOnly {
            return Verdict::Deny(read_only());
        }
        if let Some(rule) = every(Effect::Ask) {
            let parts = command.map(str::to_owned).into_iter().collect();
            return Verdict::Ask(Question { why: Some(asked_by(rule)), offers: Vec::new(), parts });
        }
        let is_free = self.mode() == Mode::Everything || every(Effect::Allow).is_some();
        if is_free && !objects() {
            return Verdict::Allow;
        }
        let Some(text) = command else {
            // The tool answers a call without a command.
            return Verdict::Allow;
        };
        let script = match shell::parse(text) {
            Ok(script) => script,
            Err(error) => {
                let why = Some(format!("the rules cannot be applied to this command: {error}"));
                return Verdict::Ask(Question { why, offers: Vec::new(), parts: vec![text.to_owned()] });
            }
        };
        let chooses_programs = script.commands.iter().any(chooses_programs);
        let commands = script.commands.iter().map(|simple| {
            let is_free = is_free || is_harmless(simple, chooses_programs);
            (shown(simple), self.judge_simple(simple, is_free, script.changes_folder))
        });
        let redirections = |words: &'_ [Word], subject: Subject, sign: &'static str| {
            let judged = words.iter().map(|word| {
                let part = self.judge_redirection(word, script.changes_folder, &subject, is_free);
                (format!("{sign} {}", word.text), part)
            });
            judged.collect::<Vec<_>>()
        };
        let files = [
            redirections(&script.writes, Subject::Write, ">"),
            redirections(&script.reads, Subject::Read, "<"),
        ];
        verdict(commands.chain(files.into_iter().flatten()))
    }

    /// Judges a redirection. `changes_folder`: whether the current folder is another one by then.
    fn judge_redirection(&self, word: &Word, changes_folder: bool, subject: &Subject, is_free: bool) -> Part {
        let is_nothing =
            !word.is_dynamic && matches!(&*word.text, "/dev/null" | "/dev/stdout" | "/dev/stderr");
        if is_nothing {
            return Part::Allowed;
        }
        let is_unknown = word.is_dynamic
            || changes_folder && !word.text.starts_with('/')
            || is_of_process(&self.folders().absolute(&word.text), &word.text);
        let objects = |rule: &PolicyRule| rule.subject() == subject && rule.effect() != Effect::Allow;
        if is_unknown {
            return match self.rules().iter().any(objects) || !is_free {
                true => {
                    let why = format!("which file it means is known only when it runs: {}", word.text);
                    Part::Asks { why: Some(why), offer: None }
                }
                false => Part::Allowed,
            };
        }
        let path = self.folders().absolute(&word.text);
        let part = self.judge_path(&path, None, subject, true);
        if is_free && matches!(part, Part::Asks { why: None, .. }) { Part::Allowed } else { part }
    }

    /// Judges the redirections in the texts that a command runs, only by the rules that object: what allows the command
    /// allows them.
    fn judge_inner_redirections(&self, forms: &Forms, changes_folder: bool) -> Part {
        let objects = |rule: &PolicyRule| {
            rule.effect() != Effect::Allow && matches!(rule.subject(), Subject::Read | Subject::Write)
        };
        let mut asks = None;
        if forms.is_unread && self.rules().iter().any(objects) {
            asks = Some("which files it reads and writes is known only when it runs".to_owned());
        }
        for Redirection { file, subject, changes_folder: is_elsewhere } in &forms.redirections {
            // Wherever it runs, it may be meant as it is written.
            for changes_folder in [false, changes_folder || *is_elsewhere] {
                match self.judge_redirection(file, changes_folder, subject, true) {
                    Part::Allowed => {}
                    Part::Asks { why, .. } => asks = asks.or(why),
                    denied @ Part::Denied(_) => return denied,
                }
            }
        }
        match asks {
            Some(why) => Part::Asks { why: Some(why), offer: None },
            None => Part::Allowed,
        }
    }

    fn judge_simple(&self, simple: &Simple, is_free: bool, changes_folder: bool) -> Part {
        let forms = forms(simple);
        let forbids = |effect: Effect| {
            let mut perhaps = None;
            for rule in self.of(effect) {
                let Pattern::Words(pattern) = rule.pattern() else { continue };
                let found = forms.known.iter().map(|words| pattern.forbids(words)).max().unwrap_or(Match::No);
                match found {
                    Match::Yes => return Some((rule, Match::Yes)),
                    Match::Perhaps => perhaps = perhaps.or(Some((rule, Match::Perhaps))),
                    Match::No if forms.is_open => perhaps = perhaps.or(Some((rule, Match::Perhaps))),
                    Match::No => {}
                }
            }
            perhaps
        };
        let unsure = match forbids(Effect::Deny) {
            Some((rule, Match::Yes)) => return Part::Denied(denied_by(rule)),
            Some((rule, _)) => Some(format!("whether {rule} applies is known only when it runs")),
            None => None,
        };
        let redirected = match self.judge_inner_redirections(&forms, changes_folder) {
            Part::Allowed => None,
            Part::Asks { why, .. } => why,
            denied @ Part::Denied(_) => return denied,
        };
        let asked = forbids(Effect::Ask).map(|(rule, _)| asked_by(rule));
        if let Some(why) = unsure.or(asked).or(redirected) {
            return Part::Asks { why: Some(why), offer: None };
        }
        if is_free {
            return Part::Allowed;
        }
        if evaluates(simple) {
            let why = "bash evaluates its arguments, which can run commands".to_owned();
            return Part::Asks { why: Some(why), offer: None };
        }
        let words: Vec<Word> = simple.assignments.iter().chain(&simple.words).cloned().collect();
        let is_allowed = self.of(Effect::Allow).any(|rule| match rule.pattern() {
            // A relative path may be another file by now.
            Pattern::Words(pattern) => !(changes_folder && pattern.is_relative()) && pattern.allows(&words),
            Pattern::Any | Pattern::Path(_) => false,
        });
        if is_allowed {
            return Part::Allowed;
        }
        Part::Asks { why: None, offer: offer::of_command(simple).map(|words| format!("bash({words})")) }
    }
}

/// Whether a path leads through what the system shows of processes, where links lead anywhere.
fn is_of_process(absolute: &Path, text: &str) -> bool {
    let is_part = |part: &str| text.split('/').any(|component| component == part);
    let leads = ["cwd", "root", "fd", "map_files"].iter().any(|part| is_part(part));
    let is_descriptor = |file: &str| absolute.strip_prefix(file).is_ok_and(|rest| rest != Path::new(""));
    // `..` after a link is not what it seems.
    leads && (is_part("proc") || absolute.starts_with("/proc"))
        || is_part("fd") && (is_part("dev") || absolute.starts_with("/dev"))
        || ["/dev/stdin", "/dev/stdout", "/dev/stderr"].into_iter().any(is_descriptor)
}

/// Whether it sets a variable that says which programs later commands run.
fn chooses_programs(simple: &Simple) -> bool {
    let is_variable = |word: &Word| LOADING.contains(&word.text.split('=').next().unwrap_or_default());
    simple.assignments.iter().chain(&simple.words).any(is_variable)
}

/// Whether it shows the user's own words or the folder, or goes to a folder below. `ls` is a program: which one, an
/// earlier command of the same script may choose.
fn is_harmless(simple: &Simple, chooses_programs: bool) -> bool {
    let [name, arguments @ ..] = &*simple.words else { return false };
    if !simple.assignments.is_empty() {
        return false;
    }
    let is_below = |word: &Word| {
        !word.is_dynamic
            && !word.text.starts_with(['/', '-', '~'])
            && !word.text.split('/').any(|part| part == "..")
    };
    match &*name.text {
        "cd" => matches!(arguments, [only] if is_below(only) && !only.text.is_empty()),
        "ls" if chooses_programs => false,
        "ls" => {
            let is_option = |word: &Word| !word.is_dynamic && word.text.starts_with('-');
            arguments.iter().all(|word| is_option(word) || is_below(word))
        }
        name => HARMLESS.contains(&name),
    }
}

/// Whether it is a command of bash that evaluates arguments: the index of an array may contain a substitution, and the
/// name of a variable may be that of such an array.
fn evaluates(simple: &Simple) -> bool {
    let [name, arguments @ ..] = &*simple.words else { return false };
    let has = |options: &[&str]| {
        arguments.iter().any(|word| options.iter().any(|option| word.text.starts_with(option)))
    };
    // The value of a variable is its own affair, unless it is a number.
    let is_name = |word: &Word| {
        let name = word.text.split('=').next().unwrap_or_default();
        let is_assigned = name.len() < word.text.len();
        name.contains(['[', '$', '`']) || NUMBERS.contains(&name) || word.is_dynamic && !is_assigned
    };
    match &*name.text {
        "let" | "compgen" | "complete" | "bind" => true,
        "[[" => {
            let words: Vec<&str> = arguments.iter().flat_map(|word| word.text.split_whitespace()).collect();
            const NUMERIC: [&str; 6] = ["-eq", "-ne", "-lt", "-le", "-gt", "-ge"];
            let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
            // The value of a variable is evaluated in turn.
            let is_fixed = |word: &str| is_number(word) || NUMERIC.contains(&word) || word == "]]";
            let has_numbers = NUMERIC.iter().any(|operator| words.contains(operator));
            has_numbers && !words.iter().all(|word| is_fixed(word))
                || words.contains(&"-v")
                    && words.iter().any(|word| word.contains(['$', '`', '[']) && *word != "[[")
        }
        "[" => {
            let words: Vec<&str> = arguments.iter().flat_map(|word| word.text.split_whitespace()).collect();
            ["-v", "-R"].iter().any(|option| words.contains(option))
                && words.iter().any(|word| word.contains(['$', '`']) || word.len() > 1 && word.contains('['))
        }
        "test" => has(&["-v", "-R"]) && arguments.iter().any(is_name),
        "printf" | "wait" => has(&["-v", "-p"]) && arguments.iter().any(is_name),
        "mapfile" | "readarray" => has(&["-C"]) || arguments.iter().any(is_name),
        "declare" | "typeset" | "local" => {
            // `-i` makes it a number, `-n` the name of another variable: what is assigned is evaluated.
            let is_evaluated = |word: &Word| word.text.starts_with('-') && word.text.contains(['i', 'n']);
            arguments.iter().any(|word| is_evaluated(word) || is_name(word))
        }
        "export" | "readonly" | "unset" | "read" | "getopts" => arguments.iter().any(is_name),
        _ => false,
    }
}

/// The ways in which a command may be meant.
#[derive(Default)]
struct Forms {
    known: Vec<Vec<Word>>,
    /// Whether it may also run what is not known.
    is_open: bool,
    /// The redirections in the texts that it runs.
    redirections: Vec<Redirection>,
    /// Whether a text that it runs could not be read.
    is_unread: bool,
    /// Whether it runs them in another folder.
    changes_folder: bool,
}

/// A redirection in a text that a command runs.
struct Redirection {
    file: Word,
    subject: Subject,
    changes_folder: bool,
}

/// Returns the forms of a command that rules which object are held against: as it is written, by the name of its
/// file, what a wrapper runs, and what is in the text that a shell is given.
fn forms(simple: &Simple) -> Forms {
    let mut forms = Forms::default();
    add_forms(simple, &mut forms, 0);
    forms
}

fn add_forms(simple: &Simple, forms: &mut Forms, depth: usize) {
    if depth > TEXTS_MAX || forms.known.len() > 10_000 {
        forms.unread();
        return;
    }
    if !simple.assignments.is_empty() {
        forms.known.push(simple.assignments.iter().chain(&simple.words).cloned().collect());
    }
    let runs = |word: &Word| {
        word.text.split_once('=').is_some_and(|(name, _)| [&LOADING[..], &NUMBERS].concat().contains(&name))
    };
    forms.is_open |= evaluates(simple) || simple.assignments.iter().chain(&simple.words).any(runs);
    let Some(name) = simple.words.first() else { return };
    let base = base_name(&name.text);
    forms.known.push(simple.words.clone());
    if base != name.text {
        forms.known.push(with_name(base, &simple.words));
    }
    let arguments = &simple.words[1..];
    forms.changes_folder |= programs::changes_folder(base, arguments);
    let is_wrapper = programs::wraps(base, arguments);
    if is_wrapper {
        // In the text of `env -S` a backslash stands for other characters.
        let is_split = |word: &Word| base == "env" && word.text.contains('\\');
        forms.is_open |= arguments.iter().any(|word| word.is_dynamic || is_split(word));
        for start in 0..arguments.len() {
            let rest = &arguments[start..];
            forms.is_open |= matches!(&*rest[0].text, "." | "source");
            for text in meant(&rest[0].text) {
                let inner = base_name(text);
                forms.known.push(with_name(inner, rest));
                add_text(inner, &rest[1..], forms, depth);
                if text.contains([' ', '\t', '\n']) {
                    add_script(text, forms, depth);
                }
            }
        }
    }
    // Without a command they run a shell, which reads its input.
    forms.is_open |= match base {
        "su" | "chroot" | "unshare" | "nsenter" | "runuser" | "sg" | "newgrp" | "script" => true,
        "sudo" | "doas" => {
            let is_shell = |word: &Word| matches!(&*word.text, "-s" | "-i" | "--shell" | "--login");
            arguments.iter().all(|word| word.text.starts_with('-')) || arguments.iter().any(is_shell)
        }
        _ => false,
    };
    match base {
        // Their text is a command of its own.
        "eval" | "trap" | "ssh" | "su" | "watch" | "script" => {
            let texts = arguments.iter().map(|word| &*word.text).skip_while(|text| *text == "--");
            let texts: Vec<&str> = texts.collect();
            if arguments.iter().any(|word| word.is_dynamic) {
                forms.unread();
            }
            add_script(&texts.join(" "), forms, depth);
        }
        "." | "source" => forms.is_open = true,
        base => add_text(base, arguments, forms, depth),
    }
}

/// Returns an argument of a wrapper, and the value of an option that is written in the same word: `-Srm`, `--x=rm`.
fn meant(text: &str) -> impl Iterator<Item = &str> {
    let is_option = text.starts_with('-');
    let value = text.split_once('=').map(|(_, value)| value);
    let glued = text.char_indices().skip(2).map(|(at, _)| &text[at..]).take(if is_option { 3 } else { 0 });
    std::iter::once(text).chain(value).chain(glued)
}

/// Adds the commands in the text that a shell is given.
fn add_text(shell: &str, arguments: &[Word], forms: &mut Forms, depth: usize) {
    if !programs::is_shell(shell) {
        return;
    }
    let is_option = |word: &&Word| word.text.starts_with('-') || word.text.starts_with('+');
    let has_text = arguments
        .iter()
        .take_while(is_option)
        .any(|word| !word.text.starts_with("--") && word.text.contains('c'));
    if !has_text || arguments.iter().any(|word| word.is_dynamic) {
        // It runs a file, its input, or what is known only when it runs.
        forms.is_open = true;
        forms.is_unread |= has_text;
        return;
    }
    for word in arguments.iter().skip_while(|word| is_option(word)) {
        add_script(&word.text, forms, depth);
    }
}

fn add_script(text: &str, forms: &mut Forms, depth: usize) {
    let mut script = Script::default();
    if shell::read(text, &mut script, 0).is_err() {
        forms.unread();
        return;
    }
    let changes_folder = forms.changes_folder || script.changes_folder;
    for (files, subject) in [(script.writes, Subject::Write), (script.reads, Subject::Read)] {
        let redirection = |file| Redirection { file, subject: subject.clone(), changes_folder };
        forms.redirections.extend(files.into_iter().map(redirection));
    }
    script.commands.iter().for_each(|inner| add_forms(inner, forms, depth + 1));
}

impl Forms {
    fn unread(&mut self) {
        self.is_open = true;
        self.is_unread = true;
    }
}

fn base_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn with_name(name: &str, words: &[Word]) -> Vec<Word> {
    let first = Word { text: name.to_owned(), is_dynamic: words.first().is_some_and(|word| word.is_dynamic) };
    std::iter::once(first).chain(words.iter().skip(1).cloned()).collect()
}

fn shown(simple: &Simple) -> String {
    let words = simple.assignments.iter().chain(&simple.words);
    words.map(|word| &*word.text).collect::<Vec<_>>().join(" ")
}

fn denied_by(rule: &PolicyRule) -> String {
    format!("a rule forbids it ({rule})")
}

fn asked_by(rule: &PolicyRule) -> String {
    format!("a rule asks for it ({rule})")
}

fn read_only() -> String {
    "the session is in the read-only mode".to_owned()
}

/// Joins the judgements of the parts of a call.
fn verdict(parts: impl IntoIterator<Item = (String, Part)>) -> Verdict {
    let mut question = Question::default();
    let (mut is_asked, mut has_all) = (false, true);
    for (text, part) in parts {
        match part {
            Part::Allowed => {}
            Part::Denied(why) => return Verdict::Deny(why),
            Part::Asks { why, offer } => {
                is_asked = true;
                has_all &= offer.is_some();
                question.why = question.why.or(why);
                question.offers.extend(offer.filter(|offer| !question.offers.contains(offer)));
                question.parts.push(text);
            }
        }
    }
    if !is_asked {
        return Verdict::Allow;
    }
    if !has_all {
        question.offers.clear();
    }
    Verdict::Ask(question)
}

impl Policy {
    /// Whether a rule forbids to read the file or folder with this absolute path, so that a search passes over it.
    pub fn hides(&self, path: &Path) -> bool {
        self.of(Effect::Deny).any(|rule| {
            *rule.subject() == Subject::Read
                && matches!(rule.pattern(), Pattern::Path(pattern) if pattern.matches(path))
        })
    }

    /// Returns the absolute path that a call names, as text: links in it are not resolved.
    pub fn path_of(&self, call: &Call<'_>) -> Option<PathBuf> {
        call.path().map(|path| self.folders().absolute(path))
    }
}
