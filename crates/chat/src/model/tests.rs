//! From keys and events to effects and rows.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom::permissions::Mode;
use greenroom::{Delta, EventKind, MessageView, Record};
use greenroom::{Event, Role, RunOutcome};
use greenroom_kernel::usage::ContextUsage;

use super::*;
use crate::commands::Permitting;

mod asked;
mod shown;
mod typed;

const SIZE: Size = Size { columns: 61, rows: 24 };

/// A chat and its events.
struct Chat {
    model: Model,
    seq: u64,
}

impl Chat {
    fn new() -> Self {
        Self { model: Model::new(SIZE, &[], Vec::new()), seq: 0 }
    }

    fn hears(&mut self, kind: EventKind) {
        self.seq += 1;
        self.model.event(&Event::new("s", self.seq, kind));
    }

    fn types(&mut self, text: &str) {
        for c in text.chars() {
            self.model.key(KeyEvent::from(KeyCode::Char(c)));
        }
    }

    fn press(&mut self, code: KeyCode) -> Vec<Effect> {
        self.model.key(KeyEvent::from(code))
    }

    fn control(&mut self, c: char) -> Vec<Effect> {
        self.model.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL))
    }

    fn says(&mut self, text: &str) -> Vec<Effect> {
        self.types(text);
        self.press(KeyCode::Enter)
    }

    /// The user's message joins the conversation.
    fn joins(&mut self, text: &str, entry: u64) {
        let message = said(Role::User, text);
        self.hears(EventKind::MessageEnd { entry_id: EntryId(entry), message, queued: None });
    }

    fn streams(&mut self, text: &str) {
        self.hears(EventKind::MessageDelta { delta: Delta::Text(text.to_owned()) });
    }

    fn ends(&mut self, outcome: RunOutcome) {
        let context = self.model.status.context;
        self.hears(EventKind::RunEnd { outcome, context, cost_microdollars: 0, is_cost_estimated: false });
    }

    fn above(&mut self) -> Vec<String> {
        self.model.frame().above.iter().map(|row| row.text().trim_end().to_owned()).collect()
    }

    fn region(&mut self) -> Vec<String> {
        self.model.frame().region.iter().map(|row| row.text().trim_end().to_owned()).collect()
    }
}

fn said(role: Role, text: &str) -> MessageView {
    let text = serde_json::json!({ "role": role, "text": text });
    serde_json::from_value(text).unwrap()
}

/// The reply that accepts an input.
fn taken_on(entry: u64) -> Result<Sent, String> {
    Ok(Sent { entry_id: EntryId(entry), waits: false })
}

fn sent(effects: &[Effect]) -> Vec<(Kind, &str)> {
    let said = |effect: &'_ Effect| if let Effect::Send { kind, .. } = effect { Some(*kind) } else { None };
    effects.iter().filter_map(|effect| Some((said(effect)?, text_of(effect)))).collect()
}

fn text_of(effect: &Effect) -> &str {
    if let Effect::Send { text, .. } = effect { text } else { "" }
}

#[test]
fn a_prompt_begins_a_run_and_what_comes_meanwhile_steers_or_waits() {
    let mut chat = Chat::new();
    let effects = chat.says("hello");
    assert_eq!(sent(&effects), [(Kind::Prompt, "hello")]);
    chat.joins("hello", 1);
    chat.hears(EventKind::RunStart);
    assert_eq!(sent(&chat.says("not so")), [(Kind::Steer, "not so")]);
    chat.types("and then");
    let effects = chat.model.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::ALT));
    assert_eq!(sent(&effects), [(Kind::FollowUp, "and then")]);
    let region = chat.region().join("\n");
    assert!(region.contains("↪ steers: not so") && region.contains("⧗ next: and then"), "{region}");
    chat.ends(RunOutcome::Completed);
    assert_eq!(sent(&chat.says("anew")), [(Kind::Prompt, "anew")]);
}

