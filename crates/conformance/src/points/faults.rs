//! The behaviour of an engine behind a network when connections break and servers die.
//!
//! Invariants: each test counts the faults that happened, and demands a minimum. The faults come at random steps, from a
//! seed.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::EntryId;
use greenroom_store::{Appended, Engine, StoreError};

use crate::kit::{self, append, batch, refused, whole};
use crate::proxy::{Mode, Proxy, Step};
use crate::server::Server;

const STEPS: [Step; 4] = [Step::BeforeRequest, Step::AfterRequest, Step::BeforeAnswer, Step::AfterAnswer];

/// Points 2 and 11: connections are cut at random steps of 400 appends, with keys and without. Each append succeeds, and is
/// there once. The engine's patience must be longer than a reconnection takes.
///
/// # Panics
/// If the engine fails.
pub async fn cuts(engine: &Arc<dyn Engine>, proxy: &Proxy) {
    const APPENDS: u64 = 400;
    const CUTS_MIN: u64 = 200;
    let mut random = kit::random("cuts");
    let mut sessions = [const { Vec::<String>::new() }; 4];
    for number in 0..APPENDS {
        let at = usize::try_from(random.below(4)).expect("a session");
        let step = STEPS[usize::try_from(random.below(4)).expect("a step")];
        proxy.plan(step, random.below(2));
        let (session, texts) = (format!("cuts {at}"), &mut sessions[at]);
        let (text, count) = (number.to_string(), random.below(3) + 1);
        let key = (random.below(2) == 0).then(|| text.clone());
        let first = texts.len() as u64;
        let written = engine.append(&session, batch(first, count, &text, key.as_deref())).await;
        let expected = Appended::Written { first: EntryId(first), next: EntryId(first + count) };
        assert_eq!(written.unwrap_or_else(|error| panic!("append {number}, {step:?}: {error}")), expected);
        texts.extend(std::iter::repeat_n(text, usize::try_from(count).expect("few")));
        if let Some(key) = key.filter(|_| random.below(4) == 0) {
            proxy.plan(step, 0);
            let repeated = engine.append(&session, batch(first, count, "x", Some(&key))).await;
            assert_eq!(
                repeated.expect("a repetition is no error"),
                Appended::Duplicate { first: EntryId(first) }
            );
        }
        if random.below(8) == 0 {
            proxy.plan(step, 0);
            assert_eq!(whole(engine.as_ref(), &session).await, *texts, "{session} after append {number}");
        }
        if random.below(30) == 0 {
            proxy.plan(step, 0);
            engine
                .delete(&session)
                .await
                .unwrap_or_else(|error| panic!("deletion {number}, {step:?}: {error}"));
            texts.clear();
        }
    }
    proxy.forget();
    for (at, texts) in sessions.iter().enumerate().filter(|(_, texts)| !texts.is_empty()) {
        assert_eq!(whole(engine.as_ref(), &format!("cuts {at}")).await, *texts);
    }
    assert!(proxy.cuts() >= CUTS_MIN, "only {} connections were cut", proxy.cuts());
}

/// Points 1 and 11: 32 writers, while the server is stopped as by a crash, its connections are broken, and callers stop
/// waiting at random. Every acknowledged batch is there, in order, once and entirely.
///
/// # Panics
/// If the engine fails.
pub async fn kills(engine: &Arc<dyn Engine>, server: &Arc<Server>) {
    const WRITERS: u64 = 32;
    const KILLS: u32 = 6;
    const COUNT: u64 = 3;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut random = kit::random("kills");
    let writers = (0..WRITERS).map(|writer| {
        let (engine, stopped, mut random) = (Arc::clone(engine), stopped.clone(), random.clone());
        (0..writer).for_each(|_| _ = random.number());
        tokio::spawn(async move {
            let session = format!("kills {writer}");
            let (mut next, mut number, mut dropped) = (0, 0_u64, 0_u64);
            while !*stopped.borrow() {
                let (text, key) = (number.to_string(), format!("key {number}"));
                let appending = engine.append(&session, batch(next, COUNT, &text, Some(&key)));
                let patience = Duration::from_micros(random.below(4_000) + 10);
                let result = match random.below(8) {
                    // The caller stops waiting, and asks again with the same key.
                    0 => match tokio::time::timeout(patience, appending).await {
                        Ok(result) => result,
                        Err(_) => {
                            dropped += 1;
                            engine.append(&session, batch(next, COUNT, &text, Some(&key))).await
                        }
                    },
                    _ => appending.await,
                };
                match result {
                    Ok(Appended::Written { first, .. } | Appended::Duplicate { first }) => {
                        assert_eq!(first, EntryId(next), "{session}");
                    }
                    Err(error) => panic!("{session}: {error}"),
                }
                (next, number) = (next + COUNT, number + 1);
            }
            (session, number, dropped)
        })
    });
    let writers: Vec<_> = writers.collect();
    // Each fault comes after some progress.
    for kill in 0..KILLS {
        let before = progress(engine, WRITERS).await;
        while progress(engine, WRITERS).await < before + WRITERS * COUNT * (2 + random.below(6)) {}
        let server = Arc::clone(server);
        let broken = tokio::task::spawn_blocking(move || {
            if kill % 2 == 0 {
                server.stop();
                server.start_again();
            } else {
                server.terminate_all();
            }
        });
        broken.await.expect("the server is there again");
    }
    let before = progress(engine, WRITERS).await;
    while progress(engine, WRITERS).await < before + WRITERS * COUNT {}
    stop.send_replace(true);
    let (mut batches, mut dropped) = (0, 0);
    for writer in writers {
        let (session, number, impatient) = writer.await.expect("a writer is well");
        let expected: Vec<String> =
            (0..number).flat_map(|number| std::iter::repeat_n(number.to_string(), 3)).collect();
        assert_eq!(whole(engine.as_ref(), &session).await, expected, "{session}");
        (batches, dropped) = (batches + number, dropped + impatient);
    }
    assert!(batches > 500 && dropped > 20, "only {batches} batches, {dropped} without waiting");
}

