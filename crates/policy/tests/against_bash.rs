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
    "m1",
    "m2",
    "m3",
    "m4",
    "a",
    "b",
    "c d",
    "-x",
    "1",
    " ",
    " ",
    " ",
    " ",
    " ",
    " ",
    ";",
    "&&",
    "||",
    "|",
    "|&",
    "&",
    "\n",
    "(",
    ")",
    "{ ",
    "; }",
    "'",
    "\"",
    "\\",
    "\\\n",
    "$A",
    "${B}",
    "$(m1 a)",
    "`m2 b`",
    "`",
    "`",
    "\\`",
    "\\`",
    "`m1 \\`m2\\``",
    "$((1+2))",
    "${A:-m3}",
    "$'m4'",
    "\"m1\"",
    "'m2 x'",
    "m\\3",
    ">f",
    "2>&1",
    "<f",
    ">>f ",
    "#",
    " # ",
    "!",
    " ! ",
    "if ",
    "; then ",
    "; fi",
    "for x in a b; do ",
    "; done",
    "while m1 && false; do ",
    "{a,m1}",
    "*",
    "?",
    "[a]",
    "~",
    "=",
    "A=m2",
    "A=m2 ",
    "<<<x",
    "<<'E'\nm1\nE\n",
    "<<E\n$(m2)\nE\n",
    "$(",
    "`",
    "<(m3)",
    "eval ",
    "command ",
    "time ",
    "[ -n a ]",
    "[[ -n a ]]",
    "\t",
    "echo ",
    "true ",
    "m1 a; ",
    "m2 | ",
    "$",
    "%",
    "^",
    ",",
    ".",
    "/",
    ":",
    "@",
    "+",
    "\u{e9}",
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

fn command(seed: u64) -> String {
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let count = 1 + numbers.below(9);
    (0..count).map(|_| PIECES[numbers.below(PIECES.len())]).collect()
}

/// Runs a command; returns the words of each command that ran.
fn run(bash: &Path, folder: &Path, command: &str, seed: u64) -> Vec<Vec<String>> {
    // Commands in the background may outlive the one that started them.
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
        .map(|line| line.split('\u{1f}').map(str::to_owned).collect())
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

fn compare(seeds: std::ops::Range<u64>) -> Option<(usize, usize)> {
    let bash = Path::new("/bin/bash");
    if !bash.exists() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    for name in ["m1", "m2", "m3", "m4"] {
        let path = folder.path().join("bin").join(name);
        let script =
            "#!/bin/bash\nIFS=$'\\x1f'; set -- \"${0##*/}\" \"$@\"; printf '%s\\x1e\\n' \"$*\" >> \"$LOG\"\n";
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
    let Some((read, ran)) = compare(0..3_000) else {
        return;
    };
    assert!(read >= 500 && ran >= 70, "{read} commands were read, and {ran} ran");
}

/// `GREENROOM_COMMANDS=100000 cargo test -p greenroom-policy --test against_bash -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
#[expect(clippy::disallowed_methods, reason = "who runs it says how many")]
fn bash_runs_nothing_that_was_not_read_by_hand() {
    let count = std::env::var("GREENROOM_COMMANDS").map_or(100_000, |count| count.parse().unwrap());
    assert!(compare(0..count).is_some_and(|(read, _)| read > 0));
}
