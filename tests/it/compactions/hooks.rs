//! Hooks around compactions, and how misbehaving hooks are handled.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{BeforeCompact, CompactionOutcome, CompactionProposal, CompactionReport, RuntimeBuilder};
use greenroom_kernel::EntryId;
use greenroom_kernel::compacting::Supplied;
use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::files::Touch;
use greenroom_simulator::{
    Answer as Said, ByPurpose, Echo, ErrorDialect, Fault, Sequence, Simulator, Summariser,
};

use crate::compaction_fixtures::{asked, calls, chat, keep, newest, opened, result, text, user, warnings};
use crate::support::{agent, builder, drain, simulator};

/// Returns a session of a file and eight runs, under a runtime with these hooks.
async fn hooked(hooks: impl FnOnce(RuntimeBuilder) -> RuntimeBuilder) -> (Simulator, Runtime, SessionHandle) {
    let model = simulator(Echo, 100_000);
    let runtime = hooks(builder(&model)).start().await.unwrap();
    let mut messages = vec![user("m0."), calls(&["a"], "x"), result("a", "", &[("a.rs", Touch::Modified)])];
    messages.extend(chat(8, 200));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    (model, runtime, session)
}

fn supply(summary: String, first_kept: Option<u64>) -> BeforeCompact {
    BeforeCompact::Supply(Supplied { summary, first_kept: first_kept.map(EntryId) })
}

