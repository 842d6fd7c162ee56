//! The last resort at the window: what is cut if no summary is possible, how it is reported, and how the next
//! summary makes up for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Fault, Function, Point, Script, SeenRequest, Summariser,
};

use crate::compaction_fixtures::{
    asked, calls, chat, compactions, ends, keep, newest, opened, result, said, settings, talker, text, user,
    warnings,
};
use crate::support::{agent, drain, runtime, simulator};

/// Returns a summariser whose streams break as long as `is_broken`.
fn breakable(is_broken: &Arc<AtomicBool>) -> impl Script + use<> {
    let is_broken = Arc::clone(is_broken);
    Function(move |request: &SeenRequest, info: CallInfo| {
        if is_broken.load(Ordering::Relaxed) {
            Said::fault(Fault::Reset(Point::MidStream))
        } else {
            Summariser::Obedient.reply(request, info)
        }
    })
}

/// Broken streams cost as little of the oldest messages as possible, which is reported; the next summary
/// makes up for it, and the debt follows from the active compactions.
#[tokio::test(start_paused = true)]
async fn what_broken_streams_cost_is_little_and_the_next_summary_reads_it() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let model = simulator(ByPurpose::new(talker(300), breakable(&is_broken)), 40_000);
    let runtime = runtime(&model).await;
    // A digest would take room of its own.
    let plain = settings(|settings| (settings.user_words, settings.ledger) = (None, None));
    let definition = agent(32_000).compaction(plain);
    let session = opened(&runtime, "s", &definition, chat(62, 250)).await;
    let mut events = session.subscribe();
    session.prompt("go on").await.unwrap();
    let seen = drain(&mut events);
    let ended = ends(&seen);
    assert_eq!(ended.iter().map(|end| end.outcome.as_str()).collect::<Vec<_>>(), ["truncated"], "{ended:?}");
    let reason = ended[0].outcome.reason().unwrap();
    assert!(reason.starts_with("no summary could be made: "), "{reason}");
    assert!(ended[0].tokens_before > 30_000, "{ended:?}");
    // A success must reach 0.7 of the trigger: that much stays, to within one message.
    let room = CompactionSettings::default().trigger_tokens(32_000).unwrap() * 7 / 10;
    assert!((room - 600..=room).contains(&ended[0].tokens_after), "{ended:?} of {room}");
    let warned = warnings(&seen);
    assert!(warned.iter().any(|text| text.contains("cut without a summary")), "{warned:?}");
    // Undoing it is refused, with the size, if the result would not fit.
    runtime.open("s", &agent(30_000)).await.unwrap();
    let refused = session.undo_compaction().await.unwrap_err();
    assert!(refused.to_string().contains("the window has 30000"), "{refused}");
    runtime.open("s", &definition).await.unwrap();

    let (cut, first) = compactions(&runtime, "s").await.pop().unwrap();
    assert_eq!((first.debt[0].first, first.debt[0].last), (first.first.unwrap(), first.last.unwrap()));
    is_broken.store(false, Ordering::Relaxed);
    // It is known after a restart too.
    runtime.close("s").await.unwrap();
    let session = runtime.open("s", &definition).await.unwrap();
    let before = asked(&model).len();
    assert_eq!(session.compact(keep(2_000)).await.unwrap().outcome.as_str(), "completed");
    let read: String = asked(&model)[before..]
        .iter()
        .flat_map(|logged| &logged.request.messages)
        .map(|message| message.text())
        .collect();
    let missing: Vec<u64> =
        (0..124).filter(|at| *at <= first.last.unwrap().0 && !read.contains(&format!("m{at}."))).collect();
    assert!(missing.is_empty(), "no summary has read {missing:?}");
    let paid = newest(&runtime, "s").await;
    assert!(paid.debt.is_empty() && paid.first == first.first_kept && paid.base == Some(cut), "{paid:?}");
    // Without the summary that covered it, the debt is back; another summary covers it again.
    session.undo_compaction().await.unwrap();
    let before = asked(&model).len();
    assert!(session.compact(keep(2_000)).await.unwrap().is_installed());
    assert!(asked(&model)[before..].iter().any(|logged| logged.request.messages[0].text().contains("m3.")));
    // Without the truncation, there is no debt. The window has to be large enough for everything.
    session.undo_compaction().await.unwrap();
    let session = runtime.open("s", &agent(60_000)).await.unwrap();
    session.undo_compaction().await.unwrap();
    assert_eq!(session.context().await.unwrap().len(), 126);
    assert!(session.compact(keep(2_000)).await.unwrap().is_installed());
    let whole = newest(&runtime, "s").await;
    assert_eq!((whole.base, whole.first), (None, Some(greenroom_kernel::EntryId(0))));
    assert!(whole.debt.is_empty());
    model.assert_clean();
}

