//! The second document: compaction as a block of settings. How the window is found, what is persisted, incremental
//! merges, legal cuts, the event's three numbers, and the size at a run's end.
//!
//! That 183,616 of 200,000 tokens trigger, and that the summary ends with the files, is shown in `seed_000`.

use greenroom::prelude::*;
use greenroom_kernel::FailureClass;
use greenroom_kernel::entry::{EntryId, EntryKind, Shell};
use greenroom_kernel::message::Message;
use greenroom_kernel::path::active_compaction;
use greenroom_kernel::render::SUMMARY_LEAD;
use greenroom_kernel::settings::{CutRule, Occasion, UnknownWindow};
use greenroom_kernel::usage::{KnownWindows, Window, WindowSource};
use greenroom_simulator::{Answer as Said, Echo, Sequence};

use crate::compaction_fixtures::{
    asked, calls, chat, count, ends, entries, keep, newest, opened, result, runs, said, settings, text, user,
};
use crate::support::{agent, builder, drain, runtime, simulator};

#[test]
fn the_settings_block_has_defaults_and_is_read_by_its_names() {
    let read: CompactionSettings = serde_json::from_value(serde_json::json!({
        "enabled": true, "context_window": 200_000, "reserve_tokens": 16_384, "keep_recent_tokens": 20_000,
    }))
    .unwrap();
    assert_eq!(read.keep_recent(200_000, Occasion::Automatic, 90_000), 20_000);
    let defaults = CompactionSettings::default();
    assert!(defaults.enabled && defaults.reserve_tokens == Some(16_384));
    let unknown = serde_json::from_value::<CompactionSettings>(serde_json::json!({ "reserve": 1 }));
    assert!(unknown.unwrap_err().to_string().contains("reserve"), "a misspelt name is an error");
}

#[test]
fn the_window_is_the_compaction_setting_then_the_setting_then_the_registry_then_none() {
    let own = settings(|settings| settings.context_window = Some(1));
    let none = settings(|settings| settings.unknown_window = UnknownWindow::Disable);
    let all = KnownWindows { setting: Some(2), catalog: Some(3), ..KnownWindows::default() };
    let resolve = |settings, known| Window::resolve(settings, known).source;
    assert_eq!(resolve(&own, all), WindowSource::CompactionSetting);
    assert_eq!(resolve(&none, all), WindowSource::Setting);
    assert_eq!(resolve(&none, KnownWindows { setting: None, ..all }), WindowSource::Catalog);
    assert_eq!(resolve(&none, KnownWindows::default()), WindowSource::Unknown);
}

/// The window is unknown, and none is assumed: nothing compacts automatically.
#[tokio::test(start_paused = true)]
async fn without_a_known_window_compaction_is_off() {
    let model = simulator(Sequence(vec![Said::text("fine")]), 1_000_000);
    let none = settings(|settings| settings.unknown_window = UnknownWindow::Disable);
    let runtime = builder(&model).compaction(none).start().await.unwrap();
    let session = opened(&runtime, "s", &Agent::new("nobody-knows-it"), chat(40, 4_000)).await;
    let mut events = session.subscribe();
    session.prompt("go on").await.unwrap();
    assert_eq!(count(&drain(&mut events), "compaction_start"), 0);
    assert_eq!(session.state().await.unwrap().context.window_source, WindowSource::Unknown);
}

