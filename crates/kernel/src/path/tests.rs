//! The messages that are sent for drawn paths, and their order.

use super::*;
use crate::message::{Image, ToolStatus};
use crate::tests::notation::{Random, call, draw, drawn, odd_path, path, result, says};

#[track_caller]
fn check(drawing: &str, sent: &str) {
    assert_eq!(drawn(&project(&path(drawing), &[])), sent, "of {drawing}");
}

/// As `check`, with the entries that `p@` pins as pinned ones.
#[track_caller]
fn check_pinned(drawing: &str, sent: &str) -> Vec<Arc<Message>> {
    let path = path(drawing);
    let pins: Vec<Arc<Entry>> = path
        .iter()
        .filter_map(|entry| {
            let EntryKind::Pin { entry, .. } = entry.kind else { return None };
            path.iter().find(|other| other.id == entry).cloned()
        })
        .collect();
    let messages = project(&path, &pins);
    assert_eq!(drawn(&messages), sent, "of {drawing}");
    messages
}

#[test]
fn a_projection_is_the_summary_and_what_follows_the_first_kept_entry() {
    check("", "");
    check("u a u a", "u a u a");
    check("u a u a C@2", "S u a");
    check("u a u a C@2 u a", "S u a u a");
    check("u a u C@2 a C@4 u", "S a u");
    // Nothing kept; the first kept entry missing, or after the compaction.
    check("u a C u", "S u");
    check("u a C@99 u", "S u");
    check("u a C@3 u", "S u");
    // Entries that are never sent.
    check("u l a n x u", "u a u");
    check("s m b a", "u u u a");
}

#[test]
fn undo_brings_back_the_exact_context_from_before_several_steps_deep() {
    let whole = path("u:9 c r a u a u c2 r r a C@6 u a C@13 u C@15 u a");
    let context = |len: usize| drawn(&project(&whole[..len], &[]));
    let undone = |undo: &str| {
        drawn(&project(&path(&format!("u:9 c r a u a u c2 r r a C@6 u a C@13 u C@15 u a {undo}")), &[]))
    };
    let (after_first, after_second) = (context(14), context(16));
    // Later messages stay; everything else is as before.
    assert_eq!(undone("U@16"), format!("{after_second} u a"));
    assert_eq!(undone("U@16 U@14"), format!("{after_first} u u a"));
    assert_eq!(undone("U@16 U@14 U@11"), format!("{} u a u u a", context(11)));
    // Undoing an older one changes nothing while a newer one is active.
    assert_eq!(undone("U@11 U@14"), format!("{} u a", context(17)));
    // Compacted again after an undo.
    check("u a u C@2 U@3 a C@4 u", "S a u");
}

#[test]
fn every_call_has_exactly_one_result_directly_after_it() {
    check("u c=x r=x a", "u c=x r=x a");
    check("u c=x,y r=y r=x a", "u c=x,y r=y r=x a");
    // Missing.
    check("u c=x", "u c=x r=x!");
    check("u c=x,y,z r=y u", "u c=x,y,z r=y r=x! r=z! u");
    // Orphans: no call, another call, called later.
    check("r=x u", "u");
    check("u r=x a", "u a");
    check("u r=x c=x", "u c=x r=x!");
    check("u c=x r=y u", "u c=x r=x! u");
    // Doubled results and doubled calls.
    check("u c=x r=x r=x a", "u c=x r=x a");
    check("u c=x,x r=x r=x a", "u c=x r=x a");
    // A message between a call and its result waits.
    check("u c=x u r=x s a", "u c=x r=x u u a");
    // A reused id belongs to the nearest earlier call.
    check("u c=x r=x c=x r=x a", "u c=x r=x c=x r=x a");
    check("u c=x c=x r=x a", "u c=x r=x! c=x r=x a");
    // A result that comes too late does not count.
    check("u c=x a r=x", "u c=x r=x! a");
    // Empty messages are dropped, and do not separate a call from its result.
    check("u e a", "u a");
    check("u c=x e r=x a", "u c=x r=x a");
}

#[test]
fn a_compaction_between_a_call_and_its_result_leaves_no_orphan() {
    check("u c=x C@2 r=x a", "S a");
    check("u c=x C@1 r=x a", "S c=x r=x a");
}

#[test]
fn empty_messages_are_not_sent() {
    let user = |text: &str| Arc::new(Message::user(text));
    let empty = Arc::new(Message::User(Vec::new()));
    assert_eq!(pair(&[user(""), user(" \n"), empty, user("a")]), vec![user("a")]);
    // Nor do they separate a call from its result.
    let call = Arc::new(Message::Assistant(crate::tests::notation::calls(&["x"])));
    let answer = Arc::new(Message::ToolResult(result("x", "ok")));
    assert_eq!(pair(&[call.clone(), user(" "), answer.clone()]), [call, answer]);
    // An empty result stays: its call must be answered.
    let messages = vec![
        Arc::new(Message::Assistant(crate::tests::notation::calls(&["x"]))),
        Arc::new(Message::ToolResult(result("x", ""))),
    ];
    assert_eq!(pair(&messages), messages);
}

