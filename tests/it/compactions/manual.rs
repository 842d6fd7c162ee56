//! Manual compactions and their reversal: focus, keep and force, plans, undo, branches, forks, pins, and
//! input during a compaction.

use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_kernel::files::Touch;
use greenroom_simulator::{ByPurpose, CallInfo, Echo, Function, Script, SeenRequest, Sequence, Summariser};

use crate::compaction_fixtures::{
    asked, calls, chat, compactions, count, keep, newest, opened, result, runs, said, settings, talker, text,
    user,
};
use crate::support::{agent, builder, drain, names, runtime, simulator};

#[tokio::test(start_paused = true)]
async fn a_plan_says_what_a_compaction_then_does() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 200)).await;
    let plan = session.plan(keep(700)).await.unwrap();
    assert_eq!(asked(&model).len(), 0);
    let done = session.compact(keep(700)).await.unwrap();
    let compaction = newest(&runtime, "s").await;
    assert_eq!((compaction.first, compaction.last), (Some(plan.first), Some(plan.last)));
    assert_eq!(compaction.first_kept, Some(plan.first_kept));
    assert_eq!(
        (done.messages_removed, done.messages_before),
        (plan.messages_removed(), plan.messages_before)
    );
    assert!(done.tokens_after <= plan.tokens_after_max(), "the summary may reach its cap");
    let expected = plan.tokens_after_estimate();
    assert!(done.tokens_after.abs_diff(expected) * 4 < expected, "{} is about {expected}", done.tokens_after);
    // A context that is too small to get smaller is recognised in advance.
    let small = opened(&runtime, "small", &agent(100_000), chat(2, 40)).await;
    let refused = small.plan(CompactOptions::default()).await.unwrap().check_gain().unwrap_err().to_string();
    let done = small.compact(CompactOptions::default()).await.unwrap();
    assert_eq!(Some(refused.as_str()), done.outcome.reason());
}

