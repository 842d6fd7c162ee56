//! Positions over many sessions: none of the events is behind and before one, and their text stays short.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom_kernel::Head;

use super::{From, NAMED_MAX, Position, Seen};
use crate::api::sessions::SessionSummary;
use crate::events::event::{Event, EventKind};

/// A session as it is stored: its creation time, and the times of its events.
struct Log {
    created_at_ms: u64,
    times_ms: Vec<u64>,
}

fn summary(id: usize, log: &Log) -> SessionSummary {
    let head = Head {
        created_at_ms: log.created_at_ms,
        updated_at_ms: log.times_ms.last().copied().unwrap_or(log.created_at_ms),
        entries: log.times_ms.len() as u64,
        ..Head::default()
    };
    SessionSummary::new(format!("s {id},ä"), head)
}

fn event(id: usize, log: &Log, seq: usize) -> Event {
    let mut event = Event::new(format!("s {id},ä"), seq as u64, EventKind::StepEnd { step: 1 });
    event.session_created_at_ms = log.created_at_ms;
    event.at_ms = log.times_ms[seq];
    event
}

/// A client that leaves and comes back, while many sessions begin, go on, are quiet, and begin anew under their ids.
#[test]
fn a_position_names_what_is_new_and_misses_nothing() {
    let (mut checked, mut longest, mut prunes) = (0, 0, 0);
    for seed in 1..=40_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 1).unwrap() % below
        };
        let mut now_ms = 1_000_000_u64;
        let mut logs: Vec<Log> = Vec::new();
        let (mut position, mut is_there) = (Position::default(), true);
        // What the client has got, of each session in its present life.
        let mut got: Vec<usize> = Vec::new();
        for _ in 0..2_000 {
            now_ms += 1 + random(3_000) as u64;
            let id = if random(8) == 0 { logs.len() } else { random(logs.len() + 1) };
            match random(40) {
                0 if is_there => is_there = false,
                0..=3 if !is_there => {
                    is_there = true;
                    // It comes back, with the text that it kept.
                    position = Position::parse(&position.to_string()).unwrap();
                    for (id, log) in logs.iter().enumerate() {
                        let session = summary(id, log);
                        let behind = got[id]..log.times_ms.len();
                        if !position.is_behind(&session) {
                            assert!(behind.is_empty(), "seed {seed}: {behind:?} of {id} are missed");
                            continue;
                        }
                        let first = match position.next(&session) {
                            From::Event(next) => usize::try_from(next).unwrap(),
                            From::Time(at_ms) => log.times_ms.iter().position(|time| *time >= at_ms).unwrap(),
                        };
                        let read: Vec<usize> = (first..log.times_ms.len()).collect();
                        assert_eq!(read, behind.collect::<Vec<_>>(), "seed {seed}: {id}");
                        for seq in read {
                            position.pass(&event(id, log, seq));
                            checked += 1;
                        }
                        got[id] = log.times_ms.len();
                        if random(50) == 0 {
                            // It leaves in the middle of what it has missed.
                            is_there = false;
                            break;
                        }
                    }
                    if is_there {
                        position.settle(now_ms);
                    }
                    continue;
                }
                // It begins, or begins anew under its id.
                1..=12 => {
                    let log = Log { created_at_ms: now_ms, times_ms: vec![now_ms] };
                    if id == logs.len() {
                        logs.push(log);
                        got.push(0);
                    } else if random(8) == 0 {
                        (logs[id], got[id]) = (log, 0);
                    } else {
                        logs[id].times_ms.push(now_ms);
                    }
                }
                _ if id < logs.len() => logs[id].times_ms.push(now_ms),
                _ => {}
            }
            // What is live comes at once.
            if is_there && id < logs.len() && got[id] < logs[id].times_ms.len() {
                let event = event(id, &logs[id], got[id]);
                assert_eq!(position.seen(&event), Seen::Next, "seed {seed}: {id}");
                position.pass(&event);
                position.settle(now_ms);
                assert_eq!(position.seen(&event), Seen::Before, "seed {seed}: {id}");
                got[id] += 1;
                checked += 1;
            }
            longest = longest.max(position.sessions.len());
            prunes += u64::from(position.watermark_ms > 0);
        }
    }
    assert!(prunes > 1_000, "it names all sessions");
    assert!(checked > 50_000, "{checked} events");
    assert!(longest <= 3 * NAMED_MAX, "{longest} sessions are named");
}
