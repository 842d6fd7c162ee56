//! Neither side connects to a process of another user.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use super::{Hosted, hosts_of};
use crate::cli::support::ran;

/// Somebody who is not the user of these tests.
const OTHER: u32 = 65_534;

/// Does something as another user, where this process may; else says that the test is skipped.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn as_other<T: Send>(does: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return None;
    }
    // The user is a property of each thread, and this one is over with it.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let uid = Uid::from_raw(OTHER);
            set_thread_res_uid(uid, uid, uid).unwrap();
            does()
        });
        Some(other.join().unwrap())
    })
}

/// A folder in which everybody may make files.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// What each connection of a listener said before it ended, so far.
fn said_to(listener: &UnixListener) -> Vec<Vec<u8>> {
    listener.set_nonblocking(true).unwrap();
    let mut said = Vec::new();
    while let Ok((mut stream, _)) = listener.accept() {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut bytes = Vec::new();
        // One that was reset has said nothing that could be read.
        let _ = stream.read_to_end(&mut bytes);
        said.push(bytes);
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_of_another_user_in_the_place_of_the_host_is_told_nothing() {
    let hosted = Hosted::new(1, 0).await;
    std::fs::create_dir_all(hosted.place.store()).unwrap();
    let folder = open_folder();
    let bound = folder.path().join("socket");
    let Some(listener) = as_other(|| UnixListener::bind(&bound).unwrap()) else { return };
    std::fs::rename(&bound, hosted.socket()).unwrap();
    for arguments in [
        &["run", "--window", "100000", "-p", "a secret"][..],
        &["compact", "a"],
        &["delete", "a"],
        &["top"],
        &["host", "--stop", "--force"],
        &["run", "--no-host", "--window", "100000", "-p", "a secret"],
    ] {
        let refused = hosted.run(arguments);
        assert_eq!(refused.code, Some(3), "{arguments:?}: {refused:?}");
        // `compact` reads the store first, which has no such session.
        let is_missing = arguments[0] == "compact" && refused.stderr.contains("no session");
        let is_refused = refused.stderr.contains("is another user's socket");
        assert!(is_missing || is_refused, "{arguments:?}: {refused:?}");
        let said = said_to(&listener);
        assert_eq!(said.len(), 1, "{arguments:?}");
        assert!(said.iter().all(Vec::is_empty), "{arguments:?}");
    }
    assert_eq!(hosted.simulator.calls(), 0);
    assert!(hosts_of(&hosted.place).is_empty());
    std::fs::remove_file(hosted.socket()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_names_the_store_of_another_user_is_told_that_it_is_closed() {
    let hosted = Hosted::new(1, 0).await;
    let folder = open_folder();
    let store = folder.path().join("store");
    std::fs::DirBuilder::new().mode(0o700).create(&store).unwrap();
    for arguments in [&["sessions"][..], &["run", "-p", "x"], &["host", "--stop"]] {
        let mut command = hosted.command(arguments);
        command.current_dir("/").env("GREENROOM_DATA_DIR", &store).env("HOME", folder.path());
        if as_other(|| ()).is_none() {
            return;
        }
        let refused = ran(command.uid(OTHER).output().unwrap());
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(3), ""), "{refused:?}");
        let said = format!("the store in {} is not accessible to you", store.display());
        assert!(refused.stderr.contains(&said), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_who_gets_at_the_socket_of_a_host_is_answered_nothing() {
    let hosted = Hosted::new(1, 0).await;
    hosted.start_host();
    let folder = open_folder();
    let open = folder.path().join("socket");
    std::fs::hard_link(hosted.socket(), &open).unwrap();
    let call = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"host/status\"}\n";
    let asks = |path: &Path| {
        let mut stream = UnixStream::connect(path).map_err(|error| error.kind())?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = [0_u8; 1];
        let asked = stream.write_all(call).and_then(|()| stream.read(&mut answer));
        Ok::<usize, std::io::ErrorKind>(asked.unwrap_or(0))
    };
    assert_eq!(asks(&open), Ok(1), "its owner is answered");
    let Some(refused) = as_other(|| asks(&open)) else { return };
    assert_eq!(refused, Err(std::io::ErrorKind::PermissionDenied));
    // And where the file's mode lets everybody in, the host does not.
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(as_other(|| asks(&open)), Some(Ok(0)));
    assert_eq!(asks(&open), Ok(1));
}
