//! Whose answers count, for which folder.

use std::path::Path;

use super::{Answer, FolderTrust};
use crate::config::Config;
use crate::config::surroundings::{Handed, Surroundings};

/// An environment with this folder for the configuration, and these keys.
fn surroundings(dir: &Path, keys: &[(&str, &str)]) -> Surroundings {
    let mut variables = serde_json::json!({ "XDG_CONFIG_HOME": dir.join("config") });
    for (name, key) in keys {
        variables[*name] = (*key).into();
    }
    let handed = serde_json::json!({ "folder": dir, "variables": variables, "umask": 18 });
    Surroundings::of(serde_json::from_value::<Handed>(handed).expect("it is an environment"))
}

fn dir() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().canonicalize().expect("its path");
    for folder in ["work/.git", "work/sub", "other"] {
        std::fs::create_dir_all(path.join(folder)).expect("it is made");
    }
    (dir, path)
}

/// Keeps an answer about `work` with the first keys, and checks what is known in `folder` with the second ones.
fn check(kept: &[(Answer, &[(&str, &str)])], folder: &str, keys: &[(&str, &str)], expected: Answer) {
    let (_dir, dir) = dir();
    for (answer, keys) in kept {
        let trust = FolderTrust::of(&Config::default(), &dir.join("work"), &surroundings(&dir, keys));
        trust.keep(*answer).expect("it is kept");
    }
    let trust = FolderTrust::of(&Config::default(), &dir.join(folder), &surroundings(&dir, keys));
    assert_eq!(trust.answer(), expected, "{kept:?} in {folder} with {keys:?}");
}

#[test]
fn an_answer_is_for_one_project_and_counts_with_a_key_of_the_user() {
    const KEY: &[(&str, &str)] = &[("OPENAI_API_KEY", "k1")];
    const OTHER: &[(&str, &str)] = &[("OPENAI_API_KEY", "k2")];
    const BOTH: &[(&str, &str)] = &[("OPENAI_API_KEY", "k2"), ("ANTHROPIC_API_KEY", "k1")];
    use Answer::{NotAsked, Refused, Trusted};
    check(&[], "work", KEY, NotAsked);
    check(&[(Trusted, KEY)], "work", KEY, Trusted);
    check(&[(Trusted, KEY)], "work/sub", KEY, Trusted);
    check(&[(Trusted, KEY)], "other", KEY, NotAsked);
    check(&[(Trusted, KEY)], "work", BOTH, Trusted);
    check(&[(Refused, KEY)], "work", KEY, Refused);
    check(&[(Refused, KEY), (Trusted, KEY)], "work", KEY, Trusted);
    check(&[(Trusted, KEY), (Refused, KEY)], "work", KEY, Refused);
    // Without any key, nothing is proved, and nothing is asked twice.
    check(&[(Trusted, &[])], "work", &[], Trusted);
    // A command that writes the file has no key, so it cannot make a mark that counts for a user with one.
    check(&[(Trusted, &[])], "work", KEY, NotAsked);
    check(&[(Trusted, OTHER)], "work", KEY, NotAsked);
}

#[test]
fn the_configuration_names_folders_and_files_are_found() {
    let (_dir, dir) = dir();
    let write = |name: &str| {
        let path = dir.join("work").join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it is made");
        std::fs::write(path, "x").expect("it is written");
    };
    let here = surroundings(&dir, &[]);
    let config =
        Config { trusted_folders: vec![dir.join("work").display().to_string()], ..Config::default() };
    let of = |config: &Config, folder: &str| FolderTrust::of(config, &dir.join(folder), &here);
    assert!(of(&config, "work").is_given() && of(&config, "work/sub").is_given());
    assert!(!of(&config, "other").is_given());
    let untrusted = of(&Config::default(), "work/sub");
    assert_eq!(untrusted.refusal(), None, "there is nothing to read");
    ["AGENTS.md", "sub/CLAUDE.md", "sub/.greenroom/commands/x.md"].iter().for_each(|name| write(name));
    assert_eq!(untrusted.files(), ["AGENTS.md", "sub/CLAUDE.md", "sub/.greenroom/commands"]);
    assert!(untrusted.refusal().is_some_and(|text| text.contains("config trust --folder")));
    // An answer applies at once, to those who know it already, and only its owner can read and write it.
    untrusted.keep(Answer::Trusted).expect("it is kept");
    assert_eq!(untrusted.refusal(), None);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &dir.join("config/greenroom/trusted-folders").metadata().expect("it is there").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}
