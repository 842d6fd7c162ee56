//! The first document: how a coding agent for the terminal compacts. Thresholds with a reserve, checks before the run
//! and at each of its steps, overflow recovery with a retry, sub-agents that skip the threshold, and what the context
//! begins with afterwards.

use std::collections::BTreeSet;

use greenroom::prelude::*;
use greenroom::provider::classify;
use greenroom_kernel::FailureClass;
use greenroom_kernel::entry::{EntryId, EntryKind};
use greenroom_kernel::files::Touch;
use greenroom_kernel::message::{Message, Usage};
use greenroom_kernel::render::SUMMARY_LEAD;
use greenroom_kernel::settings::{CutRule, Occasion};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Echo, ErrorDialect, Fault, Function, SeenRequest, Sequence,
    Summariser,
};
use serde_json::json;

use crate::compaction_fixtures::{
    asked, calls, chat, compactions, count, editor, ends, entries, keep, newest, opened, result, runs, said,
    settings, text, user,
};
use crate::support::{agent, builder, drain, names, runtime, simulator};

#[test]
fn compaction_triggers_above_the_limit_less_the_reserve() {
    let only_reserve = settings(|settings| settings.threshold = None);
    assert_eq!(only_reserve.trigger_tokens(200_000), Some(200_000 - 16_384 + 1), "more than, not as much as");
}

#[test]
fn the_reserve_is_16384_or_a_quarter_of_the_limit() {
    let settings = CompactionSettings::default();
    assert_eq!((settings.reserve(200_000), settings.reserve(32_000)), (16_384, 8_000));
}

#[test]
fn what_is_kept_is_20000_or_35_percent_of_the_limit() {
    let settings = settings(|settings| settings.keep_recent_tokens = Some(20_000));
    let kept = |window| settings.keep_recent(window, Occasion::Automatic, 90_000);
    assert_eq!((kept(200_000), kept(20_000)), (20_000, 7_000));
}

/// The size: the last valid report, and an estimate if there is none.
#[tokio::test(start_paused = true)]
async fn the_last_successful_report_is_the_size_and_the_estimate_where_there_is_none() {
    let model = simulator(Sequence(vec![Said::text("yes")]), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(2, 300)).await;
    let before = session.state().await.unwrap().context;
    assert_eq!(before.usage_tokens, 0);
    assert!((900..2_000).contains(&before.trailing_tokens), "{before:?}");
    let after = session.prompt("really?").await.unwrap().context;
    let reported = runs(&model)[0].request.tokens;
    assert!(after.usage_tokens > reported && after.trailing_tokens == 0, "{after:?}, reported {reported}");
}

