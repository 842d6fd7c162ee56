//! The chat at a terminal: typing, pasting, steering, queueing, interrupting, compacting, resizing, going on.

use std::time::{Duration, Instant};

use greenroom_kernel::StopReason;
use greenroom_simulator::{
    Answer, ByPurpose, CallInfo, Fault, Function, Pace, Script, SeenRequest, SimulatorOptions, Summariser,
};

use serde_json::json;

use super::host::Hosted;
use super::screen::{Terminal, is_there};
use super::support::{Model, Place};

pub(super) const SIZE: (u16, u16) = (90, 30);

/// Says how long what it was told is; slowly, where it is told so. `slow` streams a word every 20 ms for minutes.
fn model() -> Model {
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        let told = request.last_user_text().to_owned();
        if told.contains("slow") {
            let words: Vec<String> = (0..3_000).map(|number| format!("word{number}")).collect();
            return Answer::text(words.join(" ")).with_pace(Pace {
                chunks: 3_000,
                first_ms: 10,
                between_ms: if told.contains("resized") { 60 } else { 20 },
            });
        }
        if told.contains("fill") {
            return Answer::text((0..=30).map(|number| format!("- row {number}\n")).collect::<String>());
        }
        let first = told.split_whitespace().next().unwrap_or_default().chars().take(12).collect::<String>();
        Answer::text(format!("heard {first}: {} lines, {} bytes", told.lines().count(), told.len()))
    });
    new(script)
}

pub(super) fn new(script: impl Script) -> Model {
    new_with(script, Summariser::Obedient)
}

fn new_with(script: impl Script, summariser: impl Script) -> Model {
    Model::new(ByPurpose::new(script, summariser), |_| {})
}

pub(super) fn chat(place: &Place, model: &Model, size: (u16, u16), more: &[&str]) -> Terminal {
    let url = model.url();
    let mut arguments = vec!["chat", "--base-url", &url, "--session", "mine"];
    arguments.extend(more);
    let terminal = Terminal::run(place, size, &arguments);
    terminal.shows("›");
    terminal
}

#[test]
fn what_is_typed_is_edited_and_answered() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.types("world");
    terminal.press("C-a");
    terminal.types("hello ");
    terminal.press("M-f");
    terminal.types("!");
    terminal.press("Enter");
    terminal.shows("heard hello: 1 lines, 12 bytes");
    // It is found again.
    terminal.press("Up");
    terminal
        .until("the prompt is back in the editor", |screen| screen.matches("› hello world!").count() == 2);
    terminal.press("C-c");
    terminal.press("C-c");
    terminal.press("C-c");
    let screen = terminal.shows("ended with 0");
    assert!(screen.contains("To continue: greenroom resume mine"), "{screen}");
    // In the next chat, too.
    let again = chat(&place, &model, SIZE, &[]);
    again.shows("Resumed hello world!");
    again.shows("heard hello");
    again.press("Up");
    again.until("the prompt is found in the history", |screen| screen.matches("› hello world!").count() == 2);
}

#[test]
fn two_hundred_pasted_lines_are_one_prompt() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    let terminal = chat(&place, &model, SIZE, &[]);
    let lines: Vec<String> =
        (0..200).map(|number| format!("frame {number} of the stack {}", "x".repeat(60))).collect();
    let pasted = lines.join("\n");
    terminal.pastes(&pasted);
    terminal.shows("[pasted 200 lines]");
    terminal.press("Enter");
    terminal.shows(&format!("heard frame: 200 lines, {} bytes", pasted.len()));
    assert_eq!(model.simulator.calls(), 1, "it was one prompt");
    // A line of any length, too: none is cut.
    let long = "y".repeat(50_000);
    terminal.pastes(&long);
    terminal.shows("[pasted 50000 characters]");
    terminal.press("Enter");
    terminal.shows("1 lines, 50000 bytes");
}

