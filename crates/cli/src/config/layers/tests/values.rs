//! Values of a project's file over the user's, and files that are refused.

use std::os::unix::fs::chown;

use super::{Config, Folders, holds};
use crate::config::FILE_NAME;

/// Returns a file with this setting alone; an empty value sets nothing.
fn line(key: &str, value: &str) -> String {
    match key.split_once('.') {
        _ if value.is_empty() => String::new(),
        Some((section, key)) => format!("{section}:\n  {key}: {value}\n"),
        None => format!("{key}: {value}\n"),
    }
}

#[test]
fn of_limits_the_stricter_holds() {
    for (key, own, project, expect) in [
        ("limits.steps_max", "", "4294967295", "250"),
        ("limits.steps_max", "9", "10", "9"),
        ("limits.steps_max", "9", "8", "8"),
        ("limits.steps_max", "900", "800", "800"),
        ("limits.repeats_max", "", "4294967295", "8"),
        ("limits.repeats_max", "3", "2", "2"),
        ("limits.retries_max", "", "4294967295", "5"),
        ("limits.retries_max", "0", "5", "0"),
        ("limits.tool_timeout_s", "30", "31", "30"),
        ("limits.tool_timeout_s", "30", "29", "29"),
        ("limits.tool_timeout_s", "30", "null", "30"),
        ("limits.tool_timeout_s", "", "7", "7"),
        ("limits.calls_max", "", "4294967295", "128"),
        ("limits.calls_max", "9", "8", "8"),
        ("limits.call_bytes_max", "", "99999999999", "1048576"),
        ("limits.call_bytes_max", "", "1000", "1000"),
        ("limits.run_timeout_s", "", "99999999", "14400"),
        ("limits.run_timeout_s", "", "60", "60"),
        ("limits.run_timeout_s", "60", "null", "60"),
        ("limits.run_timeout_s", "null", "60", "60"),
        ("limits.cost_usd_max", "5.0", "0.5", "0.5"),
        ("limits.cost_usd_max", "0.5", "5.0", "0.5"),
        ("limits.cost_usd_max", "0.5", "null", "0.5"),
        ("limits.cost_usd_max", "null", "5.0", "5.0"),
        ("limits.cost_usd_max", "1", "2", "1.0"),
        ("compaction.max_request_bytes", "", "99999999", "18874368"),
        ("compaction.max_request_bytes", "100000", "200000", "100000"),
        ("compaction.auto_compact_token_limit", "9000", "10000", "9000"),
        ("compaction.auto_compact_token_limit", "9000", "null", "9000"),
        ("compaction.auto_compact_token_limit", "", "9000", "9000"),
        ("compaction.model_auto_compact_token_limit", "9000", "10000", "9000"),
        ("compaction.context_window", "32000", "1000000", "32000"),
        ("compaction.unknown_window", "32000", "1000000", "32000"),
        ("compaction.unknown_window", "32000", "disable", "32000"),
        ("context_window", "32000", "1000000", "32000"),
        // What is known of a model is no limit of cost or time.
        ("context_window", "32000", "null", "null"),
        ("compaction.context_window", "32000", "null", "null"),
        // What cannot be off stays as it is.
        ("limits.steps_max", "900", "null", "900"),
        ("limits.steps_max", "null", "300", "250"),
        ("compaction.unknown_window", "32000", "null", "32000"),
        ("context_window", "", "64000", "64000"),
        // When to compact is the project's choice, and is never off for what cannot be off.
        ("compaction.threshold", "null", "", "null"),
        ("compaction.reserve_tokens", "null", "", "null"),
        ("compaction.threshold", "0.7", "null", "null"),
        ("compaction.min_split_prefix", "9", "null", "5"),
        ("model", "mine", "null", "gpt-5.5"),
    ] {
        let place = Folders::with(&line(key, own), &line(key, project));
        let loaded = place.load(&[]).unwrap_or_else(|error| panic!("{key}: {own} and {project}: {error}"));
        let key = key.replace("model_auto", "auto");
        assert_eq!(holds(&loaded, &key), expect, "{key}: {own} and {project}");
    }
}

#[test]
fn a_section_that_a_project_empties_takes_nothing_away() {
    let own = "limits: { steps_max: 9, cost_usd_max: 2.5 }\n";
    for project in ["limits: null\n", "limits:\n", "limits: {}\n", "null\n", "# nothing\n"] {
        let loaded = Folders::with(own, project).load(&[]).expect(project);
        let limits = ["limits.steps_max", "limits.cost_usd_max"].map(|key| holds(&loaded, key));
        assert_eq!(limits, ["9", "2.5"], "{project}");
    }
    for project in [
        "limits: 3\n", "limits: [1]\n", "limits: { steps_max: '9' }\n", "limits: { steps_max: !x 9 }\n",
        "[]\n",
    ] {
        assert!(Folders::with(own, project).error().contains(FILE_NAME), "{project}");
    }
}

#[test]
fn the_text_of_a_prompts_file_is_checked_as_one_in_the_configuration() {
    let place = Folders::with("compaction: { compact_prompt: 'file:own.md' }\n", "");
    let file = place.own().with_file_name("own.md");
    for (text, reason) in [
        (b" \n".to_vec(), "must not be empty"),
        (vec![0xff], "not UTF-8"),
        (b"{messages} {messages}".to_vec(), "more than once"),
        (b"file:other.md".to_vec(), "names a file"),
    ] {
        place.write(&file, text, 0o600);
        let error = place.error();
        assert!(error.contains(reason) && error.contains("compact_prompt"), "{reason}: {error}");
    }
    std::fs::remove_file(&file).expect("removed");
    std::fs::create_dir(&file).expect("a folder");
    assert!(place.error().contains("not a regular file"), "{}", place.error());
}

#[test]
fn a_file_of_another_owner_is_not_read() {
    let place = Folders::with("", "model: theirs\n");
    if chown(place.project(), Some(12_345), None).is_err() {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: only root can give a file away");
        }
        return;
    }
    let loaded = place.load(&[]).expect("usable");
    assert_eq!(loaded.config.model, Config::default().model);
    let [warning] = loaded.warnings.as_slice() else { panic!("{:?}", loaded.warnings) };
    assert!(warning.contains("greenroom.yaml is not read") && warning.contains("12345"), "{warning}");
}

#[test]
fn a_file_that_is_deep_wide_or_endless_is_refused_at_once() {
    // Deep, in every way that YAML knows; wide; endless by reference.
    let bomb = (1..30).fold("a0: &a0 [x]\n".to_owned(), |text, number| {
        let before = format!("*a{},", number - 1).repeat(9);
        format!("{text}a{number}: &a{number} [{before}]\n")
    });
    for (what, text) in [
        ("brackets", "[".repeat(100_000)),
        ("brackets within the size", "[".repeat(60_000)),
        ("braces", "{a: ".repeat(15_000)),
        ("dashes", "- ".repeat(30_000)),
        ("questions", "? ".repeat(30_000)),
        ("indents", (0..300).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect()),
        ("size", format!("model: x\n{}", "# y\n".repeat(1_000_000))),
        ("anchors", bomb),
    ] {
        for (own, project) in [(text.as_str(), ""), ("", &text)] {
            let error = Folders::with(own, project).error();
            assert!(error.contains(FILE_NAME), "{what}: {error}");
            // Not left to the parser, whose time grows with the square of the depth.
            let is_deep = what.ends_with("within the size") || what == "braces";
            assert_eq!(error.contains("2000 brackets"), is_deep, "{what}: {error}");
        }
    }
}
