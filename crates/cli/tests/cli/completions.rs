//! Completions, in the real shells: commands, flags, stored sessions, models, settings. A shell that is not here is named
//! and left out; bash is on every machine that runs these tests.

use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::process::Command;

use greenroom_simulator::Answer;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::support::{Model, Place, Says};

/// What is typed, and what of it is offered.
const CASES: [(&str, &[&str]); 12] = [
    ("greenroom comp", &["compact", "completions"]),
    ("greenroom run --output-s", &["--output-schema"]),
    ("greenroom --simul", &["--simulate"]),
    ("greenroom --model my-own", &["my-own-model"]),
    ("greenroom --resume demo-t", &["demo-two"]),
    ("greenroom resume demo-t", &["demo-two"]),
    ("greenroom show de", &["demo-one", "demo-two"]),
    ("greenroom run --session demo-t", &["demo-two"]),
    ("greenroom run --model my-own", &["my-own-model"]),
    ("greenroom chat --provider lo", &["local"]),
    ("greenroom config get compaction.thr", &["compaction.threshold"]),
    ("greenroom run --effort x", &["xhigh"]),
];

/// A session of which a shell must quote most.
const STRANGE: &str = "my session: 'one' & $two";

/// What is typed before a tab, and what the command is then called with.
const CALLS: [(&str, &[&str]); 12] = [
    ("greenroom show te", &["show", "team:alpha"]),
    ("greenroom show team:al", &["show", "team:alpha"]),
    ("greenroom show 'team:al", &["show", "team:alpha"]),
    ("greenroom run --session=team:al", &["run", "--session=team:alpha"]),
    ("greenroom show my", &["show", STRANGE]),
    ("greenroom show my\\ se", &["show", STRANGE]),
    ("greenroom show my\\ session:\\ ", &["show", STRANGE]),
    ("greenroom show \"my se", &["show", STRANGE]),
    ("greenroom show 'my se", &["show", STRANGE]),
    ("greenroom run --session my", &["run", "--session", STRANGE]),
    ("greenroom run --session=my", &["run", "--session=my session: 'one' & $two"]),
    ("greenroom compact fi", &["compact", "file one"]),
];

/// As [`CALLS`], with redirections: which of the command's files is `file one`.
const REDIRECTED: [(&str, &[&str], Option<u8>); 7] = [
    ("greenroom show other > fi", &["show", "other"], Some(1)),
    ("greenroom show other >fi", &["show", "other"], Some(1)),
    ("greenroom show other >> ./fi", &["show", "other"], Some(1)),
    ("greenroom show other 2> fi", &["show", "other"], Some(2)),
    ("greenroom show other < fi", &["show", "other"], Some(0)),
    ("greenroom show > 'file one' team:al", &["show", "team:alpha"], Some(1)),
    ("greenroom run -p '>' --session te", &["run", "-p", ">", "--session", "team:alpha"], None),
];

/// A place with sessions and a configuration, and the script for this shell.
fn place(shell: &str) -> Place {
    let (place, model) = (Place::new(), Model::new(Says(Answer::text("Yes.")), |_| {}));
    let url = model.url();
    for id in ["demo-one", "demo-two", "other", "team:alpha", STRANGE] {
        let ran = place.run(&["run", "-p", "What is it?", "--session", id, "--base-url", &url]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    place.own_file(
        "providers: { local: { base_url: 'http://localhost:1/v1' } }\nmodels: { my-own-model: {} }\n",
    );
    let script = place.run(&["completions", shell]);
    assert_eq!(script.code, Some(0), "{script:?}");
    std::fs::write(place.work().join("script"), script.stdout).unwrap();
    std::fs::write(place.work().join("file one"), "").unwrap();
    place
}

/// A command in the real one's place, that writes down what it is called with: its words, one a line, which of its files
/// is `file one`, and an empty line. For bash and zsh.
const RECORDS: &str = "greenroom() { local fd call=$(printf \"%s\\n\" \"$@\"); for fd in 0 1 2; do \
                       [[ /dev/fd/$fd -ef \"file one\" ]] && call+=$(printf \"\\nfile $fd\"); done; \
                       printf \"%s\\n\\n\" \"$call\" >> calls; }";

/// What was written down.
fn recorded(place: &Place) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(place.work().join("calls")).unwrap_or_default();
    text.split_terminator("\n\n").map(|call| call.lines().map(str::to_owned).collect()).collect()
}

/// All that is typed before a tab with one way to go on, and what should be written down then.
fn calls() -> Vec<(&'static str, Vec<String>)> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let plain = CASES.iter().filter(|(_, offered)| offered.len() == 1).map(|(typed, offered)| {
        let (before, _) = typed.rsplit_once(' ').unwrap();
        (*typed, words(&before.split(' ').skip(1).chain([offered[0]]).collect::<Vec<_>>()))
    });
    let quoted = CALLS.iter().map(|(typed, called)| (*typed, words(called)));
    let redirected = REDIRECTED.iter().map(|(typed, called, file)| {
        (*typed, [words(called), file.iter().map(|fd| format!("file {fd}")).collect()].concat())
    });
    let calls: Vec<_> = plain.chain(quoted).chain(redirected).collect();
    assert!(calls.len() >= 7 + CALLS.len() + REDIRECTED.len(), "{calls:?}");
    calls
}

