//! `run`: the answer and nothing else, events with their end, failures with their class, interruptions.

use greenroom_kernel::StopReason;
use greenroom_simulator::{Answer, Echo, Pace};
use rustix::process::Signal;

use super::support::{Model, Place, Says, events};

#[test]
fn it_prints_the_answer_and_nothing_else() {
    let (place, model) = (Place::new(), Model::new(Says(Answer::text("All is well.")), |_| {}));
    let ran = place.run(&["run", "-p", "How is it?", "--base-url", &model.url()]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "All is well.\n", ""));
    model.simulator.assert_clean();
}

/// A script that reads a part of an answer must not take it for the whole.
#[test]
fn an_answer_that_was_cut_off_is_said_on_standard_error() {
    for (stop, name, said) in [
        (StopReason::Length, "length", "output limit"),
        (StopReason::ContentFilter, "content_filter", "content filter"),
    ] {
        let (place, model) =
            (Place::new(), Model::new(Says(Answer::text("All is").with_finish(stop)), |_| {}));
        let url = model.url();
        let ran = place.run(&["run", "-p", "How is it?", "--base-url", &url]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "All is\n"), "{ran:?}");
        let (lines, begins) = (ran.stderr.lines().count(), "greenroom: warning: the answer was cut off");
        assert!(lines == 1 && ran.stderr.starts_with(begins) && ran.stderr.contains(said), "{ran:?}");
        let ran = place.run(&["run", "-p", "How is it?", "--json", "--base-url", &url]);
        assert!(ran.stderr.lines().count() == 1 && ran.stderr.contains(said), "{ran:?}");
        let events = events(&ran);
        let last = events.last().unwrap();
        assert_eq!((&last["type"], &last["stop"]), (&"run_end".into(), &name.into()), "{last}");
        let warned = events.iter().any(|event| {
            event["type"] == "warning" && event["message"].as_str().is_some_and(|text| text.contains(said))
        });
        assert!(warned, "{events:?}");
    }
}

#[test]
fn what_is_piped_in_follows_the_prompt() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    let ran = place.run_with(&["run", "-p", "Review this.", "--base-url", &model.url()], "some text\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let request = model.simulator.requests()[0].request.clone();
    assert_eq!(request.last_user_text(), "Review this.\n\nsome text");
    let ran = place.run_with(&["run", "--base-url", &model.url()], "only this\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(model.simulator.requests()[1].request.last_user_text(), "only this");
}

#[test]
fn events_come_one_a_line_and_the_last_is_the_end() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    let arguments = ["run", "-p", "Hello.", "--session", "mine", "--json", "--base-url", &model.url()];
    for _ in 0..2 {
        let ran = place.run(&arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let events = events(&ran);
        assert_eq!(events[0]["type"], "message_end");
        let last = events.last().unwrap();
        assert_eq!((&last["type"], &last["outcome"]), (&"run_end".into(), &"completed".into()));
        assert!(events.iter().all(|event| event["session_id"] == "mine"));
        assert!(last["context"]["tokens"].as_u64() > Some(0), "{last}");
        assert_eq!(last["stop"], "stop");
    }
    assert_eq!(place.only_session(), "mine");
    assert_eq!(model.simulator.requests()[1].request.messages.len(), 3, "the second goes on with the first");
}

#[test]
fn tools_are_offered_as_they_are_allowed() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    for (flags, names) in [
        (&[][..], &["read", "list", "grep", "recall"][..]),
        (&["--no-tools"], &[]),
        (&["--allow-write"], &["read", "list", "grep", "write", "edit", "recall"]),
        (&["--allow-shell"], &["read", "list", "grep", "write", "edit", "bash", "recall"]),
    ] {
        let url = model.url();
        let mut arguments = vec!["run", "-p", "Hello.", "--base-url", &url];
        arguments.extend(flags);
        assert_eq!(place.run(&arguments).code, Some(0));
        let request = model.simulator.requests().pop().unwrap().request;
        let mut offered: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        let mut names = names.to_vec();
        offered.sort_unstable();
        names.sort_unstable();
        assert_eq!(offered, names, "{flags:?}");
    }
}

#[test]
fn a_wrong_key_is_said_at_once() {
    let place = Place::new();
    let model = Model::new(Echo, |options| options.require_key = Some("right".to_owned()));
    let url = model.url();
    let mut command = place.command(&["run", "-p", "Hello.", "--json", "--base-url", &url]);
    let output = command.env("OPENAI_API_KEY", "wrong-secret").output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1));
    let last: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&last["type"], &last["class"]), (&"error".into(), &"auth".into()), "{last}");
    assert_eq!((&last["status"], &last["retryable"]), (&401.into(), &false.into()), "{last}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("greenroom: ") && stderr.contains("OPENAI_API_KEY"), "{stderr}");
    assert!(!stdout.contains("wrong-secret") && !stderr.contains("wrong-secret"));

    let right =
        place.command(&["run", "-p", "Hello.", "--base-url", &url]).env("OPENAI_API_KEY", "right").output();
    assert_eq!(right.unwrap().status.code(), Some(0));
}