#[test]
fn the_answer_is_finished_block_by_block_and_ends_as_it_is_recorded() {
    let mut chat = Chat::new();
    chat.hears(EventKind::RunStart);
    chat.hears(EventKind::MessageStart);
    chat.streams("One.\n\nTw");
    assert_eq!(chat.above(), ["One."]);
    assert!(chat.region().contains(&"Tw".to_owned()));
    chat.streams("o.");
    let message = said(Role::Assistant, "One.\n\nTwo. And more that was missed.");
    chat.hears(EventKind::MessageEnd { entry_id: EntryId(2), message, queued: None });
    chat.ends(RunOutcome::Completed);
    assert_eq!(chat.above(), ["", "Two. And more that was missed."]);
    assert_eq!(chat.model.last_answer(), "One.\n\nTwo. And more that was missed.");
}

#[test]
fn what_does_not_count_is_marked_as_such() {
    let mut chat = Chat::new();
    chat.hears(EventKind::RunStart);
    chat.hears(EventKind::MessageStart);
    chat.streams("rm -rf wrong");
    chat.hears(EventKind::MessageDiscarded);
    assert_eq!(chat.above(), [""; 0], "what was not written yet disappears");
    assert!(!chat.region().join("\n").contains("rm -rf"));
    // What was written is marked.
    chat.hears(EventKind::MessageStart);
    chat.streams("All is well.\n\nrm -rf wrong");
    chat.hears(EventKind::MessageDiscarded);
    let above = chat.above().join("\n");
    let (void, _) = above.split_once("✗ The answer broke off; the text above is discarded").unwrap();
    assert!(void.contains("All is well.") && !above.contains("rm -rf wrong"), "{above}");
}

#[test]
fn an_interrupt_gives_back_what_was_typed_ahead_and_nothing_of_it_is_sent_again() {
    let mut chat = Chat::new();
    chat.says("hello");
    chat.joins("hello", 1);
    chat.hears(EventKind::RunStart);
    for (text, entry) in [("one", 5), ("two", 6)] {
        let effects = chat.says(text);
        let Some(&Effect::Send { ticket, .. }) = effects.last() else { panic!("{effects:?}") };
        chat.hears(EventKind::InputQueued {
            entry_id: EntryId(entry),
            delivery: greenroom::InboxDelivery::Steer,
        });
        chat.model.sent(ticket, taken_on(entry));
    }
    chat.types("half");
    assert_eq!(chat.press(KeyCode::Esc), [], "the half-typed line goes first");
    assert_eq!(chat.press(KeyCode::Esc), [Effect::Interrupt]);
    let items = vec![EntryId(5), EntryId(6)];
    chat.hears(EventKind::Recorded { entry_id: EntryId(7), record: Record::InboxCleared { items } });
    chat.ends(RunOutcome::Aborted);
    let region = chat.region();
    assert!(region.contains(&"› one".to_owned()) && region.contains(&"  two".to_owned()), "{region:?}");
    assert!(!region.join("\n").contains("queued"), "{region:?}");
    assert_eq!(sent(&chat.press(KeyCode::Enter)), [(Kind::Prompt, "one\ntwo")]);
}

#[test]
fn at_an_empty_line_the_second_ctrl_c_leaves() {
    let mut chat = Chat::new();
    chat.types("typed");
    assert_eq!(chat.control('c'), []);
    assert_eq!(chat.control('c'), []);
    assert!(chat.region().join("\n").contains("Press Ctrl-C again to exit"));
    chat.types("x");
    chat.press(KeyCode::Backspace);
    assert_eq!(chat.control('c'), [], "another key came between");
    assert_eq!(chat.control('c'), [Effect::Quit]);
    assert_eq!(Chat::new().control('d'), [Effect::Quit]);
}

#[test]
fn what_was_not_taken_on_comes_back_with_the_reason() {
    let mut chat = Chat::new();
    let effects = chat.says("hello");
    let Some(Effect::Send { ticket, .. }) = effects.last() else { panic!("{effects:?}") };
    chat.model.sent(*ticket, Err("too much waits already".to_owned()));
    assert_eq!(chat.above(), ["  too much waits already"]);
    assert!(chat.region().contains(&"› hello".to_owned()));
}

