//! Points about several nodes: owners, epochs, leases, claims.
//!
//! Invariants: the nodes are engines of this process, each with connections of its own; what one of them believes, the
//! others do not know.

use std::sync::Arc;
use std::time::Instant;

use greenroom_kernel::{EntryId, Head};
use greenroom_store::{Appended, Batch, Claim, Engine, Placement, StoreError};

use crate::Cluster;
use crate::kit::{self, append, batch, head, kind, refused, whole};
use greenroom_kernel::random::Random;

/// Opens an engine for each node.
async fn open(cluster: &dyn Cluster, nodes: &[&str]) -> Vec<Arc<dyn Engine>> {
    let mut engines = Vec::new();
    for node in nodes {
        engines.push(cluster.open(node).await.unwrap_or_else(|error| panic!("{node}: {error}")));
    }
    engines
}

fn placement(engine: &Arc<dyn Engine>) -> &dyn Placement {
    engine.placement().expect("it has a placement")
}

/// Claims the session again and again until it is this node's, and returns its epoch.
async fn claimed(engine: &Arc<dyn Engine>, session: &str) -> u64 {
    loop {
        match placement(engine).claim(session).await {
            Ok(Claim::Mine { epoch }) => return epoch,
            // A node that lost its lease gets another one.
            Ok(Claim::Theirs(_)) | Err(StoreError::LeaseLost) => tokio::task::yield_now().await,
            Err(error) => panic!("{session}: {error}"),
        }
    }
}

async fn owner(engine: &Arc<dyn Engine>, session: &str) -> Option<String> {
    placement(engine).owner_of(session).await.expect("it is read").map(|owner| owner.node)
}

async fn close(engines: Vec<Arc<dyn Engine>>) {
    for engine in engines {
        engine.close().await.expect("it closes");
    }
}

/// Point 3: 1,000 times, eight writers on two nodes begin the same session. One of them does.
///
/// # Panics
/// If the engine fails.
pub async fn newer_owner_writes(cluster: &dyn Cluster) {
    const RACES: u32 = 1_000;
    const AT_ONCE: u32 = 20;
    let engines = open(cluster, &["a", "b"]).await;
    let mut winners = [0_u32; 2];
    for round in 0..RACES / AT_ONCE {
        let writers = (0..AT_ONCE * 8).map(|writer| {
            let engine = Arc::clone(&engines[usize::from(writer % 2 == 0)]);
            tokio::spawn(async move {
                let (session, name) = (format!("race {round} {}", writer / 8), format!("{writer}"));
                (writer, engine.append(&session, batch(0, 1, &name, None)).await)
            })
        });
        let mut written = vec![Vec::new(); AT_ONCE as usize];
        for writer in writers.collect::<Vec<_>>() {
            let (writer, result) = writer.await.expect("a writer is well");
            match result {
                Ok(Appended::Written { .. }) => written[(writer / 8) as usize].push(writer),
                Ok(other @ Appended::Duplicate { .. }) => panic!("{other:?} without a key"),
                Err(error) => assert!(["sequence", "elsewhere"].contains(&kind(&error)), "{error}"),
            }
        }
        for (number, written) in written.into_iter().enumerate() {
            let session = format!("race {round} {number}");
            assert_eq!(written.len(), 1, "the winners of {session}: {written:?}");
            let winner = written[0];
            winners[usize::from(winner % 2 == 0)] += 1;
            for engine in &engines {
                assert_eq!(whole(engine.as_ref(), &session).await, [winner.to_string()], "{session}");
            }
        }
    }
    assert!(winners.iter().all(|count| *count > 0), "both nodes win sometimes: {winners:?}");
    close(engines).await;
}

