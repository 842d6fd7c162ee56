//! A host that is alive, and answers some of what it is asked.

use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_server::ClientError;
use greenroom_server::operations::{DeleteSession, ListSessions, PromptSession};
use tokio::io::AsyncReadExt as _;

use super::*;
use crate::error;

/// A client of a host that answers nothing but the question whether it is there, and not even that while `hangs`.
fn client_of_one_that_hangs(hangs: &Arc<AtomicBool>, patience: Option<Patience>) -> Client {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move { while far.read(&mut [0; 1_024]).await.is_ok_and(|bytes| bytes > 0) {} });
    let (input, output) = tokio::io::split(near);
    let client = Client::new(input, output);
    let hangs = Arc::clone(hangs);
    let answers = move || {
        let hangs = Arc::clone(&hangs);
        async move {
            while hangs.load(Ordering::Relaxed) {
                sleep(AGAIN_AFTER).await;
            }
        }
        .boxed()
    };
    let watching = Watching::new(Some(client.downgrade()), PathBuf::from("/no/store"), patience, answers);
    tokio::spawn(watching.run());
    client
}

#[tokio::test(start_paused = true)]
async fn a_list_that_a_living_host_does_not_answer_is_given_up_and_work_is_not() {
    let hangs = Arc::new(AtomicBool::new(false));
    let client = client_of_one_that_hangs(&hangs, None);
    let (deleting, prompting) = (client.clone(), client.clone());
    let deleting = tokio::spawn(async move { deleting.call(DeleteSession { session_id: "a".into() }).await });
    let prompting = tokio::spawn(async move { prompting.work(PromptSession::new("a", "x")).await.map(drop) });
    let began = Instant::now();
    let error = client.call(ListSessions::default()).await.expect_err("nobody answers");
    assert_eq!(began.elapsed().as_secs(), 60);
    assert_eq!(
        error.to_string(),
        "the host of this store is alive, but has not answered `session/list` for 60 s; try again, or end it with \
         `greenroom host --stop --force`: nothing that was acknowledged is lost"
    );
    assert_eq!(error::exit_code(&error.into()), 3);
    sleep(Duration::from_secs(3_600)).await;
    assert!(!deleting.is_finished() && !prompting.is_finished() && !client.is_closed());
}

/// A host that hangs has had no time to answer; it gets it when it goes on.
#[tokio::test(start_paused = true)]
async fn the_time_in_which_a_host_is_silent_does_not_count() {
    let hangs = Arc::new(AtomicBool::new(true));
    let client = client_of_one_that_hangs(&hangs, Some(Patience::telling(drop)));
    let (asking, began) = (client.clone(), Instant::now());
    let asking = tokio::spawn(async move { asking.call(ListSessions::default()).await });
    sleep(Duration::from_secs(600)).await;
    assert!(!asking.is_finished());
    hangs.store(false, Ordering::Relaxed);
    let ended = asking.await.expect("it does not panic");
    assert!(matches!(ended, Err(ClientError::Silent(_))), "{ended:?}");
    assert!((650..=660).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

const SECOND: Duration = Duration::from_secs(1);

/// When the deadline is, in milliseconds after `began`.
fn deadline_ms(wait: &Wait, began: Instant) -> u128 {
    wait.deadline.duration_since(began).as_millis()
}

#[test]
fn a_silent_host_is_told_of_once_and_waited_for() {
    let began = Instant::now();
    let mut wait = Wait::new(began, false);
    assert_eq!((deadline_ms(&wait, began), wait.is_said), (10_000, false));
    assert!(wait.goes_on() && wait.is_said);
}

#[test]
fn after_an_interruption_nobody_waits_for_a_silent_host() {
    let began = Instant::now();
    let mut wait = Wait::new(began, true);
    assert_eq!(deadline_ms(&wait, began), 1_500);
    assert!(!wait.goes_on() && !wait.is_said);
    // One that comes while the host is asked shortens the wait, and never makes it longer.
    for (after, deadline) in [(1, 2_500), (9, 10_000)] {
        let mut wait = Wait::new(began, false);
        wait.interrupted(began + after * SECOND);
        assert_eq!((deadline_ms(&wait, began), wait.is_interrupted), (deadline, true), "after {after} s");
        assert!(!wait.goes_on());
    }
    // Where the user was told before, the host has had its time.
    for after in [10, 60] {
        let mut wait = Wait::new(began, false);
        assert!(wait.goes_on());
        wait.interrupted(began + after * SECOND);
        assert!(wait.deadline <= began + after * SECOND && !wait.is_said, "after {after} s");
        assert!(!wait.goes_on());
    }
}

#[test]
fn the_user_is_told_what_changed() {
    assert_eq!(Silence::Begins("it is silent".to_owned()).text(), "it is silent");
    assert_eq!(Silence::Ends.text(), "the host answers again");
}
