//! A living host that answers some requests.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use greenroom_server::ClientError;
use greenroom_server::operations::{DeleteSession, ListSessions, PromptSession};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;

use super::*;
use crate::error;

/// A client of a host that answers only the watchdog's requests, and not even these while `hangs`.
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

/// Patience, and what it has reported so far.
fn patient(interrupts: Option<&Interrupts>) -> (Patience, Arc<Mutex<Vec<Silence>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = {
        let told = Arc::clone(&told);
        move |silence| told.lock().push(silence)
    };
    (Patience { interrupts: interrupts.cloned(), tell: Arc::new(tell) }, told)
}

/// When the client's connection ended, in milliseconds after `began`.
async fn ended_ms(client: &Client, began: Instant) -> u128 {
    tokio::time::timeout(Duration::from_secs(600), client.closed()).await.expect("it is given up");
    began.elapsed().as_millis()
}

#[tokio::test(start_paused = true)]
async fn a_silent_host_is_given_up_where_nobody_waits_for_it() {
    let began = Instant::now();
    let client = client_of_one_that_hangs(&Arc::new(AtomicBool::new(true)), None);
    assert_eq!(ended_ms(&client, began).await, 15_000);
    let error = client.call(ListSessions::default()).await.expect_err("nobody answers");
    assert!(matches!(&error, ClientError::Silent(said) if said.contains("does not answer")), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_silent_host_is_told_once_that_it_is_and_once_that_it_answers() {
    let hangs = Arc::new(AtomicBool::new(true));
    let (patience, told) = patient(None);
    let client = client_of_one_that_hangs(&hangs, Some(patience));
    sleep(Duration::from_millis(14_990)).await;
    assert!(told.lock().is_empty(), "it has its time");
    sleep(Duration::from_secs(600)).await;
    let begins = Silence::Begins(silent_text(Path::new("/no/store"), WAITS));
    assert_eq!(told.lock().as_slice(), std::slice::from_ref(&begins));
    hangs.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(*told.lock(), [begins, Silence::Ends], "one that answers is not spoken of");
    assert!(!client.is_closed());
}

#[tokio::test(start_paused = true)]
async fn an_interruption_ends_the_wait_for_a_silent_host() {
    let hangs = Arc::new(AtomicBool::new(true));
    // Before it is asked, while it is asked, and after the user was told.
    for (after_ms, ended) in [(1_000, 2_500), (6_000, 7_500), (14_000, 15_000), (40_000, 40_000)] {
        let interrupts = Interrupts::new().expect("signals are heard");
        let (patience, told) = patient(Some(&interrupts));
        let began = Instant::now();
        let client = client_of_one_that_hangs(&hangs, Some(patience));
        sleep(Duration::from_millis(after_ms)).await;
        assert!(!client.is_closed(), "after {after_ms} ms");
        interrupts.interrupt();
        assert_eq!(ended_ms(&client, began).await, ended, "after {after_ms} ms");
        assert_eq!(told.lock().len(), usize::from(after_ms > 15_000), "after {after_ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn until_what_was_interrupted_is_over_nobody_waits_for_a_silent_host() {
    for is_settled in [false, true] {
        let (hangs, interrupts) =
            (Arc::new(AtomicBool::new(false)), Interrupts::new().expect("signals are heard"));
        let (patience, _told) = patient(Some(&interrupts));
        let client = client_of_one_that_hangs(&hangs, Some(patience));
        sleep(Duration::from_secs(1)).await;
        interrupts.interrupt();
        sleep(Duration::from_secs(20)).await;
        if is_settled {
            interrupts.settle().await;
            sleep(Duration::from_secs(2)).await;
        }
        hangs.store(true, Ordering::Relaxed);
        // It is asked within 1.5 s, and has as long to answer.
        sleep(Duration::from_millis(3_100)).await;
        assert_eq!(client.is_closed(), !is_settled, "settled: {is_settled}");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(client.is_closed(), !is_settled, "settled: {is_settled}");
    }
}

/// The number of requests to a host that answers at once, and the watchdog.
fn counted(client: Option<WeakClient>, interrupts: Option<&Interrupts>) -> (Watching, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let answers = {
        let asked = Arc::clone(&asked);
        move || {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::ready(()).boxed()
        }
    };
    let patience = interrupts.map(|interrupts| patient(Some(interrupts)).0);
    (Watching::new(client, PathBuf::from("/no/store"), patience, answers), asked)
}

#[tokio::test(start_paused = true)]
async fn a_host_is_asked_as_long_as_its_line_or_its_client_is_there() {
    let (watching, asked) = counted(None, None);
    let line = RawWatch(tokio::spawn(watching.run()).abort_handle());
    sleep(Duration::from_secs(61)).await;
    assert_eq!(asked.load(Ordering::Relaxed), 12, "every 5 s");
    drop(line);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(asked.load(Ordering::Relaxed), 12);

    let (near, _far) = tokio::io::duplex(1_024);
    let (input, output) = tokio::io::split(near);
    let client = Client::new(input, output);
    let (watching, asked) = counted(Some(client.downgrade()), None);
    let watching = tokio::spawn(watching.run());
    sleep(Duration::from_secs(11)).await;
    assert!(asked.load(Ordering::Relaxed) == 2 && !watching.is_finished());
    client.give_up("it is over");
    sleep(Duration::from_secs(1)).await;
    assert!(watching.is_finished() && asked.load(Ordering::Relaxed) == 2);
}

#[tokio::test(start_paused = true)]
async fn a_host_is_asked_at_once_and_more_often_after_an_interruption() {
    let interrupts = Interrupts::new().expect("signals are heard");
    let (watching, asked) = counted(None, Some(&interrupts));
    let _line = RawWatch(tokio::spawn(watching.run()).abort_handle());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    interrupts.interrupt();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    sleep(Duration::from_millis(4_510)).await;
    assert_eq!(asked.load(Ordering::Relaxed), 4, "every 1.5 s");
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

/// A hanging host had no time to answer; it gets the time when it continues.
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

/// The deadline, in milliseconds after `began`.
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
    // An interruption while the host is asked shortens the wait, and never extends it.
    for (after, deadline) in [(1, 2_500), (9, 10_000)] {
        let mut wait = Wait::new(began, false);
        wait.interrupted(began + after * SECOND);
        assert_eq!((deadline_ms(&wait, began), wait.is_interrupted), (deadline, true), "after {after} s");
        assert!(!wait.goes_on());
    }
    // If the user was told before, the host has had its time.
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