#[test]
fn a_message_that_a_left_session_refuses_is_not_lost_silently() {
    let mut chat = Chat::new();
    let effects = chat.says("hello");
    let Some(Effect::Send { ticket, .. }) = effects.last() else { panic!("{effects:?}") };
    chat.model.begin_session();
    chat.above();
    chat.model.sent(*ticket, Err("too much waits already".to_owned()));
    assert_eq!(chat.above(), ["  Not sent (too much waits already); ↑ brings it back"]);
    chat.press(KeyCode::Up);
    assert!(chat.region().contains(&"› hello".to_owned()));
}

#[test]
fn the_context_is_announced_once_at_75_and_at_90_percent() {
    let mut chat = Chat::new();
    chat.model.status.trigger = 95_000;
    let mut said = Vec::new();
    for tokens in [70_000, 76_000, 80_000, 91_000, 92_000, 40_000, 77_000] {
        let context = ContextUsage { tokens, window: Some(100_000), ..chat.model.status.context };
        chat.model.context(context);
        said.extend(chat.above());
    }
    let wanted = [
        "76 % full; compaction starts at 95k", "91 % full; compaction starts at 95k",
        "77 % full; compaction starts at 95k",
    ];
    assert_eq!(said.len(), 3, "{said:?}");
    for (said, wanted) in said.iter().zip(wanted) {
        assert!(said.contains(wanted), "{said:?}");
    }
}

#[test]
fn thinking_is_folded() {
    let mut chat = Chat::new();
    chat.hears(EventKind::RunStart);
    chat.hears(EventKind::MessageStart);
    chat.hears(EventKind::MessageDelta { delta: Delta::Reasoning("let me see what there is".to_owned()) });
    assert!(chat.region().join("\n").contains("let me see"));
    chat.model.set_now(2_100);
    chat.streams("Done.");
    let above = chat.above();
    assert_eq!(above, ["  ∴ thought for 2.1 s, 6 words · Ctrl-O shows it"]);
    assert!(chat.model.viewed().is_none());
    chat.control('o');
    let screen: Vec<String> =
        chat.model.viewed().unwrap().region.iter().map(|row| row.text().trim_end().to_owned()).collect();
    assert_eq!(screen[..2], ["❯▾  ∴ thought for 2.1 s, 6 words", "    let me see what there is"]);
    // What comes meanwhile is shown when the viewer is closed.
    chat.streams(" More.\n\n");
    assert!(chat.model.viewed().is_some());
    chat.control('o');
    assert!(chat.model.viewed().is_none());
    assert_eq!(chat.above(), ["", "Done. More."]);
}

#[test]
fn a_picture_that_is_dropped_on_the_terminal_is_named() {
    let mut chat = Chat::new();
    chat.model.paste("'/home/me/my picture.PNG'");
    assert_eq!(sent(&chat.press(KeyCode::Enter)), [(Kind::Prompt, "@/home/me/my\\ picture.PNG")]);
}

#[test]
fn what_had_not_gone_out_comes_back_in_its_order() {
    let mut chat = Chat::new();
    chat.hears(EventKind::RunStart);
    let tickets: Vec<u64> = ["one", "two", "three"]
        .into_iter()
        .map(|text| match chat.says(text).last() {
            Some(Effect::Send { ticket, .. }) => *ticket,
            other => panic!("{other:?}"),
        })
        .collect();
    chat.model.sent(tickets[0], taken_on(5));
    chat.model.taken_back(&tickets[1..]);
    assert!(chat.region().join("\n").contains("↪ steers: one"));
    let items = vec![EntryId(5)];
    chat.hears(EventKind::Recorded { entry_id: EntryId(7), record: Record::InboxCleared { items } });
    chat.ends(RunOutcome::Aborted);
    assert_eq!(sent(&chat.press(KeyCode::Enter)), [(Kind::Prompt, "one\ntwo\nthree")]);
}

