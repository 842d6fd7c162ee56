//! The summary of a branch that is left is a compaction of the branch: with its parts, merges, retries and
//! bill, supervised and cancellable; and every message of the branch reaches a summariser.

use std::time::Duration;

use greenroom::CompactionOutcome;
use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_kernel::FileOps;
use greenroom_kernel::entry::{EntryKind, Trigger};
use greenroom_kernel::files::Touch;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Echo, Fault, Function, Pace, RetryAfter, Script, SeenRequest,
    Summariser,
};

use crate::compaction_fixtures::{
    asked, calls, chat, compactions, ends, keep, opened, result, runs, said, settings, talker, user,
};
use crate::support::{agent, drain, names, runtime, simulator};

/// Returns the record of the branch that was left, and its files.
async fn record(runtime: &Runtime) -> (String, FileOps) {
    let entries = runtime.entries("s", EntryId(0)).await.unwrap();
    let record = entries.iter().rev().find_map(|entry| match &entry.kind {
        EntryKind::BranchSummary { summary, files, .. } => Some((summary.clone(), files.clone())),
        _ => None,
    });
    record.expect("a branch was summarised")
}

/// A branch of 118 messages, larger than the summariser's window: none of them is left out, and the parts are merged.
#[tokio::test(start_paused = true)]
async fn a_large_branch_is_summarised_whole() {
    let model = simulator(Echo, 16_000);
    let runtime = runtime(&model).await;
    let mut messages = chat(1, 20);
    messages.extend(chat(59, 260));
    let session = opened(&runtime, "s", &agent(16_000), messages).await;
    let mut events = session.subscribe();
    session.branch_with_summary(Some(EntryId(1))).await.unwrap();
    let asked = asked(&model);
    assert!(asked.len() >= 4, "parts and merges: {}", asked.len());
    for id in 0..118 {
        let name = format!("m{id}. ");
        assert!(asked.iter().any(|call| call.request.last_user_text().contains(&name)), "{name}");
    }
    assert!(asked.last().unwrap().request.last_user_text().contains("<part number=\"1\">"));
    let seen = drain(&mut events);
    let [end] = ends(&seen).try_into().unwrap();
    assert_eq!(
        (end.trigger, end.outcome.as_str(), end.messages_removed),
        (Trigger::Branch, "completed", 117)
    );
    assert!(end.tokens_after < end.tokens_before && end.summary_usage.total_tokens() > 30_000, "{end:?}");
    let state = session.state().await.unwrap();
    assert_eq!(state.context.tokens, end.tokens_after);
    assert_eq!(session.context().await.unwrap().len(), 3);
    model.assert_clean();
}

/// A pin holds where its message is on the path: it does not follow the session to another branch, and is there again
/// when the session returns.
#[tokio::test(start_paused = true)]
async fn a_message_that_was_pinned_on_a_branch_is_kept_only_there() {
    let model = simulator(ByPurpose::new(talker(200), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 200)).await;
    let pins = async || session.pins().await.unwrap().iter().map(|entry| entry.id).collect::<Vec<_>>();
    let shown = async || {
        let context = session.context().await.unwrap();
        context.iter().map(|message| message.text().chars().take(10).collect::<String>()).collect::<Vec<_>>()
    };
    let is_there = |shown: &[String]| shown.iter().any(|text| text.starts_with("elsewhere"));
    session.pin(EntryId(2)).await.unwrap();
    let other = session.prompt("elsewhere, quite long ".repeat(40)).await.unwrap();
    session.pin(other.run).await.unwrap();
    let leaf = runtime.engine().head("s").await.unwrap().unwrap().leaf;
    assert_eq!(pins().await, [EntryId(2), other.run]);
    // The first pin was recorded after this entry, but its message comes before it.
    session.branch(Some(EntryId(23))).await.unwrap();
    assert_eq!(pins().await, [EntryId(2)]);
    let done = session.compact(keep(700)).await.unwrap();
    let (compacted, state) = (shown().await, session.state().await.unwrap());
    assert!(compacted[0].starts_with("m2.") && !is_there(&compacted), "{compacted:?}");
    assert_eq!((done.tokens_after, done.is_installed()), (state.context.tokens, true));
    session.prompt("here").await.unwrap();
    let sent = runs(&model).pop().unwrap().request;
    assert!(!sent.messages.iter().any(|message| message.text().contains("elsewhere")));
    // Back on the branch.
    session.branch(leaf).await.unwrap();
    assert_eq!(pins().await, [EntryId(2), other.run]);
    for _ in 0..6 {
        session.prompt("more").await.unwrap();
    }
    let done = session.compact(keep(700)).await.unwrap();
    let (compacted, state) = (shown().await, session.state().await.unwrap());
    assert!(compacted[0].starts_with("m2.") && compacted[1].starts_with("elsewhere"), "{compacted:?}");
    assert_eq!((done.tokens_after, done.is_installed()), (state.context.tokens, true));
    runtime.close("s").await.unwrap();
    assert_eq!(pins().await, [EntryId(2), other.run]);
    // A released message stays released, wherever it was released.
    session.branch(Some(EntryId(23))).await.unwrap();
    session.unpin(EntryId(2)).await.unwrap();
    session.unpin(other.run).await.unwrap();
    session.branch(leaf).await.unwrap();
    assert!(pins().await.is_empty());
}