#[test]
fn a_server_that_is_not_there_is_said_at_once() {
    let place = Place::new();
    let ran = place.run(&["run", "-p", "Hello.", "--json", "--base-url", "http://127.0.0.1:9/v1"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let events = events(&ran);
    let last = events.last().unwrap();
    assert_eq!((&last["class"], &last["retryable"]), (&"timeout".into(), &true.into()), "{last}");
    assert!(ran.stderr.contains("http://127.0.0.1:9/v1") && ran.stderr.lines().count() == 1, "{ran:?}");
}

#[test]
fn a_prompt_that_cannot_fit_is_told_by_its_class() {
    let place = Place::new();
    let model = Model::new(Echo, |options| options.window = 2_000);
    let text = "many words that do not fit ".repeat(2_000);
    let ran = place.run_with(&["run", "--json", "--no-tools", "--base-url", &model.url()], &text);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let last = events(&ran).pop().unwrap();
    assert_eq!(last["type"], "error");
    let class = last["class"].as_str().unwrap();
    assert!(["context_floor", "context_overflow"].contains(&class), "{last}");
    // The session is as usable as before.
    let id = last["session_id"].as_str().unwrap();
    assert_eq!(place.run(&["show", id]).code, Some(0));
}

fn slow() -> Model {
    let pace = Pace { chunks: 200, first_ms: 0, between_ms: 10 };
    let text: String = (0..200).map(|line| format!("line {line}\n")).collect();
    Model::new(Says(Answer::text(text).with_pace(pace)), |_| {})
}

#[test]
fn an_interruption_keeps_what_had_come() {
    for signal in [Signal::INT, Signal::TERM] {
        let (place, model) = (Place::new(), slow());
        let url = model.url();
        let arguments = ["run", "-p", "Count.", "--session", "mine", "--base-url", &url, "--json"];
        let mut run = place.start_alone(&arguments);
        run.wait_for("line 3");
        run.signal(signal);
        let ran = run.end();
        assert_eq!(ran.code, Some(130), "{ran:?}");
        let last = ran.stdout.lines().last().unwrap();
        assert!(last.contains("\"run_end\"") && last.contains("aborted"), "{last}");
        let shown = place.run(&["show", "mine"]);
        assert!(shown.stdout.contains("line 3") && !shown.stdout.contains("line 199"), "{}", shown.stdout);
        assert!(shown.stdout.contains("interrupted here"), "{}", shown.stdout);
        assert_eq!(place.json(&["sessions", "--json"])[0]["state"], "idle");
    }
}

/// `greenroom run … --json | head -1`: the run is aborted, and a script must not take it for done.
#[test]
fn a_run_whose_output_nobody_reads_is_aborted_and_says_so() {
    for arguments in [&["--json"][..], &["--json", "--no-host"]] {
        let (place, model) = (Place::new(), slow());
        let url = model.url();
        let run = ["run", "-p", "Count.", "--session", "mine", "--base-url", &url];
        let mut run = place.start_alone(&[&run[..], arguments].concat());
        run.wait_for("line 3");
        run.close_output();
        let ran = run.end();
        assert_eq!(ran.code, Some(130), "{ran:?}");
        assert!(
            ran.stderr.contains("the run was aborted because nothing reads its output any more"),
            "{ran:?}"
        );
        let shown = place.run(&["show", "mine"]);
        assert!(shown.stdout.contains("line 3") && !shown.stdout.contains("line 199"), "{}", shown.stdout);
    }
}

/// However early it comes: what was asked to stop is not carried out to its end.
#[test]
fn an_interruption_within_the_first_moments_is_not_swallowed() {
    const ROUNDS: u32 = 120;
    let heard = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let heard = &heard;
            scope.spawn(move || {
                let (place, model) = (Place::new(), slow());
                let url = model.url();
                let start = || place.start_alone(&["run", "-p", "Count.", "--base-url", &url]);
                // The first moments are as long as this machine takes to begin.
                let began = std::time::Instant::now();
                let run = start();
                wait_for_call(&model);
                let moments = began.elapsed();
                run.signal(Signal::INT);
                assert_eq!(run.end().code, Some(130));
                for round in (0..ROUNDS).filter(|round| round % 4 == thread) {
                    let run = start();
                    std::thread::park_timeout(moments * round / (ROUNDS / 2));
                    run.signal(Signal::INT);
                    let ran = run.end();
                    // Before it listens, the signal ends the process by itself.
                    assert!(matches!(ran.code, Some(130) | None), "round {round}: {ran:?}");
                    assert!(!ran.stdout.contains("line 199"), "round {round}: it ran to its end");
                    heard.fetch_add(u32::from(ran.code.is_some()), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert!(heard.into_inner() > 10, "no signal came while it worked");
}

/// A pipe gets an answer when it is whole; one that is interrupted is given as far as it is kept.
#[test]
fn an_interrupted_answer_on_a_pipe_is_what_is_kept() {
    for signal in [Signal::INT, Signal::TERM] {
        let (place, model) = (Place::new(), slow());
        let url = model.url();
        let run = place.start_alone(&["run", "-p", "Count.", "--session", "mine", "--base-url", &url]);
        wait_for_call(&model);
        run.signal(signal);
        let ran = run.end();
        assert_eq!(ran.code, Some(130), "{ran:?}");
        assert!(!ran.stdout.contains("line 199"), "{ran:?}");
        let shown = place.run(&["show", "mine"]);
        assert!(shown.stdout.contains(ran.stdout.trim()), "{ran:?}, {}", shown.stdout);
        assert_eq!(place.json(&["sessions", "--json"])[0]["state"], "idle");
    }
}

fn wait_for_call(model: &Model) {
    while model.simulator.calls() == 0 {
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
}

#[test]
fn an_answer_whose_reader_goes_away_before_it_is_printed_ends_quietly() {
    let (place, model) = (Place::new(), slow());
    let url = model.url();
    let mut run = place.start_alone(&["run", "-p", "Count.", "--session", "mine", "--base-url", &url]);
    wait_for_call(&model);
    run.close_output();
    let ran = run.end();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert_eq!(place.json(&["sessions", "--json"])[0]["state"], "idle");
}

#[test]
fn an_input_that_says_nothing_is_not_waited_for() {
    let (place, model) = (Place::new(), Model::new(Says(Answer::text("All is well.")), |_| {}));
    let run = place.start(&["run", "-p", "How is it?", "--base-url", &model.url()]);
    let ran = run.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "All is well.\n"), "{ran:?}");
    assert!(ran.stderr.contains("continuing without it"), "{ran:?}");
}

/// A file, a model's own section and flags, in this order; the server reads what is left.
#[test]
fn model_settings_come_from_the_configuration_and_from_flags() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    let url = model.url();
    let file = place.work().join("mine.yaml");
    std::fs::write(
        &file,
        "model_settings: { temperature: 0.1, seed: 1, extra: { top_k: 5 } }\n\
         models: { chosen: { temperature: 0.2, reasoning_effort: high }, other: { seed: 9 } }\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let flags = [
        "run", "-p", "Hello.", "--model", "chosen", "--base-url", &url, "--config", file, "--temperature",
        "0.3", "--stop", "END", "--stop", "FIN", "--max-output-tokens", "55", "--tool-choice", "list",
    ];
    let ran = place.run(&flags);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let sent = serde_json::to_value(&model.simulator.requests()[0].request.settings).unwrap();
    assert_eq!(
        sent,
        serde_json::json!({
            "temperature": 0.3, "reasoning_effort": "high", "tool_choice": "list", "stop": ["END", "FIN"], "seed": 1,
            "output_tokens_max": 55, "extra": { "top_k": 5 },
        })
    );
    for (flag, value, problem) in [
        ("--temperature", "5", "temperature: must be 0 to 2"),
        ("--effort", "huge", "unknown reasoning effort"),
        ("--tool-choice", "lost", "there is no tool \"lost\""),
    ] {
        let ran = place.run(&["run", "-p", "Hello.", "--base-url", &url, flag, value]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(problem), "{ran:?}");
    }
    assert_eq!(model.simulator.requests().len(), 1);
    model.simulator.assert_clean();
}

/// The system prompt of the binary's own agent, for each set of tools.
#[test]
fn what_the_model_is_told_of_its_work() {
    let model = Model::new(Echo, |_| {});
    let place = Place::new();
    let url = model.url();
    let mut told = String::new();
    for flags in [&["--no-tools"][..], &[], &["--allow-write"], &["--allow-shell"]] {
        let ran = place.run(&[&["run", "-p", "hi", "--base-url", &url], flags].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let requests = model.simulator.requests();
        let request = &requests.last().unwrap().request;
        let system = request.system.as_deref().unwrap_or("none");
        told.push_str(&format!("{flags:?}: {} tools\n{system}\n\n", request.tools.len()));
    }
    let work = std::fs::canonicalize(place.work()).unwrap();
    let told = told.replace(&work.display().to_string(), "<workspace>");
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("system_prompts", told);
    });
}

#[test]
fn standard_input_that_is_not_utf8_is_said() {
    let model = Model::new(Echo, |_| {});
    let place = Place::new();
    let url = model.url();
    let script = format!(
        "printf '\\377A\\377' | {} run -p x --no-tools --base-url {url} --data-dir {}",
        env!("CARGO_BIN_EXE_greenroom"),
        place.store().display()
    );
    let output =
        std::process::Command::new("sh").args(["-c", &script]).current_dir(place.work()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.contains("2 places in it are now"), "{stderr}");
    assert_eq!(model.simulator.requests()[0].request.messages[0].text(), "x\n\n\u{fffd}A\u{fffd}");
}