#[test]
fn earlier_prompts_are_searched_for() {
    let mut chat = Chat::new();
    let long = format!("explain\n{}", "a line\n".repeat(200));
    for text in ["fix the parser", "what else", "fix the tests"] {
        chat.says(text);
    }
    chat.model.paste(&long);
    chat.press(KeyCode::Enter);
    chat.types("fix");
    chat.control('r');
    let region = chat.region().join("\n");
    assert!(region.contains("❯ fix the tests") && region.contains("1 of 2"), "{region}");
    chat.control('r');
    chat.press(KeyCode::Enter);
    assert_eq!(sent(&chat.press(KeyCode::Enter)), [(Kind::Steer, "fix the parser")]);
    // A long prompt is folded after its first line, and submitted in full.
    chat.control('r');
    chat.types("explain");
    chat.press(KeyCode::Enter);
    let region = chat.region().join("\n");
    assert!(region.contains("› explain") && region.contains("[pasted 200 lines]"), "{region}");
    assert_eq!(sent(&chat.press(KeyCode::Enter)), [(Kind::Steer, long.trim())]);
}

#[test]
fn a_file_that_went_along_is_named_and_not_shown() {
    let mut chat = Chat::new();
    chat.joins("look at @a.txt\n\n<file path=\"a.txt\">\n1\tone\n2\ttwo\n</file>", 1);
    assert_eq!(chat.above(), ["› look at @a.txt", "  [a.txt, 2 lines]"]);
}

#[test]
fn where_nothing_compacts_by_itself_it_is_not_promised() {
    let mut chat = Chat::new();
    let context = ContextUsage { tokens: 120_000, window: Some(100_000), ..chat.model.status.context };
    chat.model.context(context);
    let above = chat.above().join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(above.contains("automatic compaction is off; /compact frees space"), "{above}");
    assert!(!chat.region().join("\n").contains('┆'));
}

#[test]
fn from_enter_on_there_is_something_to_interrupt() {
    let mut chat = Chat::new();
    let effects = chat.says("hello");
    let Some(&Effect::Send { ticket, .. }) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(chat.control('c'), [Effect::Interrupt]);
    // The prompt was accepted and has joined the conversation, but no run has started.
    chat.model.sent(ticket, taken_on(1));
    chat.joins("hello", 1);
    assert_eq!(chat.control('c'), [Effect::Interrupt]);
    assert!(chat.region().join("\n").contains("interrupting"));
    chat.ends(RunOutcome::Aborted);
    assert_eq!(chat.control('c'), []);
    // A refused prompt starts no run.
    let effects = chat.says("again");
    let Some(&Effect::Send { ticket, .. }) = effects.last() else { panic!("{effects:?}") };
    chat.model.sent(ticket, Err("the disk is full".to_owned()));
    chat.control('u');
    assert_eq!(chat.press(KeyCode::Esc), []);
    assert_eq!(sent(&chat.says("anew")), [(Kind::Prompt, "anew")]);
}

#[test]
fn a_question_does_not_take_the_keys_of_who_is_typing() {
    let mut chat = Chat::new();
    chat.hears(EventKind::RunStart);
    chat.types("please be");
    let kind = greenroom::QuestionKind::Choice { choices: vec!["yes".into(), "no".into()], several: false };
    chat.model.ask(Ask::new(EntryId(4), "ask_user", "Delete everything?", None, &kind));
    chat.types(" careful");
    assert!(chat.region().join("\n").contains("? Delete everything? · Ctrl-Q"));
    assert_eq!(sent(&chat.press(KeyCode::Enter)), [(Kind::Steer, "please be careful")]);
    chat.control('q');
    chat.types("no");
    assert_eq!(chat.press(KeyCode::Enter), []);
    chat.press(KeyCode::Down);
    chat.press(KeyCode::Down);
    assert_eq!(chat.press(KeyCode::Enter), [Effect::Answer { id: EntryId(4), value: "no".into() }]);
}

