//! Text of models, tools, files, providers and configurations controls no terminal and hides nothing, on any surface:
//! at a terminal that can be drawn over, at a dumb one, and in what is piped on. A pipe gets whole answers.

use greenroom_simulator::{
    Answer, ByPurpose, CallInfo, Fault, Function, Point, SeenRequest, Sequence, Summariser,
};
use serde_json::json;

use super::support::{Model, Place, Says};

/// Sets the clipboard, the title; clears; moves; overwrites; turns the direction around; hides.
const HOSTILE: [&str; 13] = [
    "\x1b]52;c;cm0gLXJm\x07",
    "\x1b]0;owned\x1b\\",
    "\x1b[2J\x1b[H",
    "\x1bc",
    "\u{9b}2J",
    "\u{9d}0;owned\u{9c}",
    "\u{85}",
    "\u{8}\u{7f}\u{0}",
    "\u{202e}gnp.exe",
    "\u{2066}a\u{2069}\u{200e}\u{200f}\u{61c}",
    "\u{2028}a\u{2029}",
    "\u{e0041}\u{e0042}\u{e007f}",
    "\u{feff}",
];

/// Where a command writes to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sink {
    Pipe,
    Dumb,
    Drawn,
}

const SINKS: [Sink; 3] = [Sink::Pipe, Sink::Dumb, Sink::Drawn];

/// Runs a command, and gives all that it wrote, to both streams.
fn written(place: &Place, sink: Sink, arguments: &[&str], input: &str) -> String {
    match sink {
        Sink::Pipe => {
            let ran = place.run_with(arguments, input);
            ran.stdout + &ran.stderr
        }
        Sink::Dumb => place.run_at_terminal("dumb", arguments, input),
        Sink::Drawn => place.run_at_terminal("xterm-256color", arguments, input),
    }
}