/// What a terminal left unfinished takes no key away.
#[test]
fn keys_work_after_a_sequence_and_a_paste_without_their_ends() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    for unfinished in [&b"\x1b[1"[..], b"\x1b[?2026;2$", b"\x1bO", b"\x1b[200~"] {
        let terminal = chat(&place, &model, SIZE, &[]);
        terminal.sends(unfinished);
        if unfinished.ends_with(b"~") {
            // Whatever comes at once with a paste belongs to it.
            terminal.sends(b"lost");
            terminal.shows("› lost");
            terminal.press("C-c");
        }
        terminal.press("C-d");
        terminal.shows("ended with 0");
    }
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.sends(b"\x1b[?2026;2$y\x1b[200~lost");
    terminal.shows("› lost");
    terminal.press("!");
    terminal.shows("› lost!");
    terminal.press("Enter");
    terminal.shows("heard lost!: 1 lines, 5 bytes");
    // Pastes in a paste.
    terminal.pastes(&"\x1b[201~\x1b[200~x".repeat(2_000));
    terminal.press("C-c");
    terminal.says("after it all");
    terminal.shows("heard after: 1 lines");
    assert_eq!(model.simulator.calls(), 2);
}

#[test]
fn an_interrupt_keeps_what_came_and_gives_back_what_was_typed_ahead() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.says("slow one");
    terminal.shows("word5 ");
    terminal.says("then this");
    terminal.shows("↪ steers: then this");
    terminal.types("and that");
    terminal.press("M-Enter");
    terminal.shows("⧗ next: and that");
    terminal.shows("2 queued");
    // A half-typed line goes first, and the run goes on.
    terminal.types("half");
    terminal.shows("› half");
    terminal.press("Escape");
    let screen = terminal.until("the line is cleared", |screen| !screen.contains("› half"));
    assert!(!screen.contains("interrupted"), "{screen}");
    // How long it takes is measured by a benchmark, and that it waits for nothing is shown on a paused clock.
    terminal.press("Escape");
    terminal.shows("Interrupted. Everything above is kept");
    let screen = terminal.shows("› then this");
    assert!(screen.contains("  and that"), "both are in the editor: {screen}");
    assert!(screen.contains("word5 "), "{screen}");
    // Nothing of it began.
    assert_eq!(model.simulator.calls(), 1);
    terminal.press("C-c");
    terminal.says("quick");
    terminal.shows("heard quick");
    assert_eq!(model.simulator.calls(), 2);
    let shown = place.json(&["show", "mine", "--json"]);
    assert!(!shown.to_string().contains("then this"), "{shown}");
}

#[test]
fn what_is_typed_while_it_works_steers_or_comes_after_it() {
    if !is_there() {
        return;
    }
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        let told = request.last_user_text().to_owned();
        if told.contains("begin") {
            return Answer::text((0..40).map(|number| format!("step{number} ")).collect::<String>())
                .with_pace(Pace { chunks: 40, first_ms: 10, between_ms: 50 });
        }
        Answer::text(format!("took up {told}"))
    });
    let (place, model) = (Place::new(), new(script));
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.says("begin");
    terminal.shows("step3 ");
    terminal.says("steered");
    terminal.types("followed");
    terminal.press("M-Enter");
    terminal.shows("⧗ next: followed");
    let screen = terminal.shows("took up followed");
    assert!(screen.contains("↪ steered") && screen.contains("› followed"), "{screen}");
    assert!(!screen.contains("queued"), "{screen}");
}

#[test]
fn it_compacts_and_undoes_it_and_says_so_in_a_line() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    let terminal = chat(&place, &model, SIZE, &[]);
    for number in 0..4 {
        terminal.pastes(&format!("note{number} {}", "lorem ipsum dolor ".repeat(400)));
        terminal.press("Enter");
        terminal.shows(&format!("heard note{number}"));
    }
    terminal.says("/compact the notes --keep 500");
    let screen = terminal.shows("/undo-compact");
    let line = screen.lines().find(|line| line.contains("compacted")).unwrap();
    assert!(line.contains("→") && line.contains(" tokens, ") && line.contains(" messages, "), "{line}");
    terminal.says("/undo-compact");
    terminal.shows("Compaction undone");
    terminal.says("/context");
    let screen = terminal.shows("free");
    assert!(screen.contains("tool definitions") && screen.contains("reported by the server"), "{screen}");
}

