//! Each usage error is one line with a remedy, and an exit code.

use greenroom_simulator::Answer;

use super::support::{Model, Place, Says, ran};

#[test]
fn what_cannot_work_is_said_in_one_line() {
    let place = Place::new();
    std::fs::write(place.work().join("bad.yaml"), "model: x\ncompaction:\n  threshold: 7\n").unwrap();
    std::fs::write(place.work().join("unknown.yaml"), "modle: x\n").unwrap();
    for (arguments, code, parts) in [
        (&["run", "--simulate"][..], 2, &["-p"][..]),
        (&["run", "-p", "x", "--simulate", "--workspace", "nowhere"], 2, &["workspace nowhere"]),
        (&["demo", "--workspace", "nowhere"], 2, &["workspace nowhere"]),
        (&["run", "-p", "x", "--base-url", "no url"], 2, &["no url"]),
        (&["run", "-p", "x", "--simulate", "--session", "up\u{7}"], 2, &["up", "session's id"]),
        (
            &["run", "-p", "x", "--base-url", "http://127.0.0.1:9", "--api-key-env", "NOT_SET"],
            2,
            &["NOT_SET"],
        ),
        (&["run", "-p", "x", "--config", "none.yaml"], 2, &["none.yaml"]),
        (
            &["run", "-p", "x", "--config", "bad.yaml"],
            2,
            &["bad.yaml, line 3: compaction.threshold", "fraction"],
        ),
        (&["config", "--config", "unknown.yaml"], 2, &["unknown.yaml, line 1", "modle"]),
        (&["compact", "--dry-run", "nothing.jsonl"], 3, &["nothing.jsonl"]),
        (&["sessions", "--data-dir", "/dev/null/x"], 3, &["/dev/null/x"]),
        (&["run", "-p", "x", "--simulate", "--data-dir", "/dev/null/x"], 3, &["/dev/null/x"]),
    ] {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.lines().count() <= 1, "{arguments:?}: {ran:?}");
        for part in parts {
            assert!(
                ran.stderr.starts_with("greenroom: ") && ran.stderr.contains(part),
                "{arguments:?}: {ran:?}"
            );
        }
    }
}

#[test]
fn the_command_line_teaches() {
    let place = Place::new();
    for (arguments, code, parts) in [
        (&["--help"][..], 0, &["greenroom -p PROMPT", "Have the agent write", "demo"][..]),
        (&["run", "--help"], 0, &["Examples", "Exit codes", "130", "--allow-shell"]),
        (&["chat", "--help"], 0, &["--base-url", "Examples"]),
        (&["config", "--default"], 0, &["model: gpt-5.5", "reserve_tokens: 16384"]),
    ] {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        for part in parts {
            assert!(ran.stdout.contains(part), "{arguments:?} does not say {part:?}: {}", ran.stdout);
        }
    }
    for arguments in [&["dance"][..], &["run", "--no-tools", "--allow-shell"], &["demo", "--window", "9"]] {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
}

#[test]
fn limits_hold_in_a_run() {
    let (place, model) =
        (Place::new(), Model::new(Says(Answer::call("read", &serde_json::json!({}))), |_| {}));
    for (limits, words) in [("steps_max: 3", "limit of 3 steps"), ("repeats_max: 2", "came 3 times in a row")]
    {
        place.project_file(&format!("limits: {{ {limits} }}\n"));
        let ran = place.run(&["run", "-p", "x", "--base-url", &model.url()]);
        assert_eq!(ran.code, Some(4), "{ran:?}");
        assert!(ran.stderr.contains(words), "{ran:?}");
    }
}

#[test]
fn a_configuration_in_the_folder_is_used() {
    let place = Place::new();
    place.project_file("model: another\ncompaction: { threshold: 0.5 }\n");
    let ran = place.run(&["config"]);
    assert!(ran.stdout.contains("model: another") && ran.stdout.contains("threshold: 0.5"), "{}", ran.stdout);
}

/// A variable that is set and empty is not set: scripts like to leave one so.
#[test]
fn empty_variables_are_as_unset() {
    let (place, model) = (Place::new(), Model::new(greenroom_simulator::Echo, |_| {}));
    let url = model.url();
    let home = place.work().join("home");
    let names = [
        "GREENROOM_DATA_DIR", "GREENROOM_MODEL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "XDG_CONFIG_HOME",
        "XDG_DATA_HOME", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NO_COLOR",
        "RUST_LOG", "TERM",
    ];
    for value in ["", " "] {
        let mut command = place.command(&["run", "-p", "Hello.", "--session", "mine", "--base-url", &url]);
        command.env("HOME", &home).envs(names.map(|name| (name, value)));
        let ran = ran(command.output().unwrap());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        assert_eq!(model.simulator.requests().pop().unwrap().request.model, "simulated");
        assert!(home.join(".local/share/greenroom/journal").exists(), "the store is where it is by default");
        assert!(!place.store().exists());
    }
    // Nor is a folder that is not absolute: each current folder would have a store of its own.
    let mut command = place.command(&["sessions"]);
    let relative = ["HOME", "XDG_DATA_HOME"].map(|name| (name, "relative"));
    let nowhere = ran(command.env_remove("GREENROOM_DATA_DIR").envs(relative).output().unwrap());
    assert_eq!(nowhere.code, Some(2), "{nowhere:?}");
    assert!(nowhere.stderr.contains("GREENROOM_DATA_DIR"), "{nowhere:?}");
    // And those that say something are heard.
    let mut command = place.command(&["run", "-p", "Hello.", "--base-url", &url]);
    assert_eq!(ran(command.env("GREENROOM_MODEL", "chosen").output().unwrap()).code, Some(0));
    assert_eq!(model.simulator.requests().pop().unwrap().request.model, "chosen");
    assert!(place.store().exists());
}