/// Returns how many entries the sessions of the writers have.
async fn progress(engine: &Arc<dyn Engine>, writers: u64) -> u64 {
    let page = engine.page(None, usize::try_from(writers).unwrap_or(usize::MAX)).await.expect("it is listed");
    page.iter().map(|(_, head)| head.entries).sum()
}

/// Point 11: an engine that cannot be reached stores nothing and says so; one that does not answer leaves a doubt, which the
/// same batch settles. The engine's patience should be short.
///
/// # Panics
/// If the engine fails.
pub async fn away(engine: &Arc<dyn Engine>, proxy: &Proxy) {
    const ROUNDS: u32 = 6;
    const DOUBTS_MIN: u32 = 2;
    let session = "away";
    append(engine.as_ref(), session, batch(0, 1, "first", None)).await;

    proxy.set(Mode::Refuse);
    refused(engine.head(session).await, "unavailable", "a read without a server");
    refused(engine.append(session, batch(1, 1, "refused", Some("a"))).await, "unavailable", "no server");
    refused(engine.fact_put("k", b"v").await, "unavailable", "a fact without a server");
    proxy.set(Mode::Pass);
    assert_eq!(whole(engine.as_ref(), session).await, ["first"], "nothing was stored");
    append(engine.as_ref(), session, batch(1, 1, "refused", Some("a"))).await;

    let (mut written, mut doubts) = (0, 0);
    for round in 0..ROUNDS {
        let before = whole(engine.as_ref(), session).await;
        let next = before.len() as u64;
        let (key, text) = (format!("doubt {round}"), format!("text {round}"));
        let key = (round % 2 == 0).then_some(key.as_str());
        // The answer never comes, and in half of the rounds the request never arrives.
        proxy.set(if round % 4 < 2 { Mode::HoldAnswers } else { Mode::Hold });
        let unanswered = engine.append(session, batch(next, 1, &text, key)).await;
        let unanswered = unanswered.expect_err("nothing was acknowledged");
        proxy.set(Mode::Pass);
        // An engine may notice a replaced connection before it sends anything, and then nothing is in doubt.
        let is_in_doubt = kit::kind(&unanswered) == "in doubt";
        assert!(is_in_doubt || kit::kind(&unanswered) == "unavailable", "round {round}: {unanswered}");
        doubts += u32::from(is_in_doubt);
        match engine.append(session, batch(next, 1, &text, key)).await {
            Ok(Appended::Written { first, .. }) => assert_eq!(first, EntryId(next)),
            Ok(Appended::Duplicate { first }) if key.is_some() && is_in_doubt => {
                assert_eq!(first, EntryId(next));
                written += 1;
            }
            // Without a key, the caller reads the session again.
            Err(StoreError::Sequence { expected, .. }) if key.is_none() && is_in_doubt => {
                assert_eq!(expected, EntryId(next + 1));
                written += 1;
            }
            other => panic!("round {round}, in doubt: {is_in_doubt}: {other:?}"),
        }
        let mut expected = before;
        expected.push(text);
        assert_eq!(whole(engine.as_ref(), session).await, expected, "round {round}");
    }
    assert!(doubts >= DOUBTS_MIN, "only {doubts} of {ROUNDS} appends were in doubt");
    assert!(written > 0, "no append was written whose answer was held");
}

/// Point 13: the server is set back to an older state, under an owner that knows more.
///
/// # Panics
/// If the engine fails.
pub async fn set_back(engine: &Arc<dyn Engine>, server: &Server) {
    let (session, other, new) = ("back", "not back", "gone");
    append(engine.as_ref(), session, batch(0, 2, "kept", None)).await;
    append(engine.as_ref(), other, batch(0, 2, "kept", None)).await;
    let copy = server.copy();
    append(engine.as_ref(), session, batch(2, 3, "lost", Some("k"))).await;
    append(engine.as_ref(), new, batch(0, 1, "lost", None)).await;
    server.put_back(copy);
    let is_back = |result: Result<String, StoreError>, from: u64, what: &str| match result {
        Err(StoreError::SetBack { from: EntryId(found), .. }) if found == from => {}
        other => panic!("{what}: {other:?}"),
    };
    let shown = |written: Appended| format!("{written:?}");
    is_back(engine.append(session, batch(5, 1, "x", None)).await.map(shown), 2, "an append");
    is_back(engine.append(session, batch(5, 1, "x", None)).await.map(shown), 2, "the next one");
    is_back(engine.head(session).await.map(|head| format!("{head:?}")), 2, "its head");
    is_back(engine.load(session, EntryId(0)).await.map(|entries| format!("{entries:?}")), 2, "its entries");
    is_back(
        engine.append(new, batch(1, 1, "x", None)).await.map(shown),
        0,
        "a session that is not there any more",
    );
    append(engine.as_ref(), other, batch(2, 1, "more", None)).await;
    assert_eq!(whole(engine.as_ref(), other).await, ["kept", "kept", "more"], "what lost nothing goes on");
}
