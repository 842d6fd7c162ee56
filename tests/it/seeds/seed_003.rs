//! The fourth document: compaction as the users of a chat and of an HTTP interface see it. A token limit as the
//! trigger, a number of messages to preserve, the configurable prompt, the status lines, the event, the history in the
//! metadata, and conversations that are too short.

use greenroom::CompactionOutcome;
use greenroom::prelude::*;
use greenroom_kernel::entry::EntryId;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Echo, Function, Script as _, SeenRequest, Summariser,
};

use crate::compaction_fixtures::{
    asked, chat, compactions, keep, newest, opened, said, settings, talker, text, user,
};
use crate::support::{agent, builder, drain, runtime, simulator};

#[test]
fn the_token_limit_is_a_setting_with_an_alias_and_clamped_to_the_window() {
    let read: CompactionSettings =
        serde_json::from_value(serde_json::json!({ "model_auto_compact_token_limit": 5_000 })).unwrap();
    assert_eq!(read.auto_compact_token_limit, Some(5_000));
    assert_eq!(read.trigger_tokens(200_000), Some(5_000), "the earliest trigger wins");
    let huge = settings(|settings| {
        (settings.threshold, settings.reserve_tokens) = (None, None);
        settings.auto_compact_token_limit = Some(900_000);
    });
    assert_eq!(huge.trigger_tokens(200_000), Some(200_000));
}

#[tokio::test(start_paused = true)]
async fn it_triggers_when_the_token_limit_is_reached() {
    let model = simulator(ByPurpose::new(talker(200), Summariser::Obedient), 100_000);
    let limit = settings(|settings| {
        settings.auto_compact_token_limit = Some(6_000);
        settings.keep_recent_tokens = Some(1_000);
    });
    let runtime = builder(&model).compaction(limit).start().await.unwrap();
    let session = runtime.open("s", &agent(20_000)).await.unwrap();
    let mut before = 0;
    while session.state().await.unwrap().compactions == 0 {
        before = session.prompt(text("more", 200)).await.unwrap().context.tokens;
        // A compaction may begin after the run.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert!(before < 7_500, "it never triggered");
    }
    assert!(before >= 6_000, "{before}");
}

#[tokio::test(start_paused = true)]
async fn the_last_messages_are_preserved_intact() {
    for preserve in 5..=10 {
        let model = simulator(Echo, 100_000);
        let preserving = settings(|settings| settings.preserve_messages = Some(preserve));
        let runtime = builder(&model).compaction(preserving).start().await.unwrap();
        let session = opened(&runtime, "s", &agent(100_000), chat(15, 100)).await;
        let all = session.context().await.unwrap();
        assert!(session.compact(keep(1)).await.unwrap().is_installed());
        let after = session.context().await.unwrap();
        let count = usize::try_from(preserve).unwrap();
        assert!(after.len() > count, "{preserve}: {}", after.len());
        assert_eq!(after[after.len() - count..], all[all.len() - count..]);
        assert!(after.len() <= count + 2, "{preserve}: {} stay", after.len());
    }
}

#[tokio::test(start_paused = true)]
async fn older_messages_are_replaced_by_one_summary_message() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(15, 100)).await;
    let all = session.context().await.unwrap();
    let done = session.compact(keep(500)).await.unwrap();
    let after = session.context().await.unwrap();
    assert_eq!(after.len() as u64, all.len() as u64 - done.messages_removed + 1);
    assert_eq!(after[1..], all[usize::try_from(done.messages_removed).unwrap()..]);
}

#[tokio::test(start_paused = true)]
async fn file_paths_decisions_code_and_errors_are_asked_for_and_an_obedient_summary_has_them() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![
        user("Fix crates/store/src/index.rs. Never touch the journal."),
        said("I decided to use a B-tree."),
    ];
    messages.extend(chat(6, 200));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let request = asked(&model)[0].request.last_user_text();
    for wanted in ["Key Decisions", "Paths", "important code", "each error word for word", "its solution"] {
        assert!(request.contains(wanted), "{wanted}");
    }
    let summary = newest(&runtime, "s").await.summary;
    assert!(summary.contains("crates/store/src/index.rs") && summary.contains("Never touch the journal."));
}

