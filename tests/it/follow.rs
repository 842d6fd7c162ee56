//! Following sessions, and consumers: no durable event is missing or doubled, whatever happens in between.
//!
//! Invariants: what was followed is compared with the logs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{ConfigError, Consumer, Delta, Follow};
use greenroom_kernel::random::Random;
use greenroom_simulator::{Answer as Said, Echo, Function, Pace, SeenRequest, Sequence, Simulator};

use serde_json::json;

use crate::support::{agent, builder, reopened, simulator, store};
use greenroom_store::Engine;

/// Readers that are minutes behind.
mod slow;

/// Returns all events that come before nothing happens any more.
async fn drained(follow: &mut Follow) -> Vec<Arc<Event>> {
    let mut events = Vec::new();
    while let Ok(next) = tokio::time::timeout(Duration::from_millis(1), follow.next()).await {
        match next.unwrap() {
            Some(event) => events.push(event),
            None => break,
        }
    }
    events
}

/// The same for a consumer.
async fn consumed(consumer: &mut Consumer) -> Vec<Arc<Event>> {
    let mut events = Vec::new();
    while let Ok(next) = tokio::time::timeout(Duration::from_millis(1), consumer.next()).await {
        match next.unwrap() {
            Some(event) => events.push(event),
            None => break,
        }
    }
    events
}

fn durable(events: &[Arc<Event>]) -> Vec<Event> {
    events.iter().filter(|event| event.is_durable()).map(|event| Event::clone(event)).collect()
}

async fn start(model: &Simulator, store: &Arc<dyn Engine>) -> Runtime {
    start_at(model, store, 0).await
}

/// Starts a runtime so many days later.
async fn start_at(model: &Simulator, store: &Arc<dyn Engine>, days: u64) -> Runtime {
    let builder = builder(model).clock_from(1_700_000_000_000 + days * 86_400_000);
    builder.engine(store.clone()).idle_after(Duration::from_secs(60)).start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn past_and_future_are_one_stream() {
    let model = simulator(Echo, 100_000);
    let runtime = start(&model, &store()).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    session.prompt("one").await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!session.is_live());

    let mut follow = session.follow(Position::default());
    let mut events = drained(&mut follow).await;
    assert!(!session.is_live(), "nobody was woken");
    let past = runtime.replay("s", 0).await.unwrap();
    assert_eq!(durable(&events), past);
    assert_eq!(events.len(), past.len(), "nothing is in progress");
    session.prompt("two").await.unwrap();
    events.extend(drained(&mut follow).await);
    assert_eq!(durable(&events), runtime.replay("s", 0).await.unwrap());
    assert!(events.iter().any(|event| event.kind.event_type() == EventType::MessageDelta));
    assert_eq!(follow.lag().await.unwrap(), 0);

    // From any position on.
    for (index, event) in past.iter().enumerate() {
        let text = Position::after(event).to_string();
        let mut follow = session.follow(Position::parse(&text).unwrap());
        let all = runtime.replay("s", 0).await.unwrap();
        assert_eq!(follow.lag().await.unwrap(), (all.len() - index - 1) as u64);
        assert_eq!(durable(&drained(&mut follow).await), all[index + 1..], "after {text}");
    }
    // One beyond the end, as after the loss of a store.
    let mut follow =
        session.follow(Position::parse(&format!("0,{}.999.s", past[0].session_created_at_ms)).unwrap());
    assert_eq!(durable(&drained(&mut follow).await), []);
    runtime.shutdown().await.unwrap();
    assert!(follow.next().await.unwrap().is_none());
}

/// A follower that does not read for a while misses nothing that is in the log.
#[tokio::test(start_paused = true)]
async fn gaps_are_filled() {
    let long = "x".repeat(300_000);
    let model = simulator(Echo, 10_000_000);
    let runtime = start(&model, &store()).await;
    let session = runtime.open("s", &agent(10_000_000)).await.unwrap();
    let (mut one, mut all) = (session.follow(Position::default()), runtime.follow(Position::default()));
    let (mut of_one, mut of_all) = (drained(&mut one).await, drained(&mut all).await);
    for _ in 0..8 {
        session.prompt(&long).await.unwrap();
    }
    of_one.extend(drained(&mut one).await);
    of_all.extend(drained(&mut all).await);
    session.prompt("end").await.unwrap();
    of_one.extend(drained(&mut one).await);
    of_all.extend(drained(&mut all).await);
    let log = runtime.replay("s", 0).await.unwrap();
    assert!(log.len() >= 27, "{}", log.len());
    assert_eq!(durable(&of_one), log);
    assert_eq!(durable(&of_all), log);
}