#[test]
fn failed_attempts_of_a_summary_are_seen_and_can_be_interrupted() {
    if !is_there() {
        return;
    }
    let heard = Function(|request: &SeenRequest, _: CallInfo| {
        Answer::text(format!("heard {}", request.last_user_text().chars().take(5).collect::<String>()))
    });
    let broken = Function(|_: &SeenRequest, _: CallInfo| Answer::fault(Fault::ServerError(500)));
    let (place, model) = (Place::new(), new_with(heard, broken));
    let terminal = chat(&place, &model, SIZE, &[]);
    for number in 1..4 {
        terminal.pastes(&format!("note{number} {}", "lorem ipsum dolor ".repeat(400)));
        terminal.press("Enter");
        terminal.until("it is over", |screen| {
            screen.contains(&format!("heard note{number}")) && !screen.contains("Esc interrupts")
        });
    }
    terminal.says("/compact --keep 500");
    let screen = terminal.until("an attempt has failed", |screen| screen.contains("attempt 1 failed"));
    assert!(screen.contains("compacting") && screen.contains("Esc interrupts"), "{screen}");
    terminal.press("Escape");
    terminal.until("it is over", |screen| !screen.contains("attempt") && !screen.contains("compacting "));
}

#[test]
fn a_warning_about_an_answer_is_below_it_and_calls_that_did_not_begin_are_named() {
    if !is_there() {
        return;
    }
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        if request.last_user_text().contains("call") {
            let touch = |name: &str| json!({ "command": format!("touch {name}") });
            return Answer::call("bash", &touch("first")).and_call("bash", &touch("second"));
        }
        Answer::text("a short answer").with_finish(StopReason::Length)
    });
    let (place, model) = (Place::new(), new(script));
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.says("call");
    terminal.shows("1. Yes");
    terminal.press("Escape");
    terminal.press("Escape");
    let screen = terminal.shows("Interrupted");
    assert!(screen.contains("✗ bash touch second · not run"), "{screen}");
    terminal.says("answer");
    let screen = terminal.shows("the answer was cut off");
    let (above, _) = screen.split_once("the answer was cut off").unwrap();
    assert!(above.contains("a short answer"), "{screen}");
}

#[test]
fn what_a_branch_leaves_is_summarised_where_that_is_asked_for_and_esc_ends_it() {
    if !is_there() {
        return;
    }
    let model = new_with(
        Function(|request: &SeenRequest, _: CallInfo| {
            let is_told = format!("{:?}", request.messages).contains("branch");
            Answer::text(format!("heard {}: {is_told}", request.last_user_text()))
        }),
        Function(|request: &SeenRequest, info: CallInfo| {
            let answer = Summariser::Obedient.reply(request, info);
            // The first one takes minutes.
            if info.call > 3 {
                answer
            } else {
                answer.with_pace(Pace { chunks: 3_000, first_ms: 10, between_ms: 100 })
            }
        }),
    );
    let place = Place::new();
    let terminal = chat(&place, &model, SIZE, &[]);
    for said in ["one", "two", "three"] {
        terminal.says(said);
        terminal.shows(&format!("heard {said}"));
    }
    terminal.says("/branch 1 --summary");
    terminal.shows("summarising the abandoned branch");
    terminal.press("Escape");
    terminal.shows("the summary of the branch cancelled");
    assert!(!terminal.screen().contains("the next prompt continues"), "{}", terminal.screen());
    terminal.says("/branch 1 --summary");
    let screen = terminal.shows("the next prompt continues after entry 1");
    let line = screen.lines().find(|line| line.contains("summarised the abandoned branch: ")).unwrap();
    assert!(!line.contains("undo"), "{line}");
    terminal.says("four");
    terminal.shows("heard four: true");
}

/// tmux wraps its rows anew a moment before it tells the program of the new size. What is drawn in that moment stands
/// wrong, and no program can know of it; on a busy machine the moment is long. So it is tried several times.
#[test]
fn it_lives_through_being_made_narrow_and_wide_again() {
    if !is_there() {
        return;
    }
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen = words_of_an_answer_that_is_resized();
        // All that came is there, in its order, once. The last one was cut off by the interrupt.
        let (_, whole) = seen.split_last().unwrap();
        assert!(whole.len() > 35, "{seen:?}");
        if whole.iter().enumerate().all(|(number, word)| number == *word) {
            return;
        }
    }
    panic!("rows stand twice, or not at all: {seen:?}");
}