#[test]
fn what_others_said_and_is_not_taken_up_is_counted_by_who_joins() {
    let mut chat = Chat::new();
    let mut past = |seq: u64, kind: EventKind| {
        chat.model.past(&Event::new("s", seq, kind));
    };
    for entry in [3, 4] {
        let delivery = greenroom::InboxDelivery::Steer;
        past(entry, EventKind::InputQueued { entry_id: EntryId(entry), delivery });
    }
    let message = said(Role::User, "taken up");
    past(5, EventKind::MessageEnd { entry_id: EntryId(5), message, queued: Some(EntryId(3)) });
    chat.model.past_ends();
    chat.hears(EventKind::RunStart);
    chat.hears(EventKind::ToolStart {
        call_id: "1".into(),
        name: "bash".into(),
        arguments: r#"{"command":"make"}"#.into(),
    });
    let region = chat.region().join("\n");
    assert!(region.contains("1 queued") && region.contains("bash make"), "{region}");
}

#[test]
fn shift_tab_goes_from_mode_to_mode_and_never_to_everything() {
    let mut chat = Chat::new();
    assert_eq!(
        chat.model.key(KeyEvent::new(KeyCode::BackTab, KeyModifiers::SHIFT)),
        [],
        "without permissions"
    );
    let rows = [
        (Mode::Ask, Mode::AcceptEdits),
        (Mode::AcceptEdits, Mode::ReadOnly),
        (Mode::ReadOnly, Mode::Ask),
        (Mode::Everything, Mode::Ask),
    ];
    for (mode, next) in rows {
        chat.model.status.mode = Some(mode);
        let effects = chat.model.key(KeyEvent::new(KeyCode::BackTab, KeyModifiers::SHIFT));
        assert_eq!(effects, [Effect::Command(Command::Permissions(Permitting::Next(next)))], "{mode}");
    }
}

/// The choices of an open list, and the effects of choosing the one with this number.
fn chosen(chat: &mut Chat, number: usize) -> (Vec<String>, Vec<Effect>) {
    let rows = chat.region();
    let items = rows.iter().filter_map(|row| row.strip_prefix("  ❯ ").or_else(|| row.strip_prefix("    ")));
    let items = items.filter(|row| !row.contains("Esc to cancel")).map(str::to_owned).collect();
    for _ in 1..number {
        chat.press(KeyCode::Down);
    }
    (items, chat.press(KeyCode::Enter))
}

#[test]
fn who_leaves_while_it_works_is_asked_what_happens_to_the_work() {
    type Leaves = fn(&mut Chat) -> Vec<Effect>;
    let ways: [(&str, Leaves); 3] = [
        ("Ctrl-D", |chat| chat.control('d')),
        ("/quit", |chat| {
            chat.says("/quit").into_iter().filter(|effect| !matches!(effect, Effect::Remember(_))).collect()
        }),
        ("Ctrl-C twice", |chat| {
            assert_eq!(chat.control('c'), [Effect::Interrupt]);
            assert_eq!(chat.control('c'), [Effect::Interrupt], "the first one may have come too early");
            Vec::new()
        }),
    ];
    for (way, leaves) in ways {
        for (number, wanted) in [(1, vec![Effect::StopAndQuit]), (2, vec![Effect::Quit]), (3, vec![])] {
            let mut chat = Chat::new();
            chat.model.set_outlives(true);
            chat.says("hello");
            chat.joins("hello", 1);
            chat.hears(EventKind::RunStart);
            assert_eq!(leaves(&mut chat), [], "{way}");
            let (items, effects) = chosen(&mut chat, number);
            let starts = ["Stop it and leave", "Leave it running", "Stay"];
            assert!(
                items.len() == 3 && items.iter().zip(starts).all(|(item, start)| item.starts_with(start)),
                "{items:?}"
            );
            assert_eq!(effects, wanted, "{way}, {number}");
            assert!(!chat.above().join("\n").contains("/quit"), "{way}");
        }
        // Esc stays, and with the runtime in this process nothing can be left running.
        let mut chat = Chat::new();
        chat.says("hello");
        leaves(&mut chat);
        assert!(!chat.region().join("\n").contains("Leave it running"), "{way}");
        assert_eq!(
            (chat.press(KeyCode::Esc), chat.region().join("\n").contains("Stay")),
            (vec![], false),
            "{way}"
        );
    }
    // The question goes when the work ends.
    let mut chat = Chat::new();
    chat.says("hello");
    chat.control('d');
    chat.ends(RunOutcome::Completed);
    assert!(!chat.region().join("\n").contains("Stay"));
    // Nothing is asked where nothing is lost.
    let mut chat = Chat::new();
    assert_eq!(chat.says("/quit").last(), Some(&Effect::Quit));
}

