//! The number of sub-agents that runs call: at the same time, in the model's order, and given back.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;
use crate::agent::Agent;

fn session(id: &str, max: u32) -> Arc<SessionShared> {
    let agent = Arc::new(Agent::new("model").sub_agents_max(max));
    Arc::new(SessionShared::new(Arc::from(id), None, Some(agent), None))
}

fn counted(session: &SessionShared) -> u32 {
    session.children.lock().count
}

#[test]
fn calls_of_several_sub_agents_at_once_are_no_more_than_permitted() {
    for _ in 0..50 {
        let (ledger, top) = (Ledger::<SessionShared>::default(), session("top", 100));
        let below: Vec<Arc<SessionShared>> = (0..4)
            .map(|number| {
                let below = session(&format!("s{number}"), 1_000);
                ledger.link(&below, &top);
                below
            })
            .collect();
        let called: u32 = std::thread::scope(|scope| {
            let ledger = &ledger;
            let call = |session: &Arc<SessionShared>| {
                (0..100).map(|_| u32::from(session.count_child(ledger, "c").is_ok())).sum::<u32>()
            };
            let tasks: Vec<_> = below.iter().map(|session| scope.spawn(move || call(session))).collect();
            tasks.into_iter().map(|task| task.join().unwrap()).sum()
        });
        assert_eq!((called, counted(&top)), (100, 100));
        // What was refused above is not counted below.
        assert_eq!(below.iter().map(|session| counted(session)).sum::<u32>(), 100);
    }
}

#[test]
fn a_reserved_call_is_counted_before_those_that_follow() {
    let (ledger, top) = (Ledger::<SessionShared>::default(), session("top", 2));
    let (first, second) = (top.reserve_child(&ledger, "c1"), top.reserve_child(&ledger, "c2"));
    assert!(first.is_some() && second.is_some());
    assert!(top.reserve_child(&ledger, "c3").is_none());
    top.count_child(&ledger, "c3").unwrap_err();
    top.count_child(&ledger, "c2").unwrap();
    assert_eq!(counted(&top), 2, "once");
    // One that ended without a beginning makes room, and one that began does not.
    drop((first, second));
    assert_eq!(counted(&top), 1);
    top.count_child(&ledger, "c3").unwrap();
    top.count_child(&ledger, "c1").unwrap_err();
    // A new run counts anew, and its calls are not those of the last one.
    top.children.lock().begin_run();
    let late = top.reserve_child(&ledger, "c1");
    top.children.lock().begin_run();
    top.count_child(&ledger, "c2").unwrap();
    drop(late);
    assert_eq!(counted(&top), 1);
}
