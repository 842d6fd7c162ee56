//! Commands that try to leave the sandbox, or to stay: with bubblewrap, with Landlock, and without either.
//!
//! Invariants: what a command must not reach is verified from outside, by victims. This program is the helper too, so
//! it has its own `main`; it answers to the test runner as every test program does. As `root` it runs each
//! environment a second time as an ordinary user. What a machine does not offer is skipped, and named.

#[cfg(target_os = "linux")]
mod environments;
#[cfg(target_os = "linux")]
mod git;
#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
mod probes;
#[cfg(target_os = "linux")]
mod unruly;
#[cfg(target_os = "linux")]
mod victims;

use std::io::Write;
use std::process::ExitCode;

/// Prints a line for the person who runs the tests.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    say("skipped: the sandbox needs Linux");
    ExitCode::SUCCESS
}

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    use std::panic::catch_unwind;

    if let Some(code) = greenroom_tools::helper::run_if_requested() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let tests = environments::tests();
    if has("--list") {
        // None is ignored.
        if !has("--ignored") {
            tests.iter().for_each(|test| say(&format!("{}: test", test.name)));
        }
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| {
        wanted.is_empty()
            || wanted
                .iter()
                .any(|wanted| if has("--exact") { name == *wanted } else { name.contains(&**wanted) })
    };
    let mut failed = Vec::new();
    for test in tests.iter().filter(|test| is_wanted(test.name)) {
        say(&format!("test {} ...", test.name));
        if catch_unwind(test.run).is_err() {
            failed.push(test.name);
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    say(&format!("failed: {}", failed.join(", ")));
    ExitCode::FAILURE
}