#[tokio::test(start_paused = true)]
async fn the_next_call_sees_the_system_prompt_the_summary_and_the_messages_from_the_first_kept_entry_on() {
    let model = simulator(Sequence(vec![Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let agent = agent(100_000).instructions("Be brief.");
    let session = opened(&runtime, "s", &agent, chat(8, 200)).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    session.prompt("next").await.unwrap();
    let sent = &runs(&model)[0].request;
    assert_eq!(sent.system.as_deref(), Some("Be brief."));
    assert!(sent.messages[0].role() == "user" && sent.messages[0].text().starts_with(SUMMARY_LEAD));
    let first_kept = newest(&runtime, "s").await.first_kept.unwrap();
    assert!(sent.messages[1].text().starts_with(&format!("m{first_kept}.")));
}

/// The compaction is an entry of the session's log on the disk, with its summary and its first kept entry,
/// and another process that opens the session uses it.
#[tokio::test]
async fn a_compaction_entry_is_persisted_with_the_summary_and_the_first_kept_id() {
    let model = simulator(Echo, 100_000);
    let dir = tempfile::tempdir().unwrap();
    let start = || Runtime::builder().provider(model.provider()).data_dir(dir.path()).start();
    let first = start().await.unwrap();
    let session = opened(&first, "s", &agent(100_000), chat(8, 200)).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let context = session.context().await.unwrap();
    let compaction = newest(&first, "s").await;
    assert!(compaction.summary.contains("## Goal") && compaction.first_kept > Some(EntryId(0)));
    first.shutdown().await.unwrap();
    let second = start().await.unwrap();
    assert!(second.notices().is_empty(), "{:?}", second.notices());
    assert_eq!(newest(&second, "s").await, compaction);
    let again = second.open("s", &agent(100_000)).await.unwrap();
    assert_eq!(again.context().await.unwrap(), context);
    second.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_summary_before_goes_into_the_request_to_be_merged() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user("Build the lighthouse."), said("Yes.")];
    messages.extend(chat(8, 200));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let first = newest(&runtime, "s").await;
    for run in 0..6 {
        session.prompt(text(&format!("more {run}."), 200)).await.unwrap();
    }
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let request = asked(&model)[1].request.last_user_text();
    let body = greenroom_kernel::summary::without_footer(&first.summary);
    assert!(request.contains(&format!("<previous-summary>\n{body}\n</previous-summary>")), "{request}");
    assert!(request.contains("MERGE"));
    assert!(
        newest(&runtime, "s").await.summary.contains("Build the lighthouse."),
        "the first goal is still there"
    );
}

#[tokio::test(start_paused = true)]
async fn cuts_are_at_user_messages_answers_and_user_run_commands_and_never_at_tool_results() {
    let model = simulator(Echo, 100_000);
    let nearest = settings(|settings| settings.cut = CutRule::Nearest);
    let runtime = builder(&model).compaction(nearest).start().await.unwrap();
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let shell = Shell {
        command: "ls".into(),
        output: text("out", 300),
        exit_code: Some(0),
        cancelled: false,
        truncated: false,
        excluded: false,
    };
    let path = entries([
        EntryKind::message(user(text("m0.", 300))),
        EntryKind::message(said(text("m1.", 300))),
        EntryKind::Shell(shell),
        EntryKind::message(user(text("m3.", 300))),
        EntryKind::message(calls(&["a"], "x")),
        EntryKind::message(result("a", text("m5.", 900), &[])),
        EntryKind::message(said(text("m6.", 300))),
        EntryKind::message(user(text("m7.", 300))),
    ]);
    session.import(path.clone(), Some(EntryId(7))).await.unwrap();
    let mut cuts = std::collections::BTreeSet::new();
    for tokens in (1..3_000).step_by(50) {
        if let Ok(plan) = session.plan(keep(tokens)).await {
            cuts.insert(plan.first_kept.0);
        }
    }
    assert!(!cuts.contains(&5), "a tool result begins what is kept");
    assert!([1, 2, 3, 6, 7].iter().all(|cut| cuts.contains(cut)), "{cuts:?}");
}

/// The newest run alone is larger than the kept part: the cut falls into it, and both parts are summarised
/// separately.
#[tokio::test(start_paused = true)]
async fn a_turn_larger_than_the_kept_part_is_cut_at_an_answer_and_both_summaries_are_merged() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = chat(3, 200);
    messages.push(user("m6. a long run"));
    for step in 0..12 {
        let id = format!("c{step}");
        messages.push(calls(&[&id], "x"));
        messages.push(result(&id, text("out", 300), &[]));
    }
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(1_000)).await.unwrap().is_installed());
    let compaction = newest(&runtime, "s").await;
    assert!(compaction.is_split_turn);
    let kept = &runtime.entries("s", compaction.first_kept.unwrap()).await.unwrap()[0];
    assert!(matches!(kept.kind.as_message().map(|m| &**m), Some(Message::Assistant(_))));
    assert_eq!(asked(&model).len(), 2);
    for part in ["## Goal", "\n\n---\n\n", "# Turn Context", "## Original Request"] {
        assert!(compaction.summary.contains(part), "{part}: {}", compaction.summary);
    }
}

