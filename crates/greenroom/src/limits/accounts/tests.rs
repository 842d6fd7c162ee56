//! Accounts over time, over restarts and crashes; messages, tokens and slots.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;

use greenroom_kernel::entry::{EntryKind, Metadata};
use greenroom_kernel::log::Log;
use greenroom_kernel::{AssistantMessage, Message as Said, Part, StopReason, Usage};
use greenroom_store::{Batch, Store};

use super::*;
use crate::limits::labels::LabelLimit;
use crate::values::clock::Clock;
use crate::values::error::ConfigError;

const NOW: u64 = 1_700_000_000_000;
const MINUTE: u64 = 60_000;

fn cost(_: &str, _: &str, usage: &Usage) -> Option<u64> {
    Some(usage.total_tokens())
}

async fn opened(
    store: &Store,
    now_ms: u64,
    limits: &[LabelLimit],
    of_all: &[(u64, Period)],
) -> Arc<Accounts> {
    let table = Table::new(limits, &["tenant".to_owned()], None).unwrap();
    let accounts =
        Accounts::new(Arc::new(store.clone()), Clock::new(Some(now_ms)), table, of_all.to_vec(), false);
    accounts.begin(now_ms).await.unwrap();
    accounts
}

fn tenants(accounts: &Accounts, value: &str) -> Tenants {
    accounts.table().tenants(&BTreeMap::from([("tenant".to_owned(), value.to_owned())]))
}

fn of(cost_microdollars: u64) -> Tally {
    Tally { cost_microdollars, calls: 1, ..Tally::default() }
}

#[tokio::test(start_paused = true)]
async fn what_was_spent_comes_through_a_restart() {
    let store = Store::memory();
    let limits = [LabelLimit::each("tenant").cost_usd(0.001, Period::Hour)];
    let of_all = [(1_500, Period::Day)];
    let accounts = opened(&store, NOW, &limits, &of_all).await;
    let (north, south) = (tenants(&accounts, "north"), tenants(&accounts, "south"));
    let session = Arc::from("s");
    accounts.count(&north, &session, 1, NOW, &of(999));
    assert_eq!(accounts.used_up(&north, || NOW), None);
    accounts.count(&north, &session, 2, NOW, &of(1));
    let said = accounts.used_up(&north, || NOW).unwrap();
    assert!(said.starts_with("the label tenant=north reached its cost limit of $0.001 an hour"), "{said}");
    assert_eq!(accounts.used_up(&south, || NOW), None);
    accounts.end().await;
    let accounts = opened(&store, NOW + MINUTE, &limits, &of_all).await;
    assert!(accounts.used_up(&north, || NOW + 50 * MINUTE).is_some());
    assert_eq!(accounts.used_up(&north, || NOW + 62 * MINUTE), None);
    accounts.count(&south, &session, 3, NOW + 62 * MINUTE, &of(500));
    let said = accounts.used_up(&north, || NOW + 62 * MINUTE).unwrap();
    assert!(said.starts_with("the runtime reached its cost limit of $0.0015 a day"), "{said}");
    let labels = accounts.values("tenant").await.unwrap();
    assert_eq!(labels.iter().map(ToString::to_string).collect::<Vec<_>>(), ["tenant=north", "tenant=south"]);
    // Stored by itself, a second later.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let read = stored::read_now(&store, &Some(south[0].clone()));
    assert!(!Sums::new(&read.hours, &read.days).is_expired(NOW));
    // More than a year later, it has expired.
    let much_later = NOW + 402 * 24 * 60 * MINUTE;
    let accounts = opened(&store, much_later, &limits, &of_all).await;
    assert_eq!(accounts.values("tenant").await.unwrap(), []);
}

fn answer(tokens: u64) -> EntryKind {
    let usage = Usage { input_tokens: tokens, ..Usage::default() };
    EntryKind::message(Said::Assistant(AssistantMessage {
        usage: Some(usage),
        ..AssistantMessage::new(vec![Part::Text("yes".to_owned())], "p", "m", StopReason::Stop)
    }))
}

