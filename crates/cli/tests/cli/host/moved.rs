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
