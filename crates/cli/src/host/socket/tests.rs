//! The socket's place, what is replaced there, and what is left alone.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::{self, Permissions};
use std::os::unix::fs::symlink;

use super::*;

/// A private folder in which others can be created.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::Builder::new().prefix("s").tempdir_in("/tmp").unwrap();
    let real = dir.path().canonicalize().unwrap();
    (dir, real)
}

/// A store in it whose own socket would have a path of this length in bytes.
fn store(folder: &Path, bytes: usize) -> PathBuf {
    let name = bytes - folder.as_os_str().len() - NAME.len() - 2;
    let store = folder.join("n".repeat(name));
    fs::create_dir(&store).unwrap();
    assert_eq!(store.join(NAME).as_os_str().len(), bytes);
    store
}

fn with_mode(path: PathBuf, mode: u32) -> PathBuf {
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn a_socket_is_beside_its_store_where_its_path_is_short_enough() {
    let (_dir, folder) = folder();
    let short = store(&folder, PATH_BYTES_MAX);
    assert_eq!(path(&short).unwrap(), short.join(NAME));
    let long = store(&folder, PATH_BYTES_MAX + 1);
    let elsewhere = path(&long).unwrap();
    assert!(elsewhere.as_os_str().len() <= PATH_BYTES_MAX, "{elsewhere:?}");
    assert!(is_private(elsewhere.parent().unwrap()), "{elsewhere:?}");
    let name = format!("greenroom-{:016x}.sock", hash(long.as_os_str().as_bytes()));
    assert_eq!(elsewhere.file_name().unwrap().to_str(), Some(name.as_str()));
    assert!(path(&folder.join("none")).is_err());
}

#[test]
fn a_link_in_the_store_leads_to_its_own_name_in_a_private_folder_only() {
    let (_dir, folder) = folder();
    let long = store(&folder, PATH_BYTES_MAX + 1);
    let unnoted = path(&long).unwrap();
    let name = unnoted.file_name().unwrap().to_owned();
    let private = with_mode(folder.join("p"), 0o700);
    let too_long = with_mode(folder.join("l".repeat(90)), 0o700);
    let open = with_mode(folder.join("o"), 0o777);
    for (noted, is_followed) in [
        (private.join(&name), true),
        (private.join("greenroom-0000000000000000.sock"), false),
        (open.join(&name), false),
        (too_long.join(&name), false),
        (PathBuf::from(&name), false),
    ] {
        let link = long.join(NAME);
        let _ = fs::remove_file(&link);
        symlink(&noted, &link).unwrap();
        let found = path(&long).unwrap();
        assert_eq!(found, if is_followed { noted.clone() } else { unnoted.clone() }, "{noted:?}");
    }
}

#[test]
fn a_private_folder_is_a_folder_of_this_user_that_nobody_else_may_change() {
    let (_dir, folder) = folder();
    for (mode, expect) in
        [(0o700, true), (0o755, true), (0o500, true), (0o720, false), (0o702, false), (0o777, false)]
    {
        let at = with_mode(folder.join(format!("{mode:o}")), mode);
        assert_eq!(is_private(&at), expect, "{mode:o}");
    }
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o700)).unwrap();
    symlink(folder.join("700"), folder.join("link")).unwrap();
    assert!(!is_private(&file) && !is_private(&folder.join("link")) && !is_private(&folder.join("none")));
    assert!(!is_private(Path::new(".")), "relative ones are meant from wherever a process is");
    // A folder of another user: the root folder, or for root one that was given away.
    let mut others = PathBuf::from("/");
    if rustix::process::geteuid().is_root() {
        others = folder.join("700");
        std::os::unix::fs::chown(&others, Some(1), None).unwrap();
    }
    assert!(!is_private(&others));
}

