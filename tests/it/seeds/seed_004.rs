//! The fifth document: compaction for extensions. The check after each run, requests that wait for the run's end, the
//! preparation, two summaries at once, hooks that cancel or supply, live settings, and a size that is counted anew.
//!
//! That the summary ends with the files is shown in `seed_000`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::BeforeCompact;
use greenroom::prelude::*;
use greenroom_kernel::compacting::Supplied;
use greenroom_kernel::entry::{EntryId, EntryKind};
use greenroom_kernel::files::Touch;
use greenroom_kernel::message::{Message, Usage};
use greenroom_simulator::{Answer as Said, ByPurpose, Echo, Sequence, Summariser};
use serde_json::json;

use crate::compaction_fixtures::{
    asked, calls, chat, compactions, editor, ends, keep, newest, opened, result, runs, settings, talker,
    text, user,
};
use crate::support::{agent, builder, drain, names, runtime, simulator};

#[tokio::test(start_paused = true)]
async fn it_is_checked_at_the_end_of_every_turn() {
    let model = simulator(ByPurpose::new(talker(300), Summariser::Obedient), 8_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(8_000)).await.unwrap();
    let mut events = session.subscribe();
    while session.state().await.unwrap().compactions == 0 {
        session.prompt(text("more", 300)).await.unwrap();
    }
    let names = names(&mut events);
    let start = names.iter().position(|name| *name == "compaction_start").unwrap();
    assert_eq!(names[start - 2..start], ["step_end", "run_end"], "{names:?}");
}

/// A tool requests a compaction in the middle of its run: it happens after the run, with the requested focus.
#[tokio::test(start_paused = true)]
async fn a_request_in_the_middle_of_a_turn_waits_for_its_end() {
    let model = simulator(Sequence(vec![Said::call("tidy", &json!({})), Said::text("tidied")]), 100_000);
    let runtime = runtime(&model).await;
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let tidy = agent(100_000).add_tool(tool("tidy", |_: Nothing, context: ToolContext| async move {
        let focus = Some("the lighthouse".to_owned());
        context.compaction.request(CompactOptions { focus, keep_recent: Some(300), force: true });
        Ok("asked for")
    }));
    let session = opened(&runtime, "s", &tidy, chat(8, 200)).await;
    let mut events = session.subscribe();
    assert_eq!(session.prompt("tidy up").await.unwrap().text, "tidied");
    while session.state().await.unwrap().status != Status::Idle {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let names = names(&mut events);
    let place =
        |name| names.iter().position(|other| *other == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
    assert!(place("run_end") < place("compaction_start"));
    assert_eq!(serde_json::to_value(newest(&runtime, "s").await.trigger).unwrap(), "hook");
    assert!(asked(&model)[0].request.last_user_text().contains("the lighthouse"));
}

#[tokio::test(start_paused = true)]
async fn a_manual_compaction_needs_an_idle_session_and_fails_at_once_else() {
    let model = simulator(Sequence(vec![Said::text("late").after_ms(60_000)]), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    let prompt = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("slow").await }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let began = tokio::time::Instant::now();
    let refused = session.compact(CompactOptions::default()).await;
    assert!(matches!(refused, Err(Error::NotIdle { .. })), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(1));
    prompt.await.unwrap().unwrap();
    assert_eq!(session.compact(keep(300)).await.unwrap().outcome.as_str(), "completed");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_prepared_after_a_compaction_or_where_nothing_may_be_cut() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let again = session.plan(keep(300)).await;
    assert!(
        matches!(
            &again,
            Err(Error::NothingToCompact(greenroom::compaction::NothingToCompact::JustCompacted))
        ),
        "{again:?}"
    );
    let one = opened(&runtime, "one", &agent(100_000), vec![user(text("m0.", 3_000))]).await;
    assert!(one.plan(keep(300)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_preparation_has_what_the_summary_needs() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user("m0."), calls(&["a"], "x"), result("a", "", &[("a.rs", Touch::Modified)])];
    messages.extend(chat(6, 200));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(600)).await.unwrap().is_installed());
    for run in 0..4 {
        session.prompt(text(&format!("more {run}."), 200)).await.unwrap();
    }
    let first = newest(&runtime, "s").await;
    let plan = session.plan(keep(600)).await.unwrap();
    assert_eq!(plan.first, first.first_kept.unwrap(), "it begins with what the last one kept");
    assert!(plan.first_kept > plan.last && plan.last > plan.first);
    assert!(plan.messages_to_summarize() > 0 && plan.turn_prefix_messages() == 0 && !plan.is_split_turn);
    assert_eq!(plan.tokens_before, session.state().await.unwrap().context.tokens);
    assert_eq!(plan.previous_summary.as_deref(), Some(first.summary.as_str()));
    assert_eq!(plan.files.modified().collect::<Vec<_>>(), ["a.rs"]);
    assert_eq!(plan.options.keep_recent, 600, "the settings that were used");
}

/// Both halves of a split turn at once: the wait is the longer one.
#[tokio::test(start_paused = true)]
async fn a_split_turn_is_summarised_by_two_calls_at_once_and_joined_by_a_divider() {
    let slow =
        greenroom_simulator::Function(
            |request: &greenroom_simulator::SeenRequest, info: greenroom_simulator::CallInfo| {
                let is_prefix = request.last_user_text().contains("## Original Request");
                greenroom_simulator::Script::reply(&Summariser::Obedient, request, info)
                    .after_ms(if is_prefix { 3_000 } else { 5_000 })
            },
        );
    let model = simulator(ByPurpose::new(Echo, slow), 100_000);
    let runtime = runtime(&model).await;
    let mut messages = chat(3, 200);
    messages.push(user("m6. a long run"));
    for step in 0..12 {
        let id = format!("c{step}");
        messages.push(calls(&[&id], "x"));
        messages.push(result(&id, text("out", 300), &[]));
    }
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    let done = session.compact(keep(1_000)).await.unwrap();
    assert_eq!(done.duration_ms, 5_000);
    let asked = asked(&model);
    assert!(asked[0].started == asked[1].started && asked.len() == 2);
    assert!(newest(&runtime, "s").await.summary.contains("\n\n---\n\n"));
}

/// There is nothing before the split turn: one call, and the summary says that there was no history.
#[tokio::test(start_paused = true)]
async fn the_history_s_summary_is_skipped_where_there_is_no_history() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user("m0. a long run")];
    for step in 0..12 {
        let id = format!("c{step}");
        messages.push(calls(&[&id], "x"));
        messages.push(result(&id, text("out", 300), &[]));
    }
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(1_000)).await.unwrap().is_installed());
    assert_eq!(asked(&model).len(), 1);
    let summary = newest(&runtime, "s").await.summary;
    assert!(
        summary.starts_with("(Nothing happened before") && summary.contains("# Turn Context"),
        "{summary}"
    );
}

