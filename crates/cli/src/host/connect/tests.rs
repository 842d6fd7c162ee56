//! Errors about hosts that cannot be reached, and what their locks reveal.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom_server::Problem;
use greenroom_store::StoreError;
use greenroom_terminal::screen::ColorChoice;

use super::*;
use crate::error;
use crate::host::LOG_FILE;
use crate::host::error::{holder, is_gone, is_gone_client, is_silent, is_silent_client, silent_text};

fn refused(kind: ProblemKind) -> ClientError {
    ClientError::Refused(Box::new(Problem::new(kind, "x")))
}

/// The flags of a command on this store.
fn global(dir: &Path) -> Global {
    Global {
        data_dir: Some(dir.to_owned()),
        config: None,
        settings: Vec::new(),
        no_host: false,
        verbose: 0,
        color: ColorChoice::Never,
    }
}

#[test]
fn a_host_that_went_away_and_one_that_is_silent_are_told_from_one_that_refuses() {
    for (error, expect) in [
        (ClientError::Disconnected, (true, false)),
        (refused(ProblemKind::Closed), (true, false)),
        (ClientError::Silent("x".to_owned()), (false, true)),
        (refused(ProblemKind::Busy), (false, false)),
        (ClientError::Unsupported("x".to_owned()), (false, false)),
    ] {
        assert_eq!((is_gone_client(&error), is_silent_client(&error)), expect, "{error:?}");
        let error = anyhow::Error::from(error).context("while it did something");
        assert_eq!((is_gone(&error), is_silent(&error)), expect, "{error:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let silent = anyhow::Error::from(Unreached::silent(dir.path()));
    assert!(is_silent(&silent) && !is_gone(&silent));
    let other: anyhow::Error = Unreached::refused(error::STORE, "x").into();
    assert!(!is_silent(&other) && !is_gone(&other));
}

#[test]
fn who_has_a_store_is_told_by_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, path) = (dir.path(), dir.path().join("lock"));
    let silent = |dir| silent_text(dir, "wait");
    assert!(is_free(dir), "nobody has had it");
    assert_eq!((holder(dir), still_silent(&global(dir))), (None, None));
    assert_eq!(silent(dir), "the host of this store does not answer");
    std::fs::write(&path, "7\n").unwrap();
    assert!(is_free(dir), "its host has ended");
    assert_eq!((holder(dir), still_silent(&global(dir))), (Some(7), None));
    let lock = std::fs::File::open(&path).unwrap();
    lock.lock().unwrap();
    assert!(!is_free(dir));
    let said = still_silent(&global(dir)).unwrap();
    assert!(said.starts_with("the host (process 7) does not answer yet"), "{said}");
    assert!(
        silent(dir).starts_with("the host of this store (process 7) does not answer; wait: nothing"),
        "{}",
        silent(dir)
    );
    std::fs::write(&path, "x").unwrap();
    assert_eq!(holder(dir), None);
}

#[test]
fn what_cannot_be_used_or_started_is_said_with_its_code() {
    use std::io::{Error, ErrorKind};
    let said = |kind| Unreached::unusable("make", Path::new("/a/store"), &Error::from(kind)).to_string();
    let expect = StoreError::NotPermitted { action: "make", path: PathBuf::from("/a/store") }.to_string();
    assert_eq!(said(ErrorKind::PermissionDenied), expect);
    assert_eq!(said(ErrorKind::ReadOnlyFilesystem), expect);
    assert!(said(ErrorKind::NotADirectory).starts_with("cannot make /a/store: "));
    let dir = tempfile::tempdir().unwrap();
    let died = Unreached::died(spawn::last_words(dir.path()).as_deref());
    assert!(died.failure.code == error::FAILED && !is_silent(&died.clone().into()));
    assert!(died.to_string().contains("see host.log beside the store"), "{died}");
    std::fs::write(dir.path().join(LOG_FILE), "0.1 error: no room\n").unwrap();
    let died = Unreached::died(spawn::last_words(dir.path()).as_deref()).to_string();
    assert!(died.contains("the last line of host.log beside the store is: error: no room;"), "{died}");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_to_end_where_no_host_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    for _ in 0..2 {
        assert!(matches!(ask_to_end(&store, false, REACH_WITHIN).await.unwrap(), Ending::Nobody));
        assert_eq!(make_room(&global(&store)).await.unwrap(), None);
        let error = stop(&global(&store), true).await.unwrap_err();
        assert!(error.to_string().starts_with("no host answers for the store in "), "{error}");
        assert_eq!(error::exit_code(&error), error::STORE);
        assert!(reach_to_look(&global(&store)).await.unwrap().is_none());
        assert!(reach_to_change(&global(&store)).await.unwrap().is_none());
        let _ = std::fs::create_dir(&store);
    }
}

/// A store whose holder answers nothing is awaited, but not for long.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_in_use_is_waited_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("lock"), "").unwrap();
    let began = Instant::now();
    assert!(reach_or_free(&global(dir.path()), &CHANGES).await.unwrap().is_none());
    assert!(began.elapsed() < AGAIN_AFTER, "it is free");
    let lock = std::fs::File::open(dir.path().join("lock")).unwrap();
    lock.lock().unwrap();
    assert!(reach_or_free(&global(dir.path()), &CHANGES).await.unwrap().is_none());
    let within = UNREACHED_MAX..UNREACHED_MAX + Duration::from_secs(1);
    assert!(within.contains(&began.elapsed()), "{:?}", began.elapsed());
}