#[test]
fn a_socket_with_a_long_path_is_in_a_private_folder_with_a_short_one() {
    let (_dir, folder) = folder();
    let private = with_mode(folder.join("p"), 0o700);
    let open = with_mode(folder.join("o"), 0o777);
    let name = |bytes: usize| "n".repeat(bytes - private.as_os_str().len() - 1);
    let (longest, too_long) = (name(PATH_BYTES_MAX), name(PATH_BYTES_MAX + 1));
    assert_eq!(elsewhere(&longest, Some(private.clone())), Some(private.join(&longest)));
    assert_eq!(elsewhere(&too_long, Some(private.clone())), None);
    assert_eq!(elsewhere("n", Some(open.clone())), None);
    assert_eq!(elsewhere("n", None), None);
    // Without such a folder, there is one of our own, which nobody else may change.
    let own = folder.join("own");
    assert_eq!(own_folder(own.clone()).unwrap(), own);
    assert!(own.metadata().unwrap().mode() & 0o777 == 0o700 && own_folder(own).is_ok());
    let error = own_folder(open).unwrap_err();
    assert!(error.to_string().contains("must be your own folder"), "{error}");
    let error = own_folder(folder.join("none/own")).unwrap_err().to_string();
    assert!(error.starts_with("make "), "{error}");
}

/// The published values of this hash, so every build computes the same name.
#[test]
fn the_hash_is_the_same_in_every_build() {
    for (text, expect) in
        [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
    {
        assert_eq!(hash(text.as_bytes()), expect, "{text}");
    }
}

#[test]
fn a_store_that_was_moved_or_replaced_is_not_in_place() {
    let (_dir, folder) = folder();
    assert!(HeldLock::of(&folder).is_err());
    let lock = folder.join(LOCK);
    fs::write(&lock, "").unwrap();
    let held = HeldLock::of(&folder).unwrap();
    assert!(held.is_in_place());
    fs::rename(&lock, folder.join("moved")).unwrap();
    assert!(!held.is_in_place(), "nothing is there");
    fs::write(&lock, "").unwrap();
    assert!(!held.is_in_place(), "another one is there");
    fs::rename(folder.join("moved"), &lock).unwrap();
    assert!(held.is_in_place());
}

#[tokio::test]
async fn a_socket_is_for_its_owner_and_made_again_only_where_it_is_gone() {
    let (_dir, folder) = folder();
    let socket = folder.join(NAME);
    let (_listener, place) = listen(&folder).unwrap();
    assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o600);
    assert!(place.link.is_none() && place.renewed().unwrap().is_none());
    fs::remove_file(&socket).unwrap();
    let renewed = place.renewed().unwrap();
    assert!(renewed.is_some() && place.renewed().unwrap().is_none(), "the new one is known");
    place.leave();
    assert!(!socket.exists());
    // A file that has replaced it is not ours.
    let (_first, first) = listen(&folder).unwrap();
    // The old one is kept under another name, so its inode is not reused.
    fs::rename(&socket, folder.join("first")).unwrap();
    let (_second, second) = listen(&folder).unwrap();
    first.leave();
    assert!(socket.exists());
    second.leave();
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_socket_elsewhere_is_noted_in_the_store() {
    let (_dir, folder) = folder();
    let long = store(&folder, PATH_BYTES_MAX + 1);
    let link = long.join(NAME);
    let noted = || fs::read_link(&link).ok();
    let elsewhere = with_mode(folder.join("p"), 0o700).join(path(&long).unwrap().file_name().unwrap());
    // A link to a place where this test may write.
    symlink(&elsewhere, &link).unwrap();
    let (_listener, place) = listen(&long).unwrap();
    assert_eq!((noted(), place.link.as_ref()), (Some(elsewhere.clone()), Some(&link)));
    // A removed or changed link is created again, with or without a new socket.
    for changed in [None, Some("/another"), Some("/another")] {
        fs::remove_file(&link).unwrap();
        if let Some(changed) = changed {
            symlink(changed, &link).unwrap();
        }
        assert!(place.renewed().unwrap().is_none());
        assert_eq!(noted(), Some(elsewhere.clone()));
    }
    // A socket from before the store was moved is replaced; a file is not.
    fs::remove_file(&link).unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.join("short")).unwrap());
    fs::rename(folder.join("short"), &link).unwrap();
    assert!(place.renewed().unwrap().is_none());
    assert_eq!(noted(), Some(elsewhere.clone()));
    fs::remove_file(&link).unwrap();
    fs::write(&link, "mine").unwrap();
    assert!(place.renewed().unwrap_err().to_string().contains("is not a socket"));
    assert_eq!(fs::read_to_string(&link).unwrap(), "mine");
    // A link to another file is left alone.
    fs::remove_file(&link).unwrap();
    symlink("/another", &link).unwrap();
    place.leave();
    assert!(!elsewhere.exists());
    assert_eq!(noted(), Some(PathBuf::from("/another")));
    fs::remove_file(&link).unwrap();
    symlink(&elsewhere, &link).unwrap();
    place.leave();
    assert_eq!(noted(), None);
}