/// The records have the summary of a branch as they have compactions.
#[tokio::test(start_paused = true)]
async fn the_summary_of_a_branch_is_among_the_records() {
    let model = simulator(ByPurpose::new(talker(200), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(12, 200)).await;
    session.branch_with_summary(Some(EntryId(5))).await.unwrap();
    let records = runtime.compaction_records("s").await.unwrap();
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(
        (record.trigger, record.outcome.as_str(), record.is_active),
        (Trigger::Branch, "completed", true)
    );
    let details = runtime.compaction_details("s", 1).await.unwrap().expect("it is listed");
    assert!(details.summary.contains("## Goal"), "{details:?}");
    assert!(
        details.record.cost_microdollars == record.cost_microdollars
            && record.summary_usage.total_tokens() > 0
    );
}

/// Messages summarised by the branch's own compaction are in the record, with its files.
#[tokio::test(start_paused = true)]
async fn what_was_compacted_on_the_branch_is_in_its_summary() {
    let scribe = Function(|request: &SeenRequest, info: CallInfo| {
        let early = request.last_user_text().contains("early words");
        let said = Summariser::Obedient.reply(request, info);
        if early { Said { text: format!("{}\n- the lighthouse", said.text), ..said } } else { said }
    });
    let model = simulator(ByPurpose::new(Echo, scribe), 100_000);
    let runtime = runtime(&model).await;
    let mut messages = chat(2, 100);
    messages.extend([
        user("early words"),
        calls(&["a"], "early.rs"),
        result("a", "r", &[("early.rs", Touch::Modified)]),
        said("done"),
    ]);
    messages.extend(chat(8, 200));
    messages.extend([calls(&["b"], "late.rs"), result("b", "r", &[("late.rs", Touch::Read)]), said("done")]);
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert_eq!(session.compact(keep(700)).await.unwrap().outcome.as_str(), "completed");
    assert!(compactions(&runtime, "s").await[0].1.summary.contains("the lighthouse"));
    session.branch_with_summary(Some(EntryId(3))).await.unwrap();
    let request = asked(&model).last().unwrap().request.last_user_text();
    assert!(request.contains("[Record]: ") && request.contains("the lighthouse"), "{request}");
    assert!(!request.contains("[User]: early words"), "it is in the compaction's summary already");
    let (summary, files) = record(&runtime).await;
    assert_eq!(files.modified().collect::<Vec<_>>(), ["early.rs"]);
    assert_eq!(files.read().collect::<Vec<_>>(), ["late.rs"]);
    assert!(
        summary.ends_with(
            "<read-files>\nlate.rs\n</read-files>\n\n<modified-files>\nearly.rs\n</modified-files>"
        )
    );
    // A compaction whose part is kept verbatim is not repeated.
    session.branch(Some(EntryId(11))).await.unwrap();
    session.prompt("and on").await.unwrap();
    session.branch_with_summary(Some(EntryId(11))).await.unwrap();
    let request = asked(&model).last().unwrap().request.last_user_text();
    assert!(!request.contains("the lighthouse") && request.contains("and on"), "{request}");
}

/// A summariser that is busy, answers garbage once or is refused: the branch is summarised nevertheless, and
/// the attempts are reported and billed.
#[tokio::test(start_paused = true)]
async fn a_branch_s_summary_is_tried_again_and_falls_back() {
    for fault in [Fault::RateLimited(RetryAfter::Seconds(7)), Fault::ServerError(500), Fault::Loading] {
        let failing = fault.clone();
        let scribe = Function(move |request: &SeenRequest, info: CallInfo| match info.session_call {
            0 | 1 => Said::fault(failing.clone()),
            _ => Summariser::Obedient.reply(request, info),
        });
        let model = simulator(ByPurpose::new(Echo, scribe), 100_000);
        let runtime = runtime(&model).await;
        let session = opened(&runtime, "s", &agent(100_000), chat(6, 100)).await;
        let mut events = session.subscribe();
        session.branch_with_summary(Some(EntryId(1))).await.unwrap();
        let told = names(&mut events);
        assert_eq!(told.iter().filter(|name| **name == "retry").count(), 2, "{fault:?}: {told:?}");
    }
    // The summary model is refused; the session's own writes the summary.
    let scribe = Function(|request: &SeenRequest, info: CallInfo| match request.model.as_str() {
        "scribe" => Said::fault(Fault::Http {
            status: 403,
            headers: Vec::new(),
            body: r#"{"error":{"message":"not allowed","code":"forbidden"}}"#.to_owned(),
        }),
        _ => Summariser::Obedient.reply(request, info),
    });
    let model = simulator(ByPurpose::new(Echo, scribe), 100_000);
    let runtime = runtime(&model).await;
    let with_scribe = settings(|settings| settings.summary_model = Some("scribe".into()));
    let session = opened(&runtime, "s", &agent(100_000).compaction(with_scribe), chat(6, 100)).await;
    session.branch_with_summary(Some(EntryId(1))).await.unwrap();
    let models: Vec<String> = asked(&model).iter().map(|call| call.request.model.clone()).collect();
    assert_eq!(models, ["scribe", "simulated"]);
}

/// If no summary is possible, or it is aborted, nothing is changed. A prompt waits for it meanwhile.
#[tokio::test(start_paused = true)]
async fn a_branch_that_is_not_summarised_is_not_left() {
    let model = simulator(ByPurpose::new(Echo, Summariser::Garbage), 100_000);
    let runtime_of_garbage = runtime(&model).await;
    let session = opened(&runtime_of_garbage, "s", &agent(100_000), chat(6, 100)).await;
    let before = session.context().await.unwrap();
    let error = session.branch_with_summary(Some(EntryId(1))).await.unwrap_err();
    assert!(matches!(&error, Error::BranchSummary { .. }), "{error}");
    assert!(
        error.to_string().starts_with("the branch was not summarised, so nothing was changed: no summary")
    );
    assert_eq!(session.context().await.unwrap(), before);

    let slow = Function(|request: &SeenRequest, info: CallInfo| {
        let pace = Pace { chunks: 2, first_ms: 60_000, between_ms: 1 };
        Summariser::Obedient.reply(request, info).with_pace(pace)
    });
    let model = simulator(ByPurpose::new(Echo, slow), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(6, 100)).await;
    let branch = |session: &SessionHandle| {
        let session = session.clone();
        tokio::spawn(async move { session.branch_with_summary(Some(EntryId(1))).await })
    };
    let branching = branch(&session);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(matches!(session.branch(Some(EntryId(1))).await, Err(Error::NotIdle { .. })));
    session.abort();
    let error = branching.await.unwrap().unwrap_err();
    assert!(error.to_string().ends_with("it was aborted"), "{error}");
    assert_eq!(session.context().await.unwrap(), before);

    let branching = branch(&session);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let began = tokio::time::Instant::now();
    session.prompt("and on").await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(50), "it waited: {:?}", began.elapsed());
    branching.await.unwrap().unwrap();
    let texts: Vec<String> = session.context().await.unwrap().iter().map(|message| message.text()).collect();
    assert_eq!(texts.len(), 5, "two messages, the record, the prompt and its answer: {texts:?}");
    assert!(texts[2].contains("went another way") && texts[3] == "and on", "{texts:?}");
    model.assert_clean();
}