#[test]
fn texts_that_say_overflow_are_recognised() {
    for message in [
        "prompt is too long: 212230 tokens > 200000 maximum",
        "Your input exceeds the context window of this model.",
        "This model's maximum context length is 128000 tokens. context length exceeded",
    ] {
        let body = json!({"error": {"message": message, "type": "invalid_request_error"}}).to_string();
        assert_eq!(classify(Some(400), &body, None).class, FailureClass::ContextOverflow, "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn before_a_run_the_threshold_is_checked() {
    let model = simulator(Sequence(vec![Said::text("done")]), 8_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(8_000), chat(12, 280)).await;
    let mut events = session.subscribe();
    session.prompt("go on").await.unwrap();
    let names = names(&mut events);
    let place =
        |name| names.iter().position(|other| *other == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
    assert!(place("compaction_end") < place("step_start"), "{names:?}");
    model.assert_clean();
}

/// A long loop of tools without new input: each model call begins with the check.
#[tokio::test(start_paused = true)]
async fn at_each_turn_of_a_tool_loop_the_threshold_is_checked() {
    let script = Function(|_: &SeenRequest, info: CallInfo| match info.session_call {
        0..12 => Said::call("read", &json!({"path": format!("src/{}.rs", info.session_call)})),
        _ => Said::text("all read"),
    });
    let model = simulator(ByPurpose::new(script, Summariser::Obedient), 8_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &editor(8_000, 900)).await.unwrap();
    let mut events = session.subscribe();
    assert_eq!(session.prompt("read all of src").await.unwrap().text, "all read");
    let seen = drain(&mut events);
    assert!(ends(&seen).len() >= 2 && count(&seen, "run_end") == 1, "{:?}", ends(&seen));
    assert!(ends(&seen).iter().all(|end| end.outcome.as_str() == "completed"), "{:?}", ends(&seen));
    model.assert_clean();
}

/// The same work, as a separate session and as a sub-agent: only the first compacts by threshold.
#[tokio::test(start_paused = true)]
async fn sub_agents_skip_the_threshold() {
    let script = Function(|request: &SeenRequest, info: CallInfo| {
        match (request.has_tool("helper"), info.session_call) {
            (true, 0) => Said::call("helper", &json!({"task": "read all of src"})),
            (true, _) => Said::text("done"),
            (false, call @ 0..12) => Said::call("read", &json!({"path": format!("src/{call}.rs")})),
            (false, _) => Said::text("all read"),
        }
    });
    let model = simulator(ByPurpose::new(script, Summariser::Obedient), 20_000);
    let runtime = runtime(&model).await;
    let small = settings(|settings| settings.auto_compact_token_limit = Some(4_000));
    let reader = editor(20_000, 900).compaction(small);
    let mut events = runtime.subscribe(Filter::all());
    let alone = runtime.open("alone", &reader).await.unwrap();
    assert_eq!(alone.prompt("read all of src").await.unwrap().text, "all read");
    let boss = agent(20_000).sub_agent(sub_agent("helper", reader).describe("Reads."));
    let session = runtime.open("boss", &boss).await.unwrap();
    assert_eq!(session.prompt("go").await.unwrap().text, "done");
    let seen = drain(&mut events);
    let of = |parent: Option<&str>| {
        let of = seen.iter().filter(|event| event.parent.as_deref() == parent && &*event.session != "boss");
        of.cloned().collect::<Vec<_>>()
    };
    let (alone, helper) = (of(None), of(Some("boss")));
    assert_eq!((count(&alone, "tool_end"), count(&helper, "tool_end")), (12, 12), "the same work");
    assert!(!ends(&alone).is_empty() && ends(&alone).iter().all(|end| end.outcome.as_str() == "completed"));
    assert_eq!(count(&helper, "compaction_start"), 0);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn an_overflow_compacts_and_retries_the_turn() {
    let refused = Said::fault(Fault::Overflow(ErrorDialect::Anthropic));
    let model = simulator(Sequence(vec![refused, Said::text("done")]), 40_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(40_000), chat(20, 400)).await;
    let mut events = session.subscribe();
    assert_eq!(session.prompt("go on").await.unwrap().text, "done");
    let seen = drain(&mut events);
    assert_eq!(ends(&seen).len(), 1);
    assert_eq!(count(&seen, "retry"), 0);
    model.assert_clean();
}

/// With the rule of this document; by default a cut prefers the beginning of a turn.
#[tokio::test(start_paused = true)]
async fn the_cut_walks_back_to_the_kept_tokens_and_is_never_at_a_tool_result() {
    let model = simulator(Echo, 100_000);
    let nearest = settings(|settings| settings.cut = CutRule::Nearest);
    let runtime = builder(&model).compaction(nearest).start().await.unwrap();
    let mut messages = chat(4, 500);
    messages.extend([
        user("m8. read"),
        calls(&["a", "b"], "x"),
        result("a", text("m10.", 500), &[]),
        result("b", text("m11.", 500), &[]),
        said("m12."),
    ]);
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    let log = runtime.entries("s", EntryId(0)).await.unwrap();
    let mut cuts = BTreeSet::new();
    for tokens in (1..4_500).step_by(97) {
        let plan = session.plan(keep(tokens)).await.unwrap_or_else(|error| panic!("keep {tokens}: {error}"));
        let first = usize::try_from(plan.first_kept.0).unwrap();
        let kept: u64 = log[first..].iter().map(|entry| entry.tokens).sum();
        assert_eq!(plan.kept_tokens, kept, "keep {tokens}");
        let is_result = |entry: &greenroom_kernel::Entry| {
            matches!(entry.kind.as_message().map(|message| &**message), Some(Message::ToolResult(_)))
        };
        assert!(!is_result(&log[first]), "keep {tokens}");
        // Back to where enough is kept; from a tool result on to the next message after the results.
        let from = |at: &usize| log[*at..].iter().map(|entry| entry.tokens).sum::<u64>();
        let reached = (0..log.len()).rev().find(|at| from(at) >= tokens).unwrap();
        let expected = (reached..log.len()).find(|at| !is_result(&log[*at])).unwrap();
        assert_eq!(first, expected, "keep {tokens}");
        cuts.insert(first);
    }
    assert!(cuts.len() >= 8 && cuts.contains(&12), "{cuts:?}");
}

#[tokio::test(start_paused = true)]
async fn old_messages_are_written_as_text_with_role_tags() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user("m0."), calls(&["a"], "src/lib.rs"), result("a", "m2.", &[]), said("m3.")];
    messages.extend(chat(3, 200));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(100)).await.unwrap().is_installed());
    let request = asked(&model)[0].request.last_user_text();
    for tag in ["[User]: m0.", "[Assistant tool calls]:", "[Tool result] (read): m2.", "[Assistant]: m3."] {
        assert!(request.contains(tag), "{tag}: {request}");
    }
}

