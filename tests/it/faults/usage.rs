//! Implausible usage reports. Our own count contradicts them, so they neither compact nor end anything,
//! however often they arrive; plausible reports are believed.

use std::sync::Arc;

use greenroom::prelude::*;
use greenroom_kernel::entry::{Entry, EntryId, EntryKind};
use greenroom_kernel::message::{AssistantMessage, Message};
use greenroom_kernel::{StopReason, Usage};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator};

use crate::support::{agent, builder, drain, runtime, simulator};

const WINDOW: u64 = 922_000;

/// Reports seen from providers, and worse ones, in tokens.
const LIES: [u64; 6] = [950_000, 1_364_156, 2_000_000, 1_000_000_000, 1_000_000_000_000, u64::MAX];

fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, ..Usage::default() }
}

/// Returns a model that reports `usage` on each answer while the prompt says "lie", and the truth otherwise.
fn liar(usage: Usage) -> Simulator {
    let script = Function(move |request: &SeenRequest, _: CallInfo| {
        let said = Said::text("a good answer");
        if request.last_user_text().starts_with("lie") { said.with_usage(usage) } else { said }
    });
    simulator(script, WINDOW)
}

/// Returns the warnings, and the names of the events of compactions and overflows.
fn told(events: &mut greenroom::Subscription) -> (Vec<String>, Vec<&'static str>) {
    let (mut warnings, mut compactions) = (Vec::new(), Vec::new());
    for event in drain(events) {
        match &event.kind {
            EventKind::Warning { message } => warnings.push(message.clone()),
            kind if matches!(kind.name(), "compaction_start" | "overflow_detected") => {
                compactions.push(kind.name());
            }
            _ => {}
        }
    }
    (warnings, compactions)
}

async fn assert_small(session: &SessionHandle, name: &str) {
    let context = session.state().await.unwrap().context;
    assert!((1..400).contains(&context.tokens), "{name}: {context:?}");
}