#[tokio::test(start_paused = true)]
async fn the_status_lines_say_how_many_messages_and_the_tokens_before_and_after() {
    let model = simulator(Echo, 200_000);
    let runtime = runtime(&model).await;
    // Half of this conversation is the user's.
    let definition = agent(200_000).compaction(settings(|settings| settings.user_words = None));
    let session = opened(&runtime, "s", &definition, chat(60, 1_000)).await;
    let done = session.compact(keep(2_000)).await.unwrap();
    // The lines themselves are the command's: `crates/terminal/src/text.rs`.
    assert!(done.is_installed() && done.messages_removed == done.messages_before - done.messages_after + 1);
    assert!(done.tokens_before > 60_000 && done.tokens_after < 5_000, "{done:?}");
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_is_too_short_is_left_alone_and_the_reason_is_said() {
    let model = simulator(Echo, 100_000);
    let preserving = settings(|settings| settings.preserve_messages = Some(5));
    let runtime = builder(&model).compaction(preserving).start().await.unwrap();
    let session = opened(&runtime, "s", &agent(100_000), chat(3, 100)).await;
    let done = session.compact(keep(1)).await.unwrap();
    assert_eq!(
        done.outcome.reason(),
        Some("not enough messages to compact: there are 6, and at least 7 are needed")
    );
    assert_eq!((done.outcome.as_str(), done.started), ("nothing", None));
    assert_eq!((asked(&model).len(), compactions(&runtime, "s").await.len()), (0, 0));
    let empty = runtime.open("empty", &agent(100_000)).await.unwrap();
    let done = empty.compact(CompactOptions::default()).await.unwrap();
    assert_eq!(done.outcome, CompactionOutcome::Nothing { reason: "the session is empty".into() });
}

/// The prompt is the user's own; the transcript replaces `{messages}`, and other data goes before it.
#[tokio::test(start_paused = true)]
async fn the_prompt_can_be_replaced_and_its_answer_needs_no_headings() {
    for (prompt, expected) in [
        ("Summarise this:\n{messages}\nIn one line.", "Summarise this:\n<conversation>\n"),
        ("In one line.", "<conversation>\n"),
    ] {
        let script = Function(|request: &SeenRequest, info: CallInfo| match request.purpose {
            greenroom::provider::Purpose::Summary | greenroom::provider::Purpose::Compaction => {
                Said::text("They talked about m0.")
            }
            greenroom::provider::Purpose::Step => Echo.reply(request, info),
        });
        let model = simulator(script, 100_000);
        let own = settings(|settings| settings.compact_prompt = Some(prompt.to_owned()));
        let runtime = builder(&model).compaction(own).start().await.unwrap();
        let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
        assert_eq!(session.compact(keep(300)).await.unwrap().outcome.as_str(), "completed");
        let request = asked(&model)[0].request.last_user_text();
        assert!(
            request.starts_with(expected)
                && request.contains("m0.")
                && request.contains("\nIn one line.\n\nStay within ")
        );
        assert!(!request.contains("{messages}"));
        assert!(newest(&runtime, "s").await.summary.starts_with("They talked about m0."));
    }
}

#[tokio::test(start_paused = true)]
async fn clients_are_told_that_a_session_was_compacted_and_how_many_tokens_it_saved() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(15, 100)).await;
    let mut events = session.subscribe();
    let done = session.compact(keep(500)).await.unwrap();
    let seen = drain(&mut events);
    let told = seen.iter().find_map(|event| match event.kind {
        EventKind::SessionCompacted { entry_id, tokens_saved } => {
            Some((entry_id, tokens_saved, event.is_durable()))
        }
        _ => None,
    });
    assert_eq!(told, Some((done.entry_id.unwrap(), done.tokens_before - done.tokens_after, true)));
}

#[tokio::test(start_paused = true)]
async fn the_session_s_metadata_has_the_history_of_its_compactions() {
    let model = simulator(ByPurpose::new(talker(300), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let mut ids: Vec<EntryId> = Vec::new();
    for _ in 0..4 {
        for _ in 0..4 {
            session.prompt(text("more", 300)).await.unwrap();
        }
        ids.push(session.compact(keep(600)).await.unwrap().entry_id.unwrap());
    }
    // One that was undone is history too.
    session.undo_compaction().await.unwrap();
    let history = compactions(&runtime, "s").await;
    assert_eq!(history.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    assert!(history.iter().all(|(_, one)| one.tokens_after < one.tokens_before && one.messages_removed > 0));
    assert_eq!(session.state().await.unwrap().compactions, 4);
    assert_eq!(runtime.summary("s").await.unwrap().unwrap().compactions, 4);
}
