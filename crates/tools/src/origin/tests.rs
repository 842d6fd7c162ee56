//! Parsing of the limits of other processes.

use super::{is_marked, is_of_command, is_process_of_command, namespaces};

#[test]
fn a_hard_limit_on_locks_is_the_mark() {
    let limits =
        |locks: &str| format!("Limit  Soft Limit  Hard Limit  Units\nMax open files  20  30  files\n{locks}");
    for (locks, is) in [
        ("Max file locks            unlimited            unlimited            locks     \n", Some(false)),
        ("Max file locks            1073741824           1073741824           locks     \n", Some(true)),
        // A process with the mark may lower the other limit, and this one further.
        ("Max file locks            0                    1                    locks     \n", Some(true)),
        ("Max file locks            7                    unlimited            locks     \n", Some(false)),
        ("Max file locks\n", None),
        ("", None),
    ] {
        assert_eq!(is_marked(&limits(locks)).ok(), is, "{locks}");
    }
}

#[test]
fn each_namespace_has_a_number() {
    for (status, count) in
        [("Name:\tx\nNSpid:\t7\n", Some(1)), ("NSpid:\t7\t1\n", Some(2)), ("Name:\tx\n", None)]
    {
        assert_eq!(namespaces(status).ok(), count, "{status}");
    }
}

#[test]
fn this_process_is_seen_as_it_sees_itself() {
    let own = i32::try_from(std::process::id()).expect("it fits");
    assert_eq!(is_process_of_command(own).expect("it is there"), is_of_command());
    assert!(is_process_of_command(-1).is_err(), "nobody has that number");
}