#[tokio::test(start_paused = true)]
async fn who_joins_in_the_middle_of_an_answer_gets_all_of_it() {
    let text = "One two three four five six seven eight nine ten. ".repeat(8);
    let pace = Pace { chunks: 40, first_ms: 100, between_ms: 10 };
    let moments = [0, 50, 105, 200, 333, 480, 700];
    // It begins to read at once, or when more has happened.
    for (joins_at_ms, reads_after_ms) in moments.into_iter().flat_map(|moment| [(moment, 0), (moment, 57)]) {
        let model =
            simulator(Sequence(vec![Said::text("first"), Said::text(&*text).with_pace(pace)]), 100_000);
        let runtime = start(&model, &store()).await;
        let session = runtime.open("s", &agent(100_000)).await.unwrap();
        session.prompt("one").await.unwrap();
        let before = session.state().await.unwrap().entries;
        let run = session.prompt("two").start().await.unwrap();
        tokio::time::sleep(Duration::from_millis(joins_at_ms)).await;
        let position = match reads_after_ms {
            0 => Position::after(runtime.replay("s", before - 1).await.unwrap().first().unwrap()),
            _ => Position::parse(&format!(
                "0,{}.{before}.s",
                runtime.summary("s").await.unwrap().unwrap().created_at_ms
            ))
            .unwrap(),
        };
        let mut follow = match joins_at_ms % 2 {
            0 => session.follow(position),
            _ => runtime.follow(position),
        };
        tokio::time::sleep(Duration::from_millis(reads_after_ms)).await;
        let mut events = drained(&mut follow).await;
        assert_eq!(run.reply().await.unwrap().text, text);
        events.extend(drained(&mut follow).await);
        let log = runtime.replay("s", before).await.unwrap();
        assert_eq!(durable(&events), log, "{joins_at_ms} ms");
        // The text so far and the rest, without a hole or a double; or the run was over.
        let read: String = events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::MessageDelta { delta: Delta::Text(text), .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        let is_over = joins_at_ms + reads_after_ms >= 520;
        assert_eq!(read, if is_over { "" } else { &*text }, "{joins_at_ms} ms");
        // Transient events follow the durable ones before them.
        let mut next = before;
        for event in &events {
            if event.is_durable() {
                assert_eq!(event.seq, next);
                next += 1;
            } else {
                assert_eq!(event.seq + 1, next, "{joins_at_ms} ms: {}", event.kind.name());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_deleted_and_begun_again_is_followed_from_its_beginning() {
    let model = simulator(Echo, 100_000);
    let runtime = start(&model, &store()).await;
    let (mut all, mut late) =
        (runtime.follow(Position::default()).durable(), runtime.follow(Position::default()));
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    session.prompt("one").await.unwrap();
    session.prompt("two").await.unwrap();
    let first = runtime.replay("s", 0).await.unwrap();
    assert_eq!(durable(&drained(&mut all).await), first);
    let position = all.position().clone();
    assert_eq!(position, position.only("s"));
    runtime.delete("s").await.unwrap();
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    session.prompt("again").await.unwrap();
    let second = runtime.replay("s", 0).await.unwrap();
    assert!(second.len() < first.len());
    assert_eq!(durable(&drained(&mut all).await), second);
    assert_eq!(durable(&drained(&mut late).await), second, "events of the first were on their way");
    assert_eq!(
        durable(&drained(&mut session.follow(position.clone())).await),
        second,
        "the position is of the first"
    );
    let with_gone = Position::parse(&format!("{position},7.7.gone")).unwrap();
    let mut follow = runtime.follow(with_gone);
    assert_eq!(durable(&drained(&mut follow).await), second);
    assert_eq!(*follow.position(), follow.position().only("s"), "what is gone is forgotten");
}

/// Checks that a follower is told the end of a session that sleeps in a store, once, as it is asked to follow.
async fn check_told_of_deletion(follow: impl AsyncFnOnce(&Runtime) -> Follow) {
    let model = simulator(Echo, 100_000);
    let store = store();
    let runtime = start(&model, &store).await;
    for id in ["gone", "kept"] {
        let session = runtime.open(id, &agent(100_000)).await.unwrap();
        session.set_label("tenant", "a").await.unwrap();
        session.prompt("one").await.unwrap();
    }
    runtime.shutdown().await.unwrap();
    let runtime = start_at(&model, &reopened(&store), 1).await;
    let created_at_ms = runtime.summary("gone").await.unwrap().unwrap().created_at_ms;
    let entries = runtime.summary("gone").await.unwrap().unwrap().entries;
    let mut follow = follow(&runtime).await;
    drained(&mut follow).await;
    runtime.delete("gone").await.unwrap();
    let told = drained(&mut follow).await;
    let [event] = &told[..] else { panic!("{told:?}") };
    assert!(matches!(event.kind, EventKind::SessionDeleted { reason: None }), "{event:?}");
    let position = (&*event.session, event.session_created_at_ms, event.seq);
    assert_eq!(position, ("gone", created_at_ms, entries - 1));
}

#[tokio::test(start_paused = true)]
async fn followers_are_told_of_the_end_of_a_session_that_sleeps() {
    check_told_of_deletion(async |runtime| runtime.follow(Position::default())).await;
    check_told_of_deletion(async |runtime| runtime.follow(Position::default()).from_now().await.unwrap())
        .await;
    check_told_of_deletion(async |runtime| {
        let session = runtime.session("gone").await.unwrap();
        session.follow(Position::default()).from_now().await.unwrap()
    })
    .await;
    check_told_of_deletion(async |runtime| runtime.follow(Position::default()).label("tenant", "a")).await;
    check_told_of_deletion(async |runtime| {
        runtime.follow(Position::default()).label("tenant", "a").from_now().await.unwrap()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn only_sessions_with_a_label_are_followed() {
    let model = simulator(Echo, 100_000);
    let runtime = start(&model, &store()).await;
    let open = async |id: &str| runtime.open(id, &agent(100_000)).await.unwrap();
    let (mine, other, late) = (open("mine").await, open("other").await, open("late").await);
    mine.set_label("tenant", "a").await.unwrap();
    other.set_label("tenant", "b").await.unwrap();
    for session in [&mine, &other, &late] {
        session.prompt("one").await.unwrap();
    }
    let mut follow = runtime.follow(Position::default()).durable().label("tenant", "a");
    let mut billing = runtime.consumer("billing").await.unwrap().label("tenant", "a");
    let log = async |id: &str| runtime.replay(id, 0).await.unwrap();
    assert_eq!(durable(&drained(&mut follow).await), log("mine").await);
    assert_eq!(durable(&consumed(&mut billing).await), log("mine").await);
    // One gets the label, and one that begins.
    let before = log("late").await.len();
    late.set_label("tenant", "a").await.unwrap();
    let new = open("new").await;
    new.prompt("one").await.unwrap();
    let mut since = drained(&mut follow).await;
    new.set_label("tenant", "a").await.unwrap();
    other.prompt("two").await.unwrap();
    assert!(before > 0);
    since.extend(drained(&mut follow).await);
    let labelled = [log("late").await[before..].to_vec(), log("new").await[before..].to_vec()].concat();
    assert_eq!(durable(&since), labelled, "from then on");
    let whole = [log("late").await, log("new").await].concat();
    assert_eq!(durable(&consumed(&mut billing).await), whole, "from their beginnings");
    assert_eq!((follow.lag().await.unwrap(), billing.lag().await.unwrap()), (0, 0));
    // One loses it, and gets it again.
    mine.set_label("tenant", "").await.unwrap();
    mine.prompt("three").await.unwrap();
    assert_eq!(durable(&drained(&mut follow).await), []);
    assert_eq!(durable(&consumed(&mut billing).await), []);
    let read = billing.position("mine");
    mine.set_label("tenant", "a").await.unwrap();
    let missed = durable(&consumed(&mut billing).await);
    assert_eq!(missed, durable(&drained(&mut mine.follow(read).durable()).await), "without a double");
    assert!(missed.len() > 3, "{}", missed.len());
}

/// A label counts for the sub-agents below the session, and so does a tree.
#[tokio::test(start_paused = true)]
async fn sub_agents_are_followed_with_their_callers() {
    let answer = |request: &SeenRequest, _| {
        let is_asked = request.messages.last().is_some_and(|message| message.role() == "user");
        match request.has_tool("helper") && is_asked {
            true => Said::call("helper", &json!({ "task": "count" })),
            false => Said::text("done"),
        }
    };
    let model = simulator(Function(answer), 100_000);
    let runtime = start(&model, &store()).await;
    let boss = agent(100_000).sub_agent(sub_agent("helper", agent(100_000)).describe("Helps."));
    let session = runtime.open("boss", &boss).await.unwrap();
    session.set_label("tenant", "a").await.unwrap();
    session.prompt("how many?").await.unwrap();
    runtime.open("other", &agent(100_000)).await.unwrap().set_title("x").await.unwrap();
    let start = Position::default;
    let mut label = runtime.follow(start()).durable().label("tenant", "a");
    let mut tree = session.follow(start()).durable().tree();
    let mut alone = session.follow(start()).durable();
    let mut consumer = runtime.consumer("audit").await.unwrap().label("tenant", "a");
    let mut late = runtime.consumer("late").await.unwrap().label("team", "b");
    assert_eq!(consumed(&mut late).await, []);
    for round in 1..=2 {
        let read = [
            durable(&drained(&mut label).await),
            durable(&drained(&mut tree).await),
            durable(&consumed(&mut consumer).await),
        ];
        for events in &read {
            let of = |id: &str| events.iter().filter(|event| &*event.session == id).count();
            let helpers = events.iter().filter(|event| event.parent.as_deref() == Some("boss")).count();
            assert!(of("boss") > 3 && helpers > 1, "{round}: {} {helpers}", of("boss"));
            assert_eq!(of("boss") + helpers, events.len(), "{round}");
            assert_eq!(helpers, read[0].len() - of("boss"), "{round}");
        }
        let own = durable(&drained(&mut alone).await);
        assert!(own.iter().all(|event| &*event.session == "boss") && !own.is_empty());
        if round == 1 {
            session.prompt("again").await.unwrap();
        }
    }
    assert_eq!((label.lag().await.unwrap(), tree.lag().await.unwrap()), (0, 0));
    // A label that comes later counts for the sub-agents before it, too.
    session.set_label("team", "b").await.unwrap();
    let read = durable(&consumed(&mut late).await);
    let mut logs = 0;
    for summary in runtime.sessions().await.unwrap() {
        logs += if summary.id == "other" { 0 } else { summary.entries };
    }
    assert_eq!(read.len() as u64, logs);
    model.assert_clean();
}

/// Pieces of an answer that is complete, in a session that sleeps, are not returned after the end of their run.
#[tokio::test(start_paused = true)]
async fn what_is_over_is_not_in_progress() {
    let model = simulator(Echo, 100_000);
    let runtime = start(&model, &store()).await;
    let mut follow = runtime.follow(Position::default());
    runtime.open("s", &agent(100_000)).await.unwrap().prompt("one").await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(runtime.live().await.unwrap(), [] as [String; 0]);
    let events = drained(&mut follow).await;
    assert_eq!(durable(&events), runtime.replay("s", 0).await.unwrap());
    assert_eq!(events.len(), durable(&events).len());
}

/// What a slow follower missed is read again, of its own sessions alone.
#[tokio::test(start_paused = true)]
async fn gaps_are_filled_with_the_events_of_followed_sessions() {
    let long = "x".repeat(300_000);
    let model = simulator(Echo, 10_000_000);
    let runtime = start(&model, &store()).await;
    let mut follow = runtime.follow(Position::default()).label("tenant", "a");
    assert_eq!(drained(&mut follow).await, []);
    let (mine, other) = (
        runtime.open("mine", &agent(10_000_000)).await.unwrap(),
        runtime.open("other", &agent(10_000_000)).await.unwrap(),
    );
    mine.set_label("tenant", "a").await.unwrap();
    for session in [&other, &mine, &other, &mine, &other] {
        session.prompt(&long).await.unwrap();
        session.prompt(&long).await.unwrap();
    }
    assert_eq!(durable(&drained(&mut follow).await), runtime.replay("mine", 0).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_a_consumer_has_not_committed_comes_again() {
    let model = simulator(Echo, 100_000);
    let store = store();
    let runtime = start(&model, &store).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    session.prompt("one").await.unwrap();
    let log = runtime.replay("s", 0).await.unwrap();
    let mut audit = runtime.consumer("audit").await.unwrap();
    assert_eq!(audit.lag().await.unwrap(), log.len() as u64);
    assert_eq!(durable(&consumed(&mut audit).await), log);
    drop(audit);
    let mut audit = runtime.consumer("audit").await.unwrap();
    assert_eq!(durable(&consumed(&mut audit).await), log, "it was not committed");
    audit.commit().await.unwrap();
    drop(audit);
    let mut audit = runtime.consumer("audit").await.unwrap();
    assert_eq!((audit.lag().await.unwrap(), consumed(&mut audit).await.len()), (0, 0));
    // Another one has its own positions.
    let mut billing = runtime.consumer("billing").await.unwrap();
    assert_eq!(durable(&consumed(&mut billing).await), log);
    let again = runtime.consumer("audit").await.unwrap_err();
    assert!(
        matches!(&again, Error::Config(ConfigError::ConsumerInUse { name }) if name == "audit"),
        "{again:?}"
    );
    for name in ["", &*"x".repeat(129), &*"/".repeat(81)] {
        let error = runtime.consumer(name).await.unwrap_err();
        assert!(matches!(error, Error::Config(ConfigError::ConsumerName { .. })), "{name}: {error:?}");
    }
    // A program that has positions of its own.
    let own = Position::after(&log[1]);
    drop(audit);
    let mut audit = runtime.consumer("audit").await.unwrap().from([own]);
    assert_eq!(durable(&consumed(&mut audit).await), log[2..]);
    // One that has processed a part commits that part; an older position takes nothing back.
    let mut parts = runtime.consumer("a/b: ä").await.unwrap();
    assert_eq!(durable(&consumed(&mut parts).await), log);
    assert!(!parts.is_committed());
    let mut processed = Position::default();
    processed.pass(&log[0]);
    processed.pass(&log[1]);
    parts.commit_to(&processed).await.unwrap();
    parts.commit_to(&Position::after(&log[0])).await.unwrap();
    assert!(!parts.is_committed());
    drop(parts);
    let mut parts = runtime.consumer("a/b: ä").await.unwrap();
    assert!(parts.is_committed());
    assert_eq!(durable(&consumed(&mut parts).await), log[2..]);
    // One beyond what was returned is committed, and not what was returned.
    drop(parts);
    let mut parts = runtime.consumer("a/b: ä").await.unwrap();
    parts.commit_to(&Position::after(&log[2])).await.unwrap();
    assert!(!parts.is_committed());
}

/// The last events, such as the end of an interrupted run, are processed before the store is closed.
#[tokio::test(start_paused = true)]
async fn a_shutdown_waits_for_consumers() {
    let model = simulator(Sequence(vec![Said::text("late").after_ms(600_000)]), 100_000);
    let store = store();
    let runtime = start(&model, &store).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let _run = session.prompt("one").start().await.unwrap();
    let mut audit = runtime.consumer("audit").await.unwrap();
    let reader = tokio::spawn(async move {
        let mut kinds = Vec::new();
        while let Some(event) = audit.next().await.unwrap() {
            // Slowly.
            tokio::time::sleep(Duration::from_millis(500)).await;
            kinds.push(event.kind.name().to_owned());
            audit.commit().await.unwrap();
        }
        kinds
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    runtime.shutdown().await.unwrap();
    let kinds = reader.await.unwrap();
    assert_eq!(kinds.last().map(String::as_str), Some("run_end"), "{kinds:?}");
    // One that nobody reads does not hold it for ever.
    let runtime = start(&model, &reopened(&store)).await;
    let idle = runtime.consumer("idle").await.unwrap();
    let before = tokio::time::Instant::now();
    runtime.shutdown().await.unwrap();
    assert!(before.elapsed() <= Duration::from_secs(20), "{:?}", before.elapsed());
    drop(idle);
}

/// Sessions live, sleep, are deleted and begun again; the follower is slow, is dropped at any moment, and continues in
/// another process from the texts of its positions.
#[tokio::test(start_paused = true)]
async fn random_lives_are_followed_without_a_hole_or_a_double() {
    let (mut events_seen, mut restarts, mut deletions, mut again, mut longest) = (0, 0, 0, 0, 0);
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let model = simulator(Echo, 1_000_000);
        let store = store();
        let mut runtime = start(&model, &store).await;
        let mut follow = runtime.follow(Position::default()).durable();
        // What was followed, and the logs, by session and creation.
        let mut followed: BTreeMap<(String, u64), Vec<u64>> = BTreeMap::new();
        let mut logs: BTreeMap<(String, u64), u64> = BTreeMap::new();
        // What the follower had not read when a session was deleted is lost with the log.
        let mut may_be_cut: BTreeMap<(String, u64), bool> = BTreeMap::new();
        for _ in 0..40 {
            // More than a position names without need, or few that change often.
            let sessions = if seed % 6 == 0 { 300 } else { 3 };
            let id = &*format!("s{}", random.below(sessions));
            match random.below(10) {
                0..=4 => {
                    let first = random.below(sessions);
                    for other in first..=(first + if sessions > 3 { 20 } else { 0 }) {
                        let session = runtime.open(&format!("s{other}"), &agent(1_000_000)).await.unwrap();
                        let is_long = random.below(if sessions > 3 { 40 } else { 4 }) == 0;
                        session.prompt("x".repeat(if is_long { 400_000 } else { 10 })).await.unwrap();
                    }
                }
                5 => tokio::time::sleep(Duration::from_secs(300)).await,
                6 if random.below(2) == 0 => {
                    if let Some(summary) = runtime.summary(id).await.unwrap() {
                        let key = (id.to_owned(), summary.created_at_ms);
                        logs.insert(key.clone(), summary.entries);
                        may_be_cut.insert(key, true);
                        runtime.delete(id).await.unwrap();
                        deletions += 1;
                    }
                }
                7 => {
                    // The position is all that is left.
                    let position = follow.position().to_string();
                    longest = longest.max(position.matches(',').count());
                    if random.below(2) == 0 {
                        drop(follow);
                        drop(runtime);
                        restarts += 1;
                        runtime = start_at(&model, &store, restarts).await;
                    }
                    follow = runtime.follow(Position::parse(&position).unwrap()).durable();
                    again += 1;
                }
                _ => {
                    for _ in 0..random.below(12) {
                        let next = tokio::time::timeout(Duration::from_millis(1), follow.next()).await;
                        let Ok(event) = next else { break };
                        let event = event.unwrap().expect("the runtime has not ended");
                        let key = (event.session.to_string(), event.session_created_at_ms);
                        followed.entry(key).or_default().push(event.seq);
                    }
                }
            }
        }
        for event in drained(&mut follow).await {
            let key = (event.session.to_string(), event.session_created_at_ms);
            followed.entry(key).or_default().push(event.seq);
        }
        for session in runtime.sessions().await.unwrap() {
            logs.insert((session.id, session.created_at_ms), session.entries);
        }
        for (key, seqs) in &followed {
            let expected: Vec<u64> = (0..seqs.len() as u64).collect();
            assert_eq!(seqs, &expected, "seed {seed}: {key:?}");
            events_seen += seqs.len();
        }
        for (key, entries) in &logs {
            let read = followed.get(key).map_or(0, |seqs| seqs.len() as u64);
            let may_be_cut = may_be_cut.contains_key(key);
            assert!(
                read == *entries || (may_be_cut && read < *entries),
                "seed {seed}: {key:?}: {read} of {entries}"
            );
        }
        drop(follow);
        runtime.shutdown().await.unwrap();
    }
    assert!(
        events_seen > 3_000 && restarts > 30 && deletions > 30 && again > 100 && longest < 200,
        "{events_seen} {restarts} {deletions} {again} {longest}"
    );
}
