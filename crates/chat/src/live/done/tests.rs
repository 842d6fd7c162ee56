//! What a task reports about a session that was left is not taken for news of the one that is open.

use tokio::sync::mpsc::unbounded_channel;

use super::*;

/// Checks whether a result of a task of the session `a` counts while another one is open.
fn check(result: Done, counts_elsewhere: bool) {
    let (done, mut results) = unbounded_channel();
    let of = Results::new("a", done);
    of.send(result);
    let received = results.try_recv().expect("it was sent");
    assert_eq!(received.within("b").is_some(), counts_elsewhere);
}

#[test]
fn a_result_of_another_session_does_not_count() {
    let picker = |purpose| Done::Pick(Picker::new(purpose, "title", Vec::new()));
    check(Done::Missed(Vec::new()), false);
    check(Done::WentBack(EntryId(1), RewindScope::Both), false);
    check(Done::CameBack, false);
    check(Done::StaysThere, false);
    check(Done::Summary(EntryId(1), String::new()), false);
    check(Done::Refused(EntryId(1), String::new()), false);
    check(picker(Purpose::Branch { summary: false }), false);
    check(picker(Purpose::GoBack(None)), false);
    check(picker(Purpose::Export), false);
    // What the user reads, or has written, is not lost.
    check(picker(Purpose::Resume), true);
    check(Done::Note(Look::BAD, String::new()), true);
    check(Done::Write(String::new()), true);
    check(Done::Rest, true);
}

#[test]
fn a_result_of_the_open_session_counts() {
    let (done, mut results) = unbounded_channel();
    let of = Results::new("a", done);
    of.send(Done::StaysThere);
    let received = results.try_recv().expect("it was sent").within("a");
    assert!(matches!(received, Some(Done::StaysThere)));
}
