//! Accepted peers, and holders of locks.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use tokio::net::UnixStream;

use super::{Handle, Stranger, check_possible, holders, holds, origin, process, refusal};

#[test]
fn who_has_a_lock_is_read_from_the_list_of_locks() {
    let locks = "1: FLOCK  ADVISORY  WRITE 11 fe:00:77 0 EOF\n\
                 2: POSIX  ADVISORY  WRITE 12 fe:00:77 0 EOF\n\
                 3: FLOCK  ADVISORY  READ  13 fe:00:77 0 EOF\n\
                 3: -> FLOCK  ADVISORY  WRITE 14 fe:00:77 0 EOF\n\
                 4: FLOCK  ADVISORY  WRITE 15 fe:00:771 0 EOF\n\
                 5: FLOCK  ADVISORY  WRITE 16 00:2a:77 0 EOF\nx\n";
    // Another file system may have a file with the same inode.
    assert_eq!(holders(locks, 77), [11, 16]);
    assert_eq!(holders(locks, 771), [15]);
    assert!(holders(locks, 7).is_empty());
}

#[test]
fn the_holder_of_a_lock_is_known_whatever_the_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let own = i32::try_from(std::process::id()).expect("it fits");
    std::fs::write(&path, own.to_string()).unwrap();
    let lock = std::fs::File::open(&path).unwrap();
    lock.try_lock().unwrap();
    std::fs::write(&path, "1").unwrap();
    assert!(holds(own, &path) && !holds(1, &path));
    // If the system does not report locks, the file decides.
    drop(lock);
    assert!(holds(1, &path) && !holds(own, &path));
    assert!(!holds(own, &dir.path().join("none")));
}

#[tokio::test]
async fn a_peer_of_this_process_is_itself() {
    let own = i32::try_from(std::process::id()).expect("it fits");
    let (one, _other) = UnixStream::pair().unwrap();
    // Determined independently, because a wrong check would agree with itself.
    let is_possible = Handle::of(&one).is_ok() && !origin::is_of_command();
    assert_eq!(check_possible().is_ok(), is_possible);
    if is_possible {
        assert_eq!(process(&one).expect("it is this one"), own);
    }
}

#[test]
fn a_stranger_is_described() {
    for (stranger, text) in [
        (Stranger::Gone, "it has ended"),
        (Stranger::OtherUser, "it is another user's"),
        (Stranger::OfCommand(7), "a command of a tool started it (process 7)"),
        (Stranger::Unknown("x".to_owned()), "this system does not report its owner: x"),
    ] {
        assert_eq!(stranger.to_string(), text);
    }
}

/// A process that connected and has ended is nobody any more.
#[tokio::test]
async fn a_peer_that_has_ended_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let script = format!("import socket; s = socket.socket(socket.AF_UNIX); s.connect({path:?})");
    let Ok(mut child) = tokio::process::Command::new("python3").arg("-c").arg(script).spawn() else {
        return; // Without Python there is no other process to connect.
    };
    let (stream, _) = listener.accept().await.unwrap();
    let Ok(handle) = Handle::of(&stream) else { return };
    child.wait().await.unwrap();
    assert!(handle.has_ended());
    assert!(matches!(process(&stream), Err(Stranger::Gone)));
}

#[test]
fn a_refusal_is_a_line_of_the_protocol() {
    let line = refusal(&"it is a stranger");
    assert!(line.ends_with("}\n"));
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    let error =
        serde_json::json!({ "code": -32_600, "message": "this host rejects this process: it is a stranger" });
    assert_eq!(said, serde_json::json!({ "jsonrpc": "2.0", "id": null, "error": error }));
}