#[tokio::test(start_paused = true)]
async fn a_cancel_leaves_everything_and_says_why() {
    let (model, _runtime, session) =
        hooked(|builder| builder.before_compact(|_| async { BeforeCompact::Cancel("a demo runs".into()) }))
            .await;
    let before = session.context().await.unwrap();
    let done = session.compact(keep(300)).await.unwrap();
    assert_eq!(done.outcome, CompactionOutcome::Cancelled { reason: "a demo runs".into() });
    assert_eq!(session.context().await.unwrap(), before);
    assert_eq!(asked(&model).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_supplied_summary_may_name_its_own_first_kept_entry_and_gets_the_footer() {
    let (model, runtime, session) =
        hooked(|builder| builder.before_compact(|_| async { supply("By hand.".into(), Some(7)) })).await;
    let before = session.context().await.unwrap();
    assert_eq!(session.compact(keep(300)).await.unwrap().outcome.as_str(), "completed");
    let compaction = newest(&runtime, "s").await;
    assert_eq!((compaction.first_kept, compaction.from_hook), (Some(EntryId(7)), true));
    let summary = &compaction.summary;
    assert!(summary.starts_with("By hand.\n\nThe user's own words"), "{summary}");
    assert!(summary.ends_with("</facts>\n\n<modified-files>\na.rs\n</modified-files>"), "{summary}");
    assert_eq!(session.context().await.unwrap()[1..], before[7..]);
    assert_eq!(asked(&model).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_supplied_summary_that_is_empty_too_large_or_cuts_where_none_may_is_refused() {
    for (summary, first_kept, reason) in [
        (String::new(), None, "the summary that a hook supplied is empty"),
        (text("long", 20_000), None, "the summary that a hook supplied is too large"),
        ("short".to_owned(), Some(2), "not a legal cut: the nearest ones are 1 and 3"),
        ("short".to_owned(), Some(999), "not a legal cut: the nearest one is"),
    ] {
        let (_model, _runtime, session) = hooked(|builder| {
            builder.before_compact(move |_| {
                let word = supply(summary.clone(), first_kept);
                async move { word }
            })
        })
        .await;
        let before = session.context().await.unwrap();
        let done = session.compact(keep(300)).await.unwrap();
        assert!(
            done.outcome.as_str() == "failed" && done.outcome.reason().unwrap().contains(reason),
            "{reason}"
        );
        assert_eq!(session.context().await.unwrap(), before);
    }
}

/// The runtime's hooks are asked before the agent's: each focus counts, a supplied summary takes precedence over them,
/// and a cancellation over everything. A hook that cannot decide is reported and skipped.
#[tokio::test(start_paused = true)]
async fn an_agents_hooks_are_asked_after_the_runtimes() {
    type Decide = fn() -> BeforeCompact;
    let unable: Decide = || BeforeCompact::Skip("it has no network".into());
    let colours: Decide = || BeforeCompact::Focus("colours".into());
    let units: Decide = || BeforeCompact::Focus("units".into());
    let cancel: Decide = || BeforeCompact::Cancel("not now".into());
    let by_hand: Decide = || supply("By hand.".into(), None);
    for (of_runtime, of_agent, outcome, focus) in [
        (colours, units, "completed", Some("the tests; colours; units")),
        (colours, unable, "completed", Some("the tests; colours")),
        (unable, units, "completed", Some("the tests; units")),
        (colours, by_hand, "completed", None),
        (by_hand, units, "completed", None),
        (by_hand, cancel, "cancelled", None),
        (units, cancel, "cancelled", None),
    ] {
        let model = simulator(ByPurpose::new(Echo, Summariser::Obedient), 100_000);
        let runtime =
            builder(&model).before_compact(move |_| async move { of_runtime() }).start().await.unwrap();
        let agent = agent(100_000).before_compact(move |_| async move { of_agent() });
        let session = opened(&runtime, "s", &agent, chat(8, 200)).await;
        let mut events = session.subscribe();
        let options = CompactOptions { focus: Some("the tests".into()), ..keep(300) };
        let done = session.compact(options).await.unwrap();
        assert_eq!(done.outcome.as_str(), outcome);
        let requests = asked(&model);
        assert_eq!(requests.len(), usize::from(focus.is_some()));
        if let Some(focus) = focus {
            let request = requests[0].request.last_user_text();
            assert!(request.ends_with(&format!("Attend above all to this: {focus}")), "{request}");
        }
        let told = warnings(&drain(&mut events));
        let skipped = "a before_compact hook was skipped: it has no network";
        let are_skipped =
            [of_runtime(), of_agent()].map(|decision| matches!(decision, BeforeCompact::Skip(_)));
        assert_eq!(told.iter().any(|warning| warning == skipped), are_skipped.contains(&true), "{told:?}");
    }
}

/// The limit of the runtime's hooks is a setting: a summariser that takes a minute is waited for, and one that
/// exceeds the limit is skipped with a warning that names the setting, as an agent's is.
#[tokio::test(start_paused = true)]
async fn the_time_limit_of_a_hook_is_a_setting() {
    let minute = |_: CompactionProposal| async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        supply("By hand.".into(), None)
    };
    let skipped =
        |limit: &str| Some(format!("a before_compact hook was skipped: it took longer than {limit}"));
    let (s, by_runtime) = (Duration::from_secs, ", the limit by `RuntimeBuilder::hook_timeout`");
    for (of_runtime, of_agent, is_agents, told) in [
        (None, None, false, skipped(&format!("10s{by_runtime}"))),
        (Some(s(90)), None, false, None),
        (Some(s(30)), Some(s(90)), false, skipped(&format!("30s{by_runtime}"))),
        (Some(s(90)), Some(s(30)), true, skipped("30s, the limit by `Agent::hook_timeout`")),
        (None, Some(s(90)), true, None),
    ] {
        let model = simulator(ByPurpose::new(Echo, Summariser::Obedient), 100_000);
        let mut runtime = builder(&model);
        if let Some(limit) = of_runtime {
            runtime = runtime.hook_timeout(limit);
        }
        let mut agent = agent(100_000);
        if let Some(limit) = of_agent {
            agent = agent.hook_timeout(limit);
        }
        match is_agents {
            true => agent = agent.before_compact(minute),
            false => runtime = runtime.before_compact(minute),
        }
        let runtime = runtime.start().await.unwrap();
        let session = opened(&runtime, "s", &agent, chat(8, 200)).await;
        let mut events = session.subscribe();
        assert_eq!(session.compact(keep(300)).await.unwrap().outcome.as_str(), "completed");
        assert_eq!(warnings(&drain(&mut events)).into_iter().next(), told);
        assert_eq!(newest(&runtime, "s").await.from_hook, told.is_none());
    }
}

/// A hook knows where the conversation may be cut: each of these places is accepted, and no other one.
#[tokio::test(start_paused = true)]
async fn a_hook_is_told_the_legal_cuts() {
    for entry in 0..20 {
        let told: Arc<Mutex<Vec<EntryId>>> = Arc::default();
        let cuts = Arc::clone(&told);
        let (_model, _runtime, session) = hooked(|builder| {
            builder.before_compact(move |proposal| {
                *cuts.lock().unwrap() = proposal.cuts.to_vec();
                async move { supply("By hand.".into(), Some(entry)) }
            })
        })
        .await;
        let reason = session.compact(keep(300)).await.unwrap().outcome.reason().map(str::to_owned);
        let is_illegal = reason.is_some_and(|reason| reason.contains("is not a legal cut"));
        let cuts = told.lock().unwrap().clone();
        assert_eq!(cuts.len(), 17, "{cuts:?}");
        assert_eq!(cuts.contains(&EntryId(entry)), !is_illegal, "{entry}: {cuts:?}");
    }
}

/// A hook that fails, panics or times out is reported and skipped, before a compaction and after it.
#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_or_is_slow_is_reported_and_skipped() {
    for slow in [false, true] {
        let harm = move || async move {
            assert!(slow, "the hook panics");
            tokio::time::sleep(Duration::from_secs(3_600)).await;
        };
        let (_model, _runtime, session) = hooked(|builder| {
            builder
                .before_compact(move |_| async move {
                    harm().await;
                    BeforeCompact::Cancel("never said".into())
                })
                .after_compact(move |_| harm())
        })
        .await;
        let mut events = session.subscribe();
        let done = session.compact(keep(300)).await.unwrap();
        assert_eq!(done.outcome.as_str(), "completed");
        assert!(done.duration_ms <= 10_000);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let told = warnings(&drain(&mut events));
        let word = if slow { "longer than 10s" } else { "panicked: the hook panics" };
        assert_eq!(told.iter().filter(|warning| warning.contains(word)).count(), 2, "{told:?}");
        session.prompt("and on").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn after_one_that_works_and_after_one_that_fails_the_right_hook_is_told() {
    for (summariser, expected) in
        [(Summariser::Obedient, "after completed"), (Summariser::Garbage, "failed failed")]
    {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let (after, failed) = (Arc::clone(&told), Arc::clone(&told));
        let model = simulator(ByPurpose::new(Echo, summariser), 100_000);
        let runtime = builder(&model)
            .after_compact(move |report| {
                after.lock().unwrap().push(format!("after {}", report.end.outcome));
                async {}
            })
            .compact_failed(move |report| {
                failed.lock().unwrap().push(format!("failed {}", report.end.outcome));
                async {}
            })
            .start()
            .await
            .unwrap();
        let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
        let _ = session.compact(keep(300)).await.unwrap();
        // A compaction with nothing to do calls neither.
        let _ = session.compact(keep(50_000)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(*told.lock().unwrap(), [expected]);
    }
}

/// Before and after, a hook knows the trigger, the caller's wishes and the settings.
#[tokio::test(start_paused = true)]
async fn hooks_are_told_the_trigger_the_wishes_the_settings_and_the_entry() {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let (before, after) = (Arc::clone(&told), Arc::clone(&told));
    let model = simulator(ByPurpose::new(Echo, Summariser::Obedient), 100_000);
    let runtime = builder(&model)
        .before_compact(move |proposal| {
            let CompactionProposal { session, trigger, options, settings, plan, .. } = proposal;
            before.lock().unwrap().push(format!(
                "before {session} {trigger:?} {:?} {:?} {:?} {}",
                options.focus,
                options.keep_recent,
                settings.threshold,
                plan.messages_to_summarize()
            ));
            async { BeforeCompact::Continue }
        })
        .after_compact(move |report| {
            let CompactionReport { session, end, entry, options, settings, .. } = report;
            let EntryKind::Compaction(compaction) = &entry.unwrap().kind else { panic!("another entry") };
            after.lock().unwrap().push(format!(
                "after {session} {:?} {:?} {:?} {}",
                end.trigger, options.focus, settings.threshold, compaction.messages_removed
            ));
            async {}
        })
        .start()
        .await
        .unwrap();
    let settings = CompactionSettings { threshold: Some(0.5), ..CompactionSettings::default() };
    let session = opened(&runtime, "s", &agent(100_000).compaction(settings), chat(8, 200)).await;
    let wish = CompactOptions { focus: Some("the tide".into()), ..keep(300) };
    let done = session.compact(wish).await.unwrap();
    let small = CompactionSettings {
        auto_compact_token_limit: Some(1_500),
        keep_recent_tokens: Some(300),
        ..CompactionSettings::default()
    };
    let small = agent(100_000).compaction(small);
    let session = opened(&runtime, "t", &small, chat(8, 200)).await;
    session.prompt("and on").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let told = told.lock().unwrap().clone();
    let removed = done.messages_removed;
    assert_eq!(
        told[..2],
        [
            format!("before s Manual Some(\"the tide\") Some(300) Some(0.5) {removed}"),
            format!("after s Manual Some(\"the tide\") Some(0.5) {removed}"),
        ]
    );
    assert!(told[2].starts_with("before t Threshold None None Some(0.8) "), "{told:?}");
    assert!(told[3].starts_with("after t Threshold None Some(0.8) "), "{told:?}");
}

/// The run that needed the compaction ends with the reason of the hook that cancelled it.
#[tokio::test(start_paused = true)]
async fn the_reason_of_a_cancel_reaches_the_caller_of_the_run() {
    let refused = || Said::fault(Fault::Overflow(ErrorDialect::Anthropic));
    let model = simulator(Sequence(vec![refused(), refused(), refused(), refused()]), 100_000);
    let runtime = builder(&model)
        .before_compact(|_| async { BeforeCompact::Cancel("an audit runs".into()) })
        .start()
        .await
        .unwrap();
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    let end = session.prompt("and on").await;
    let Err(Error::Model(failure)) = end else { panic!("{end:?}") };
    assert!(failure.message.ends_with("; the compaction was cancelled: an audit runs"), "{failure}");
}

/// A hook may request a compaction. One that always does so cannot loop: without a new message nothing is
/// compacted again.
#[tokio::test(start_paused = true)]
async fn a_hook_may_ask_for_a_compaction_and_cannot_loop() {
    let model = simulator(ByPurpose::new(Echo, Summariser::Garbage), 100_000);
    let ends: Arc<Mutex<u32>> = Arc::default();
    let counted = Arc::clone(&ends);
    let runtime = builder(&model)
        .compact_failed(move |report| {
            *counted.lock().unwrap() += 1;
            report.compaction.request(keep(300));
            async {}
        })
        .start()
        .await
        .unwrap();
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    for (prompts, failures) in [(0, 1), (1, 2), (2, 3)] {
        if prompts == 0 {
            let _ = session.compact(keep(300)).await.unwrap();
        } else {
            session.prompt("and on").await.unwrap();
            // The hook's request after the last one was dropped; this is a new request.
            session.compact_after_run(keep(300)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(*ends.lock().unwrap(), failures, "after {prompts} prompts");
    }
}

/// The model says that a part of its work is done, and what must not be forgotten: after the run the conversation is
/// compacted, and what it listed is carried on word for word, whatever the summariser does.
#[tokio::test(start_paused = true)]
async fn the_model_asks_for_a_compaction() {
    let ask = serde_json::json!({ "done": "the parser", "remember": ["the port is 7411 in staging", " "] });
    let runs = Sequence(vec![
        Said::text(text("before ", 400)),
        Said::call("compact", &ask),
        Said::text("The parser is done."),
        Said::call("compact", &serde_json::json!({ "done": "nothing new" })),
        Said::text("Yes."),
        Said::call("compact", &serde_json::json!({ "remember": [] })),
        Said::text("No."),
    ]);
    let model = simulator(ByPurpose::new(runs, Summariser::Lossy), 100_000);
    let runtime = builder(&model).start().await.unwrap();
    let able = agent(10_000).model_may_compact();
    let session = opened(&runtime, "s", &able, chat(8, 300)).await;
    let mut events = session.subscribe();
    session.prompt("one").await.unwrap();
    session.prompt("two").await.unwrap();
    // The compaction that the model asked for starts when the run has ended.
    session.prompt("three").await.unwrap();
    let told = drain(&mut events);
    let ended: Vec<_> = told
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::CompactionEnd(end) => Some((end.trigger, end.outcome.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(ended, [(greenroom_kernel::entry::Trigger::Hook, "completed")]);
    let summary = newest(&runtime, "s").await.summary;
    let focus = "this part of the work is done: the parser";
    assert!(asked(&model).iter().any(|logged| logged.request.last_user_text().contains(focus)));
    // The call itself is among what is kept; when it is replaced, too, its items are facts.
    assert!(session.compact(keep(50)).await.unwrap().is_installed());
    let later = newest(&runtime, "s").await.summary;
    assert!(later.contains("the port is 7411 in staging"), "{summary}\n---\n{later}");
    // What was compacted has little left: nothing more is compacted. And a call without `done` is refused.
    session.prompt("four").await.unwrap();
    let results: Vec<String> = runtime
        .entries("s", EntryId(0))
        .await
        .unwrap()
        .iter()
        .filter_map(|entry| {
            entry.kind.as_message().filter(|message| message.role() == "tool").map(|message| message.text())
        })
        .collect();
    assert_eq!(results[0], "The conversation is compacted after your answer.");
    assert!(results[1].ends_with("% of its window, so nothing is compacted yet. Go on."), "{results:?}");
    assert!(results[2].contains("missing field `done`"), "{results:?}");
    let offered =
        |request: &greenroom_simulator::SeenRequest| request.tools.iter().any(|tool| tool.name == "compact");
    assert!(model.requests().iter().any(|logged| offered(&logged.request)));
    // An agent that is not let has no such tool.
    let calls = model.calls();
    runtime.open("t", &agent(6_000)).await.unwrap().prompt("hello").await.unwrap();
    assert!(
        model.requests().iter().filter(|logged| logged.call >= calls).all(|logged| !offered(&logged.request))
    );
}