#[tokio::test(start_paused = true)]
async fn reports_that_our_count_contradicts_never_end_a_session() {
    let mut cases = 0;
    for lie in LIES {
        for (what, report) in
            [("input", usage(lie, 3)), ("output", usage(20, lie)), ("both", usage(lie, lie))]
        {
            let name = format!("{lie} as {what}");
            let model = liar(report);
            let runtime = runtime(&model).await;
            let session = runtime.open("lied-to", &agent(WINDOW)).await.unwrap();
            let mut events = session.subscribe();
            for prompt in ["lie", "lie again", "lie more", "lie on", "say", "say on", "lie", "say"] {
                let reply = session.prompt(prompt).await.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(reply.text, "a good answer", "{name}");
                assert_small(&session, &name).await;
            }
            let (warnings, compactions) = told(&mut events);
            assert!(compactions.is_empty(), "{name}: {compactions:?}");
            // Hidden reasoning may be any amount of output; only the input is known to us.
            let expected = usize::from(what != "output");
            assert_eq!(warnings.len(), expected, "{name}: said once: {warnings:?}");
            if let Some(warning) = warnings.first() {
                assert!(warning.contains(&lie.to_string()), "{name}: {warning}");
            }
            // With another model, and manually.
            let other = Agent::new("another").context_window(WINDOW);
            let session = runtime.open("lied-to", &other).await.unwrap();
            assert_eq!(session.prompt("say").await.unwrap().text, "a good answer", "{name}");
            // There may be nothing to compact.
            let _ = session.compact(CompactOptions::default()).await.unwrap();
            assert_small(&session, &name).await;
            model.assert_clean();
            cases += 1;
        }
    }
    assert_eq!(cases, 18);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_was_lied_to_is_whole_after_a_restart() {
    for lie in LIES {
        let dir = tempfile::tempdir().unwrap();
        let model = liar(usage(lie, 3));
        let start = || async {
            Runtime::builder().provider(model.provider()).data_dir(dir.path()).start().await.unwrap()
        };
        let first = start().await;
        let session = first.open("restarted", &agent(WINDOW)).await.unwrap();
        for _ in 0..3 {
            session.prompt("lie").await.unwrap();
        }
        first.shutdown().await.unwrap();
        let second = start().await;
        let session = second.open("restarted", &agent(WINDOW)).await.unwrap();
        assert_small(&session, &format!("{lie}, reopened")).await;
        let mut events = session.subscribe();
        for prompt in ["say", "lie", "say"] {
            assert_eq!(session.prompt(prompt).await.unwrap().text, "a good answer", "{lie}");
        }
        let (warnings, compactions) = told(&mut events);
        assert!(warnings.is_empty() && compactions.is_empty(), "{lie}: {warnings:?} {compactions:?}");
        second.shutdown().await.unwrap();
        model.assert_clean();
    }
}

/// Returns a recorded conversation of another system in which each answer reports `usage`.
fn recorded(report: Usage) -> Vec<Arc<Entry>> {
    let messages = ["hello", "hi", "and now", "well"].iter().enumerate().map(|(index, text)| {
        if index % 2 == 0 {
            return Message::user((*text).to_owned());
        }
        Message::Assistant(AssistantMessage {
            usage: Some(report),
            ..AssistantMessage::new(
                vec![greenroom_kernel::Part::Text((*text).to_owned())],
                "openai",
                "gpt-4o",
                StopReason::Stop,
            )
        })
    });
    messages
        .enumerate()
        .map(|(index, message)| {
            let id = index as u64;
            Arc::new(Entry {
                id: EntryId(id),
                parent: id.checked_sub(1).map(EntryId),
                at_ms: 1,
                tokens: 5,
                reasoning_tokens: 0,
                origin: None,
                kind: EntryKind::message(message),
            })
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn an_imported_file_with_absurd_usage_makes_a_session_like_any_other() {
    for lie in LIES {
        for report in [usage(lie, 3), usage(lie, lie), usage(3, lie)] {
            let model = liar(usage(lie, lie));
            let runtime = builder(&model).start().await.unwrap();
            let session = runtime.open("imported", &agent(WINDOW)).await.unwrap();
            session.import(recorded(report), Some(EntryId(3))).await.unwrap();
            assert_small(&session, &format!("{report:?}, imported")).await;
            let listed = runtime.sessions().await.unwrap();
            assert!(listed[0].context_tokens < 400, "{report:?}: {listed:?}");
            for prompt in ["say", "lie", "lie", "say"] {
                assert_eq!(session.prompt(prompt).await.unwrap().text, "a good answer", "{report:?}");
            }
            model.assert_clean();
        }
    }
}

/// The number from the design document where it was seen: 682,078 tokens that a provider counts twice, in a
/// window of a million.
#[tokio::test(start_paused = true)]
async fn what_may_be_true_is_believed_and_compacts_in_time() {
    // Reports of two and a half times our count, as for a text that our estimate handles badly.
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        let told = request.tokens * 5 / 2;
        Said::text("a good answer").with_usage(usage(told, 4))
    });
    let model = simulator(
        greenroom_simulator::ByPurpose::new(script, greenroom_simulator::Summariser::Obedient),
        100_000,
    );
    let runtime = runtime(&model).await;
    let session = runtime.open("honest", &agent(100_000)).await.unwrap();
    let mut events = session.subscribe();
    let mut sizes = Vec::new();
    for _ in 0..12 {
        sizes.push(session.prompt("thing ".repeat(4_000)).await.unwrap().context.tokens);
    }
    let (warnings, compactions) = told(&mut events);
    assert_eq!(warnings, [""; 0]);
    assert!((2..=6).contains(&compactions.len()), "{compactions:?}: {sizes:?}");
    assert!(sizes.iter().all(|tokens| *tokens < 100_000), "{sizes:?}");
    assert!(sizes.iter().any(|tokens| *tokens > 45_000), "the reports count: {sizes:?}");
}

/// A cost limit trusts no report beyond what the model could have used.
#[tokio::test(start_paused = true)]
async fn a_cost_limit_is_not_used_up_by_tokens_that_no_window_holds() {
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        let said = Said::text("a good answer");
        if request.last_user_text() == "lie" { said.with_usage(usage(90_000_000, 90_000_000)) } else { said }
    });
    let model = Simulator::new(greenroom_simulator::SimulatorOptions {
        window: 128_000,
        provider_name: "openai".to_owned(),
        ..greenroom_simulator::SimulatorOptions::new(script)
    });
    let runtime = builder(&model).start().await.unwrap();
    let careful = Agent::new("gpt-4o").context_window(128_000).cost_limit_usd(5.0);
    let session = runtime.open("careful", &careful).await.unwrap();
    session.prompt("lie").await.unwrap();
    session.prompt("say").await.unwrap();
    let spent = session.state().await.unwrap().cost_microdollars;
    assert!((100_000..2_000_000).contains(&spent), "{spent}");
    model.assert_clean();
}