#[tokio::test(start_paused = true)]
async fn files_of_the_tracker_and_of_tool_calls_are_appended() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![
        user("m0."),
        calls(&["a", "b"], "x"),
        result("a", "m2.", &[("src/read.rs", Touch::Read), ("created.rs", Touch::Modified)]),
        result("b", "m3.", &[("src/changed.rs", Touch::Modified), ("also/read.rs", Touch::Read)]),
        said("m4."),
    ];
    messages.extend(chat(3, 200));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(100)).await.unwrap().is_installed());
    let summary = newest(&runtime, "s").await.summary;
    assert!(summary.ends_with(
        "<read-files>\nalso/read.rs\nsrc/read.rs\n</read-files>\n\n\
         <modified-files>\ncreated.rs\nsrc/changed.rs\n</modified-files>"
    ));
}

#[tokio::test(start_paused = true)]
async fn the_entry_stores_summary_first_kept_and_tokens_before() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    let before = session.state().await.unwrap().context.tokens;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let compaction = newest(&runtime, "s").await;
    assert_eq!(compaction.tokens_before, before);
    assert!(compaction.first_kept > Some(EntryId(0)) && compaction.summary.contains("## Goal"));
}

#[tokio::test(start_paused = true)]
async fn the_model_sees_the_summary_as_a_user_message_and_then_what_was_kept() {
    let model = simulator(Sequence(vec![Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    let all = session.context().await.unwrap();
    assert_eq!(all.len(), 16, "without a compaction: the history as it is");
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    session.prompt("next").await.unwrap();
    let first_kept = usize::try_from(newest(&runtime, "s").await.first_kept.unwrap().0).unwrap();
    let sent = &runs(&model)[0].request.messages;
    assert_eq!(sent[0].role(), "user");
    assert!(sent[0].text().starts_with(SUMMARY_LEAD));
    assert_eq!(sent[1..sent.len() - 1], all[first_kept..], "the kept part, message for message");
}

#[tokio::test(start_paused = true)]
async fn the_summary_has_a_leading_sentence_the_sections_and_the_files() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user("m0."), calls(&["a"], "x"), result("a", "m2.", &[("a.rs", Touch::Read)])];
    messages.extend(chat(6, 200));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let seen = session.context().await.unwrap()[0].text();
    let mut rest = seen.as_str();
    for part in [
        "was compacted", "## Goal", "## Progress", "### Done", "### In Progress", "### Blocked",
        "## Key Decisions", "## Next Steps", "<read-files>\na.rs",
    ] {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part} is missing or out of order: {seen}"));
        rest = &rest[at..];
    }
}

/// Reports of failed answers, or from before the compaction, do not determine the size.
#[tokio::test(start_paused = true)]
async fn a_report_of_a_failed_answer_is_not_used() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut path = chat(2, 100);
    if let Some(Message::Assistant(answer)) = path.last_mut() {
        answer.usage = Some(Usage { input_tokens: 90_000, output_tokens: 10, ..Usage::default() });
        answer.stop = greenroom_kernel::StopReason::Error;
    }
    let session = opened(&runtime, "s", &agent(100_000), path).await;
    assert!(session.state().await.unwrap().context.tokens < 1_000);
}

/// The overflow of a silent server: recognised by our own estimate.
#[tokio::test(start_paused = true)]
async fn a_refusal_without_a_body_is_an_overflow_when_the_context_is_nearly_full() {
    for status in [400, 413, 429] {
        let refused = Said::fault(Fault::EmptyBody(status));
        let model = simulator(Sequence(vec![refused, Said::text("done")]), 40_000);
        // The threshold is disabled, so that the provider is called at all.
        let late = settings(|settings| (settings.threshold, settings.reserve_tokens) = (Some(1.0), None));
        let runtime = builder(&model).compaction(late).start().await.unwrap();
        let session = opened(&runtime, "s", &agent(20_000), chat(16, 560)).await;
        let context = session.state().await.unwrap().context;
        assert!(context.percent() > Some(85.0) && context.percent() < Some(99.0), "{context:?}");
        let mut events = session.subscribe();
        assert_eq!(session.prompt("go on").await.unwrap().text, "done", "{status}");
        assert_eq!(ends(&drain(&mut events)).len(), 1, "{status}");
        assert_eq!(compactions(&runtime, "s").await.len(), 1);
    }
}

/// A compaction is an entry beside the messages: nothing is removed from the log.
#[tokio::test(start_paused = true)]
async fn the_history_stays_in_the_log() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let messages = chat(8, 200);
    let expected = entries(messages.clone().into_iter().map(EntryKind::message));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let log = runtime.entries("s", EntryId(0)).await.unwrap();
    assert!(log.iter().zip(&expected).all(|(stored, given)| stored.kind == given.kind));
    assert_eq!(log.len(), expected.len() + 3, "the start, the end, and the compaction");
}