/// Nothing of it is obeyed, nothing misleads, and our own signs are there only where they belong.
fn assert_harmless(name: &str, sink: Sink, text: &str) {
    // The terminal ends lines with both; the live line is drawn over.
    let mut rest = text.replace("\r\n", "\n");
    if sink == Sink::Drawn {
        rest = rest.replace("\r\x1b[2K", "").replace('\r', "");
        for code in ["0", "1", "2", "31", "32", "33", "36;1"] {
            rest = rest.replace(&format!("\x1b[{code}m"), "");
        }
    }
    let found = rest.chars().find(|c| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}')
            || matches!(c, '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    });
    assert_eq!(found, None, "{name}, {sink:?}: {text:?}");
}

/// All of them, between words.
fn hostile() -> String {
    format!("so {} it is", HOSTILE.join(" and "))
}

#[test]
fn answers_and_tool_calls_steer_nothing() {
    // A call of a tool with a hostile name and arguments, which does not exist, and then an answer.
    let script = Function(|request: &SeenRequest, info: CallInfo| match info.session_call % 2 {
        _ if request.last_user_text().starts_with("[") => Answer::text("a summary"),
        0 => Answer::text(hostile()).and_call(hostile(), &json!({ "path": hostile(), "command": hostile() })),
        _ => Answer::text(hostile()),
    });
    let model = Model::new(ByPurpose::new(script, Summariser::Obedient), |_| {});
    let url = model.url();
    let mut seen = 0;
    for sink in SINKS {
        let place = Place::new();
        for (name, arguments, input) in [
            ("run", vec!["run", "-p", "go", "-v", "--session", "mine", "--base-url", &url], ""),
            ("run --json", vec!["run", "-p", "go", "--json", "--session", "mine", "--base-url", &url], ""),
            (
                "chat",
                vec!["chat", "--session", "mine", "--base-url", &url],
                "go\n/status\n/context\n/plan\n/quit\n",
            ),
            ("show", vec!["show", "mine"], ""),
            ("show --json", vec!["show", "mine", "--json"], ""),
            ("sessions", vec!["sessions"], ""),
            ("export", vec!["export", "mine"], ""),
            ("export --format markdown", vec!["export", "mine", "--format", "markdown"], ""),
            ("plan", vec!["compact", "--dry-run", "mine"], ""),
            ("log", vec!["run", "-p", "go", "-vvv", "--json", "--session", "mine", "--base-url", &url], ""),
        ] {
            let text = written(&place, sink, &arguments, input);
            assert!(!text.contains("panicked"), "{name}: {text}");
            if sink == Sink::Pipe && matches!(name, "run" | "chat") {
                // A program gets what was said.
                assert!(text.contains(&hostile()), "{name}: {text:?}");
                continue;
            }
            assert_harmless(name, sink, &text);
            if matches!(name, "run" | "chat" | "show") {
                assert!(
                    text.contains(r"\u{1b}]52;c;cm0gLXJm\u{7}"),
                    "{name}, {sink:?} shows what it was: {text:?}"
                );
            }
            if name == "export" && sink == Sink::Pipe {
                for line in text.lines() {
                    serde_json::from_str::<serde_json::Value>(line).unwrap();
                }
            }
            if matches!(name, "run --json" | "export") {
                assert!(text.contains(r"\u202egnp.exe") && text.contains(r"\u009b2J"), "{name}: {text:?}");
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 28);
}

#[test]
fn refusals_of_providers_steer_nothing() {
    let body = json!({ "error": { "message": hostile(), "type": hostile(), "code": hostile() } }).to_string();
    for status in [400, 401, 404, 500] {
        let fault = Fault::Http { status, headers: Vec::new(), body: body.clone() };
        let model = Model::new(Says(Answer::fault(fault)), |_| {});
        let url = model.url();
        let settings = "limits: { retries_max: 0 }\n";
        for sink in SINKS {
            let place = Place::new();
            place.own_file(settings);
            for flags in
                [&["run", "-p", "go"][..], &["run", "-p", "go", "--json"], &["run", "-p", "go", "-vvv"]]
            {
                let mut arguments = flags.to_vec();
                arguments.extend(["--session", "mine", "--base-url", &url]);
                let text = written(&place, sink, &arguments, "");
                assert_harmless(&format!("{status}, {flags:?}"), sink, &text);
            }
            for arguments in [&["show", "mine"][..], &["chat", "--session", "mine", "--base-url", &url]] {
                assert_harmless("afterwards", sink, &written(&place, sink, arguments, "hello\n"));
            }
        }
    }
}

#[test]
fn files_of_others_steer_nothing() {
    let id = |name: &str| format!("{name}{}", HOSTILE.concat());
    let message = |name: &str, parent: Option<&str>, role: &str| {
        json!({
            "type": "message", "id": id(name), "parentId": parent.map(id), "timestamp": hostile(),
            "message": {
                "role": role, "content": [{ "type": "text", "text": hostile().repeat(200) }],
                "provider": hostile(), "model": hostile(), "timestamp": 1,
            },
        })
    };
    let mut lines = vec![json!({ "type": "session", "version": 3, "id": id("s"), "cwd": hostile() })];
    lines.push(json!({ "type": hostile(), "id": id("odd"), "parentId": hostile() }));
    lines.push(json!({ "type": "message", "id": id("bad"), "message": { "role": hostile(), "content": 7 } }));
    let mut parent: Option<String> = None;
    for number in 0..20 {
        let name = format!("g{number}");
        let role = if number % 2 == 0 { "user" } else { "assistant" };
        lines.push(message(&name, parent.as_deref(), role));
        parent = Some(name);
    }
    let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
    for sink in SINKS {
        let place = Place::new();
        let file = place.work().join("hostile.jsonl");
        std::fs::write(&file, text.join("\n")).unwrap();
        let named = place.work().join(format!("n{}.jsonl", HOSTILE.concat().replace(['/', '\0'], "")));
        std::fs::write(&named, "no session at all").unwrap();
        let (file, named) = (file.to_str().unwrap(), named.to_str().unwrap());
        let mut seen = String::new();
        for arguments in [
            &["compact", "--dry-run", file, "--keep-recent", "2000", "--window", "20000"][..],
            &["compact", "--dry-run", file, "--json"],
            &["compact", "--dry-run", named],
            &["import", named],
            &["import", file, "--json"],
            &["delete", "no-such"],
            &["sessions"],
            &["sessions", "--json"],
        ] {
            let text = written(&place, sink, arguments, "");
            assert_harmless(&format!("{arguments:?}"), sink, &text);
            seen.push_str(&text);
        }
        assert!(seen.contains("keep all from entry g"), "the plan names an entry: {seen}");
        let id = place.only_session();
        for arguments in [
            &["show", id.as_str()][..],
            &["export", &id],
            &["compact", "--dry-run", &id],
            &["delete", &id],
            &["import", file],
        ] {
            assert_harmless(&format!("{arguments:?}"), sink, &written(&place, sink, arguments, ""));
        }
    }
}

#[test]
fn configurations_steer_nothing() {
    let quoted = |text: &str| {
        // YAML has its own escapes for them.
        let escaped = text.chars().map(|c| format!("\\U{:08x}", u32::from(c)));
        format!("\"{}\"", escaped.collect::<String>())
    };
    let texts = |hostile: &str| {
        let word = quoted(&format!("x{hostile}y"));
        [
            format!("{word}: 1\n"),
            format!("limits: {{ {word}: 1 }}\n"),
            format!("model: {word}\n"),
            format!("provider: {word}\n"),
            format!("provider: {{ base_url: {word} }}\n"),
            format!("providers: {{ {word}: {{ base_url: {word} }} }}\n"),
            format!("compaction: {{ strategy: {word}, compact_prompt: {word} }}\n"),
            format!("compaction: {{ compact_prompt: {word} }}\n"),
            // As it is, where the parser lets it through.
            format!("x{hostile}y: 1\n"),
        ]
    };
    let mut seen = 0;
    let mut check = |text: &str, sink, arguments: &[&str]| {
        let place = Place::new();
        place.project_file(text);
        assert_harmless(&format!("{text:?}"), sink, &written(&place, sink, arguments, ""));
        seen += 1;
    };
    for hostile in HOSTILE {
        for text in texts(hostile) {
            check(&text, Sink::Pipe, &["config"]);
        }
    }
    for text in texts(&hostile()) {
        for sink in [Sink::Dumb, Sink::Drawn] {
            check(&text, sink, &["config"]);
            check(&text, sink, &["run", "-p", "go", "--base-url", "http://127.0.0.1:9"]);
        }
    }
    assert_eq!(seen, 13 * 9 + 9 * 4);
}

/// The first stream breaks after some text, the second is whole.
#[test]
fn a_void_answer_is_not_mixed_with_the_real_one() {
    let broken = || Answer::text("rm -rf WRONG and more of it").with_fault(Fault::Reset(Point::BeforeFinish));
    let whole = || Answer::text("right");
    let answers = || Model::new(Sequence(vec![broken(), broken(), whole()]), |_| {});
    let (place, model) = (Place::new(), answers());
    let ran = place.run(&["run", "-p", "go", "--base-url", &model.url()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "right\n"), "{ran:?}");
    assert_eq!(model.simulator.calls(), 3);
    // In a chat that is piped on, too.
    let model = answers();
    let ran = place.run_with(&["chat", "--base-url", &model.url()], "go\n");
    assert!(ran.stdout.contains("right\n") && !ran.stdout.contains("WRONG"), "{ran:?}");
    // Programs are told by an event.
    let model = answers();
    let ran = place.run(&["run", "-p", "go", "--json", "--base-url", &model.url()]);
    assert_eq!(ran.stdout.matches("message_discarded").count(), 2, "{ran:?}");
    // A person sees it come, and is told that it does not count.
    for term in ["dumb", "xterm"] {
        let model = answers();
        let text = place.run_at_terminal(term, &["run", "-p", "go", "--base-url", &model.url()], "");
        let (void, real) = text.rsplit_once("is discarded").expect("it is said");
        assert!(void.contains("rm -rf") && !real.contains("rm -rf"), "{term}: {text:?}");
        assert!(real.contains("right"), "{term}: {text:?}");
        assert_eq!(text.matches("is discarded").count(), 2, "{term}: {text:?}");
    }
}
