//! The messages of a starting host, and how often another one is started.

use super::*;

#[test]
fn what_a_host_said_last_is_found() {
    for (log, words) in [
        ("", None),
        ("--- process 7\n", None),
        ("--- process 6\n    0.1 it ends\n--- process 7\n", None),
        ("--- process 7\n    0.010 one\n    0.020 error: two words\n", Some("error: two words")),
        ("--- process 7\n    0.010 one\n   \n\n", Some("one")),
        ("0.010\n", None),
    ] {
        assert_eq!(newest_words(log).as_deref(), words, "{log}");
    }
    let dir = tempfile::tempdir().expect("a folder");
    assert_eq!(last_words(dir.path()), None);
    std::fs::write(dir.path().join(LOG_FILE), format!("0.1 {}", "w".repeat(1_000))).expect("written");
    let words = last_words(dir.path()).expect("it said something");
    assert!((290..=303).contains(&words.len()), "{words}");
}

#[test]
fn what_became_of_a_host_is_its_last_line() {
    for (said, became_of_it) in [
        ("ready\n", "Ready"),
        ("a warning\nready", "Ready"),
        ("ready\n7 the store is in use", "Failed 7 the store is in use"),
        ("7", "Died"),
        ("256 too much", "Died"),
        ("error: 7", "Died"),
        ("ready to go", "Died"),
        ("", "Died"),
    ] {
        let seen = match became(said) {
            Started::Ready => "Ready".to_owned(),
            Started::Failed(reason) => format!("Failed {} {reason}", reason.failure.code),
            Started::Died => "Died".to_owned(),
        };
        assert_eq!(seen, became_of_it, "{said:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_and_there_is_an_end() {
    let pauses: Vec<u128> = (0..6).map(|before| pause(before).as_millis()).collect();
    assert_eq!(pauses, [150, 300, 600, 1_000, 1_000, 1_000]);
    assert_eq!(pause(40), Duration::from_secs(1));
    let mut starts = Starts::default();
    for number in 0..4 {
        assert!(starts.is_time() && !starts.are_all_dead());
        starts.note(&if number == 0 { Started::Died } else { Started::Ready });
        tokio::time::sleep(pause(number) - Duration::from_millis(1)).await;
        assert!(!starts.is_time());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(starts.are_all_dead());
    // A host that said why it cannot start did not die.
    let mut starts = Starts::default();
    (0..9).for_each(|_| starts.note(&became("7 the store is in use")));
    assert!(!starts.are_all_dead());
}

#[test]
fn a_host_is_told_its_terms_as_they_are() {
    let limited = |inputs_max, live_sessions_max| {
        let mut config = Config::default();
        config.host.idle_s = 9;
        (config.limits.inputs_max, config.limits.live_sessions_max) = (inputs_max, live_sessions_max);
        Terms::of(&config)
    };
    let terms = limited(Some(3), Some(4));
    assert_eq!(terms.arguments(), ["--idle", "9", "--inputs-max", "3", "--live-sessions-max", "4"]);
    assert_eq!(limited(None, None).arguments()[3], "0");
    let args = HostArgs {
        idle: Some(9),
        inputs_max: Some(3),
        live_sessions_max: Some(4),
        retention: None,
        stop: false,
        force: false,
    };
    let told = Terms::told(&args).expect("it was told all of them");
    assert_eq!(told.arguments(), terms.arguments());
    assert!(Terms::told(&HostArgs { inputs_max: None, ..args }).is_none());
    let mut config = Config::default();
    config.retention.age_max_days = Some(90);
    let keeps = Terms::of(&config);
    let retention = keeps.arguments()[7].clone().into_string().ok();
    let (idle, inputs_max, live_sessions_max) = (Some(60), Some(0), Some(0));
    let args = HostArgs { idle, inputs_max, live_sessions_max, retention, stop: false, force: false };
    assert_eq!(Terms::told(&args).expect("it was told all of them").retention, config.retention);
}
