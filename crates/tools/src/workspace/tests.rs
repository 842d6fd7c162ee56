//! Confinement: nothing outside the workspace is ever read or written, with and without the kernel's confined
//! lookup, whatever is replaced meanwhile.

use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{Expected, Replacement, Workspace};
use crate::ToolsError;
use crate::rewind::CallFiles;

/// Returns a folder with a workspace `inside` and a secret beside it; the workspace with and without the
/// confined lookup.
fn fixture() -> (TempDir, [Workspace; 2]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let inside = folder.path().join("inside");
    for made in ["inside/real", "outside"] {
        std::fs::create_dir_all(folder.path().join(made)).expect("folders are made");
    }
    std::fs::write(inside.join("real/file"), "ours").expect("written");
    std::fs::write(folder.path().join("outside/file"), "secret").expect("written");
    let workspaces =
        [true, false].map(|lookup| Workspace::open_with(&inside, Vec::new(), lookup).expect("it exists"));
    (folder, workspaces)
}

fn read(workspace: &Workspace, path: &str) -> Result<String, ToolsError> {
    let (mut file, _) = workspace.open_file(&workspace.locate(path)?)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| ToolsError::io(path, error))?;
    Ok(text)
}

fn write(workspace: &Workspace, path: &str) -> Result<bool, ToolsError> {
    let path = workspace.locate(path)?;
    let replaced = workspace.replace(&path, &Replacement::new(b"changed"), &CallFiles::default())?;
    Ok(replaced.existed)
}

fn outside_is_untouched(folder: &Path) {
    let outside = folder.join("outside");
    assert_eq!(std::fs::read_to_string(outside.join("file")).expect("it exists"), "secret");
    assert_eq!(std::fs::read_dir(outside).expect("it exists").count(), 1);
}

#[test]
fn paths_are_located_by_their_text() {
    let (folder, [workspace, _]) = fixture();
    let root = workspace.root().to_str().expect("text").to_owned();
    assert!(root.ends_with("/inside"));
    for (path, expect) in [
        ("a", Some("a")),
        (" a/b/ ", Some("a/b")),
        ("./a//b/.", Some("a/b")),
        ("a/../b", Some("b")),
        ("", Some("")),
        (".", Some("")),
        ("a/..", Some("")),
        (&root, Some("")),
        (&format!("{root}/a/../b"), Some("b")),
        ("a~/~", Some("a~/~")),
        ("./~/a", Some("~/a")),
        ("..", None),
        ("~", None),
        (" ~/a", None),
        ("~/../a", None),
        ("a/../../inside", None),
        ("/", None),
        ("/etc/passwd", None),
        (&format!("{root}/../outside/file"), None),
        (&format!("{root}side/file"), None),
    ] {
        match (workspace.locate(path), expect) {
            (Ok(found), Some(expect)) => assert_eq!(found.as_str(), expect, "{path}"),
            (Err(ToolsError::Outside { .. }), None) => {}
            (found, _) => panic!("{path}: {found:?}"),
        }
    }
    // The name under which the workspace was opened leads to it as well.
    let alias = folder.path().join("alias");
    symlink(workspace.root(), &alias).expect("a link is made");
    let workspace = Workspace::open(&alias).expect("it exists");
    let path = alias.join("real/file");
    assert_eq!(workspace.locate(path.to_str().expect("text")).expect("inside").as_str(), "real/file");
    let missing = Workspace::open(folder.path().join("missing"));
    assert!(matches!(missing, Err(ToolsError::Workspace { .. })));
}