#[test]
fn what_is_queued_is_taken_back_by_an_arrow_and_edited() {
    let mut chat = Chat::new();
    chat.says("hello");
    chat.joins("hello", 1);
    chat.hears(EventKind::RunStart);
    assert_eq!(chat.press(KeyCode::Up), [], "there is nothing: it is the history");
    assert!(chat.region().contains(&"› hello".to_owned()));
    chat.press(KeyCode::Esc);
    for (text, entry) in [("one", 5), ("two", 6)] {
        chat.types(text);
        let effects = chat.model.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::ALT));
        let Some(&Effect::Send { ticket, .. }) = effects.last() else { panic!("{effects:?}") };
        assert_eq!(chat.press(KeyCode::Up), [], "what is on its way stays");
        chat.press(KeyCode::Esc);
        chat.model.sent(ticket, taken_on(entry));
    }
    chat.press(KeyCode::Left);
    assert!(chat.region().join("\n").contains("↑ takes back what is queued"));
    assert_eq!(chat.press(KeyCode::Up), [Effect::TakeBack(EntryId(6))], "the newest one");
    let items = vec![EntryId(6)];
    chat.hears(EventKind::Recorded { entry_id: EntryId(7), record: Record::InboxCleared { items } });
    let region = chat.region();
    assert!(region.contains(&"› two".to_owned()) && region.join("\n").contains("⧗ next: one"), "{region:?}");
    // With text in the editor, Up moves in it; Alt+Up takes back anyway.
    assert_eq!(chat.press(KeyCode::Up), []);
    let effects = chat.model.key(KeyEvent::new(KeyCode::Up, KeyModifiers::ALT));
    assert_eq!(effects, [Effect::TakeBack(EntryId(5))]);
}

#[test]
fn esc_twice_goes_back_to_an_earlier_prompt() {
    let mut chat = Chat::new();
    assert_eq!(chat.press(KeyCode::Esc), []);
    assert!(chat.region().join("\n").contains("Press Esc again to go back"));
    chat.types("x");
    chat.press(KeyCode::Backspace);
    assert_eq!(chat.press(KeyCode::Esc), [], "another key came between");
    assert_eq!(chat.press(KeyCode::Esc), [Effect::Command(Command::Branch(Branching::default()))]);
    // While it works, the first Esc interrupts, and so does the second.
    chat.says("hello");
    assert_eq!(chat.press(KeyCode::Esc), [Effect::Interrupt]);
    assert_eq!(chat.press(KeyCode::Esc), [Effect::Interrupt]);
}

#[test]
fn undo_and_enter_never_undo_a_compaction() {
    let undone = |effects: &[Effect]| {
        let is_it = |effect: &Effect| matches!(effect, Effect::Command(Command::UndoCompact(_)));
        effects.iter().any(is_it)
    };
    for keys in
        [vec![KeyCode::Enter], vec![KeyCode::Enter, KeyCode::Enter], vec![KeyCode::Tab, KeyCode::Enter]]
    {
        let mut chat = Chat::new();
        chat.types("/undo");
        let effects: Vec<Effect> = keys.iter().flat_map(|key| chat.press(*key)).collect();
        assert!(!undone(&effects), "{keys:?}: {effects:?}");
        assert!(
            effects.contains(&Effect::Command(Command::Undo(GoingBack::default()))),
            "{keys:?}: {effects:?}"
        );
    }
    let mut chat = Chat::new();
    assert!(undone(&chat.says("/undo-compact")));
}

#[test]
fn a_command_that_needs_an_argument_says_so() {
    let mut chat = Chat::new();
    assert_eq!(chat.says("/unpin"), []);
    assert!(chat.region().join("\n").contains("/unpin <entry>"), "{:?}", chat.region());
    assert_eq!(chat.press(KeyCode::Enter), []);
    let above = chat.above().join("\n");
    assert!(above.contains("/unpin needs an entry; /pins lists the entries"), "{above}");
}