/// The numbers of the words that stand in the terminal and above it, in their order.
fn words_of_an_answer_that_is_resized() -> Vec<usize> {
    let (place, model) = (Place::new(), model());
    let terminal = chat(&place, &model, SIZE, &[]);
    // When tmux makes a window narrow, it moves as many rows into its history as it adds, even where there is room below.
    // In a window that is nearly empty these are rows of the chat that are still drawn over.
    terminal.says("fill the window");
    terminal.shows("row 30");
    terminal.says("slow and then resized, with a long prompt that takes some room");
    terminal.shows("word9 ");
    for columns in [36, 30, 64, 36] {
        terminal.resize(columns, 24);
        // tmux tells a program of a further size only 250 ms after the one before.
        let newest = last_word(&terminal.screen());
        terminal.until("six more words have come", |screen| last_word(screen) > newest + 6);
    }
    terminal.until("forty words have come", |screen| last_word(screen) > 40);
    terminal.press("Escape");
    terminal.shows("Interrupted");
    // tmux tells programs of a new size a moment after it is there.
    let rows = |screen: &str, text: &str| screen.lines().filter(|line| line.contains(text)).count();
    terminal.until("the editor and the status line stand there once", |screen| {
        // What the interrupted call cost is estimated, and may stand behind the model.
        let last = screen.trim_end().lines().next_back().unwrap_or_default();
        let is_whole = last.contains("· simulated") && rows(screen, "simulated") == 1;
        is_whole && screen.lines().filter(|line| line.trim_end() == "›").count() == 1
    });
    words(&terminal.all()).collect()
}

/// The numbers of the words in a text, in their order.
fn words(text: &str) -> impl Iterator<Item = usize> {
    text.split_whitespace().filter_map(|word| word.strip_prefix("word")?.parse().ok())
}

fn last_word(screen: &str) -> usize {
    words(screen).max().unwrap_or_default()
}

#[test]
fn no_row_of_an_answer_is_lost_when_an_idle_chat_is_resized() {
    if !is_there() {
        return;
    }
    let words: Vec<String> = (0..60).map(|number| format!("word{number}")).collect();
    let answer = words.join(" ");
    let said = answer.clone();
    let model = new_with(
        Function(move |_: &SeenRequest, _: CallInfo| Answer::text(said.clone())),
        Function(|_: &SeenRequest, _: CallInfo| Answer::text("no")),
    );
    for sizes in [&[60_u16, 100][..], &[60, 100, 60, 100], &[36, 120, 50, 100], &[99, 98, 100]] {
        let place = Place::new();
        let terminal = chat(&place, &model, (100, 32), &[]);
        terminal.says("a prompt");
        terminal.shows("word59");
        for columns in sizes {
            terminal.resize(*columns, 32);
            let rule = "─".repeat(usize::from(*columns) - 1);
            terminal.until("the region is drawn anew", |screen| {
                screen.lines().filter(|line| line.starts_with('─')).eq([rule.as_str()])
            });
        }
        let all = terminal.all();
        let seen: Vec<&str> = all.split_whitespace().filter(|word| word.starts_with("word")).collect();
        assert_eq!(seen.join(" "), answer, "{sizes:?}: {all}");
        terminal.leaves();
    }
}

#[test]
fn no_row_of_the_editor_or_a_question_is_left_above_when_a_chat_is_made_low_and_high_again() {
    if !is_there() {
        return;
    }
    let script = Function(|_: &SeenRequest, _: CallInfo| {
        Answer::call("write", &json!({ "path": "w.txt", "content": "one\ntwo\nthree\n" }))
    });
    let (place, model) = (Place::new(), new(script));
    let terminal = chat(&place, &model, (100, 32), &[]);
    let rules = |text: &str| text.lines().filter(|line| line.starts_with('─')).count();
    for number in 0..30 {
        terminal.types(&format!("typed line {number}"));
        terminal.press("C-j");
    }
    terminal.shows("typed line 29");
    let typed = |text: &str| text.lines().filter(|line| line.contains("typed line")).count();
    for low in [8, 10, 12] {
        terminal.resize(100, low);
        terminal.until("the editor is low", |screen| typed(screen) + 1 == usize::from(low / 2));
        terminal.resize(100, 32);
        terminal.until("the editor is high", |screen| typed(screen) == 11);
        let all = terminal.all();
        assert_eq!((typed(&all), rules(&all)), (11, 1), "{low}: {all}");
    }
    terminal.press("C-c");
    terminal.says("go");
    terminal.shows("4. No, and tell");
    for _ in 0..3 {
        terminal.resize(100, 9);
        terminal.until("the dialog is low", |screen| rules(screen) == 0);
        terminal.resize(100, 32);
        terminal.until("the dialog is high", |screen| rules(screen) == 1);
        let all = terminal.all();
        assert_eq!((all.matches("waiting for you").count(), rules(&all)), (1, 1), "{all}");
    }
}