#[test]
fn links_lead_nowhere_outside() {
    let (folder, workspaces) = fixture();
    let inside = folder.path().join("inside");
    for (name, target) in [
        ("out_file", "../outside/file"),
        ("out_absolute", folder.path().join("outside/file").to_str().expect("text")),
        ("out_folder", "../outside"),
        ("out_new", "../outside/new"),
        ("out_chain", "real/../out_folder/file"),
        ("proc", "/proc/self/root"),
        ("loop", "loop"),
        ("dangling", "nothing"),
    ] {
        symlink(target, inside.join(name)).expect("a link is made");
    }
    for workspace in &workspaces {
        for path in [
            "out_file", "out_absolute", "out_folder/file", "out_chain", "proc/etc/passwd", "loop", "dangling",
        ] {
            let found = read(workspace, path);
            assert!(found.is_err(), "{path}: {found:?}");
        }
        for path in [
            "out_file", "out_absolute", "out_new", "out_folder/file", "out_folder/new", "out_folder/a/b",
            "loop",
        ] {
            let found = write(workspace, path);
            assert!(matches!(found, Err(ToolsError::Link { .. })), "{path}: {found:?}");
        }
        assert!(workspace.open_directory(&workspace.locate("out_folder").expect("by its text")).is_err());
        outside_is_untouched(folder.path());
    }
}

#[test]
fn links_inside_are_read_through_and_not_written_through() {
    let (folder, [workspace, plain]) = fixture();
    let inside = folder.path().join("inside");
    symlink("real", inside.join("folder")).expect("a link is made");
    symlink("real/file", inside.join("file")).expect("a link is made");
    std::fs::create_dir(inside.join(".git")).expect("a folder is made");
    symlink(".git", inside.join("harmless")).expect("a link is made");
    for path in ["folder/file", "file"] {
        assert_eq!(read(&workspace, path).expect("it is inside"), "ours");
        assert!(matches!(read(&plain, path), Err(ToolsError::Link { .. })), "{path}");
        assert!(matches!(write(&workspace, path), Err(ToolsError::Link { .. })), "{path}");
    }
    assert!(matches!(write(&workspace, "harmless/config"), Err(ToolsError::Link { .. })));
    assert!(!inside.join(".git/config").exists());
}

/// A bare repository names programs in its settings as `.git` does, and any folder can be made one.
#[test]
fn nothing_changes_a_bare_repository_or_makes_one() {
    for commondir in [false, true] {
        let (folder, workspaces) = fixture();
        let inside = folder.path().join("inside");
        std::fs::create_dir_all(inside.join("deep/bare")).expect("folders are made");
        std::fs::write(inside.join("deep/bare/HEAD"), "").expect("a file is written");
        match commondir {
            true => std::fs::write(inside.join("deep/bare/commondir"), "").expect("a file is written"),
            false => ["objects", "refs"].into_iter().for_each(|part| {
                std::fs::create_dir(inside.join("deep/bare").join(part)).expect("a folder is made");
            }),
        }
        for workspace in workspaces {
            for path in ["deep/bare/config", "deep/bare/hooks/post-checkout", "deep/bare/HEAD"] {
                let found = write(&workspace, path);
                assert!(matches!(found, Err(ToolsError::Protected { .. })), "{path}: {found:?}");
            }
            write(&workspace, "deep/config").expect("it is no repository");
        }
    }
    let (_folder, [workspace, _]) = fixture();
    for path in ["new/HEAD", "new/config", "new/objects/x", "new/other"] {
        write(&workspace, path).expect("it is no repository yet");
    }
    for path in ["new/refs/x", "new/refs", "new/commondir", "new/COMMONDIR"] {
        let found = write(&workspace, path);
        assert!(matches!(found, Err(ToolsError::Protected { .. })), "{path}: {found:?}");
    }
}

#[test]
fn only_regular_files_are_opened() {
    let (folder, workspaces) = fixture();
    let inside = folder.path().join("inside");
    let made =
        std::process::Command::new("mkfifo").arg(inside.join("pipe")).status().expect("mkfifo is there");
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(inside.join("socket")).expect("a socket is made");
    for workspace in &workspaces {
        for (path, expect) in [("pipe", "a pipe"), ("socket", "a socket"), ("real", "a folder")] {
            // Opening a pipe for reading would block for ever.
            let found = read(workspace, path).expect_err("not a regular file").to_string();
            assert_eq!(found, format!("`{path}` is {expect}, not a regular file"));
            let found = write(workspace, path).expect_err("not a regular file").to_string();
            assert_eq!(found, format!("`{path}` is {expect}, not a regular file"));
        }
    }
}