#[test]
fn an_answer_that_its_process_did_not_store_is_told_apart_from_one_that_is_kept() {
    for is_stored in [true, false] {
        let mut chat = Chat::new();
        chat.joins("hello", 0);
        chat.hears(EventKind::MessageStart);
        chat.streams("half an answer");
        if is_stored {
            let message = said(Role::Assistant, "half an answer");
            chat.hears(EventKind::MessageEnd { entry_id: EntryId(1), message, queued: None });
        }
        chat.ends(RunOutcome::Interrupted);
        // The rows are as wide as the terminal.
        let above = chat.above().join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(above.contains("Everything above is kept"), is_stored, "{above}");
        assert_eq!(above.contains("was not stored"), !is_stored, "{above}");
    }
}

#[test]
fn a_list_that_is_left_leaves_nothing_above() {
    for command in ["/model", "/effort", "/resume", "/branch", "/undo", "/export"] {
        let mut chat = Chat::new();
        assert_eq!(chat.says(command).len(), 2, "{command}");
        assert_eq!(chat.above(), Vec::<String>::new(), "{command}");
    }
    let mut chat = Chat::new();
    chat.says("/status");
    assert_eq!(chat.above(), ["  /status"]);
}

#[test]
fn the_timer_counts_the_current_wait_and_not_the_run() {
    let mut chat = Chat::new();
    let at = |chat: &mut Chat, second: u64| {
        chat.model.set_now(second * 1_000);
        chat.region().into_iter().find(|row| row.contains(wheel(second * 1_000))).unwrap_or_default()
    };
    chat.model.set_now(100_000);
    chat.says("hello");
    chat.joins("hello", 1);
    chat.hears(EventKind::RunStart);
    assert!(at(&mut chat, 105).ends_with("waiting for the model 5 s"));
    chat.hears(EventKind::MessageStart);
    chat.streams("A paragraph.\n\n");
    assert!(at(&mut chat, 105).ends_with("writing"), "half an answer is there");
    assert!(at(&mut chat, 108).ends_with("writing 3 s"));
    let message = said(Role::Assistant, "A paragraph.\n\n");
    chat.hears(EventKind::MessageEnd { entry_id: EntryId(2), message, queued: None });
    assert!(at(&mut chat, 110).ends_with("waiting for the model 2 s"));
}

#[test]
fn question_marks_show_the_keys_in_an_empty_editor_alone() {
    let mut chat = Chat::new();
    let is_shown = |chat: &mut Chat| chat.region().join("\n").contains("edit the text in $EDITOR");
    chat.types("?");
    assert!(is_shown(&mut chat));
    assert_eq!(chat.press(KeyCode::Esc), []);
    assert!(!is_shown(&mut chat));
    chat.types("??");
    assert!(!is_shown(&mut chat) && chat.region().contains(&"› ?".to_owned()));
    chat.types("?");
    assert!(!is_shown(&mut chat) && chat.region().contains(&"› ??".to_owned()));
    // A blank line and a rule separate the conversation from the editor, where there is room.
    let rule = "─".repeat(SIZE.width());
    assert_eq!(chat.region()[0], rule, "there is no conversation yet");
    chat.model.note(Look::DIM, "said");
    chat.above();
    assert_eq!(chat.region()[..2], [String::new(), rule.clone()]);
    chat.model.resize(Size { columns: 61, rows: 11 });
    assert!(!chat.region().contains(&rule));
}

#[test]
fn the_editor_and_the_clipboard_are_a_key_away() {
    let mut chat = Chat::new();
    chat.types("typed");
    assert_eq!(chat.control('g'), [Effect::EditOutside("typed".to_owned())]);
    assert_eq!(chat.control('x'), []);
    assert_eq!(chat.control('e'), [Effect::EditOutside("typed".to_owned())]);
    assert_eq!(chat.control('e'), [], "alone, it goes to the end of the line");
    assert_eq!(chat.control('v'), [Effect::Picture]);
}
