//! Requests extend each other, as providers' prompt caches need it; what breaks that is told with its reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use greenroom::prelude::*;
use greenroom::{BeforeModel, PrefixChange};
use greenroom_simulator::{ByPurpose, Summariser};

use crate::compaction_fixtures::{count, keep, settings, talker, text};
use crate::support::{agent, drain, runtime, simulator};

/// Returns why requests did not extend the ones before.
fn changes(events: &[Arc<Event>]) -> Vec<PrefixChange> {
    let reason = |event: &Arc<Event>| match &event.kind {
        EventKind::PrefixChanged { reason, .. } => Some(*reason),
        _ => None,
    };
    events.iter().filter_map(reason).collect()
}

#[tokio::test(start_paused = true)]
async fn over_a_whole_conversation_nothing_but_compactions_changes_the_prefix() {
    let model = simulator(ByPurpose::new(talker(300), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(16_000).instructions("Be brief.")).await.unwrap();
    let mut events = session.subscribe();
    for prompt in 0..60 {
        session.prompt(text(&format!("p{prompt}."), 300)).await.unwrap();
        match prompt {
            20 => drop(session.compact(keep(500)).await.unwrap()),
            21 => drop(session.undo_compaction().await.unwrap()),
            40 => runtime.close("s").await.unwrap(),
            _ => {}
        }
    }
    let told = drain(&mut events);
    assert!(count(&told, "compaction_end") >= 3);
    assert_eq!(changes(&told), []);
}

#[tokio::test(start_paused = true)]
async fn what_breaks_the_prefix_is_told_with_its_reason() {
    let mut picture = b"\x89PNG\r\n\x1a\n".to_vec();
    picture.extend(std::iter::repeat_n(7, 100_000));
    let look = |prompt: u32| Prompt::from(format!("look {prompt}")).image(Image::new(&picture).unwrap());
    let asked = Arc::new(AtomicU32::new(0));
    let dated = Arc::clone(&asked);
    let cases = [
        (
            "instructions that change with each run",
            agent(100_000).instructions_from(move |_| {
                format!("This is run {}.", dated.fetch_add(1, Ordering::Relaxed))
            }),
            PrefixChange::Instructions,
        ),
        (
            "a hook that rewrites the first message",
            agent(100_000).before_model(|call| async move {
                let mut messages = call.request.messages.into_vec();
                let said = format!("There are {} messages.", messages.len());
                messages[0] = Arc::new(greenroom::Message::user(said));
                BeforeModel::Messages(messages)
            }),
            PrefixChange::Hook,
        ),
        (
            "images that have no room",
            agent(100_000).compaction(settings(|settings| settings.max_request_bytes = 300_000)),
            PrefixChange::Images,
        ),
    ];
    for (case, agent, expected) in cases {
        let model = simulator(ByPurpose::new(talker(50), Summariser::Obedient), 100_000);
        let runtime = runtime(&model).await;
        let session = runtime.open("s", &agent).await.unwrap();
        let mut events = session.subscribe();
        for prompt in 0..4 {
            session.prompt(look(prompt)).await.unwrap();
        }
        let told = changes(&drain(&mut events));
        assert!(!told.is_empty() && told.iter().all(|reason| *reason == expected), "{case}: {told:?}");
    }
}