#[test]
fn a_file_that_changed_meanwhile_is_not_replaced() {
    let (folder, [workspace, _]) = fixture();
    let path = workspace.locate("real/file").expect("inside");
    let (_, version) = workspace.open_file(&path).expect("it exists");
    std::fs::write(folder.path().join("inside/real/file"), "someone else's").expect("written");
    let replace = |content: &[u8], expected| {
        let replacement = Replacement { expected, ..Replacement::new(content) };
        workspace.replace(&path, &replacement, &CallFiles::default()).map(|replaced| replaced.existed)
    };
    let found = replace(b"ours", Expected::Version(version));
    assert!(matches!(found, Err(ToolsError::Refused(_))), "{found:?}");
    assert_eq!(read(&workspace, "real/file").expect("it exists"), "someone else's");
    let (_, version) = workspace.open_file(&path).expect("it exists");
    let found = replace(b"ours", Expected::Absent);
    assert!(matches!(found, Err(ToolsError::Refused(_))), "{found:?}");
    assert!(replace(b"new", Expected::Version(version)).expect("nothing changed"));
}

/// While a thread swaps a folder and a link to the outside, thousands of reads, writes and walks never get
/// out.
#[test]
fn swapping_links_never_leads_outside() {
    for workspace in fixture_with_swaps() {
        let (folder, workspace, swapping) = workspace;
        let (mut ours, mut written, mut refused, mut seen_link) = (0, 0, 0, 0);
        let wanted = crate::by_hand::wanted("GREENROOM_LINK_SWAPS", 1_000);
        for round in 0_u64.. {
            if round >= 1_000 && swapping.count() >= wanted && ours > 0 && seen_link > 0 {
                break;
            }
            match read(&workspace, "swap/file") {
                Ok(text) => {
                    assert!(text == "ours" || text == "changed", "read {text:?}");
                    ours += 1;
                }
                Err(ToolsError::Outside { .. } | ToolsError::Link { .. }) => seen_link += 1,
                Err(_) => refused += 1,
            }
            if round % 3 == 0 {
                match write(&workspace, "swap/file") {
                    Ok(_) => written += 1,
                    Err(_) => refused += 1,
                }
            }
            let mut names = Vec::new();
            let start = workspace.locate("").expect("inside");
            let _ = workspace.walk(&start, 9, &CancellationToken::new(), &mut |found| {
                names.push(found.path.as_str().to_owned());
                if let Ok((mut file, _)) = found.open() {
                    let mut text = String::new();
                    let _ = file.read_to_string(&mut text);
                    assert_ne!(text, "secret", "{}", found.path.as_str());
                }
                Ok(std::ops::ControlFlow::Continue(()))
            });
            assert!(!names.iter().any(|name| name.ends_with("canary")), "{names:?}");
        }
        let swaps = swapping.stop();
        outside_is_untouched_but_for_the_canary(folder.path());
        assert!(
            swaps >= wanted && ours > 0 && written > 0 && seen_link > 0,
            "the race was on: {swaps} swaps, {ours} read, {written} written, {seen_link} links, {refused} refused"
        );
    }
}