#[test]
fn pins_stand_verbatim_before_the_summary() {
    check_pinned("u a p@0 u C@3 a", "u S u a");
    // Still active: once.
    check_pinned("u a u p@2 C@2 a", "S u a");
    // Before any compaction they stay in place.
    check_pinned("u a p@0", "u a");
    // Nothing is active.
    check_pinned("u a p@0 C", "u S");
    // A result without its call becomes a user message; a call without its result is not reported as failed.
    let sent = check_pinned("u c=x r=x:9 a p@2 C@3", "u S a");
    assert!(sent[0].text().contains("m2. word"), "{sent:?}");
    check_pinned("u c=x:9 r=x a p@1 C@3", "a S a");
    check_pinned("u c=x:9 r=x a p@1 p@2 C@3", "c=x r=x S a");
    check_pinned("u c=x,y:9 r=x r=y a p@1 p@3 C@4", "c=y r=y S a");
}

#[test]
fn a_well_formed_conversation_is_not_copied() {
    let path = path("u c=x r=x a");
    for (message, entry) in project(&path, &[]).iter().zip(&path) {
        let recorded = entry.kind.as_message().expect("a message");
        assert!(Arc::ptr_eq(message, recorded));
    }
}

#[test]
fn open_calls_are_those_of_the_newest_answer() {
    let open = |drawing: &str| open_calls(&path(drawing)).into_iter().map(|call| call.id).collect::<Vec<_>>();
    assert_eq!(open(""), [""; 0]);
    assert_eq!(open("u a"), [""; 0]);
    assert_eq!(open("u c=x,y r=x"), ["y"]);
    assert_eq!(open("u c=x,y r=y r=x l"), [""; 0]);
    assert_eq!(open("u c=x a"), [""; 0]);
    assert_eq!(open("u c=x C@1 l"), ["x"]);
    assert_eq!(ToolResult::interrupted(&call("x")).status, ToolStatus::Interrupted);
}

#[test]
fn a_path_follows_parents_and_never_turns_in_a_circle() {
    let path = path("u a u a");
    let ids = |leaf| {
        path_to(&path, Some(EntryId(leaf)))
            .map(|path| path.iter().map(|entry| entry.id.0).collect::<Vec<_>>())
    };
    assert_eq!(ids(2), Ok(vec![0, 1, 2]));
    assert_eq!(ids(9), Err(EntryId(9)));
    assert_eq!(path_to(&path, None), Ok(Vec::new()));
    let mut circle = path.clone();
    circle[1] = Arc::new(Entry { parent: Some(EntryId(3)), ..(*circle[1]).clone() });
    assert_eq!(path_to(&circle, Some(EntryId(3))).map(|path| path.len()), Ok(3));
    circle[1] = Arc::new(Entry { parent: Some(EntryId(1)), ..(*circle[1]).clone() });
    assert_eq!(path_to(&circle, Some(EntryId(3))).map(|path| path.len()), Ok(3));
}

#[test]
fn active_counts_what_the_model_is_sent() {
    let active = |drawing: &str| {
        let drawn = draw(drawing);
        let active = ActivePath::of(&drawn.path);
        (active.start, active.compaction, active.messages(&[]))
    };
    assert_eq!(active("u a x l"), (0, None, 2));
    assert_eq!(active("u a u C@2 a"), (2, Some(3), 3));
    assert_eq!(active("u a u C@99 a"), (4, Some(3), 2));
    assert_eq!(active("u a u C@2 U@3 a"), (0, None, 4));
}

/// Checks the invariants of every request.
fn assert_paired(messages: &[Arc<Message>], seed: u64) {
    let mut open: Vec<String> = Vec::new();
    for message in messages {
        match &**message {
            Message::ToolResult(result) => {
                let at = open.iter().position(|id| *id == result.call_id);
                open.remove(at.unwrap_or_else(|| panic!("seed {seed}: orphan in {}", drawn(messages))));
            }
            Message::User(blocks) => {
                assert!(open.is_empty() && has_content(blocks), "seed {seed}: {}", drawn(messages));
            }
            Message::Assistant(assistant) => {
                assert!(open.is_empty() && !assistant.is_empty(), "seed {seed}: {}", drawn(messages));
                open = assistant.tool_calls().map(|call| call.id.clone()).collect();
            }
        }
    }
    assert!(open.is_empty(), "seed {seed}: {}", drawn(messages));
}

