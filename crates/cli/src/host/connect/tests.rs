//! Errors about hosts that cannot be reached, and what their locks reveal.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::atomic::{AtomicU32, Ordering};

use greenroom_server::Problem;
use greenroom_store::StoreError;
use greenroom_terminal::screen::ColorChoice;

use super::*;
use crate::error;
use crate::host::error::{holder, is_gone, is_silent, is_silent_client, silent_text};
use crate::host::tests::played::{Does, PID, Played, is_possible};
use crate::host::{Changes, LOG_FILE};

fn refused(kind: ProblemKind) -> ClientError {
    ClientError::Refused(Box::new(Problem::new(kind, "x")))
}

/// The flags of a command on this store.
fn global(dir: &Path) -> Global {
    Global {
        trust_folder: false,
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
        assert_eq!((error.is_gone(), is_silent_client(&error)), expect, "{error:?}");
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

const SECOND: Duration = Duration::from_secs(1);

/// The whole seconds since then.
fn seconds(began: Instant) -> u64 {
    began.elapsed().as_secs()
}

fn ended(ending: &Ending) -> &'static str {
    match ending {
        Ending::Nobody => "nobody",
        Ending::Ends(None) => "ends",
        Ending::Ends(Some(PID)) => "ends as itself",
        Ending::Ends(Some(_)) => "ends as another",
        Ending::Refused(_) => "refused",
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_host_is_the_end_of_its_connection_and_of_its_lock() {
    if !is_possible() {
        return;
    }
    let host = Played::begin(|_, _| Does::Stops(SECOND, 3 * SECOND));
    let began = Instant::now();
    let ending = ask_to_end(host.dir(), false, REACH_WITHIN).await.unwrap();
    assert_eq!((ended(&ending), seconds(began)), ("ends as itself", 1));
    let host = Played::begin(|_, _| Does::Stops(SECOND, 3 * SECOND));
    let began = Instant::now();
    assert_eq!(make_room(&host.global()).await.unwrap(), Some(PID));
    assert!(is_free(host.dir()) && seconds(began) == 4, "{:?}", began.elapsed());
    // A lock that is not released is not waited for indefinitely: opening the store reports it.
    let host = Played::begin(|_, _| Does::Stops(SECOND, 60 * SECOND));
    let began = Instant::now();
    assert_eq!(make_room(&host.global()).await.unwrap(), Some(PID));
    assert!(!is_free(host.dir()) && seconds(began) == 11, "{:?}", began.elapsed());
    assert!(!is_freed(host.dir(), SECOND).await && is_freed(host.dir(), 60 * SECOND).await);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_ending_already_has_ended_when_nobody_listens() {
    if !is_possible() {
        return;
    }
    for first in [Does::Refuses(ProblemKind::Closed), Does::Leaves] {
        let host = Played::begin(move |_, before| if before == 0 { first } else { Does::Dies });
        let ending = ask_to_end(host.dir(), false, REACH_WITHIN).await.unwrap();
        assert_eq!((ended(&ending), host.asked().len()), ("ends", 2), "{first:?}");
    }
}

/// One whose queue of connections is full may be ending.
#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn a_host_that_accepts_nothing_is_asked_again_until_nobody_listens() {
    use nix::sys::socket::{Backlog, listen};
    let dir = tempfile::Builder::new().prefix("h").tempdir_in("/tmp").unwrap();
    let path = socket::path(dir.path()).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let _queued = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let ending = tokio::spawn({
        let dir = dir.path().to_owned();
        async move { ask_to_end(&dir, false, REACH_WITHIN).await }
    });
    sleep(SECOND).await;
    assert!(!ending.is_finished());
    drop(listener);
    assert_eq!(ended(&ending.await.unwrap().unwrap()), "ends");
}

#[tokio::test(start_paused = true)]
async fn a_host_in_use_is_waited_for_as_long_as_is_wanted_and_named() {
    if !is_possible() {
        return;
    }
    let busy = Does::Refuses(ProblemKind::Busy);
    let host = Played::begin(move |_, before| if before < 50 { busy } else { Does::Stops(SECOND, SECOND) });
    let began = Instant::now();
    assert_eq!(make_room_by(&host.global(), began + 5 * SECOND).await.unwrap(), Some(PID));
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
    let host = Played::begin(move |_, _| busy);
    let began = Instant::now();
    let error = make_room_by(&host.global(), began + 5 * SECOND).await.unwrap_err();
    assert_eq!((seconds(began), error::exit_code(&error)), (5, error::STORE), "{error}");
    for no_host in [false, true] {
        let began = Instant::now();
        let error = make_room(&Global { no_host, ..host.global() }).await.unwrap_err().to_string();
        assert!(began.elapsed() < SECOND && error.contains("is in use: no; wait for it"), "{error}");
        assert_eq!(error.contains("or leave out --no-host"), no_host, "{error}");
    }
    let error = stop(&host.global(), false).await.unwrap_err();
    assert_eq!(error::exit_code(&error), error::STORE);
    assert!(error.to_string().contains("--force` to end it anyway"), "{error}");
    // One that refuses for another reason is reported when the store is opened.
    let host = Played::begin(|_, _| Does::Refuses(ProblemKind::Invalid));
    assert_eq!(make_room(&host.global()).await.unwrap(), None);
    let error = stop(&host.global(), true).await.unwrap_err().to_string();
    assert!(!error.contains("--force"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_host_is_killed_only_by_force_and_if_it_is_the_one_in_the_lock() {
    if !is_possible() {
        return;
    }
    let host = Played::begin(|_, _| Does::Hangs);
    // The lock names a process that lives, and is not the listener.
    let mut other = Other(std::process::Command::new("sleep").arg("600").spawn().unwrap());
    std::fs::write(host.dir().join("lock"), other.0.id().to_string()).unwrap();
    for (force, after) in [(false, 15), (true, 5)] {
        let began = Instant::now();
        let error = stop(&host.global(), force).await.unwrap_err();
        assert!(is_silent(&error), "{error}");
        assert_eq!(seconds(began), after, "force: {force}");
        assert!(other.0.try_wait().unwrap().is_none(), "another process was killed");
    }
}

/// A process that ends with this value.
struct Other(std::process::Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_ends_while_it_greets_is_tried_again() {
    if !is_possible() {
        return;
    }
    let version = Does::Refuses(ProblemKind::Version);
    let gone = [Does::Leaves, Does::Refuses(ProblemKind::Closed)];
    for first in gone {
        let host = Played::begin(move |_, before| if before < 2 { first } else { Does::Answers });
        let reached = reach(&host.global(), &LOOKS).await.unwrap().unwrap();
        assert_eq!((reached.warnings.as_slice(), host.asked().len()), (&["careful".to_owned()][..], 3));
    }
    // One of another version is asked to stop, and the next one is reached.
    for stops in [Does::Answers, gone[0], gone[1]] {
        let host = Played::begin(move |method, before| match (method, before) {
            ("client/hello", 0) => version,
            ("host/stop", _) => stops,
            _ => Does::Answers,
        });
        assert!(reach(&host.global(), &LOOKS).await.unwrap().is_some());
        assert_eq!(host.asked(), ["client/hello", "host/stop", "client/hello"], "{stops:?}");
    }
    // One that is in use stays.
    let host = Played::begin(move |method, _| match method {
        "client/hello" => version,
        _ => Does::Refuses(ProblemKind::Busy),
    });
    let error = reach(&host.global(), &LOOKS).await.map(drop).unwrap_err();
    assert_eq!((error::exit_code(&error), host.asked().len()), (error::USAGE, 2));
    assert!(error.to_string().contains("wait until it is idle"), "{error}");
    // Any other refusal is reported, and no host is asked to stop because of it.
    let host = Played::begin(|_, _| Does::Refuses(ProblemKind::Invalid));
    let began = Instant::now();
    let error = reach(&host.global(), &LOOKS).await.map(drop).unwrap_err();
    assert!(error.is::<ClientError>() && began.elapsed() < SECOND, "{error}");
    assert_eq!(host.asked(), ["client/hello"]);
}

#[tokio::test(start_paused = true)]
async fn reaching_a_host_takes_a_limited_time_whatever_it_does() {
    if !is_possible() {
        return;
    }
    for does in [Does::Leaves, Does::Hangs] {
        let host = Played::begin(move |_, _| does);
        let began = Instant::now();
        let error = reach(&host.global(), &LOOKS).await.map(drop).unwrap_err();
        assert!(is_silent(&error), "{error}");
        assert_eq!(seconds(began), 15, "{does:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_reached_is_watched() {
    if !is_possible() {
        return;
    }
    // It answers itself, or refuses to; it leaves, or another one has its place.
    for (does, is_alive) in [
        (Does::Answers, true),
        (Does::Refuses(ProblemKind::Invalid), true),
        (Does::Leaves, false),
        (Does::IsProcess(PID + 1), false),
    ] {
        let host = Played::begin(move |method, _| if method == "host/ping" { does } else { Does::Answers });
        let Reached { client, .. } = reach(&host.global(), &LOOKS).await.unwrap().unwrap();
        sleep(6 * SECOND).await;
        assert!(host.asked().contains(&"host/ping".to_owned()) && !client.is_closed());
        sleep(60 * SECOND).await;
        assert_eq!(!client.is_closed(), is_alive, "{does:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn commands_use_a_host_unless_they_are_told_not_to() {
    if !is_possible() {
        return;
    }
    let host = Played::begin(|_, _| Does::Answers);
    assert!(reach_to_look(&host.global()).await.unwrap().is_some());
    assert!(reach_to_change(&host.global()).await.unwrap().is_some());
    assert_eq!(host.asked(), ["client/hello", "client/hello"]);
    let host = Played::begin(|_, _| Does::Stops(SECOND, SECOND));
    let without = Global { no_host: true, ..host.global() };
    assert!(reach_to_look(&without).await.unwrap().is_none());
    assert!(host.asked().is_empty());
    assert!(reach_to_change(&without).await.unwrap().is_none());
    assert_eq!(host.asked(), ["host/stop"]);
    assert!(is_free(host.dir()), "there is room");
}

#[tokio::test(start_paused = true)]
async fn a_first_request_is_repeated_at_a_few_hosts_that_end() {
    if !is_possible() {
        return;
    }
    let host = Played::begin(|_, _| Does::Answers);
    let global = host.global();
    let tries = std::cell::Cell::new(0);
    let trying = async |fails: u32, error: fn() -> ClientError| {
        tries.set(0);
        let first = async |_: &Client| {
            tries.set(tries.get() + 1);
            if tries.get() <= fails { Err(error().into()) } else { Ok("done") }
        };
        Changes::open_and(&global, first).await.map(|(_, answer)| answer)
    };
    let gone = || ClientError::Disconnected;
    assert_eq!(trying(ATTEMPTS - 1, gone).await.unwrap(), "done");
    assert!(is_gone(&trying(ATTEMPTS, gone).await.unwrap_err()));
    assert_eq!(tries.get(), ATTEMPTS);
    assert!(trying(1, || refused(ProblemKind::Invalid)).await.is_err());
    assert_eq!(tries.get(), 1, "another error is not repeated");
}

#[tokio::test(start_paused = true)]
async fn a_line_is_the_only_connection_of_its_client() {
    if !is_possible() {
        return;
    }
    let host = Played::begin(|_, _| Does::Answers);
    let mut line = reach_raw(&host.global(), &CHANGES).await.unwrap().unwrap();
    assert_eq!(line.warnings, ["careful"]);
    let request = serde_json::json!({ "jsonrpc": "2.0", "id": 9, "method": "session/list" });
    line.output.write_all(format!("{request}\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    line.input.read_line(&mut answer).await.unwrap();
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&answer["id"], &answer["result"]["method"]), (&9.into(), &"session/list".into()));
    sleep(SECOND).await;
    assert_eq!(host.connections(), 1);
    // A host that leaves after the greeting is tried again, a few times.
    let greets = AtomicU32::new(0);
    let host = Played::begin(move |_, _| {
        if greets.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { Does::Answers } else { Does::Leaves }
    });
    let error = reach_raw(&host.global(), &CHANGES).await.map(drop).unwrap_err();
    assert!(is_gone(&error), "{error}");
    assert_eq!(host.asked().len(), 2 * ATTEMPTS as usize);
}

/// A lock that is held is waited for, and not for ever.
#[tokio::test(start_paused = true)]
async fn a_lock_is_waited_for_until_it_is_free_or_the_time_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    std::fs::write(&path, "").unwrap();
    let lock = std::fs::File::open(&path).unwrap();
    lock.try_lock().unwrap();
    let waiting = timeout(Duration::from_secs(30), is_freed(dir.path(), Duration::from_millis(2_001)));
    assert_eq!(waiting.await, Ok(false), "it ends although the lock is held");
    let freed = tokio::spawn(async move {
        sleep(Duration::from_secs(1)).await;
        drop(lock);
    });
    let waiting = timeout(Duration::from_secs(30), is_freed(dir.path(), Duration::from_secs(20)));
    assert_eq!(waiting.await, Ok(true));
    freed.await.unwrap();
}

#[test]
fn a_fingerprint_is_that_of_what_the_flags_make() {
    let dir = tempfile::tempdir().unwrap();
    let of = |model: &ModelArgs| fingerprint(&global(dir.path()), model).unwrap();
    let plain = ModelArgs::bare();
    let may_write = ModelArgs { allow_write: true, ..ModelArgs::bare() };
    assert_eq!((of(&plain).len(), of(&plain)), (64, of(&plain)), "a digest, the same again");
    assert_ne!(of(&plain), of(&may_write));
}

#[test]
fn a_definition_has_the_files_flags_and_keys_of_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("named.yaml");
    let texts: Texts = [Some("model: kept".to_owned()), None];
    let settings = vec!["model=other".to_owned()];
    let global = Global { config: Some(file.clone()), settings: settings.clone(), ..global(dir.path()) };
    let handed = |file_key: &str, flag_key: Option<&str>| {
        let one = format!("{{ base_url: \"http://127.0.0.1:1\", api_key_env: {file_key} }}");
        std::fs::write(&file, format!("providers: {{ one: {one} }}\n")).unwrap();
        let mut model = ModelArgs::bare();
        model.server.api_key_env = flag_key.map(str::to_owned);
        definition(&global, &model, true, Some(&texts)).unwrap()
    };
    let made = handed("NO_SUCH_KEY", None);
    assert_eq!((&made.config, &made.settings, made.checks_server), (&Some(file.clone()), &settings, true));
    assert_eq!(made.held, Some(texts.clone()));
    // Variables of this process that are handed over only if they are named as keys.
    let others: Vec<String> = greenroom_tools::privacy::variable_names()
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| greenroom_terminal::screen::variable(name).is_some())
        .filter(|name| made.surroundings.variables_that(|handed| handed == name).is_empty())
        .collect();
    let [first, second, ..] = &others[..] else { panic!("two more variables are set: {others:?}") };
    let made = handed(first, Some(second));
    for name in [first, second] {
        assert_eq!(made.surroundings.variables_that(|handed| handed == name).len(), 1, "{name}");
    }
}