#[test]
fn it_says_what_cannot_work_and_keeps_what_was_typed() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.types("/compcat");
    terminal.press("Enter");
    let screen = terminal.shows("did you mean /compact?");
    assert!(screen.contains("› /compcat"), "{screen}");
    terminal.press("C-u");
    // Completion, from a table that says what each does.
    terminal.types("/undo-");
    terminal.shows("undo the newest compaction");
    terminal.press("Tab");
    terminal.shows("› /undo-compact");
    terminal.press("Enter");
    terminal.shows("no compaction");
    // The user's own command runs, whatever the agent may do.
    terminal.says("!echo o''wn");
    terminal.shows("    own");
    assert_eq!(model.simulator.calls(), 0);
}

/// The tool's result that a request ends with.
fn result(request: &SeenRequest) -> Option<String> {
    request.messages.last().filter(|message| message.role() == "tool").map(|message| message.text())
}

#[test]
fn a_question_is_answered_in_place_also_after_the_program_was_killed() {
    if !is_there() {
        return;
    }
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        if request.last_user_text().contains("free") {
            return match result(request) {
                None => Answer::call("ask_user", &json!({ "question": "Which name?" })),
                Some(answer) => Answer::text(format!("named {answer}")),
            };
        }
        match result(request) {
            None => Answer::call(
                "ask_user",
                &json!({ "question": "Which colour shall it be?", "choices": ["red", "green", "blue"] }),
            ),
            Some(answer) => Answer::text(format!("painted {answer}")),
        }
    });
    let (place, model) = (Place::new(), new(script));
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.says("paint it");
    // The call stands there first, and then its question.
    let screen = terminal.shows("1. red");
    assert!(screen.contains("Which colour shall it be?") && screen.contains("3. blue"), "{screen}");
    terminal.press("Down");
    terminal.shows("❯ 1. red");
    terminal.press("Down");
    terminal.shows("❯ 2. green");
    // The terminal is closed in the middle of it.
    drop(terminal);
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.shows("1. red");
    terminal.types("3");
    terminal.shows("❯ 3. blue");
    terminal.press("Enter");
    terminal.shows("painted blue");
    // What is typed is an answer, too; and a question can wait.
    terminal.says("free");
    terminal.shows("Enter answers");
    terminal.press("Escape");
    terminal.shows("Ctrl-Q returns to it");
    terminal.press("C-q");
    terminal.shows("Enter answers");
    terminal.says("Ada Lovelace");
    terminal.shows("named Ada Lovelace");
    terminal.shows("→ Ada Lovelace");
}

/// Answered where nobody works on it, the run goes on in the next chat.
#[test]
fn a_question_is_answered_by_a_command_and_the_next_chat_goes_on_with_it() {
    if !is_there() {
        return;
    }
    let script = Function(|request: &SeenRequest, _: CallInfo| match result(request) {
        None => Answer::call("ask_user", &json!({ "question": "Which name?" })),
        Some(answer) => Answer::text(format!("named {answer}")),
    });
    let (place, model) = (Place::new(), new(script));
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.says("name it");
    terminal.shows("Which name?");
    drop(terminal);
    let asked = || {
        let listed = place.run(&["questions", "--json"]);
        listed.stdout.lines().next().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
    };
    let question = asked().expect("it is asked")["question_id"].to_string();
    let began = Instant::now();
    let answered = loop {
        // The chat has the store until it has ended.
        let ran = place.run(&["answer", "mine", &question, "Ada"]);
        if ran.code != Some(3) || began.elapsed() > Duration::from_secs(60) {
            break ran;
        }
    };
    assert!(answered.code == Some(0) && answered.stdout.contains("`greenroom resume mine`"), "{answered:?}");
    let url = model.url();
    let run = place.run(&["run", "--session", "mine", "-p", "x", "--base-url", &url]);
    assert!(run.code == Some(5) && run.stderr.contains("`greenroom resume mine`"), "{run:?}");
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.shows("named Ada");
}

