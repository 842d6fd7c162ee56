//! Replies and events in every order.

use super::*;

/// Does these steps, beginning in `ask`. Checks what is shown, what is chosen, and what was said of others. A step is
/// `set MODE` (the requests are numbered from 1), `ok N`, `no N`, `event MODE`, `opens MODE`, `leaves` or `missed`.
fn check(steps: &str, shown: &str, chosen: &str, told: &[&str]) {
    let mut modes = Modes::default();
    modes.opened(Some(Mode::Ask));
    let (mut sent, mut said) = (Vec::new(), Vec::new());
    let mode = |name: &str| match name {
        "r" => Mode::ReadOnly,
        "a" => Mode::Ask,
        "e" => Mode::AcceptEdits,
        "E" => Mode::Everything,
        other => panic!("{other} is no mode"),
    };
    for step in steps.split(", ") {
        let (what, of) = step.split_once(' ').unwrap_or((step, ""));
        let request = || {
            let number: usize = of.parse().expect("a number");
            sent[number - 1]
        };
        match what {
            "set" => sent.push((modes.sets(mode(of)), Some(mode(of)))),
            "ok" => drop(modes.accepted(request().0, request().1)),
            "no" => said.extend(modes.refused(request().0)),
            "event" => said.extend(modes.changed(mode(of))),
            "opens" => modes.opened(Some(mode(of))),
            "leaves" => modes.leaves(),
            "missed" => modes.missed(),
            other => panic!("{other} is no step"),
        }
    }
    let name = |mode: Option<Mode>| mode.map_or("-", Mode::as_str);
    let said: Vec<&str> = said.into_iter().map(Mode::as_str).collect();
    let found = (name(modes.shown()), name(modes.chosen()), &*said);
    assert_eq!(found, (shown, chosen, told), "{steps}");
}

#[test]
fn the_newest_event_is_shown_and_only_what_others_set_is_told() {
    let (ask, edits, reads, all) = ("ask", "accept_edits", "read_only", "everything");
    // One request: its reply and its event in both orders, or no event because nothing changes.
    check("set e, ok 1", edits, edits, &[]);
    check("set e, ok 1, event e", edits, edits, &[]);
    check("set e, event e, ok 1", edits, edits, &[]);
    check("set a, ok 1, event E", all, "-", &[all]);
    // Others alone.
    check("event E", all, "-", &[all]);
    check("event E, event E", all, "-", &[all]);
    check("set e, ok 1, event e, event E", all, "-", &[all]);
    check("set e, ok 1, event e, event E, event e", edits, "-", &[all, edits]);
    // The same mode twice, before any reply.
    for steps in [
        "set e, set e, ok 1, ok 2, event e", "set e, set e, ok 2, ok 1, event e",
        "set e, set e, ok 1, event e, ok 2", "set e, set e, event e, ok 1, ok 2",
        "set e, ok 1, set e, ok 2, event e", "set e, ok 1, set e, event e, ok 2",
    ] {
        check(steps, edits, edits, &[]);
        check(&format!("{steps}, event E"), all, "-", &[all]);
        check(&format!("{steps}, event r, event e"), edits, "-", &[reads, edits]);
    }
    // Two modes.
    for steps in [
        "set e, set r, ok 1, ok 2, event e, event r",
        "set e, set r, ok 2, ok 1, event e, event r",
        "set e, set r, event e, event r, ok 1, ok 2",
        "set e, set r, event e, event r, ok 2, ok 1",
        "set e, set r, event e, ok 2, ok 1, event r",
        "set e, ok 1, set r, ok 2, event e, event r",
    ] {
        check(steps, reads, reads, &[]);
    }
    // A late reply, after a newer event of another terminal.
    check("set e, event e, event E, ok 1", all, "-", &[all]);
    check("set a, event E, ok 1", all, "-", &[all]);
    // Another terminal was first: the own event still comes.
    check("set e, event E, ok 1", all, edits, &[all]);
    check("set e, event E, ok 1, event e", edits, edits, &[all]);
    check("set e, ok 1, event E, event e", edits, edits, &[all]);
    // A refused request.
    check("set e, no 1", ask, "-", &[]);
    check("set e, no 1, event e", edits, "-", &[edits]);
    check("set e, event e, no 1", edits, "-", &[edits]);
    check("set r, ok 1, event r, set e, event e, no 2", edits, "-", &[edits]);
    check("set r, ok 1, event r, set e, no 2, event e", edits, "-", &[edits]);
    check("set e, set e, event e, ok 1, no 2", edits, edits, &[]);
    // Another session, or another host.
    check("set e, ok 1, leaves, opens a, event e", edits, "-", &[edits]);
    check("set e, leaves, opens a, ok 1", ask, "-", &[]);
    check("set e, leaves, opens a, set r, ok 1, ok 2, event r", reads, reads, &[]);
    check("set e, ok 1, event e, opens a, set e, ok 2, event e", edits, edits, &[]);
    check("set e, opens a, ok 1, event e", edits, "-", &[edits]);
    // The own event was missed.
    check("set e, ok 1, missed, event r, event e", edits, "-", &[reads, edits]);
}
