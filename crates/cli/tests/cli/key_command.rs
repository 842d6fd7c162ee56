//! Keys that a command prints: run when the first one is needed, and again when the server refuses one.

use std::path::PathBuf;

use greenroom_simulator::Echo;

use super::host::Hosted;
use super::support::{Model, Place, ran};

/// A command that prints a stale token the first time and a good one from then on, and counts how often it ran.
struct Tokens {
    folder: tempfile::TempDir,
}

impl Tokens {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn command(&self) -> String {
        let log = self.log().display().to_string();
        format!(
            "pwd > {log}.folder; echo x >> {log}; if [ $(wc -l < {log}) -gt 1 ]; then echo good; else echo stale; fi; echo noise"
        )
    }

    /// The folder in which it ran last.
    fn ran_in(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log.folder")).unwrap().trim().to_owned()
    }

    fn ran(&self) -> usize {
        std::fs::read_to_string(self.log()).map_or(0, |log| log.lines().count())
    }
}

fn own_file(command: &str, url: &str) -> String {
    let command = serde_json::to_string(command).unwrap();
    format!("provider: corp\nproviders:\n  corp: {{ base_url: '{url}', key_command: {command} }}\n")
}

#[test]
fn an_expired_token_is_replaced_once() {
    let model = Model::new(Echo, |options| options.require_key = Some("good".to_owned()));
    let (place, tokens) = (Place::new(), Tokens::new());
    place.own_file(&own_file(&tokens.command(), &model.url()));
    let mut command = place.command(&["run", "--no-tools", "--model", "m", "-p", "Say hi."]);
    let said = ran(command.env("PATH", "/usr/bin:/bin").output().unwrap());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("Say hi."), "{said:?}");
    assert_eq!(tokens.ran(), 2, "the first key, and the one in place of the refused one");
    let home = place.work().parent().unwrap().canonicalize().unwrap().display().to_string();
    assert_eq!(tokens.ran_in(), home, "a project's folder could change what the command does");
    // Nothing of it is shown.
    for text in [&said.stdout, &said.stderr] {
        assert!(!text.contains("stale") && !text.contains("good"), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_keeps_no_stale_key() {
    let hosted = Hosted::requiring_key("good", "word").await;
    let tokens = Tokens::new();
    hosted.place.own_file(&own_file(&tokens.command(), &hosted.url()));
    let run = || {
        let mut command = hosted.command(&["run", "--no-tools", "--model", "m", "-p", "Go."]);
        command.env_remove("OPENAI_BASE_URL").env("PATH", "/usr/bin:/bin");
        ran(command.output().unwrap())
    };
    let first = run();
    assert_eq!((first.code, first.stdout.trim()), (Some(0), "word"), "{first:?}");
    assert_eq!(tokens.ran(), 2);
    let second = run();
    assert_eq!(second.code, Some(0), "{second:?}");
    assert_eq!(tokens.ran(), 2, "the host's agent keeps the good key");
}

#[test]
fn a_command_that_fails_is_named() {
    let model = Model::new(Echo, |options| options.require_key = Some("good".to_owned()));
    let place = Place::new();
    for (command, reason) in [
        (
            "echo sk-secret; echo not logged in >&2; exit 4",
            "key_command failed (exit status: 4): not logged in",
        ),
        ("true", "key_command printed nothing on its first line"),
    ] {
        place.own_file(&own_file(command, &model.url()));
        let said = place.run(&["run", "--no-tools", "--model", "m", "-p", "x"]);
        assert!(said.code != Some(0) && said.stderr.contains(reason), "{said:?}");
        assert!(!said.stderr.contains("sk-secret"), "{said:?}");
    }
    place.own_file(&own_file(" ", &model.url()));
    let said = place.run(&["run", "--model", "m", "-p", "x"]);
    assert!(said.code == Some(2) && said.stderr.contains("providers.corp.key_command"), "{said:?}");
    assert_eq!(model.simulator.calls(), 0);
}

/// A project's file cannot make the user run a command, and a given address does not get a configured provider's key.
#[test]
fn a_projects_file_and_a_given_address_get_nothing() {
    let model = Model::new(Echo, |_| {});
    let (place, tokens) = (Place::new(), Tokens::new());
    let text = own_file(&tokens.command(), &model.url());
    place.project_file(&text);
    let said = place.run(&["run", "--no-tools", "--model", "m", "-p", "x"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    place.project_file("");
    place.own_file(&text);
    let said = place.run(&["run", "--no-tools", "--model", "m", "-p", "x", "--base-url", &model.url()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(tokens.ran(), 0);
}