#[test]
fn a_session_with_ten_thousand_entries_opens_at_once() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    let id = |number: usize| format!("{number:08x}");
    let mut lines = vec![
        json!({ "type": "session", "version": 3, "id": "long", "cwd": "/", "timestamp": "2026-01-02T03:04:05.000Z" }),
    ];
    for number in 0..10_000_usize {
        let role = if number % 2 == 0 { "user" } else { "assistant" };
        let text = format!("**message** number {number} of the long one");
        lines.push(json!({
            "type": "message", "id": id(number + 1), "timestamp": "2026-01-02T03:04:05.000Z",
            "parentId": number.checked_sub(1).map(|before| id(before + 1)),
            "message": {
                "role": role, "content": [{ "type": "text", "text": text }], "provider": "openai",
                "model": "gpt-5.5", "timestamp": 1_767_323_045_000_u64, "stopReason": "stop",
            },
        }));
    }
    let text: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let file = place.work().join("long.jsonl");
    std::fs::write(&file, text.join("\n")).unwrap();
    let imported = place.json(&["import", &file.to_string_lossy(), "--json"]);
    let session = imported["session_id"].as_str().unwrap().to_owned();
    let url = model.url();
    let began = Instant::now();
    let terminal = Terminal::run(&place, SIZE, &["chat", "--base-url", &url, "--session", &session]);
    terminal.shows("number 9999 of the long one");
    let took = began.elapsed();
    // Opening the store takes most of it, in a build without optimisation on a busy machine; 10,000 entries would take
    // much longer if each were drawn.
    assert!(took < Duration::from_secs(20), "{took:?}");
    let all = terminal.all();
    assert!(all.contains("10,000 entries in all; only the end is shown") && all.contains("/export"), "{all}");
    // Some hundred messages can be scrolled to, and no more were looked at.
    assert!(all.contains("number 9700 of") && !all.contains("number 9500 of"), "{all}");
    terminal.says("hello there");
    terminal.shows("heard hello");
}

#[test]
fn a_chat_asks_once_whether_to_trust_a_projects_files() {
    for (answer, is_trusted) in [("", false), ("yes", true)].into_iter().filter(|_| is_there()) {
        let (place, model) = (Place::new(), model());
        super::prompts::write(&place, "AGENTS.md", "Use tabs.\n");
        let is_told = || format!("{:?}", model.simulator.requests().pop()).contains("Use tabs.");
        let terminal =
            Terminal::run(&place, SIZE, &["chat", "--base-url", &model.url(), "--session", "mine"]);
        terminal.shows("Trust the files of this folder?");
        terminal.says(answer);
        // What is typed before the chat reads keys is kept, and not sent.
        terminal.shows("? shows the keys");
        terminal.says("hello");
        terminal.shows("heard hello");
        assert_eq!(is_told(), is_trusted, "{answer:?}");
        drop(terminal);
        // It is not asked again.
        let terminal = chat(&place, &model, SIZE, &[]);
        terminal.says("hello again");
        terminal.shows("heard hello: 1 lines, 11 bytes");
        assert_eq!(is_told(), is_trusted, "{answer:?}");
    }
}