#[tokio::test]
async fn what_is_left_of_a_host_is_replaced_and_a_file_is_not() {
    let (_dir, folder) = folder();
    let socket = folder.join(NAME);
    fs::write(&socket, "mine").unwrap();
    let error = listen(&folder).map(drop).unwrap_err();
    assert!(error.to_string().contains("is not a socket"), "{error}");
    assert_eq!((crate::error::exit_code(&error), fs::read_to_string(&socket).unwrap().as_str()), (2, "mine"));
    fs::remove_file(&socket).unwrap();
    // The socket of a killed host, and the link of a store that had a longer path.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(listen(&folder).is_ok());
    fs::remove_file(&socket).unwrap();
    symlink("/nowhere/at/all", &socket).unwrap();
    assert!(listen(&folder).is_ok());
    assert!(socket.symlink_metadata().unwrap().file_type().is_socket());
}

#[tokio::test]
async fn nobody_answers_where_nothing_or_no_socket_of_a_host_is() {
    let (_dir, folder) = folder();
    let socket = folder.join(NAME);
    let seen = async |path: &Path| match connect_to(path).await.unwrap() {
        Ok(_) => "somebody",
        Err(Connected::Nobody) => "nobody",
        Err(Connected::Again) => "again",
        Err(Connected::Host(..)) => "a host",
    };
    assert_eq!(seen(&socket).await, "nobody");
    let (listener, _place) = listen(&folder).unwrap();
    assert_eq!(seen(&socket).await, "somebody");
    let link = folder.join("link");
    symlink(&socket, &link).unwrap();
    assert_eq!(seen(&link).await, "nobody", "a link leads nowhere");
    drop(listener);
    assert_eq!(seen(&socket).await, "nobody", "it was left");
    let error = connect_to(&folder.join("n".repeat(200))).await.map(drop).unwrap_err();
    assert_eq!(crate::error::exit_code(&error), crate::error::STORE, "{error}");
}

/// The listener holds the store's lock, or is refused.
#[tokio::test(start_paused = true)]
async fn who_listens_without_the_lock_is_waited_for_and_refused() {
    // If peers cannot be identified, all are refused.
    let (one, _other) = UnixStream::pair().unwrap();
    if origin::is_of_command() || matches!(peer::process(&one), Err(Stranger::Unknown(_))) {
        return;
    }
    let (_dir, folder) = folder();
    let socket = folder.join(NAME);
    let (_listener, _place) = listen(&folder).unwrap();
    fs::write(folder.join(LOCK), "").unwrap();
    let began = Instant::now();
    let error = connect(&folder, &socket).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("it does not have the store's lock"), "{error}");
    assert!(
        (WITHOUT_LOCK_MAX..WITHOUT_LOCK_MAX + Duration::from_secs(1)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    let lock = fs::File::open(folder.join(LOCK)).unwrap();
    lock.lock().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(
        matches!(connect(&folder, &socket).await.unwrap(), Connected::Host(_, process) if process == own)
    );
    assert!(matches!(connect(&folder, &folder.join("none")).await.unwrap(), Connected::Nobody));
}

#[test]
fn whose_socket_it_is_is_said() {
    let said = other_users(Path::new("/no/such/host.sock")).to_string();
    assert!(said.starts_with("/no/such/host.sock is another user's socket"), "{said}");
}
