//! A host that is alive, and answers some of what it is asked.

use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_server::ClientError;
use greenroom_server::operations::{DeleteSession, ListSessions, PromptSession};
use tokio::io::AsyncReadExt as _;

use super::*;
use crate::errors;

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
    assert_eq!(errors::exit_code(&error.into()), 3);
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