#[test]
fn custom_commands_files_and_own_commands_reach_the_model() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::with_files(2), model());
    place.own_file(&format!("trusted_folders: [{:?}]\n", place.work()));
    let commands = place.work().join(".greenroom/commands");
    std::fs::create_dir_all(&commands).unwrap();
    std::fs::write(commands.join("review.md"), "# Looks for bugs\nreview $1 with care\n").unwrap();
    let terminal = chat(&place, &model, SIZE, &["--allow-shell"]);
    terminal.types("/rev");
    terminal.shows("/review");
    terminal.shows("Looks for bugs");
    terminal.press("C-u");
    terminal.says("/review part_1");
    terminal.shows("heard #");
    let told = model.simulator.requests().last().unwrap().request.last_user_text().to_owned();
    assert!(told.contains("review part_1 with care"), "{told}");
    terminal.types("look @part_1");
    terminal.shows("src/part_1.rs");
    terminal.press("Tab");
    terminal.shows("› look @src/part_1.rs");
    terminal.press("Enter");
    terminal.shows("heard look");
    let told = model.simulator.requests().last().unwrap().request.last_user_text().to_owned();
    assert!(told.contains("<file path=\"src/part_1.rs\">") && told.contains("count_1_59"), "{told}");
    terminal.says("!echo from-the-shell");
    terminal.shows("    from-the-shell");
    terminal.shows("The output is sent with your next prompt");
    terminal.says("what was it");
    terminal.shows("heard what");
    let told = model.simulator.requests().last().unwrap().request.last_user_text().to_owned();
    assert!(told.contains("I ran `echo from-the-shell`"), "{told}");
    // One that goes on is seen as it prints, and what it printed stays when it is ended.
    terminal.says("!echo begun; exec sleep 3600");
    terminal.shows("    begun");
    terminal.press("Escape");
    terminal.shows("[cancelled; the command and all its processes were ended]");
    terminal.says("and now");
    terminal.shows("heard and");
    let told = model.simulator.requests().last().unwrap().request.last_user_text().to_owned();
    assert!(told.contains("It printed:\n```\nbegun\n"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_begins_and_the_one_before_is_found_again() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(3, 1).await;
    let terminal = Terminal::of(&hosted.place, SIZE, &hosted.command(&["chat", "--session", "first"]));
    terminal.shows("›");
    // Also where nothing was said yet.
    for (index, command) in ["/tree", "/export", "/fork"].into_iter().enumerate() {
        terminal.says(command);
        terminal.until(&format!("{command} says that nothing was said"), |screen| {
            screen.to_lowercase().matches("no messages yet").count() == index + 1
        });
    }
    terminal.says("/new");
    terminal.shows("New session");
    terminal.says("alpha");
    terminal.shows("word word word");
    // What a command of the user printed stays with the session in which it was run.
    terminal.says("!echo left-behind");
    terminal.shows("The output is sent with your next prompt");
    terminal.says("/new");
    terminal.until("another one begins", |screen| screen.matches("New session").count() == 2);
    terminal.shows("The output of `echo left-behind` was not sent");
    terminal.says("beta");
    terminal.until("it is answered there", |screen| screen.matches("word word word").count() == 2);
    terminal.says("/resume");
    terminal.shows("Resume session");
    terminal.types("alpha");
    terminal.until("the first one alone is offered", |screen| screen.contains("1 of 1"));
    terminal.press("Enter");
    terminal.shows("Resumed ");
    terminal.says("!echo left-at-the-end");
    terminal.until("it has ended", |screen| {
        screen.contains("    left-at-the-end") && !screen.contains("Esc interrupts")
    });
    terminal.press("C-d");
    terminal.shows("The output of `echo left-at-the-end` was not sent");
    terminal.shows("ended with 0");
    let sessions = hosted.run(&["sessions", "--here"]).stdout;
    assert_eq!(sessions.matches("chat-").count(), 2, "both are found by their folder: {sessions}");
    assert!(!sessions.contains("first"), "nothing was said in it: {sessions}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_another_folder_says_where_its_tools_work_when_a_chat_turns_to_it() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(3, 1).await;
    let here = hosted.place.work().canonicalize().unwrap();
    let other = here.join("other");
    std::fs::create_dir(&other).unwrap();
    for (id, folder) in [("home", &here), ("away", &other)] {
        let mut run = hosted.command(&["run", "--window", "100000", "--session", id, "-p", "one"]);
        assert!(run.current_dir(folder).output().unwrap().status.success());
    }
    let shown = format!("~/{}/other", here.file_name().unwrap().display());
    let said = format!("the tools of session away work in {shown}; ! and @ stay in this folder");
    for (flags, is_said) in [(&[][..], true), (&["--no-tools"], true)] {
        let chat = [&["chat", "--session", "new", "--window", "100000"], flags].concat();
        let terminal = Terminal::of(&hosted.place, SIZE, &hosted.command(&chat));
        terminal.shows("›");
        let words = |screen: &str| screen.split_whitespace().collect::<Vec<_>>().join(" ");
        for id in ["away", "home"] {
            terminal.says(&format!("/resume {id}"));
            terminal.until("it goes on", |screen| {
                screen.matches("Resumed one").count() == if id == "away" { 1 } else { 2 }
            });
        }
        let screen = words(&terminal.all());
        assert_eq!(screen.matches(&said).count(), usize::from(is_said), "{screen}");
        assert_eq!(screen.matches("! and @ stay").count(), usize::from(is_said), "{screen}");
        terminal.press("C-d");
        terminal.shows("ended with 0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_terminals_share_a_session_and_live_through_the_death_of_their_host() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(3_000, 20).await;
    let arguments = ["chat", "--session", "mine", "--window", "100000"];
    let one = Terminal::of(&hosted.place, SIZE, &hosted.command(&arguments));
    one.shows("›");
    one.says("go on and on");
    one.shows("word word");
    let two = Terminal::of(&hosted.place, SIZE, &hosted.command(&arguments));
    let screen = two.shows("› go on and on");
    assert!(screen.contains("Esc interrupts"), "the run goes on there, too: {screen}");
    // What came before it joined is seen there, and what comes: as in the other one.
    let count = |screen: &str| screen.matches("word").count();
    let before = count(&two.until("what had come is seen", |screen| screen.contains("word word")));
    let screen = two.until("more comes", |screen| count(screen) > before);
    assert!(screen.contains("Esc interrupts"), "in the middle of it: {screen}");
    two.says("from the other one");
    two.shows("↪ steers: from the other one");
    one.shows("1 queued");
    // The host dies in the middle of it.
    hosted.kill_host();
    for terminal in [&one, &two] {
        let screen = terminal.shows("The run was interrupted when its process was killed");
        // One row says it.
        assert_eq!(screen.matches("was interrupted when").count(), 1, "{screen}");
        assert!(!screen.contains("host") && screen.matches("Resumed").count() <= 1, "{screen}");
    }
    // Both go on with the same session, in the new host.
    one.press("C-u");
    one.says("/continue");
    one.shows("word word");
    two.shows("Esc interrupts");
    two.press("C-u");
    two.press("Escape");
    one.shows("Interrupted. Everything above is kept");
    two.shows("Interrupted. Everything above is kept");
}

/// Highlighted code costs more than words: what is typed is seen all the same while it streams in.
#[test]
fn what_is_typed_is_seen_while_much_code_streams_in() {
    if !is_there() {
        return;
    }
    let script = Function(|_: &SeenRequest, _: CallInfo| {
        let lines: String =
            (0..20_000).map(|number| format!("let x{number} = vec![{number}; 3];\n")).collect();
        // A line a millisecond, and no end in the time that the test takes.
        let pace = Pace { chunks: 20_000, first_ms: 0, between_ms: 1 };
        Answer::text(format!("```rust\n{lines}```\n")).with_pace(pace)
    });
    let unlimited = |options: &mut SimulatorOptions| {
        (options.max_output, options.window) = (1_000_000, 2_000_000);
    };
    let model = Model::new(ByPurpose::new(script, Summariser::Obedient), unlimited);
    let place = Place::new();
    let terminal = chat(&place, &model, SIZE, &["--window", "2000000"]);
    terminal.says("write it");
    terminal.shows("let x300 ");
    terminal.types("meanwhile");
    let screen = terminal.shows("meanwhile");
    assert!(screen.contains("Enter steers"), "it came to an end before the key was seen: {screen}");
    terminal.press("C-u");
    terminal.press("Escape");
    terminal.shows("Interrupted. Everything above is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_was_chosen_stays_chosen_when_the_host_dies() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(3, 1).await;
    let arguments = ["chat", "--session", "mine", "--window", "100000"];
    let terminal = Terminal::of(&hosted.place, SIZE, &hosted.command(&arguments));
    terminal.shows("›");
    terminal.says("/model another");
    terminal.shows("Model from the next prompt on: another");
    hosted.kill_host();
    terminal.says("hello");
    let screen = terminal.shows("word word");
    assert!(!screen.contains("host"), "nothing is said in an idle terminal: {screen}");
    let asked: Vec<String> =
        hosted.simulator.requests().into_iter().map(|logged| logged.request.model.clone()).collect();
    assert_eq!(asked, ["another"]);
}