/// Sessions that record answers, against accounts that crash at random: each sum is what the logs have.
#[tokio::test(start_paused = true)]
async fn what_a_crash_leaves_uncounted_is_counted_from_the_logs() {
    let (mut crashes, mut missed, mut others) = (0, 0, 0);
    for seed in 1..=25_u64 {
        let mut random = seed;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let store = Store::memory();
        let mut logs: Vec<Log> = (0..3).map(|_| Log::new(cost)).collect();
        let mut sums = [0_u64; 3];
        let mut now = NOW;
        let mut accounts = opened(&store, now, &[], &[]).await;
        for step in 0..80 {
            let chosen = usize::try_from(draw(3)).unwrap();
            let id: Arc<str> = format!("s{chosen}").into();
            let value = format!("t{}", chosen % 2);
            let pause = [0, 1, 400, 1_500, 30_000][usize::try_from(draw(5)).unwrap()];
            now += pause;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let mut draft = logs[chosen].draft(now);
            if logs[chosen].is_empty() {
                draft.begin("p", "m", None, now);
                let name = "tenant".to_owned();
                let metadata = Metadata::Label { name, value: Some(value.clone()) };
                draft.push(EntryKind::Metadata(metadata));
            }
            let tokens = draw(1_000);
            draft.push(answer(tokens));
            let entries = draft.entries().to_vec();
            let batch = Batch { entries: entries.clone(), head: draft.shared_head(), key: None };
            store.append(&id, batch).await.unwrap();
            logs[chosen].commit(draft);
            sums[chosen] += tokens;
            let is_crash = step == 79 || draw(8) == 0;
            // The process may end before what is durable was counted.
            if is_crash && draw(2) == 0 {
                missed += 1;
            } else {
                let tally = Tally::of(entries.iter().map(|entry| &**entry), false);
                let below = entries.last().unwrap().id.0 + 1;
                accounts.count(&tenants(&accounts, &value), &id, below, now, &tally);
            }
            if is_crash {
                crashes += 1;
                if draw(3) == 0 {
                    // One that counts by no label.
                    let clock = Clock::new(Some(now));
                    let other =
                        Accounts::new(Arc::new(store.clone()), clock, Table::default(), Vec::new(), true);
                    other.begin(now).await.unwrap();
                    other.end().await;
                    others += 1;
                }
                accounts = opened(&store, now, &[], &[]).await;
                let spent = |name: &Name| {
                    let days = accounts.spent(name, Period::Day, 400, now);
                    days.iter().map(|(_, tally)| tally.cost_microdollars).sum::<u64>()
                };
                let label = |value: &str| Some(tenants(&accounts, value)[0].clone());
                let found = [spent(&None), spent(&label("t0")), spent(&label("t1"))];
                let expected = [sums.iter().sum(), sums[0] + sums[2], sums[1]];
                assert_eq!(found, expected, "seed {seed}, step {step}");
            } else if draw(20) == 0 {
                accounts.end().await;
                accounts = opened(&store, now, &[], &[]).await;
            }
        }
    }
    assert!(crashes > 150 && missed > 60 && others > 40, "{crashes} {missed} {others}");
}

#[tokio::test(start_paused = true)]
async fn messages_are_refused_until_there_is_room() {
    let limits = [
        LabelLimit::each("tenant").messages_per_minute(2),
        LabelLimit::of("tenant", "north").messages_per_minute(60),
    ];
    let accounts = opened(&Store::memory(), NOW, &limits, &[]).await;
    let (north, south) = (tenants(&accounts, "north"), tenants(&accounts, "south"));
    // What was not accepted does not count.
    for _ in 0..10 {
        drop(accounts.message(&south).unwrap());
    }
    accounts.message(&south).unwrap().accepted();
    accounts.message(&south).unwrap().accepted();
    let refused = accounts.message(&south).map(|_| ()).unwrap_err();
    let Error::LabelLimit { value, messages_per_minute, retry_after, .. } = &refused else {
        panic!("{refused}")
    };
    assert_eq!((value.as_str(), *messages_per_minute, retry_after.as_secs()), ("south", 2, 30));
    let text = "sessions with the label tenant=south take 2 messages a minute; try again in 30 s";
    assert_eq!((refused.to_string().as_str(), refused.is_retryable()), (text, true));
    for _ in 0..60 {
        accounts.message(&north).unwrap().accepted();
    }
    assert!(accounts.message(&north).is_err());
    tokio::time::sleep(Duration::from_secs(30)).await;
    accounts.message(&south).unwrap().accepted();
    assert!(accounts.message(&south).is_err());
    // Sessions without the label are not limited.
    for _ in 0..100 {
        accounts.message(&Arc::from([])).unwrap().accepted();
    }
}

#[tokio::test(start_paused = true)]
async fn accounts_that_are_not_in_use_leave_memory_and_come_back() {
    let store = Store::memory();
    let limits = [LabelLimit::each("tenant").runs_max(1).cost_usd(1.0, Period::Day)];
    let accounts = opened(&store, NOW, &limits, &[]).await;
    let session = Arc::from("s");
    let held = accounts.run_slots(&tenants(&accounts, "busy")).remove(0).enter(|_| ()).await;
    for number in 0..10_000 {
        let at = NOW + number * 60_000;
        accounts.count(&tenants(&accounts, &format!("t{number}")), &session, 1, at, &of(number + 1));
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let in_memory = accounts.inner.lock().accounts.len();
    assert!(in_memory <= 2 * LOOK_FROM, "{in_memory}");
    assert!(accounts.inner.lock().accounts.contains_key(&Some(tenants(&accounts, "busy")[0].clone())));
    drop(held);
    let spent =
        accounts.spent(&Some(tenants(&accounts, "t7")[0].clone()), Period::Day, 400, NOW + 10_000 * 60_000);
    assert_eq!(spent.iter().map(|(_, tally)| tally.cost_microdollars).collect::<Vec<_>>(), [8]);
}

#[tokio::test]
async fn nothing_is_counted_unless_it_is_wanted() {
    let store = Store::memory();
    let accounts =
        Accounts::new(Arc::new(store.clone()), Clock::new(Some(NOW)), Table::default(), Vec::new(), false);
    accounts.begin(NOW).await.unwrap();
    accounts.count(&Arc::from([]), &Arc::from("s"), 1, NOW, &of(u64::MAX));
    accounts.end().await;
    assert!(!accounts.is_on() && store.fact_keys("spending").unwrap().is_empty());
    let refused = Table::new(&[LabelLimit::each("a").runs_max(0)], &[], None);
    assert!(matches!(refused, Err(ConfigError::LabelLimit { .. })));
}