struct Swapping {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Swapping {
    /// How many swaps there were so far.
    fn count(&self) -> u64 {
        self.swaps.load(Ordering::Relaxed)
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the swapping thread did not fail");
        self.swaps.load(Ordering::Relaxed)
    }
}

fn fixture_with_swaps() -> impl Iterator<Item = (TempDir, Workspace, Swapping)> {
    [0, 1].into_iter().map(|which| {
        let (folder, workspaces) = fixture();
        let inside = folder.path().join("inside");
        std::fs::write(folder.path().join("outside/canary"), "canary").expect("written");
        // The link that is swapped with the folder lies outside, where the walk does not find it otherwise.
        let (link, swap) = (folder.path().join("link"), inside.join("swap"));
        symlink(folder.path().join("outside"), &link).expect("a link is made");
        std::fs::rename(inside.join("real"), &swap).expect("renamed");
        let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (stop.clone(), swaps.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let exchanged = rustix::fs::renameat_with(CWD, &link, CWD, &swap, RenameFlags::EXCHANGE);
                exchanged.expect("both are always there");
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let [confined, plain] = workspaces;
        (folder, if which == 0 { confined } else { plain }, Swapping { stop, swaps, thread })
    })
}

fn outside_is_untouched_but_for_the_canary(folder: &Path) {
    std::fs::remove_file(folder.join("outside/canary")).expect("it is there");
    outside_is_untouched(folder);
}

/// With both lookups, closed places are not read, changed, reported or created; the others are.
#[test]
fn what_is_closed_is_closed_by_whatever_path() {
    for lookup in [true, false] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let inside = folder.path().join("inside");
        for made in ["store/journal", "real", "config"] {
            std::fs::create_dir_all(inside.join(made)).expect("folders are made");
        }
        for (path, content) in [
            ("store/token", "secret"),
            ("store/journal/1", "secret"),
            ("real/file", "ours"),
            ("named", "secret"),
        ] {
            std::fs::write(inside.join(path), content).expect("written");
        }
        for (target, name) in [
            ("../store", "real/link"),
            ("link/token", "real/token"),
            ("./../real/./token", "real/again"),
            ("file", "real/friend"),
            ("real/../store/journal", "journal"),
        ] {
            symlink(target, inside.join(name)).expect("a link is made");
        }
        std::fs::hard_link(inside.join("named"), inside.join("real/hard")).expect("a link is made");
        let closed =
            ["store", "named", "config/later/file", "real/link/nothing/yet"].map(|name| inside.join(name));
        let workspace = Workspace::open_with(&inside, closed.to_vec(), lookup).expect("it exists");
        let paths = [
            "store/token", "store/journal/1", "store/nothing", "store/nothing/at/all", "real/link/token",
            "real/link/nothing", "real/token", "real/again", "journal/1", "named", "real/hard",
        ];
        let is_refused = |path: &str, found: Result<String, ToolsError>| match found {
            Err(ToolsError::Closed { .. }) => {}
            // Without the kernel's lookup no link is followed at all.
            Err(ToolsError::Link { .. }) if !lookup && !path.starts_with("store") => {}
            found => panic!("{lookup} {path}: {found:?}"),
        };
        for path in paths {
            is_refused(path, read(&workspace, path));
            match write(&workspace, path) {
                Err(ToolsError::Closed { .. } | ToolsError::Link { .. }) => {}
                found => panic!("{lookup} {path}: {found:?}"),
            }
        }
        for path in ["config/later", "config/later/file", "config/LATER/file"] {
            match write(&workspace, path) {
                Err(ToolsError::Closed { .. }) => {}
                found => panic!("{lookup} {path}: {found:?}"),
            }
        }
        assert_eq!(std::fs::read_dir(inside.join("config")).expect("it exists").count(), 0);
        // It stays closed under another name, and so does what now is in its place.
        std::fs::rename(inside.join("store"), inside.join("moved")).expect("renamed");
        is_refused("store", read(&workspace, "moved/token"));
        std::fs::create_dir(inside.join("store")).expect("made");
        std::fs::write(inside.join("store/token"), "secret").expect("written");
        is_refused("store", read(&workspace, "store/token"));
        let mut met = Vec::new();
        let start = workspace.locate("").expect("the workspace");
        let cancel = CancellationToken::new();
        let walked = workspace.walk(&start, 9, &cancel, &mut |found| {
            met.push(found.path.as_str().to_owned());
            Ok(std::ops::ControlFlow::Continue(()))
        });
        walked.expect("it can be walked");
        assert_eq!(
            met,
            [
                "config", "journal", "real", "real/again", "real/file", "real/friend", "real/link",
                "real/token"
            ]
        );
        assert_eq!(read(&workspace, "real/file").expect("it is open"), "ours");
        if lookup {
            assert_eq!(read(&workspace, "real/friend").expect("it is open"), "ours");
        }
        assert!(!write(&workspace, "config/other").expect("it may be made"));
    }
}

#[test]
fn no_workspace_is_in_a_closed_place() {
    let (folder, [workspace, _]) = fixture();
    for closed in [workspace.root().to_owned(), folder.path().to_owned()] {
        let error = Workspace::open_without(workspace.root(), [closed]).expect_err("it is closed");
        assert!(error.to_string().contains("not accessible to tools"), "{error}");
    }
    Workspace::open_without(workspace.root(), [folder.path().join("outside")]).expect("it is beside");
}