/// A chosen truncation is not a loss: there is no warning and no debt.
#[tokio::test(start_paused = true)]
async fn a_chosen_truncation_owes_nothing() {
    let model = simulator(ByPurpose::new(talker(300), Summariser::Garbage), 40_000);
    let runtime = crate::support::builder(&model)
        .compaction(CompactionSettings {
            strategy: greenroom_kernel::settings::Strategy::Truncate,
            ..Default::default()
        })
        .start()
        .await
        .unwrap();
    let session = opened(&runtime, "s", &agent(32_000), chat(62, 250)).await;
    let mut events = session.subscribe();
    session.prompt("go on").await.unwrap();
    let seen = drain(&mut events);
    assert_eq!(ends(&seen)[0].outcome.as_str(), "truncated", "{:?}", ends(&seen));
    assert!(warnings(&seen).is_empty(), "{:?}", warnings(&seen));
    assert!(newest(&runtime, "s").await.debt.is_empty());
}

/// Before anything is cut, old tool results become lines that name their entries; `recall` reads them, and an
/// undo restores them.
#[tokio::test(start_paused = true)]
async fn old_tool_results_give_way_first_and_are_within_reach() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let talk = Function(|request: &SeenRequest, info: CallInfo| match info.session_call {
        0 => Said::call("recall", &serde_json::json!({ "entry": 4, "find": "r1." })),
        _ => Said::text(format!("the newest result says {}", request.messages.last().unwrap().text())),
    });
    let model = simulator(ByPurpose::new(talk, breakable(&is_broken)), 40_000);
    let runtime = runtime(&model).await;
    let mut messages = vec![user("m0. look around"), said("m1.")];
    for number in 1..=14 {
        let id = format!("k{number}");
        messages.push(user(format!("again {number}")));
        messages.push(calls(&[&id], "x"));
        messages.push(result(&id, text(&format!("r{number}."), 2_200), &[]));
        messages.push(said("seen"));
    }
    // Only where no summary can be made.
    let definition = crate::compaction_fixtures::editor(32_000, 10)
        .compaction(crate::compaction_fixtures::settings(|settings| settings.prune = false));
    let session = opened(&runtime, "s", &definition, messages).await;
    let before = session.context().await.unwrap();
    let mut events = session.subscribe();
    let reply = session.prompt("go on").await.unwrap();
    let seen = drain(&mut events);
    let ended = ends(&seen);
    assert_eq!(ended[0].outcome.as_str(), "pruned", "{ended:?}");
    assert_eq!((ended[0].messages_removed, ended[0].messages_before), (0, ended[0].messages_after));
    assert!(ended[0].entry_id.is_some() && ended[0].tokens_after < ended[0].tokens_before, "{ended:?}");
    assert!(warnings(&seen).iter().any(|text| text.contains("sent shorter")), "{:?}", warnings(&seen));
    let pruned = |events: &[Arc<Event>]| crate::compaction_fixtures::count(events, "results_pruned");
    assert_eq!(pruned(&seen), 1);
    // The model has read the first of them.
    assert!(reply.text.contains("r1. "), "{}", reply.text);
    let context = session.context().await.unwrap();
    assert!(context[4].text().contains("recall with entry 4"), "{}", context[4].text());
    assert_eq!(context[..4], before[..4]);
    // The displayed size is that of what is sent, after a restart too.
    let shown = session.state().await.unwrap().context.tokens;
    runtime.close("s").await.unwrap();
    let session = runtime.open("s", &definition).await.unwrap();
    let again = session.state().await.unwrap().context.tokens;
    assert!(shown < 24_000 && shown == again, "{shown} {again}");
    assert_eq!(session.context().await.unwrap(), context);
    // An undo is refused, with the size, if the result would not fit; otherwise it restores the earlier
    // context, and later messages stay.
    let refused = session.undo_compaction().await.unwrap_err();
    assert!(refused.to_string().contains("the window has 32000"), "{refused}");
    let larger = crate::compaction_fixtures::editor(60_000, 10);
    let session = runtime.open("s", &larger).await.unwrap();
    session.undo_compaction().await.unwrap();
    let undone = session.context().await.unwrap();
    assert_eq!(undone[..before.len()], before[..]);
    assert!(session.undo_compaction().await.is_err(), "there is nothing more to undo");
    assert_eq!(compactions(&runtime, "s").await, []);
    assert!(model.requests().iter().any(|logged| logged.request.purpose == Purpose::Step));
    model.assert_clean();
}
