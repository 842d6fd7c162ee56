//! Random commands, run by bash: everything that bash runs must be among the commands that were read.
//!
//! Invariants: each command writes its words to a file and does nothing else; a difference names its seed.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use greenroom_policy::{Script, parse};

/// Pieces that random commands are made of. `m1` to `m4` are the commands.
const PIECES: &[&str] = &[
    "m1", "m2", "m3", "m4", "a", "b", "c d", "-x", "1", " ", " ", " ", " ", " ", " ", ";", "&&", "||", "|",
    "|&", "&", "\n", "(", ")", "{ ", "; }", "'", "\"", "\\", "\\\n", "$A", "${B}", "$(m1 a)", "`m2 b`",
    "$((1+2))", "${A:-m3}", "$'m4'", "\"m1\"", "'m2 x'", "m\\3", ">f", "2>&1", "<f", ">>f ", "#", " # ", "!",
    " ! ", "if ", "; then ", "; fi", "for x in a b; do ", "; done", "while m1 && false; do ", "{a,m1}", "*",
    "?", "[a]", "~", "=", "A=m2", "A=m2 ", "<<<x", "<<'E'\nm1\nE\n", "<<E\n$(m2)\nE\n", "$(", "`", "<(m3)",
    "eval ", "command ", "time ", "[ -n a ]", "[[ -n a ]]", "\t", "echo ", "true ", "m1 a; ", "m2 | ", "$",
    "%", "^", ",", ".", "/", ":", "@", "+", "\u{e9}",
];

/// A small generator of numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// A command of pieces at random: most are not valid.
fn of_pieces(seed: u64) -> String {
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let count = 1 + numbers.below(9);
    (0..count).map(|_| PIECES[numbers.below(PIECES.len())]).collect()
}

/// A valid command: commands within one another, each in a form of the language that runs it. A line may continue
/// anywhere.
fn nested(seed: u64) -> String {
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let depth = 1 + numbers.below(4);
    let mut command = around(&mut numbers, depth);
    let place = numbers.below(4 * command.len());
    if place < command.len() {
        command.insert_str(place, "\\\n");
    }
    command
}

fn around(numbers: &mut Numbers, depth: usize) -> String {
    let name = ["m1", "m2", "m3", "m4"][numbers.below(4)];
    if depth == 0 {
        let words =
            ["", " a", " \"b c\"", " 'd e'", " f\\ g", " \\$h", " \"\\$i\"", " j\\\nk", " '`l`'", " #m"];
        return format!("{name}{}", words[numbers.below(words.len())]);
    }
    let inner = around(numbers, depth - 1);
    // Between backquotes, a backslash escapes these characters before the commands are read.
    let escaped = |more: &str| {
        let escape =
            |c: char| if "`\\$".contains(c) || more.contains(c) { format!("\\{c}") } else { c.into() };
        inner.chars().map(escape).collect::<String>()
    };
    // A comment ends with its line.
    match numbers.below(24) {
        0 | 1 => format!("{name} $({inner}\n)"),
        2 => format!("{name} \"a $({inner}\n) b\""),
        3..=5 => format!("{name} `{}\n`", escaped("")),
        6 | 7 => format!("{name} \"c`{}\n`d\"", escaped("\"")),
        8 => format!("({inner}\n)"),
        9 => format!("{{ {inner}\n}}"),
        10 => format!("if {inner}\nthen {name}; fi"),
        11 => format!("{name} | {inner}"),
        12 => format!("{inner}\n{name}"),
        13 => format!("{name} && {inner}"),
        14 => format!("{name} <({inner}\n)"),
        15 => format!("A=$({inner}\n) {name}"),
        16 => format!("for f in x $({inner}\n); do {name}; done"),
        17 => format!("[[ -n $({inner}\n) ]]"),
        18 => format!("{name} <<< \"$({inner}\n)\""),
        19 => format!("{name} e$({inner}\n)`{name}`f"),
        20 => format!("! {inner}"),
        21 => format!("export A=`{}\n`", escaped("")),
        22 => format!("{name} # '\n{inner}"),
        _ => format!("{name} <<'E'\n`\n$(\nE\n{inner}"),
    }
}

