//! `-v` tells the story of a run on standard error, `-vv` its decisions with the numbers, and neither any content.

use greenroom_simulator::{Answer, ByPurpose, CallInfo, Function, SeenRequest, Summariser};
use serde_json::json;

use super::support::{Model, Place, Ran};

/// Words of the prompt, of a tool's arguments and result, and of the answer; and a key, in two places.
const SECRETS: [&str; 6] = ["xyzzy", "plugh", "frobozz", "quux", "sk-secret", "hidden"];
/// What happens.
const STORY: [&str; 6] = [
    "a run starts", "the model answered", "a tool ended", "a compaction begins", "the compaction ended",
    "the run ended",
];
/// Why it happens.
const DECISIONS: [&str; 5] = [
    "the context is measured", "is a compaction due?", "the plan of the compaction", "the store is open",
    "the configuration",
];

/// Reads a file once, and has long answers.
fn model() -> Model {
    let runs = Function(|_: &SeenRequest, call: CallInfo| match call.session_call {
        0 => Answer::call("read", &json!({ "path": "plugh.txt" })),
        _ => Answer::text(format!("quux {}", "word ".repeat(1_600))),
    });
    Model::new(ByPurpose::new(runs, Summariser::Obedient), |options| options.window = 8_000)
}

/// A run that compacts, with this flag: the last of several.
fn run(flag: Option<&str>) -> Ran {
    let (place, model) = (Place::new(), model());
    std::fs::write(place.work().join("plugh.txt"), "frobozz\n").unwrap();
    let url = format!("{}?key=hidden", model.url());
    let mut stderr = String::new();
    for _ in 0..6 {
        let mut arguments = vec!["run", "-p", "xyzzy", "--session", "mine", "--json", "--window", "8000"];
        arguments.extend(["--base-url", url.as_str()]);
        arguments.extend(flag);
        let output =
            place.command(&arguments).env("OPENAI_API_KEY", "sk-secret-0123456789").output().unwrap();
        let ran = super::support::ran(output);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        // Standard output is what it is without the flag.
        super::support::events(&ran);
        stderr.push_str(&ran.stderr);
    }
    Ran { code: Some(0), stdout: String::new(), stderr }
}

#[test]
fn v_tells_the_story_and_vv_the_decisions() {
    let quiet = run(None);
    assert_eq!(quiet.stderr, "");
    let (story, decisions) = (run(Some("-v")).stderr, run(Some("-vv")).stderr);
    for line in STORY {
        assert!(story.contains(line) && decisions.contains(line), "{line}: {story}");
    }
    for line in DECISIONS {
        assert!(!story.contains(line) && decisions.contains(line), "{line}: {decisions}");
    }
    let line_of =
        |text: &str, words: &str| text.lines().find(|line| line.contains(words)).unwrap().to_owned();
    let answered = line_of(&story, "the model answered");
    for part in ["[mine] ", " input_tokens=", " output_tokens=", " took_ms=", " stop=tool_calls"] {
        assert!(answered.contains(part), "{part}: {answered}");
    }
    let measured = line_of(&decisions, "the context is measured");
    for part in [" tokens=", " window=8000", " window_source=setting", " trigger_at=6001", " due=false"] {
        assert!(measured.contains(part), "{part}: {measured}");
    }
    assert!(line_of(&decisions, "the plan of").contains(" kept_tokens="));
    for secret in SECRETS {
        assert!(!story.contains(secret) && !decisions.contains(secret), "{secret}: {decisions}");
    }
}

#[test]
fn it_is_told_by_all_commands_that_run_something() {
    let (place, model) = (Place::new(), model());
    std::fs::write(place.work().join("plugh.txt"), "frobozz\n").unwrap();
    let url = model.url();
    let ran = place.run_with(&["chat", "-v", "--session", "one", "--base-url", &url], "xyzzy\n/quit\n");
    assert!(ran.stderr.contains("[one] the run ended"), "{ran:?}");
    let prompt =
        r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"session_id":"two","text":"xyzzy"}}"#;
    let mut rpc = place.start(&["rpc", "-v", "--base-url", &url]);
    rpc.say(prompt);
    rpc.wait_for_word("[two] the run ended");
    rpc.close_input();
    assert_eq!(rpc.end().code, Some(0));
    let ran = place.run(&["sessions", "-vv"]);
    assert!(ran.stderr.contains("the store is open"), "{ran:?}");
    let ran = place.run(&["compact", "--dry-run", "one", "-vv"]);
    assert!(ran.stderr.contains("the plan is made with") && ran.stderr.contains("keep_recent="), "{ran:?}");
}
