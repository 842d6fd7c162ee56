//! A store that is moved, replaced by a copy, or removed while a host has it.

use super::{Hosted, is_greenroom, wait_until};

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_store_is_no_longer_there_ends_and_another_one_has_what_is_there_now() {
    let hosted = Hosted::new(1, 0).await;
    let (store, moved) = (hosted.place.store(), hosted.place.work().join("moved"));
    assert_eq!(hosted.say("a", "one").code, Some(0));
    let first = hosted.host().expect("a host is there");
    std::fs::rename(&store, &moved).unwrap();
    copy(&moved, &store);
    // It begins at once, and loses nothing.
    for text in ["two", "three"] {
        let said = hosted.say("a", text);
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    wait_until("the host of the store that was moved has ended", || !is_greenroom(first));
    let second = hosted.host().expect("another host is there");
    assert_ne!(first, second);
    assert!(hosted.socket().exists(), "the socket is the new host's");
    let shown = hosted.run(&["show", "a"]).stdout;
    assert!(["one", "two", "three"].iter().all(|text| shown.contains(text)), "{shown}");
    // Without a word, as people do it.
    std::fs::remove_dir_all(&store).unwrap();
    assert_eq!(hosted.say("b", "four").code, Some(0));
    wait_until("the host of the store that was removed has ended", || !is_greenroom(second));
    assert_eq!(hosted.say("b", "five").code, Some(0));
    let checked = hosted.run(&["store", "check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let shown = hosted.run(&["show", "b"]).stdout;
    assert!(shown.contains("four") && shown.contains("five"), "{shown}");
}

/// A store with a long path has a link in the place of its socket, which stays where its host is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_moved_to_a_shorter_path_has_a_host_there() {
    let hosted = Hosted::new(1, 0).await;
    let runtime = tempfile::tempdir().unwrap();
    let (target, socket) = (runtime.path().join("greenroom-0.sock"), hosted.socket());
    // What the link leads to may be there, and somebody may even listen.
    for listens in [false, true] {
        std::fs::create_dir_all(hosted.place.store()).unwrap();
        let listener = listens.then(|| std::os::unix::net::UnixListener::bind(&target).unwrap());
        std::os::unix::fs::symlink(&target, &socket).unwrap();
        let said = hosted.say("a", "one");
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{listens}: {said:?}");
        assert!(!socket.is_symlink() && socket.exists(), "{listens}");
        assert_eq!(target.exists(), listens, "what the link led to is another's");
        hosted.kill_host();
        std::fs::remove_file(&socket).unwrap();
        drop(listener);
    }
}