/// Runs a command; returns the words of each command that ran.
fn run(bash: &Path, folder: &Path, command: &str, seed: u64) -> Vec<Vec<String>> {
    // Several may write at the same time, each a line. Commands in the background may outlive the one that started them.
    let log = folder.join(format!("log-{seed}"));
    let work = folder.join(format!("work-{seed}"));
    std::fs::create_dir_all(&work).unwrap();
    std::fs::write(&log, "").unwrap();
    let status = Command::new(bash)
        .args(["--norc", "-c", command])
        .env_clear()
        .env("PATH", folder.join("bin"))
        .env("LOG", &log)
        .current_dir(&work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    text.split("\u{1e}\n")
        .filter(|line| !line.is_empty())
        .map(|line| line.split('\u{1f}').map(|word| word.replace('\u{1d}', "\n")).collect())
        .collect()
}

/// Whether a command that ran is one of those that were read.
fn is_known(script: &Script, ran: &[String]) -> bool {
    script.commands.iter().any(|simple| {
        let known = simple.words.iter().take_while(|word| !word.is_dynamic);
        let is_whole = simple.words.iter().all(|word| !word.is_dynamic);
        // The commands that run the rest of their words.
        let skipped = simple
            .words
            .iter()
            .take_while(|word| matches!(&*word.text, "eval" | "command" | "time" | "!"))
            .count();
        if skipped > 0 || simple.words.first().is_some_and(|word| word.text == ".") {
            return true;
        }
        let texts: Vec<&str> = known.map(|word| &*word.text).collect();
        ran.len() >= texts.len()
            && (!is_whole || ran.len() == texts.len())
            && texts.iter().zip(ran).all(|(text, ran)| text == ran)
    })
}

fn compare(command: impl Fn(u64) -> String, seeds: std::ops::Range<u64>) -> Option<(usize, usize)> {
    let bash = Path::new("/bin/bash");
    if !bash.exists() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    for name in ["m1", "m2", "m3", "m4"] {
        let path = folder.path().join("bin").join(name);
        let script = "#!/bin/bash\nIFS=$'\\x1f'; set -- \"${0##*/}\" \"$@\"; words=\"$*\"; printf '%s\\x1e\\n' \"${words//$'\\n'/$'\\x1d'}\" >> \"$LOG\"\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (mut read, mut ran, mut differences) = (0, 0, Vec::new());
    for seed in seeds {
        let command = command(seed);
        // What cannot be read runs nothing, since it asks.
        let Ok(script) = parse(&command) else { continue };
        read += 1;
        for words in run(bash, folder.path(), &command, seed) {
            ran += 1;
            if !is_known(&script, &words) {
                differences.push(format!(
                    "seed {seed}: {command:?} runs {words:?}, and was read as {:?}",
                    script.commands
                ));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences: {:#?}", differences.len(), differences);
    Some((read, ran))
}

#[test]
fn bash_runs_nothing_that_was_not_read() {
    let Some((read, ran)) = compare(of_pieces, 0..3_000) else {
        return;
    };
    assert!(read >= 500 && ran >= 70, "{read} commands were read, and {ran} ran");
}

#[test]
fn bash_runs_nothing_of_a_nested_command_that_was_not_read() {
    let Some((read, ran)) = compare(nested, 0..1_000) else {
        return;
    };
    assert!(read >= 400 && ran >= 1_000, "{read} commands were read, and {ran} ran");
}

/// `GREENROOM_COMMANDS=100000 cargo test -p greenroom-policy --test against_bash -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
#[expect(clippy::disallowed_methods, reason = "who runs it says how many")]
fn bash_runs_nothing_that_was_not_read_by_hand() {
    let count = std::env::var("GREENROOM_COMMANDS").map_or(100_000, |count| count.parse().unwrap());
    for command in [of_pieces, nested] {
        assert!(compare(command, 0..count).is_some_and(|(read, _)| read > 0));
    }
}
