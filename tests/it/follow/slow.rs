//! Slow readers: what is recorded in many sessions, here or on other nodes, while a reader is minutes behind.

use std::sync::atomic::Ordering;

use greenroom_store::cluster::Cluster;

use super::*;
use crate::support::answers_after;
use crate::support::overtaken::Overtaken;

/// More sessions than a position names without need.
const MANY: usize = 80;

/// The sequence numbers of durable events, by session.
type Seen = BTreeMap<String, Vec<u64>>;

async fn node(cluster: &Cluster, name: &str) -> Runtime {
    let engine: Arc<dyn Engine> = cluster.join(name, None);
    builder(&answers_after(1, 100_000)).engine(engine).start().await.unwrap()
}

async fn prompt(runtime: &Runtime, id: &str) {
    runtime.open(id, &agent(100_000)).await.unwrap().prompt("hello").await.unwrap();
}

fn note(seen: &mut Seen, event: &Event) {
    if event.is_durable() {
        seen.entry(event.session.to_string()).or_default().push(event.seq);
    }
}

/// Reads until nothing comes, or until so many sessions were seen.
async fn read(follow: &mut Follow, seen: &mut Seen, sessions: usize) {
    while seen.len() < sessions
        && let Ok(next) = tokio::time::timeout(Duration::from_secs(10), follow.next()).await
    {
        note(seen, &next.unwrap().expect("the runtime has not ended"));
    }
}

/// Checks that everything in the logs was read, once.
async fn check_whole(runtime: &Runtime, seen: &Seen) {
    for session in runtime.sessions().await.unwrap() {
        let whole: Vec<u64> = (0..session.entries).collect();
        assert_eq!(seen.get(&session.id), Some(&whole), "{}", session.id);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_catches_up_for_minutes_misses_nothing() {
    let runtime = start(&answers_after(1, 100_000), &store()).await;
    for number in 0..MANY {
        prompt(&runtime, &format!("s{number:02}")).await;
    }
    let (mut follow, mut seen) = (runtime.follow(Position::default()), Seen::new());
    read(&mut follow, &mut seen, MANY / 2).await;
    let first = seen.keys().next().unwrap().clone();
    let last = (0..MANY).map(|number| format!("s{number:02}")).rfind(|id| !seen.contains_key(id)).unwrap();
    // One that was read records more, and minutes later one that was not.
    prompt(&runtime, &first).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    prompt(&runtime, &last).await;
    read(&mut follow, &mut seen, usize::MAX).await;
    check_whole(&runtime, &seen).await;
    // Its position is short again, and complete.
    prompt(&runtime, "s00").await;
    read(&mut follow, &mut seen, usize::MAX).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    prompt(&runtime, "s01").await;
    read(&mut follow, &mut seen, usize::MAX).await;
    let position = follow.position().to_string();
    assert!(position.matches(',').count() < 5, "{position}");
    prompt(&runtime, &first).await;
    let mut follow = runtime.follow(Position::parse(&position).unwrap());
    read(&mut follow, &mut seen, usize::MAX).await;
    check_whole(&runtime, &seen).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_what_another_node_has_recorded() {
    let cluster = Cluster::new();
    let (a, b) = (node(&cluster, "a").await, node(&cluster, "b").await);
    prompt(&a, "far").await;
    let (mut follow, mut seen) = (b.follow(Position::default()), Seen::new());
    read(&mut follow, &mut seen, usize::MAX).await;
    // It does not read while the other node records something, and minutes later this node does.
    tokio::time::sleep(Duration::from_secs(10)).await;
    prompt(&a, "far").await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    for number in 0..MANY {
        prompt(&b, &format!("near{number}")).await;
    }
    read(&mut follow, &mut seen, usize::MAX).await;
    check_whole(&b, &seen).await;
    // Its position is short once all of it is older than a minute.
    tokio::time::sleep(Duration::from_secs(120)).await;
    prompt(&a, "far").await;
    read(&mut follow, &mut seen, usize::MAX).await;
    prompt(&b, "near0").await;
    read(&mut follow, &mut seen, usize::MAX).await;
    let position = follow.position().to_string();
    assert!(position.matches(',').count() < 5, "{position}");
    check_whole(&b, &seen).await;
}

/// A reader that always has news of its own node, because it is slow.
#[tokio::test(start_paused = true)]
async fn news_of_this_node_do_not_keep_a_reader_from_those_of_others() {
    for waits in [true, false] {
        let cluster = Cluster::new();
        let (a, b) = (node(&cluster, "a").await, node(&cluster, "b").await);
        let mut consumer = b.consumer("audit").await.unwrap();
        assert!(consumer.try_next().await.unwrap().is_none());
        for number in 0..20 {
            prompt(&b, &format!("near{number}")).await;
        }
        prompt(&a, "far").await;
        let mut before = 0;
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let next = if waits { consumer.next().await } else { consumer.try_next().await };
            let event = next.unwrap().expect("there is more");
            if &*event.session == "far" {
                break;
            }
            before += 1;
        }
        // What is behind on this node is read first, from the logs.
        assert!(before < 20, "{before}");
        let lag = consumer.lag().await.unwrap();
        assert!(lag > 0, "{waits}");
    }
}

/// The first event that is published here of a session that came from another node is not its next one.
#[tokio::test(start_paused = true)]
async fn a_session_that_moves_here_is_read_from_where_it_was_read() {
    let cluster = Cluster::new();
    let (a, b) = (node(&cluster, "a").await, node(&cluster, "b").await);
    for number in 0..MANY {
        prompt(&a, &format!("s{number:02}")).await;
    }
    let (mut follow, mut seen) = (b.follow(Position::default()), Seen::new());
    read(&mut follow, &mut seen, usize::MAX).await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    prompt(&b, "other").await;
    read(&mut follow, &mut seen, usize::MAX).await;
    prompt(&a, "s00").await;
    a.shutdown().await.unwrap();
    prompt(&b, "s00").await;
    read(&mut follow, &mut seen, usize::MAX).await;
    check_whole(&b, &seen).await;
}

/// A log that cannot be read for a moment is read when its session has news, from where it was read.
#[tokio::test(start_paused = true)]
async fn a_log_that_could_not_be_read_is_read_later() {
    let engine = Overtaken::new();
    let runtime = builder(&answers_after(1, 10_000_000)).engine(engine.clone()).start().await.unwrap();
    let say = async |id: &str, text: &str| {
        runtime.open(id, &agent(10_000_000)).await.unwrap().prompt(text).await.unwrap();
    };
    for number in 0..MANY {
        say(&format!("s{number:02}"), "hello").await;
    }
    let (mut follow, mut seen) = (runtime.follow(Position::default()).durable(), Seen::new());
    read(&mut follow, &mut seen, usize::MAX).await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    say("other", "hello").await;
    read(&mut follow, &mut seen, usize::MAX).await;
    // More than its queue holds, and the log cannot be read.
    for _ in 0..8 {
        say("s00", &"x".repeat(300_000)).await;
    }
    engine.fails_next.store(true, Ordering::SeqCst);
    while let Ok(event) = follow.next().await {
        note(&mut seen, &event.expect("the runtime has not ended"));
    }
    assert!(!engine.fails_next.load(Ordering::SeqCst));
    tokio::time::sleep(Duration::from_secs(180)).await;
    for number in 1..MANY {
        say(&format!("s{number:02}"), "again").await;
        read(&mut follow, &mut seen, usize::MAX).await;
    }
    say("s00", "again").await;
    read(&mut follow, &mut seen, usize::MAX).await;
    check_whole(&runtime, &seen).await;
}