/// After an undo, the same context is not compacted again at the same size, not even after a restart.
#[tokio::test(start_paused = true)]
async fn an_undone_compaction_waits_for_the_window_even_after_a_restart() {
    let model = simulator(ByPurpose::new(talker(20), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(40_000), chat(40, 300)).await;
    let before = session.context().await.unwrap();
    assert!(session.compact(keep(600)).await.unwrap().is_installed());
    session.undo_compaction().await.unwrap();
    assert_eq!(session.context().await.unwrap(), before);
    runtime.set_compaction(settings(|settings| settings.threshold = Some(0.55))).await.unwrap();
    for restart in [false, true] {
        if restart {
            runtime.close("s").await.unwrap();
        }
        let mut events = session.subscribe();
        session.prompt("more").await.unwrap();
        assert!(session.state().await.unwrap().context.tokens > 22_000);
        assert_eq!(count(&drain(&mut events), "compaction_start"), 0, "restart: {restart}");
    }
    // A manual compaction does it again, and then triggers work as before.
    assert_eq!(session.compact(keep(600)).await.unwrap().outcome.as_str(), "completed");
}

/// Several compactions are undone at once, back to one that a person names, or nothing is.
#[tokio::test(start_paused = true)]
async fn compactions_are_undone_back_to_one() {
    let model = simulator(ByPurpose::new(talker(200), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 300)).await;
    let mut contexts = vec![session.context().await.unwrap()];
    let mut installed = Vec::new();
    for round in 0..3 {
        let done = session.compact(keep(700)).await.unwrap();
        installed.push(done.entry_id.unwrap_or_else(|| panic!("round {round}: {done:?}")));
        for _ in 0..6 {
            session.prompt("more").await.unwrap();
        }
        contexts.push(session.context().await.unwrap());
    }
    let records = runtime.compaction_records("s").await.unwrap();
    let states: Vec<(EntryId, bool)> =
        records.iter().map(|record| (record.entry_id, record.is_active)).collect();
    assert_eq!(states, [(installed[0], false), (installed[1], false), (installed[2], true)]);
    assert!(session.undo_compactions_to(EntryId(3)).await.is_err(), "no compaction");
    assert_eq!(session.context().await.unwrap(), contexts[3], "nothing is changed");
    session.undo_compactions_to(installed[1]).await.unwrap();
    let records = runtime.compaction_records("s").await.unwrap();
    let undone: Vec<bool> = records.iter().map(|record| record.is_undone).collect();
    assert_eq!(undone, [false, true, true]);
    assert!(records[0].is_active && !records[1].is_active);
    // What was said since the first one is there again, after its summary.
    let context = session.context().await.unwrap();
    assert!(
        context.starts_with(&contexts[1]) && context.len() == contexts[1].len() + 24,
        "{}",
        context.len()
    );
    assert!(session.undo_compactions_to(installed[1]).await.is_err(), "it is undone already");
    let details = runtime.compaction_details("s", 1).await.unwrap().expect("the first one");
    assert!(details.replaced.user > 0 && details.summary.contains("## Goal"), "{details:?}");
    assert_eq!(runtime.compaction_details("s", 4).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn pinned_messages_are_listed_and_survive_a_restart() {
    let model = simulator(ByPurpose::new(talker(20), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 200)).await;
    let ids = async || session.pins().await.unwrap().iter().map(|entry| entry.id.0).collect::<Vec<_>>();
    assert!(ids().await.is_empty());
    for entry in [4, 0] {
        session.pin(EntryId(entry)).await.unwrap();
    }
    assert_eq!(ids().await, [0, 4], "in the order of the conversation");
    assert!(session.compact(keep(700)).await.unwrap().is_installed());
    runtime.close("s").await.unwrap();
    session.unpin(EntryId(4)).await.unwrap();
    assert_eq!(ids().await, [0]);
}

/// Pinned messages in front of the summary are messages of the context.
#[tokio::test(start_paused = true)]
async fn a_compaction_counts_the_pinned_messages() {
    let model = simulator(ByPurpose::new(talker(200), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 200)).await;
    let messages = async || session.context().await.unwrap().len() as u64;
    let mut entry = EntryId(4);
    for in_front in 1..=3 {
        session.pin(entry).await.unwrap();
        let before = messages().await;
        let plan = session.plan(keep(700)).await.unwrap();
        let done = session.compact(keep(700)).await.unwrap();
        assert_eq!((plan.messages_before, done.messages_before), (before, before), "{done:?}");
        assert_eq!(done.messages_after, messages().await, "{done:?}");
        assert_eq!(session.pins().await.unwrap().len(), in_front);
        entry = session.prompt("more").await.unwrap().run;
        for _ in 0..6 {
            session.prompt("more").await.unwrap();
        }
    }
}

/// What turns out only after the hooks were asked has a start and an end, but is no record: nothing was done.
#[tokio::test(start_paused = true)]
async fn a_compaction_that_finds_nothing_has_events_only_if_hooks_were_asked() {
    use greenroom::compaction::Strategy;
    for (strategy, is_told) in [(Strategy::Summarize, false), (Strategy::Truncate, true)] {
        let model = simulator(Echo, 100_000);
        let runtime = runtime(&model).await;
        let agent = agent(100_000).compaction(settings(|settings| settings.strategy = strategy));
        let session = opened(&runtime, "s", &agent, chat(2, 2)).await;
        let mut events = session.subscribe();
        let done =
            session.compact(CompactOptions { force: true, ..CompactOptions::default() }).await.unwrap();
        assert_eq!(done.outcome.as_str(), "nothing", "{done:?}");
        let events = drain(&mut events);
        let told = (count(&events, "compaction_start"), count(&events, "compaction_end"));
        assert_eq!(told, (usize::from(is_told), usize::from(is_told)), "{strategy:?}");
        assert!(runtime.compaction_records("s").await.unwrap().is_empty() && asked(&model).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_would_not_fit_the_window_is_refused_with_the_size() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(40_000), chat(60, 250)).await;
    assert!(session.compact(keep(600)).await.unwrap().is_installed());
    let compacted = session.context().await.unwrap();
    runtime.open("s", &agent(20_000)).await.unwrap();
    let refused = session.undo_compaction().await.unwrap_err();
    assert!(refused.to_string().contains("the window has 20000"), "{refused}");
    assert_eq!(session.context().await.unwrap(), compacted);
    let none = opened(&runtime, "none", &agent(20_000), chat(2, 10)).await;
    assert!(none.undo_compaction().await.is_err());
}

/// Input during a compaction waits, and is there once, in order.
#[tokio::test(start_paused = true)]
async fn steers_and_prompts_during_a_compaction_are_neither_lost_nor_doubled() {
    let slow = Function(|request: &SeenRequest, info: CallInfo| {
        Summariser::Obedient.reply(request, info).after_ms(10_000)
    });
    let model = simulator(ByPurpose::new(talker(10), slow), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 200)).await;
    let compacting = tokio::spawn({
        let session = session.clone();
        async move { session.compact(keep(700)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(session.state().await.unwrap().status, Status::Compacting);
    assert!(matches!(session.undo_compaction().await, Err(Error::NotIdle { .. })));
    assert!(matches!(session.branch(None).await, Err(Error::NotIdle { .. })));
    session.steer("s1. steer").await.unwrap();
    session.follow_up("s2. follow").await.unwrap();
    let (one, two) = tokio::join!(session.prompt("p1. prompt"), session.prompt("p2. prompt"));
    one.unwrap();
    two.unwrap();
    session.wait_until_idle().await.unwrap();
    assert!(compacting.is_finished());
    assert_eq!(compacting.await.unwrap().unwrap().outcome.as_str(), "completed");
    let said: Vec<String> =
        session.context().await.unwrap().iter().filter(|m| m.role() == "user").map(|m| m.text()).collect();
    for name in ["s1. steer", "s2. follow", "p1. prompt", "p2. prompt"] {
        assert_eq!(said.iter().filter(|text| *text == name).count(), 1, "{name}: {said:?}");
    }
    assert!(said[0].contains("was compacted"));
    model.assert_clean();
}

/// A client that lost the answer pins again: the entry is not counted twice.
#[tokio::test(start_paused = true)]
async fn a_large_entry_that_is_pinned_again_stays_pinned() {
    let model = simulator(Echo, 64_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(64_000)).await.unwrap();
    session.prompt(text("much", 2_900)).await.unwrap();
    session.pin(EntryId(0)).await.unwrap();
    let entries = session.state().await.unwrap().entries;
    session.pin(EntryId(0)).await.unwrap();
    assert_eq!(session.state().await.unwrap().entries, entries, "nothing was recorded");
    assert_eq!(session.pins().await.unwrap().len(), 1);
    session.unpin(EntryId(0)).await.unwrap();
    assert_eq!(session.pins().await.unwrap(), []);
    model.assert_clean();
}

/// Pinned messages stay, verbatim, through compactions, and within a budget.
#[tokio::test(start_paused = true)]
async fn a_pin_is_kept_verbatim_through_compactions_and_within_a_budget() {
    let model = simulator(Echo, 20_000);
    let runtime = runtime(&model).await;
    let mut messages =
        vec![user("m0."), said("m1."), user("The password of the lighthouse is swordfish."), said("m3.")];
    messages.extend([user("read"), calls(&["a"], "x"), result("a", "r", &[("x", Touch::Read)]), said("m7.")]);
    messages.extend(chat(12, 200));
    let session = opened(&runtime, "s", &agent(20_000), messages).await;
    session.pin(EntryId(2)).await.unwrap();
    for alone in [5, 6, 999] {
        assert!(session.pin(EntryId(alone)).await.is_err(), "{alone} cannot stand alone");
    }
    for _ in 0..2 {
        assert_eq!(session.compact(keep(500)).await.unwrap().outcome.as_str(), "completed");
        let context = session.context().await.unwrap();
        assert_eq!(context[0].text(), "The password of the lighthouse is swordfish.");
        assert!(context[1].text().contains("was compacted"));
        for _ in 0..4 {
            session.prompt(text("more", 200)).await.unwrap();
        }
    }
    session.prompt(text("much", 2_900)).await.unwrap();
    let head = runtime.engine().head("s").await.unwrap().unwrap();
    let log = runtime.entries("s", EntryId(0)).await.unwrap();
    let much = log
        .iter()
        .rev()
        .find(|entry| entry.kind.as_message().is_some_and(|message| message.text().starts_with("much")));
    assert!(
        session.pin(much.unwrap().id).await.unwrap_err().to_string().contains("this window allows at most")
    );
    assert_eq!(head.pins, [EntryId(2)]);
    session.unpin(EntryId(2)).await.unwrap();
    assert!(session.context().await.unwrap()[0].text().contains("was compacted"), "the pin is gone");
}

/// A fork has the compacted context and its history; the original stays.
#[tokio::test(start_paused = true)]
async fn a_fork_goes_on_from_the_compacted_context() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 200)).await;
    assert!(session.compact(keep(700)).await.unwrap().is_installed());
    let fork = runtime.fork("s", "f", &agent(100_000)).await.unwrap();
    let context = session.context().await.unwrap();
    assert_eq!(fork.context().await.unwrap(), context);
    assert_eq!(compactions(&runtime, "f").await, compactions(&runtime, "s").await);
    fork.prompt("on the fork").await.unwrap();
    fork.undo_compaction().await.unwrap();
    assert_eq!(fork.context().await.unwrap().len(), 26);
    assert_eq!(session.context().await.unwrap(), context);
}

/// A branch that is left is summarised on the new one, with its files.
#[tokio::test(start_paused = true)]
async fn a_branch_that_is_left_leaves_a_summary_with_its_files() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = chat(2, 100);
    messages.extend([
        user("try it"),
        calls(&["a"], "x"),
        result("a", "r", &[("tried.rs", Touch::Modified)]),
        said("no."),
    ]);
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    session.branch_with_summary(Some(EntryId(3))).await.unwrap();
    let context = session.context().await.unwrap();
    assert_eq!(context.len(), 5);
    assert!(context[4].text().contains("went another way") && context[4].text().contains("## Goal"));
    for run in 0..6 {
        session.prompt(text(&format!("more {run}."), 200)).await.unwrap();
    }
    assert!(session.compact(keep(500)).await.unwrap().is_installed());
    assert_eq!(newest(&runtime, "s").await.files.modified().collect::<Vec<_>>(), ["tried.rs"]);
    assert!(asked(&model).last().unwrap().request.last_user_text().contains("[Record]: "));
}

#[tokio::test(start_paused = true)]
async fn another_model_may_write_the_summaries() {
    let model = simulator(Echo, 100_000);
    let other = settings(|settings| settings.summary_model = Some("scribe".into()));
    let runtime = builder(&model).compaction(other).start().await.unwrap();
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 200)).await;
    assert!(session.compact(keep(700)).await.unwrap().is_installed());
    session.prompt("and on").await.unwrap();
    assert_eq!(asked(&model)[0].request.model, "scribe");
    assert_eq!(runs(&model)[0].request.model, "simulated");
    assert_eq!(newest(&runtime, "s").await.model, "scribe");
}

/// Start, end, and then the installed entry; nothing between them.
#[tokio::test(start_paused = true)]
async fn the_events_of_a_compaction_come_in_order() {
    let model = simulator(Sequence(Vec::new()), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 200)).await;
    let mut events = session.subscribe();
    assert!(session.compact(keep(700)).await.unwrap().is_installed());
    session.undo_compaction().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(
        names(&mut events),
        ["compaction_start", "compaction_end", "session_compacted", "compaction_undone"]
    );
}

/// An import of more entries than one batch of the store is complete, and is read again from the disk.
#[tokio::test]
async fn an_import_of_any_size_is_taken_over_and_compacted() {
    let model = simulator(Echo, 100_000);
    let dir = tempfile::tempdir().unwrap();
    let runtime = builder(&model).data_dir(dir.path()).start().await.unwrap();
    let session = opened(&runtime, "s", &agent(1_000_000), chat(8_500, 2)).await;
    assert!(
        session.import(Vec::new(), None).await.is_err(),
        "only an empty session takes over another's entries"
    );
    assert_eq!(session.compact(keep(500)).await.unwrap().outcome.as_str(), "completed");
    let context = session.context().await.unwrap();
    runtime.shutdown().await.unwrap();
    let again = builder(&model).data_dir(dir.path()).start().await.unwrap();
    let session = again.open("s", &agent(1_000_000)).await.unwrap();
    assert_eq!(session.context().await.unwrap(), context);
    assert_eq!(again.summary("s").await.unwrap().unwrap().entries, 17_003);
    again.shutdown().await.unwrap();
}