/// A failure of a branch's summary does not count as a failure of automatic compaction.
#[tokio::test(start_paused = true)]
async fn a_branch_s_failures_pause_nothing() {
    let model = simulator(ByPurpose::new(Echo, Summariser::Garbage), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(6, 100)).await;
    for _ in 0..4 {
        session.branch_with_summary(Some(EntryId(1))).await.unwrap_err();
    }
    assert_eq!(runtime.engine().head("s").await.unwrap().unwrap().automatic_compaction_failures, 0);
    let empty = runtime.open("t", &agent(100_000)).await.unwrap();
    empty.branch_with_summary(None).await.unwrap();
}

/// A new session continues another one: a summary that attends to the goal, the newest messages, and a link.
#[tokio::test(start_paused = true)]
async fn a_session_is_continued_in_a_new_one_with_a_goal() {
    let model = simulator(ByPurpose::new(talker(20), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "design", &agent(100_000), chat(12, 200)).await;
    session.set_label("team", "red").await.unwrap();
    let before = session.context().await.unwrap();
    let goal = "Write the tests.\nNothing else.";
    let continued = runtime.continue_in("design", "tests", goal, agent(100_000)).await.unwrap();
    assert_eq!(continued.compacted.outcome, CompactionOutcome::Completed, "{:?}", continued.compacted);
    let asked = asked(&model);
    let request = asked.last().expect("a summary").request.last_user_text().to_owned();
    assert!(request.contains("whose goal is: Write the tests."), "{request}");
    let context = continued.session.context().await.unwrap();
    assert!(context.len() < 4 && context[0].text().contains("## Goal"), "{}", context.len());
    assert_eq!(context.last(), before.last(), "the newest message is there verbatim");
    let summary = runtime.summary("tests").await.unwrap().expect("it is stored");
    assert_eq!(summary.title.as_deref(), Some("Write the tests."));
    assert_eq!(summary.labels.get(greenroom::Continued::FROM_LABEL).map(String::as_str), Some("design"));
    assert_eq!(summary.labels.get("team").map(String::as_str), Some("red"), "a copy has the labels");
    assert_eq!(session.context().await.unwrap(), before, "the original is unchanged");
    // What was replaced is recalled in the new session, too.
    let old = before[0].text();
    let word = old.split(|c: char| !c.is_alphanumeric()).find(|word| word.len() > 3).expect("it has words");
    assert!(!continued.session.recall(word, 3).await.unwrap().is_empty(), "{word}");
    // A short conversation needs no summary, and a taken name is refused before anything is written.
    let short = opened(&runtime, "short", &agent(100_000), chat(1, 10)).await;
    let whole = runtime.continue_in("short", "more", "go on", agent(100_000)).await.unwrap();
    assert!(!whole.compacted.is_installed(), "{:?}", whole.compacted);
    assert_eq!(whole.session.context().await.unwrap(), short.context().await.unwrap());
    let refused = runtime.continue_in("design", "short", "x", agent(100_000)).await.unwrap_err();
    assert!(matches!(refused, Error::NotEmpty { .. }), "{refused}");
}

/// If no summary can be made, the new session has the whole conversation, and its caller is told.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_continued_without_a_summary_has_everything() {
    let model = simulator(ByPurpose::new(talker(20), Summariser::Empty), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "design", &agent(100_000), chat(12, 200)).await;
    let continued = runtime.continue_in("design", "tests", "go on", agent(100_000)).await.unwrap();
    assert_eq!(continued.compacted.outcome.as_str(), "failed");
    assert_eq!(continued.session.context().await.unwrap(), session.context().await.unwrap());
}
