//! A host ends exactly when it has been idle for long enough.

use super::*;

/// How long the host stays, in milliseconds, if something is at work at the first `working` looks.
fn stays_ms(after_ms: u64, had_clients: bool, working: usize) -> u64 {
    let mut unused = Unused::new(Duration::from_millis(after_ms), had_clients);
    let mut stayed = Duration::ZERO;
    for look in 0..10_000 {
        let Some(pause) = unused.look(look < working) else { break };
        assert!(pause <= Duration::from_millis(500), "it would see work too late");
        unused.passed(pause);
        stayed += pause;
    }
    u64::try_from(stayed.as_millis()).expect("it is short")
}

#[test]
fn an_unused_host_stays_as_long_as_it_is_to() {
    for (after_ms, had_clients, working, expect_ms) in [
        (0, true, 0, 0),
        (0, true, 3, 1_500),
        (1_200, true, 0, 1_200),
        (60_000, true, 0, 60_000),
        (1_200, true, 3, 1_500 + 700),
        // The first client may be on its way.
        (0, false, 0, 10_000),
        (1_200, false, 0, 10_000),
        (60_000, false, 0, 60_000),
    ] {
        let stayed = stays_ms(after_ms, had_clients, working);
        assert_eq!(stayed, expect_ms, "{after_ms} ms, {had_clients}, {working} looks");
    }
}

/// Work that begins late is waited for, and the time counts anew.
#[test]
fn time_counts_only_while_nothing_is_at_work() {
    let mut unused = Unused::new(Duration::from_secs(1), true);
    let step = |unused: &mut Unused, is_working| {
        let pause = unused.look(is_working)?;
        unused.passed(pause);
        Some(pause.as_millis())
    };
    let seen = [false, true, false, false, false].map(|is_working| step(&mut unused, is_working));
    assert_eq!(seen, [Some(500), Some(500), Some(500), None, None]);
}