#[test]
fn whatever_was_recorded_each_call_in_a_request_has_exactly_one_result() {
    let (mut calls, mut orphans, mut interrupted, mut pinned, mut found) = (0, 0, 0, 0, 0);
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let length = 5 + random.below(60);
        let path = odd_path(&mut random, length);
        let pins: Vec<Arc<Entry>> = path.iter().filter(|_| random.one_in(8)).cloned().collect();
        let messages = project(&path, &pins);
        assert_paired(&messages, seed);
        assert_eq!(pair(&messages), messages, "seed {seed}: pairing twice changes nothing");
        let is_result = |message: &Message| matches!(message, Message::ToolResult(_));
        let results = messages.iter().filter(|message| is_result(message)).count();
        calls += messages.iter().map(|message| message.tool_calls().count()).sum::<usize>();
        let active = ActivePath::of(&path);
        let recorded = active.entries().iter().filter_map(|entry| entry_message(&entry.kind));
        let recorded = recorded.filter(|message| is_result(message)).count();
        orphans += usize::from(recorded > results);
        interrupted += usize::from(drawn(&messages).contains('!'));
        pinned += usize::from(project(&path, &[]) != messages);
        // Every active text that is not a result is sent, once.
        let text: String = messages.iter().map(|message| message.text() + "\n").collect();
        for entry in active.entries() {
            let Some(message) = entry_message(&entry.kind) else { continue };
            let mark = format!("m{}.", entry.id);
            if !is_result(&message) && message.text().contains(&mark) {
                assert_eq!(text.matches(&mark).count(), 1, "seed {seed}: {mark} of {}", drawn(&messages));
                found += 1;
            }
        }
    }
    for (what, count, least) in [
        ("calls that were sent", calls, 8000),
        ("paths with results that were not sent", orphans, 400),
        ("paths with calls that were interrupted", interrupted, 800),
        ("paths with pins before the summary", pinned, 300),
        ("active texts", found, 16_000),
    ] {
        assert!(count >= least, "only {count} {what}");
    }
}

/// Messages made of words: `u` and `r` (a tool's result) with `i` for each image of 4 bytes, `a` for an answer.
fn with_images(words: &str) -> Messages {
    let image = || Block::Image(Image { media_type: "image/png".into(), data: "AAAA".into() });
    let blocks = |word: &str| {
        let images = word.matches('i').map(|_| image());
        std::iter::once(Block::Text("look".into())).chain(images).collect::<Vec<_>>()
    };
    let message = |word: &str| match &word[..1] {
        "u" => Message::User(blocks(word)),
        "r" => {
            let mut result = result("x", "ok");
            result.content = blocks(word);
            Message::ToolResult(result)
        }
        _ => Message::Assistant(says("it is")),
    };
    words.split_whitespace().map(|word| Arc::new(message(word))).collect()
}

/// Messages as the words of [`with_images`], with `-` for an older image that is left out, and `!` for one that the next
/// answer is about.
#[track_caller]
fn check_media(messages: &str, media: Media, bytes_max: u64, sent: &str, missing: usize) {
    let (limited, left_out) = limit_media(with_images(messages), media, bytes_max);
    let words: Vec<String> = limited
        .iter()
        .map(|message| {
            let (role, blocks): (&str, &[Block]) = match &**message {
                Message::User(blocks) => ("u", blocks),
                Message::ToolResult(result) => ("r", &result.content),
                Message::Assistant(_) => ("a", &[]),
            };
            let signs = blocks.iter().map(|block| match block {
                Block::Image(_) => "i",
                Block::Text(text) if text.contains("left out") => "-",
                Block::Text(text) if text.contains("cannot see it") => "!",
                Block::Text(_) | Block::Native(_) => "",
            });
            format!("{role}{}", signs.collect::<String>())
        })
        .collect();
    assert_eq!(
        (words.join(" ").as_str(), left_out),
        (sent, missing),
        "of {messages}, {media:?}, {bytes_max}"
    );
}

#[test]
fn images_are_left_out_from_the_oldest_on_and_what_the_next_answer_is_about_comes_last() {
    let many = "ui a ri uii a ri";
    check_media(many, Media::All, 100, many, 0);
    check_media(many, Media::All, 20, many, 0);
    check_media(many, Media::All, 19, "u- a ri uii a ri", 0);
    check_media(many, Media::All, 8, "u- a r- u!! a ri", 2);
    // Those of the newest prompt, and of results that no answer has followed.
    check_media(many, Media::Newest, 100, "u- a r- uii a ri", 0);
    check_media(many, Media::Newest, 8, "u- a r- u!! a ri", 2);
    check_media("ui a u", Media::Newest, 100, "u- a u", 0);
    check_media("ui a uii", Media::Newest, 100, "u- a uii", 0);
    check_media("uii a r ui", Media::Newest, 100, "u-- a r ui", 0);
    check_media("ui a ri ri", Media::Newest, 100, "ui a ri ri", 0);
    check_media("ui a ri a ri", Media::Newest, 100, "ui a r- a ri", 0);
    check_media(many, Media::Nothing, 100, "u- a r- u!! a r!", 3);
    check_media("u a u", Media::Nothing, 100, "u a u", 0);
}

#[test]
fn what_may_still_be_left_out_is_an_image_that_was_sent() {
    let check = |sent, fewer| assert_eq!(fewer_images(&with_images(sent)), fewer, "{sent}");
    for bare in ["", "u", "u a u", "u a r a u a r"] {
        check(bare, None);
    }
    for old in ["ui a u", "ui a ri uii a ri", "u a ri a u", "ui a r a ri u"] {
        check(old, Some(Media::Newest));
    }
    for new in ["ui", "u a ui", "ui a r", "u a ri ri", "ui a ri"] {
        check(new, Some(Media::Nothing));
    }
}