/// Compares what was written down with what should have been.
fn check_calls(place: &Place, said: &str) {
    let (calls, recorded) = (calls(), recorded(place));
    for ((typed, called), recorded) in calls.iter().zip(&recorded) {
        assert_eq!(recorded, called, "{typed}: {said}");
    }
    assert_eq!(recorded.len(), calls.len(), "{said}\n{recorded:?}");
}

/// Whether there is such a shell. Where there is none it is said, and the test is skipped.
fn is_there(shell: &str) -> bool {
    match Command::new(shell).arg("-c").arg("exit 0").output() {
        Ok(output) => {
            assert!(output.status.success(), "{shell}: {output:?}");
            true
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            #[expect(clippy::print_stderr, reason = "a skipped test says so")]
            {
                eprintln!("{shell} is not here: its completions are not tried");
            }
            false
        }
        Err(error) => panic!("{shell}: {error}"),
    }
}

/// What a shell says when it runs this program.
fn said(place: &Place, shell: &str, flags: &[&str], program: &str) -> String {
    let file = place.work().join("program");
    std::fs::write(&file, program).unwrap();
    let output = of_user(place, shell, flags).arg(&file).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A shell with the variables of a user: where the home and the store are.
fn of_user(place: &Place, shell: &str, flags: &[&str]) -> Command {
    let user = place.command(&[]);
    let mut command = Command::new(shell);
    command.args(flags).current_dir(place.work()).env_clear();
    for (name, value) in user.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TERM", "dumb");
    command
}

/// Lines that are typed in a bash at a terminal.
fn typed_in_bash(place: &Place, lines: &[String]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    fcntl_setfd(&master, FdFlags::CLOEXEC).unwrap();
    let name = std::ffi::OsString::from_vec(ptsname(&master, Vec::new()).unwrap().into_bytes());
    let terminal = std::fs::File::options().read(true).write(true).open(name).unwrap();
    let mut command = of_user(place, "bash", &["--norc", "--noprofile", "-i"]);
    // A quote that stays open would wait for more lines.
    command.env("TMOUT", "20").env("INPUTRC", "/dev/null").stdin(terminal.try_clone().unwrap());
    command.stdout(terminal.try_clone().unwrap()).stderr(terminal);
    let mut child = command.spawn().unwrap();
    drop(command);
    let (mut master, mut bytes) = (std::fs::File::from(master), Vec::new());
    let typed = lines.iter().map(|line| format!("{line}\n")).collect::<String>() + "exit\n";
    let mut keyboard = master.try_clone().unwrap();
    let typing = std::thread::spawn(move || keyboard.write_all(typed.as_bytes()));
    // Linux ends it with an error where the last one that held it is gone.
    let _ = master.read_to_end(&mut bytes);
    let _ = typing.join().unwrap();
    child.wait().unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn bash_completes() {
    let place = place("bash");
    for (typed, offered) in CASES {
        let words: Vec<&str> = typed.split(' ').collect();
        let last = words.len() - 1;
        let program = format!(
            "source ./script\nfunction=$(complete -p greenroom | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
             COMP_WORDS=({typed}); COMP_CWORD={last}; COMP_TYPE=9; COMP_LINE='{typed}'; COMP_POINT={}\n\
             $function greenroom '{}' '{}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            typed.len(),
            words[last],
            words[last - 1]
        );
        let said = said(&place, "bash", &["--norc"], &program);
        let mut lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines.sort_unstable();
        assert_eq!(lines, offered, "{typed}: {said}");
    }
}

/// Names that bash splits or that must be quoted, and files where a redirection leads, on lines that are typed.
#[test]
fn bash_completes_what_it_splits_and_what_must_be_quoted() {
    let place = place("bash");
    let setup = ["set +o history", "PS1=", "source ./script", RECORDS].map(str::to_owned);
    let typed = calls().into_iter().map(|(typed, _)| format!("{typed}\t"));
    let said = typed_in_bash(&place, &setup.into_iter().chain(typed).collect::<Vec<_>>());
    check_calls(&place, &said);
}

#[test]
fn fish_completes() {
    if !is_there("fish") {
        return;
    }
    let (place, mut tried) = (place("fish"), 0);
    let quoted = CALLS.iter().map(|(typed, called)| (*typed, &called[called.len() - 1..]));
    for (typed, offered) in CASES.into_iter().chain(quoted) {
        let line = typed.replace('\\', "\\\\").replace('\'', "\\'");
        let program = format!("source ./script\ncomplete -C '{line}'\n");
        let said = said(&place, "fish", &["--no-config"], &program);
        let candidates = said.lines().map(|line| line.split('\t').next().unwrap_or_default());
        let mut candidates: Vec<&str> = candidates.filter(|line| !line.is_empty()).collect();
        candidates.sort_unstable();
        assert_eq!(candidates, offered, "{typed}: {said}");
        tried += 1;
    }
    assert_eq!(tried, CASES.len() + CALLS.len());
    // A session's title stands beside its id.
    let said = said(&place, "fish", &["--no-config"], "source ./script\ncomplete -C 'greenroom show oth'\n");
    assert!(said.contains("other\tWhat is it?"));
}

/// Where the script lies in `fpath`, and where it is sourced; with a real line that is typed and completed.
#[test]
fn zsh_completes() {
    if !is_there("zsh") {
        return;
    }
    let place = place("zsh");
    let folder = place.work().join("functions");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(place.work().join("script"), folder.join("_greenroom")).unwrap();
    let loads = [
        "fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -u -D",
        "autoload -Uz compinit; compinit -u -D; source ./script",
    ];
    for load in loads {
        let _ = std::fs::remove_file(place.work().join("calls"));
        // What stands on the line after a tab is what the command is then called with.
        let lines: String = (calls().iter())
            .map(|(typed, _)| typed.replace('\\', "\\\\").replace('\'', "\\'"))
            .map(|typed| format!("zpty -w -n shell $'{typed}\\t\\n'\n"))
            .collect();
        let program = format!(
            "zmodload zsh/zpty || exit 9\nzpty shell zsh -f -i\n\
             zpty -w shell 'PS1=; unsetopt zle_bracketed_paste 2>/dev/null; {load}; {RECORDS}'\n\
             {lines}zpty -w shell 'print -r -- the-end'\n\
             while zpty -r shell line; do print -r -- $line; [[ $line == the-end* ]] && break; done\nzpty -d shell\n"
        );
        let said = said(&place, "zsh", &["-f"], &program);
        check_calls(&place, &said);
    }
}

/// Completing never makes a store, and never says anything but candidates.
#[test]
fn nothing_is_made_or_said_by_completing() {
    let place = Place::new();
    place.own_file("modle: broken\n");
    for (shell, words) in [
        ("zsh", &["greenroom", "show", ""][..]),
        ("zsh", &["greenroom", "run", "--model", ""]),
        ("zsh", &["greenroom", "--nonsense", ""]),
        ("bash", &["greenroom show ", "15", ""]),
        ("bash", &["greenroom run --model ", "22", ""]),
        ("bash", &["greenroom --nonsense ", "21", ""]),
        ("bash", &["greenroom ü", "11", "ü"]),
        ("bash", &["greenroom", "show", ""]),
    ] {
        let mut command = place.command(&["--"]);
        command
            .args(words)
            .env("GREENROOM_COMPLETE", shell)
            .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        let ran = super::support::ran(command.output().unwrap());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{words:?}: {ran:?}");
        assert!(!place.store().exists(), "{words:?}");
    }
    assert_eq!(place.run(&["completions", "tcsh"]).code, Some(2));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(&["completions", shell]);
        assert!(script.code == Some(0) && script.stdout.contains("GREENROOM_COMPLETE"), "{script:?}");
    }
}