#[tokio::test(start_paused = true)]
async fn custom_instructions_go_into_the_request() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    let options = CompactOptions { focus: Some("the tests that fail".into()), ..keep(300) };
    assert!(session.compact(options).await.unwrap().is_installed());
    let request = asked(&model)[0].request.last_user_text();
    assert!(request.ends_with("Attend above all to this: the tests that fail"), "{request}");
}

/// Old answers still carry their large reports: after a compaction none of them determines the size.
#[tokio::test(start_paused = true)]
async fn the_size_afterwards_is_estimated_anew_and_not_an_old_report() {
    let model = simulator(Sequence(vec![Said::text("fine")]), 200_000);
    let runtime = runtime(&model).await;
    let mut messages = chat(8, 200);
    for message in &mut messages {
        if let Message::Assistant(answer) = message {
            answer.usage = Some(Usage { input_tokens: 4_000, output_tokens: 100, ..Usage::default() });
        }
    }
    let session = opened(&runtime, "s", &agent(200_000), messages).await;
    assert!(session.state().await.unwrap().context.tokens > 4_000);
    let done = session.compact(keep(500)).await.unwrap();
    let after = session.state().await.unwrap().context;
    assert!(
        after.usage_tokens == 0 && after.tokens == done.tokens_after && after.tokens < 3_000,
        "{after:?}"
    );
    let mut events = session.subscribe();
    session.prompt("next").await.unwrap();
    assert_eq!(ends(&drain(&mut events)).len(), 0, "it is not compacted again for an old report");
    assert_eq!(runs(&model).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn any_hook_that_cancels_wins_and_a_supplied_summary_skips_the_model() {
    let supply =
        || BeforeCompact::Supply(Supplied { summary: "The hook's own words.".into(), first_kept: None });
    for (cancel, outcome) in [(true, "cancelled"), (false, "completed")] {
        let model = simulator(Echo, 100_000);
        let runtime = builder(&model)
            .before_compact(move |_| async move { supply() })
            .before_compact(move |_| async move {
                if cancel { BeforeCompact::Cancel("not now".into()) } else { BeforeCompact::Continue }
            })
            .start()
            .await
            .unwrap();
        let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
        let done = session.compact(keep(300)).await.unwrap();
        assert_eq!((done.outcome.as_str(), asked(&model).len()), (outcome, 0), "{done:?}");
        if !cancel {
            let compaction = newest(&runtime, "s").await;
            assert!(compaction.from_hook && compaction.summary.starts_with("The hook's own words."));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_compaction_the_hook_gets_the_new_entry() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    let model = simulator(Echo, 100_000);
    let runtime = builder(&model)
        .after_compact(move |report| {
            let sink = Arc::clone(&sink);
            async move { sink.lock().unwrap().push((report.session.to_string(), report.entry)) }
        })
        .start()
        .await
        .unwrap();
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    let done = session.compact(keep(300)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let told = told.lock().unwrap().clone();
    let [(name, Some(entry))] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!((name.as_str(), Some(entry.id)), ("s", done.entry_id));
    assert_eq!(entry.kind, EntryKind::Compaction(Box::new(newest(&runtime, "s").await)));
}

#[tokio::test(start_paused = true)]
async fn settings_are_read_at_the_next_check_without_a_restart() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(20, 200)).await;
    session.prompt("one").await.unwrap();
    assert_eq!(compactions(&runtime, "s").await.len(), 0);
    let smaller = settings(|settings| {
        (settings.auto_compact_token_limit, settings.keep_recent_tokens) = (Some(6_000), Some(1_000));
    });
    runtime.set_compaction(smaller).await.unwrap();
    session.prompt("two").await.unwrap();
    let history = compactions(&runtime, "s").await;
    assert_eq!(history.len(), 1);
    let kept = session.context().await.unwrap();
    assert!(kept.len() < 20, "{}", kept.len());
}

/// The context is rebuilt from the tree and its leaf: on the branch that was left, the compaction does not
/// count.
#[tokio::test(start_paused = true)]
async fn the_context_is_rebuilt_from_the_path_to_the_leaf() {
    let model = simulator(Sequence(vec![Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &editor(100_000, 10), chat(8, 200)).await;
    let all = session.context().await.unwrap();
    let compaction = session.compact(keep(300)).await.unwrap().entry_id.unwrap();
    let compacted = session.context().await.unwrap();
    session.branch(Some(EntryId(7))).await.unwrap();
    assert_eq!(session.context().await.unwrap(), all[..8]);
    session.branch(Some(compaction)).await.unwrap();
    assert_eq!(session.context().await.unwrap(), compacted);
}