#[tokio::test(start_paused = true)]
async fn the_compaction_event_has_tokens_before_tokens_after_and_messages_removed() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    let mut events = session.subscribe();
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let end = ends(&drain(&mut events)).remove(0);
    let state = session.state().await.unwrap();
    assert_eq!(end.tokens_after, state.context.tokens);
    assert!(end.tokens_before > end.tokens_after);
    assert_eq!(end.messages_removed, end.messages_before + 1 - end.messages_after);
}

/// Disabled: the conversation continues until the provider refuses, and the refusal is returned to the
/// caller.
#[tokio::test(start_paused = true)]
async fn disabled_means_that_the_provider_s_overflow_reaches_the_caller() {
    let model = simulator(Echo, 8_000);
    let off = settings(|settings| settings.enabled = false);
    let runtime = builder(&model).compaction(off).start().await.unwrap();
    let session = opened(&runtime, "s", &agent(8_000), chat(8, 390)).await;
    let mut events = session.subscribe();
    let error = loop {
        if let Err(error) = session.prompt(text("more", 500)).await {
            break error;
        }
    };
    assert!(
        matches!(&error, Error::Model(failure) if failure.class == FailureClass::ContextOverflow),
        "{error}"
    );
    let seen = drain(&mut events);
    assert_eq!(count(&seen, "compaction_start") + count(&seen, "retry"), 0);
    // A manual one is still possible.
    let done = session.compact(keep(1_000)).await.unwrap();
    assert_eq!(done.outcome.as_str(), "completed", "{done:?}");
    session.prompt("and now?").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_turn_s_end_has_the_size_and_its_two_parts() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let mut events = session.subscribe();
    session.prompt(text("hello", 800)).await.unwrap();
    let seen = drain(&mut events);
    let context = seen
        .iter()
        .find_map(|event| match &event.kind {
            EventKind::RunEnd { context, .. } => Some(*context),
            _ => None,
        })
        .unwrap();
    assert!(context.usage_tokens > 1_000);
    assert_eq!(context.tokens, context.usage_tokens + context.trailing_tokens);
}

/// With the rule of this document; by default a cut prefers the beginning of a turn, and may keep less.
#[tokio::test(start_paused = true)]
async fn messages_newer_than_the_kept_tokens_are_never_summarised() {
    let model = simulator(Echo, 100_000);
    let nearest = settings(|settings| settings.cut = CutRule::Nearest);
    let runtime = builder(&model).compaction(nearest).start().await.unwrap();
    let session = opened(&runtime, "s", &agent(100_000), chat(20, 100)).await;
    assert!(session.compact(keep(1_000)).await.unwrap().is_installed());
    let request = asked(&model)[0].request.last_user_text();
    let first_kept = newest(&runtime, "s").await.first_kept.unwrap().0;
    let kept: u64 = runtime.entries("s", EntryId(first_kept)).await.unwrap()
        [..usize::try_from(40 - first_kept).unwrap()]
        .iter()
        .map(|entry| entry.tokens)
        .sum();
    assert!((1_000..1_200).contains(&kept), "{kept}");
    for id in 0..40 {
        let is_there = request.contains(&format!("m{id}."));
        assert_eq!(is_there, id < first_kept, "message {id}, first kept {first_kept}");
    }
    let path: Vec<_> = runtime.entries("s", EntryId(0)).await.unwrap().into_iter().map(Into::into).collect();
    assert!(active_compaction(&path).is_some());
}