/// Point 4: while a node appends to 250 sessions, another one takes them over. What the first was told is durable is in the
/// head that the second finds, and nothing of the first comes later. Eight times: 2,000 races.
///
/// # Panics
/// If the engine fails.
pub async fn takeover_races(cluster: &dyn Cluster) {
    const ROUNDS: u32 = 8;
    const SESSIONS: u32 = 250;
    let engines = open(cluster, &["a", "b"]).await;
    let (mut races, mut accepted, mut fenced) = (0, 0, 0);
    for round in 0..ROUNDS {
        let name = |number: u32| format!("takeover {round} {number}");
        let (old, new) = (&engines[(round % 2) as usize], &engines[((round + 1) % 2) as usize]);
        for number in 0..SESSIONS {
            claimed(old, &name(number)).await;
        }
        let writers = (0..SESSIONS).map(|number| {
            let (engine, session) = (Arc::clone(old), name(number));
            tokio::spawn(async move {
                let mut acknowledged = 0;
                loop {
                    match engine.append(&session, batch(acknowledged, 1, "old", None)).await {
                        Ok(_) => acknowledged += 1,
                        Err(StoreError::Fenced { .. }) => return acknowledged,
                        Err(error) => panic!("{session}: {error}"),
                    }
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        // All of them are at work.
        while old.head(&name(SESSIONS - 1)).await.expect("it is read").is_none() {}
        cluster.expire(if round % 2 == 0 { "a" } else { "b" }).await.expect("it is expired");
        let takeovers = (0..SESSIONS).map(|number| {
            let (engine, session) = (Arc::clone(new), name(number));
            tokio::spawn(async move {
                claimed(&engine, &session).await;
                let found = engine.head(&session).await.expect("it is read").map_or(0, |head| head.entries);
                append(engine.as_ref(), &session, batch(found, 1, "new", None)).await;
                found
            })
        });
        let takeovers: Vec<_> = takeovers.collect();
        for ((number, takeover), writer) in (0..).zip(takeovers).zip(writers) {
            let found = takeover.await.expect("a takeover is well");
            let acknowledged = writer.await.expect("a writer is well");
            assert_eq!(
                acknowledged,
                found,
                "what was acknowledged is what the new owner of {} found",
                name(number)
            );
            let mut expected = vec!["old".to_owned(); usize::try_from(found).expect("few")];
            expected.push("new".to_owned());
            assert_eq!(whole(new.as_ref(), &name(number)).await, expected, "{}", name(number));
            races += 1;
            accepted += found;
            fenced += 1;
        }
    }
    assert!(races >= 2_000 && accepted > 2_000 && fenced == races, "{races} races, {accepted} accepted");
    close(engines).await;
}

/// Point 5: an epoch grows with each change of owner: by release, by expiry, by deletion, by a restart.
///
/// # Panics
/// If the engine fails.
pub async fn epochs_grow(cluster: &dyn Cluster) {
    let session = "epochs";
    let mut engines = open(cluster, &["a", "b"]).await;
    let mut epochs = vec![claimed(&engines[0], session).await];
    assert_eq!(claimed(&engines[0], session).await, epochs[0], "a second claim changes nothing");
    append(engines[0].as_ref(), session, batch(0, 1, "x", None)).await;

    placement(&engines[0]).release(session, None).await.expect("it is released");
    assert_eq!(owner(&engines[1], session).await, None);
    epochs.push(claimed(&engines[1], session).await);
    assert_eq!(owner(&engines[0], session).await.as_deref(), Some("b"));

    cluster.expire("b").await.expect("it is expired");
    epochs.push(claimed(&engines[0], session).await);

    engines[0].delete(session).await.expect("it is deleted");
    epochs.push(claimed(&engines[0], session).await);

    engines.remove(0).close().await.expect("it closes");
    assert_eq!(owner(&engines[0], session).await, None, "who leaves owns nothing");
    engines.insert(0, cluster.open("a").await.expect("it opens again"));
    epochs.push(claimed(&engines[0], session).await);

    drop(engines.remove(0));
    // The name is free once the lease of the one that was dropped has run out.
    engines.insert(0, cluster.open("a").await.expect("it opens again"));
    epochs.push(claimed(&engines[0], session).await);
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");

    // A fenced node claims the session again, and continues.
    cluster.expire("a").await.expect("it is expired");
    claimed(&engines[1], session).await;
    refused(
        engines[0].append(session, batch(0, 1, "late", None)).await,
        "fenced",
        "an append of the old owner",
    );
    placement(&engines[1]).release(session, None).await.expect("it is released");
    refused(
        engines[0].append(session, batch(0, 1, "late", None)).await,
        "fenced",
        "until it claims the session",
    );
    claimed(&engines[0], session).await;
    append(engines[0].as_ref(), session, batch(0, 1, "again", None)).await;
    refused(engines[1].append(session, batch(1, 1, "x", None)).await, "elsewhere", "what another node owns");
    refused(engines[1].delete(session).await, "elsewhere", "what another node owns");
    close(engines).await;
}

/// Point 6: a node is frozen in the middle of an append, past its lease. Another one takes over. When the first wakes, its
/// append arrives, and is refused, whether the new owner has written by then or not.
///
/// # Panics
/// If the engine fails.
pub async fn frozen_owner(cluster: &dyn Cluster) {
    let engines = open(cluster, &["a", "b"]).await;
    for new_texts in [&[][..], &["new", "new"][..]] {
        frozen_once(cluster, &engines, new_texts).await;
    }
    close(engines).await;
}

async fn frozen_once(cluster: &dyn Cluster, engines: &[Arc<dyn Engine>], new_texts: &[&str]) {
    let count = new_texts.len() as u64;
    let session = format!("frozen {count}");
    let session = session.as_str();
    let (old, new) = (&engines[0], &engines[1]);
    claimed(old, session).await;
    append(old.as_ref(), session, batch(0, 3, "old", None)).await;
    let lost = {
        let old = Arc::clone(old);
        tokio::spawn(async move { placement(&old).lost(0).await })
    };
    // It waits before it is frozen.
    tokio::task::yield_now().await;
    cluster.hold("a", true);
    let late = {
        let (old, session) = (Arc::clone(old), session.to_owned());
        tokio::spawn(async move { old.append(&session, batch(3, 1, "late", None)).await })
    };
    claimed(new, session).await;
    if count > 0 {
        append(new.as_ref(), session, batch(3, count, "new", None)).await;
    }
    refused(placement(old).check(), "lease lost", "the frozen node knows by its clock");
    refused(
        old.append("frozen too", batch(0, 1, "late", None)).await,
        "lease lost",
        "a session that it never had",
    );
    lost.await.expect("it is told");
    cluster.hold("a", false);
    refused(late.await.expect("it ends"), "fenced", "the append of the frozen node");
    refused(
        old.append(session, batch(3 + count, 1, "later", None)).await,
        "fenced",
        "the next append of that node",
    );
    let expected: Vec<&str> = ["old"; 3].iter().chain(new_texts).copied().collect();
    assert_eq!(whole(new.as_ref(), session).await, expected);
    assert_eq!(whole(old.as_ref(), session).await, expected);
    append(new.as_ref(), session, batch(3 + count, 1, "newer", None)).await;
    // It gets a lease again, and other sessions.
    claimed(old, "frozen later").await;
    placement(old).check().expect("it has a lease again");
    match placement(old).claim(session).await {
        Ok(Claim::Theirs(owner)) => assert_eq!(owner.node, "b"),
        other => panic!("{other:?}"),
    }
    refused(old.append(session, batch(4 + count, 1, "later", None)).await, "elsewhere", "after it asked");
}

/// Point 7: a node that cannot renew its lease knows that it ended no later than others do, and the others wait no longer
/// than the lease and two seconds.
///
/// # Panics
/// If the engine fails.
pub async fn lease_ends_in_time(cluster: &dyn Cluster) {
    let engines = open(cluster, &["a", "b"]).await;
    for round in 0..3 {
        let session = format!("lease {round}");
        claimed(&engines[0], &session).await;
        let began = Instant::now();
        cluster.hold("a", true);
        claimed(&engines[1], &session).await;
        refused(
            placement(&engines[0]).check(),
            "lease lost",
            "the first node knows before the second takes over",
        );
        let taken = began.elapsed();
        assert!(taken <= cluster.lease() + std::time::Duration::from_secs(2), "taken over after {taken:?}");
        refused(placement(&engines[0]).claim("another").await, "lease lost", "no claim without a lease");
        cluster.hold("a", false);
    }
    close(engines).await;
}

/// Point 8: four nodes claim a session at once: it is one node's, and the others are told whose.
///
/// # Panics
/// If the engine fails.
pub async fn claims_race(cluster: &dyn Cluster) {
    const ROUNDS: u32 = 100;
    let nodes = ["a", "b", "c", "d"];
    let engines = open(cluster, &nodes).await;
    let mut winners = [0_u32; 4];
    for round in 0..ROUNDS {
        // Half of the rounds are about a session that is there.
        let session = format!("claim {}", if round % 2 == 0 { round } else { 1 });
        let claims = engines.iter().map(|engine| {
            let (engine, session) = (Arc::clone(engine), session.clone());
            tokio::spawn(async move { placement(&engine).claim(&session).await.expect("an answer") })
        });
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for (number, claim) in claims.collect::<Vec<_>>().into_iter().enumerate() {
            match claim.await.expect("a claim is well") {
                Claim::Mine { epoch } => mine.push((number, epoch)),
                Claim::Theirs(owner) => theirs.push((owner.node, owner.epoch)),
            }
        }
        assert_eq!(mine.len(), 1, "{session}: {mine:?}");
        let (winner, epoch) = mine[0];
        winners[winner] += 1;
        assert!(
            theirs.iter().all(|other| *other == (nodes[winner].to_owned(), epoch)),
            "{session}: {theirs:?}"
        );
        // A release by one that is not the owner does nothing.
        placement(&engines[(winner + 1) % 4]).release(&session, None).await.expect("it does nothing");
        assert_eq!(owner(&engines[0], &session).await.as_deref(), Some(nodes[winner]));
        placement(&engines[winner]).release(&session, None).await.expect("it is released");
    }
    assert!(winners.iter().filter(|count| **count > 0).count() > 1, "more than one node wins: {winners:?}");

    // Nor does one by an owner of the past.
    let session = "claim of the past";
    claimed(&engines[0], session).await;
    cluster.expire("a").await.expect("it is expired");
    claimed(&engines[1], session).await;
    placement(&engines[0]).release(session, None).await.expect("it does nothing");
    assert_eq!(owner(&engines[2], session).await.as_deref(), Some("b"));
    close(engines).await;
}

/// Point 9, of several nodes: a node reads at once what another one was told is durable, over changes of owner.
///
/// # Panics
/// If the engine fails.
pub async fn reads_by_others(cluster: &dyn Cluster) {
    const APPENDS: u64 = 200;
    let engines = open(cluster, &["a", "b", "c"]).await;
    let mut random = kit::random("reads_by_others");
    let session = "reads of others";
    let pick = |random: &mut Random| usize::try_from(random.below(3)).expect("a node");
    let (mut owner, mut entries, mut changes) = (pick(&mut random), 0, 0);
    for number in 0..APPENDS {
        if random.below(5) == 0 {
            let next = pick(&mut random);
            placement(&engines[owner]).release(session, None).await.expect("it is released");
            (owner, changes) = (next, changes + 1);
        }
        let count = random.below(4);
        let key = format!("key {number}");
        append(engines[owner].as_ref(), session, batch(entries, count, &key, Some(&key))).await;
        entries += count;
        let reader = &engines[pick(&mut random)];
        let found = reader.head(session).await.expect("it is read").expect("it is there");
        assert_eq!(found.entries, entries, "append {number}");
        let tail = reader.load(session, EntryId(entries - count)).await.expect("it is read");
        assert_eq!(tail.len() as u64, count, "append {number}");
        let used = reader.used_key(session, &key).await.expect("it is read");
        assert_eq!(used, Some(EntryId(entries - count)), "append {number}");
        reader.fact_put("newest", key.as_bytes()).await.expect("it is stored");
        let newest = engines[pick(&mut random)].fact_get("newest").await.expect("it is read");
        assert_eq!(newest.as_deref(), Some(key.as_bytes()));
    }
    assert!(changes > 15, "only {changes} changes of owner");
    close(engines).await;
}

/// Point 10, of several nodes: deleted stays deleted for a writer that was asleep.
///
/// # Panics
/// If the engine fails.
pub async fn deleted_for_others(cluster: &dyn Cluster) {
    let session = "deleted";
    let engines = open(cluster, &["a", "b"]).await;
    let (old, new) = (&engines[0], &engines[1]);
    append(old.as_ref(), session, batch(0, 3, "old", Some("k"))).await;
    cluster.expire("a").await.expect("it is expired");
    claimed(new, session).await;
    new.delete(session).await.expect("it is deleted");
    refused(
        old.append(session, batch(3, 1, "late", None)).await,
        "fenced",
        "the append of the writer that slept",
    );
    assert_eq!(old.head(session).await.expect("it is read"), None);
    assert_eq!(old.page(None, 9).await.expect("it is listed"), []);
    append(new.as_ref(), session, batch(0, 1, "new", Some("k"))).await;
    for late in [batch(3, 1, "late", None), batch(1, 1, "late", None), batch(0, 0, "", None)] {
        refused(old.append(session, late).await, "fenced", "the append of the writer that slept");
    }
    assert_eq!(whole(old.as_ref(), session).await, ["new"]);
    assert_eq!(old.page(None, 9).await.expect("it is listed").len(), 1);
    close(engines).await;
}

/// The placement of sessions, abandoned sessions, and the behaviour of a leaving node.
///
/// # Panics
/// If the engine fails.
pub async fn placed(cluster: &dyn Cluster) {
    let engines = open(cluster, &["a", "b", "c"]).await;
    let names = async |engine: &Arc<dyn Engine>| -> Vec<(String, bool, u64)> {
        let members = placement(engine).members().await.expect("they are read");
        members.into_iter().map(|member| (member.node, member.is_draining, member.sessions)).collect()
    };
    let none = |node: &str| (node.to_owned(), false, 0);
    assert_eq!(names(&engines[0]).await, [none("a"), none("b"), none("c")]);

    // All nodes choose the same one for a session, and not always the same.
    let mut chosen = std::collections::BTreeMap::<String, u32>::new();
    for number in 0..60 {
        let session = format!("user:{number}");
        let mut answers = Vec::new();
        for engine in &engines {
            answers.push(placement(engine).place(&session).await.expect("a place").node);
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{session}: {answers:?}");
        *chosen.entry(answers.swap_remove(0)).or_default() += 1;
    }
    assert!(chosen.len() == 3 && chosen.values().all(|count| *count >= 5), "{chosen:?}");

    // A wish counts, unless that node leaves.
    let session = "wished";
    claimed(&engines[0], session).await;
    assert_eq!(names(&engines[1]).await[0], ("a".to_owned(), false, 1));
    placement(&engines[0]).release(session, Some("c")).await.expect("it is released");
    assert_eq!(placement(&engines[1]).place(session).await.expect("a place").node, "c");
    placement(&engines[2]).drain().await.expect("it leaves");
    assert_eq!(names(&engines[0]).await[2], ("c".to_owned(), true, 0));
    for number in 0..30 {
        let session = format!("user:{number}");
        assert_ne!(placement(&engines[2]).place(&session).await.expect("a place").node, "c", "{session}");
    }
    assert_ne!(placement(&engines[1]).place(session).await.expect("a place").node, "c");
    assert_eq!(
        placement(&engines[0]).place(session).await.expect("a place"),
        placement(&engines[1]).place(session).await.expect("a place")
    );

    // It leaves still after it has lost its lease, and gets another one.
    let leases = async || placement(&engines[0]).leases().await.expect("they are read");
    let before = leases().await;
    assert_eq!(before.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    cluster.expire("c").await.expect("it is expired");
    claimed(&engines[2], "of one that leaves").await;
    let after = leases().await;
    let kept: Vec<bool> = before.iter().map(|(node, lease)| after.get(node) == Some(lease)).collect();
    assert_eq!((after.len(), &kept[..]), (3, &[true, true, false][..]), "{before:?}, {after:?}");
    assert_eq!(names(&engines[0]).await[2], ("c".to_owned(), true, 1));

    // Unfinished runs of nodes that are gone.
    let unfinished = |entries| Batch {
        head: Arc::new(Head { open_run: Some(EntryId(0)), ..head(entries) }),
        ..batch(entries - 1, 1, "x", None)
    };
    for (engine, session) in [(0, "u1"), (0, "u2"), (1, "u3"), (2, "u4")] {
        append(engines[engine].as_ref(), session, unfinished(1)).await;
    }
    append(engines[0].as_ref(), "finished", batch(0, 1, "x", None)).await;
    let after = async |id, limit| placement(&engines[1]).abandoned(id, limit).await.expect("they are read");
    let abandoned = async |limit| after(None, limit).await;
    assert_eq!(abandoned(9).await, [""; 0], "all of them have owners");
    placement(&engines[0]).release("u2", None).await.expect("it is released");
    assert_eq!(abandoned(9).await, ["u2"]);
    cluster.expire("a").await.expect("it is expired");
    engines[2].close().await.expect("it closes");
    assert_eq!(abandoned(9).await, ["u1", "u2", "u4"]);
    assert_eq!(abandoned(2).await, ["u1", "u2"]);
    assert_eq!(after(Some("u2"), 2).await, ["u4"], "the rest");
    assert_eq!(after(Some("u1"), 1).await, ["u2"]);
    assert_eq!(after(Some("u4"), 2).await, [""; 0]);
    for session in ["u1", "u2", "u4"] {
        claimed(&engines[1], session).await;
    }
    assert_eq!(abandoned(9).await, [""; 0]);
    append(engines[1].as_ref(), "u1", batch(1, 1, "the end", None)).await;
    placement(&engines[1]).release("u1", None).await.expect("it is released");
    assert_eq!(abandoned(9).await, [""; 0], "what is finished is not abandoned");
    let members = placement(&engines[1]).members().await.expect("they are read");
    assert!(members.iter().all(|member| member.node != "c"), "{members:?}");
    engines[0].close().await.expect("it closes");
    engines[1].close().await.expect("it closes");
}
