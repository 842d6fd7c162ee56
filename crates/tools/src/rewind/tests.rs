//! The changes of calls can be reversed, and no data of the user is lost: random histories beside a model,
//! crashes at each step, and links that are swapped meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use greenroom_kernel::Touch;
use greenroom_kernel::random::Random;
use rustix::fs::{CWD, RenameFlags};
use tempfile::TempDir;

use super::*;
use crate::workspace::{Replacement, WorkspacePath};
use crate::{ToolOutput, ToolsError, Workspace};

mod histories;

/// A workspace, and a history beside it.
struct Fixture {
    folder: TempDir,
    workspace: Workspace,
    history: FileHistory,
}

impl Fixture {
    fn new(limits: Limits) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join("work")).expect("made");
        let workspace = Workspace::open(folder.path().join("work")).expect("it exists");
        let history = open(folder.path(), limits);
        Self { folder, workspace, history }
    }

    /// As after a crash: nothing is in memory.
    fn reopen(&mut self, limits: Limits) {
        self.history = open(self.folder.path(), limits);
        self.workspace = Workspace::open(self.folder.path().join("work")).expect("it exists");
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("work").join(path)
    }

    fn locate(&self, path: &str) -> WorkspacePath {
        self.workspace.locate(path).expect("inside")
    }

    fn write(&self, path: &str, content: &str, entry: u64) -> Result<(), ToolsError> {
        let (path, files) = (self.locate(path), self.history.call("s", 0, entry));
        self.workspace.replace(&path, &Replacement::new(content.as_bytes()), &files)?;
        self.workspace.touched(ToolOutput::default(), &path, Touch::Modified);
        Ok(())
    }

    /// Runs a command, which is a function here.
    fn command(&self, entry: u64, run: impl FnOnce()) -> Vec<String> {
        let before = self.workspace.snapshot();
        let files = self.history.call("s", 0, entry);
        let files = CommandFiles::before(&self.workspace, &before, &files).expect("they are kept");
        run();
        let not_kept = files.after(&self.workspace, &before).expect("it is recorded");
        let _ = self.workspace.changed_since(&before, ToolOutput::default());
        not_kept
    }

    fn rewind(&self, to: Moment, entry: u64, overwrites: bool) -> Vec<(String, FileAction)> {
        let dry = RewindFiles { to, entry, overwrites, dry_run: true };
        let planned = self.history.rewind("s", dry).expect("the journal can be read");
        let done =
            self.history.rewind("s", RewindFiles { dry_run: false, ..dry }).expect("the journal can be read");
        assert_eq!(planned, done, "what was announced was done");
        done.into_iter().map(|file| (file.path, file.action)).collect()
    }

    fn content(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.at(path)).ok()
    }
}

fn open(folder: &Path, limits: Limits) -> FileHistory {
    FileHistory::open(&folder.join("files"), limits, Vec::new()).expect("it can be made")
}

fn restored(path: &str) -> (String, FileAction) {
    (path.to_owned(), FileAction::Restore)
}

#[test]
fn what_calls_changed_is_brought_back_and_the_rewind_too() {
    let fixture = Fixture::new(Limits::default());
    std::fs::write(fixture.at("a"), "one").expect("written");
    std::fs::set_permissions(fixture.at("a"), std::fs::Permissions::from_mode(0o751)).expect("ours");
    fixture.write("a", "two", 2).expect("written");
    fixture.write("new/b", "b", 4).expect("written");
    fixture.write("a", "three", 6).expect("written");
    fixture.command(8, || {
        std::fs::remove_file(fixture.at("a")).expect("it is there");
        std::fs::write(fixture.at("new/made"), "by a command").expect("written");
    });
    let removed = |path: &str| (path.to_owned(), FileAction::Remove);
    let wanted = [restored("a"), removed("new/b"), removed("new/made")];
    assert_eq!(fixture.rewind(Moment::Before(2), 9, false), wanted);
    let mode = fixture.at("a").metadata().expect("it is there").mode() & 0o777;
    assert_eq!((fixture.content("a").as_deref(), mode), (Some("one"), 0o751));
    assert_eq!((fixture.content("new/b"), fixture.content("new/made")), (None, None));
    assert_eq!(fixture.rewind(Moment::Before(2), 10, false), [], "it is done");
    // Forward again, to three moments.
    let wanted = [removed("a"), restored("new/b"), restored("new/made")];
    assert_eq!(fixture.rewind(Moment::After(9), 11, false), wanted);
    assert_eq!(fixture.content("new/made").as_deref(), Some("by a command"));
    fixture.rewind(Moment::After(7), 12, false);
    assert_eq!(fixture.content("a").as_deref(), Some("three"));
    fixture.rewind(Moment::After(3), 13, false);
    assert_eq!((fixture.content("a").as_deref(), fixture.content("new/b")), (Some("two"), None));
}

#[test]
fn what_others_changed_is_overwritten_only_on_demand_and_kept_before() {
    let fixture = Fixture::new(Limits::default());
    std::fs::write(fixture.at("a"), "one").expect("written");
    fixture.write("a", "two", 2).expect("written");
    std::fs::write(fixture.at("a"), "the user's").expect("written");
    let theirs = [("a".to_owned(), FileAction::ChangedByOthers)];
    assert_eq!(fixture.rewind(Moment::Before(2), 3, false), theirs);
    assert_eq!(fixture.content("a").as_deref(), Some("the user's"));
    assert_eq!(fixture.rewind(Moment::Before(2), 3, true), [restored("a")]);
    assert_eq!(fixture.content("a").as_deref(), Some("one"));
    assert_eq!(fixture.rewind(Moment::After(3), 4, false), [restored("a")]);
    assert_eq!(fixture.content("a").as_deref(), Some("the user's"), "the rewind was undone");
    // A folder and a link are nobody's to overwrite.
    for make in [|path: &Path| symlink("b", path), |path: &Path| std::fs::create_dir(path)] {
        std::fs::remove_file(fixture.at("a")).expect("it is there");
        make(&fixture.at("a")).expect("made");
        for overwrites in [false, true] {
            let found = fixture.rewind(Moment::Before(2), 5, overwrites);
            assert!(matches!(&found[..], [(_, FileAction::Failed { .. })]), "{found:?}");
        }
    }
}

#[test]
fn what_a_command_changed_unseen_is_said() {
    let fixture = Fixture::new(Limits::default());
    for (path, content) in [("read", "r"), ("unread", "u"), ("gone", "g"), ("same", "s")] {
        std::fs::write(fixture.at(path), content).expect("written");
    }
    fixture.workspace.touched(ToolOutput::default(), &fixture.locate("read"), Touch::Read);
    let not_kept = fixture.command(2, || {
        std::fs::write(fixture.at("read"), "changed").expect("written");
        std::fs::write(fixture.at("unread"), "changed").expect("written");
        std::fs::remove_file(fixture.at("gone")).expect("it is there");
    });
    assert_eq!(not_kept, ["gone", "unread"]);
    let unknown = |path: &str| (path.to_owned(), FileAction::NotKept { why: NotKept::Unknown });
    let wanted = [unknown("gone"), restored("read"), unknown("unread")];
    assert_eq!(fixture.rewind(Moment::Before(2), 3, true), wanted);
    assert_eq!((fixture.content("read").as_deref(), fixture.content("gone")), (Some("r"), None));
    // What one command changed is kept before the next one.
    assert_eq!(
        fixture.command(4, || std::fs::write(fixture.at("unread"), "again").expect("written")),
        [""; 0]
    );
    assert_eq!(fixture.rewind(Moment::Before(4), 5, false), [restored("unread")]);
    assert_eq!(fixture.content("unread").as_deref(), Some("changed"));
}

/// Within a tick of the file system's clock, a file can change without a new time.
/// A name with blanks around it, or in a folder `~`, is recorded as it is, and is not taken for another file's.
#[test]
fn odd_names_of_a_commands_files_are_theirs_alone() {
    for name in ["a ", " a", "~", " ~"] {
        let fixture = Fixture::new(Limits::default());
        std::fs::write(fixture.at("a"), "the user's").expect("written");
        fixture.command(2, || std::fs::write(fixture.at(name), "by a command").expect("written"));
        assert_eq!(fixture.rewind(Moment::Before(2), 3, false), [(name.to_owned(), FileAction::Remove)]);
        assert_eq!((fixture.content("a").as_deref(), fixture.content(name)), (Some("the user's"), None));
        assert_eq!(fixture.rewind(Moment::After(2), 4, false), [restored(name)]);
        assert_eq!(fixture.content(name).as_deref(), Some("by a command"));
    }
}

#[test]
fn a_change_that_does_not_show_in_the_version_is_found() {
    let fixture = Fixture::new(Limits::default());
    std::fs::write(fixture.at("a"), "one").expect("written");
    fixture.write("a", "two", 2).expect("written");
    for (entry, content) in [(4, "abc"), (6, "def")] {
        fixture.command(entry, || {
            let time = fixture.at("a").metadata().expect("it is there").modified().expect("it has one");
            std::fs::write(fixture.at("a"), content).expect("written");
            let file = File::options().append(true).open(fixture.at("a")).expect("it is there");
            file.set_modified(time).expect("ours");
        });
    }
    for (entry, content) in [(6, "abc"), (4, "two"), (2, "one")] {
        assert_eq!(fixture.rewind(Moment::Before(entry), 8, false), [restored("a")]);
        assert_eq!(fixture.content("a").as_deref(), Some(content));
    }
}

/// Calls of sub-agents may change a file at the same time.
#[test]
fn changes_at_the_same_time_are_made_in_the_order_of_their_records() {
    let fixture = Fixture::new(Limits::default());
    std::fs::write(fixture.at("a"), "one").expect("written");
    for round in 0..30 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let fixture = &fixture;
                // A change between the examination and the replacement is refused.
                scope.spawn(move || drop(fixture.write("a", &format!("{round} {thread}"), 2)));
            }
        });
        assert_eq!(fixture.rewind(Moment::Before(2), 3, false), [restored("a")], "round {round}");
        assert_eq!(fixture.content("a").as_deref(), Some("one"));
    }
}

#[test]
fn contents_are_bounded() {
    // Of each limit: what is written over, and what a rewind says.
    let (all, file, run) = (1_000_000, 1_000, 10_000);
    for (limits, sizes, expect) in [
        (Limits::new(all, 10, run), vec![11], vec![Some(NotKept::TooLarge)]),
        (Limits::new(all, 10, run), vec![10], vec![None]),
        (Limits::new(all, file, 25), vec![10, 11, 9, 4], vec![None, None, Some(NotKept::RunFull), None]),
        (
            Limits::new(10_000, 5_000, 20_000),
            vec![4_000, 4_100, 4_200],
            vec![Some(NotKept::Dropped), None, None],
        ),
    ] {
        let fixture = Fixture::new(limits);
        for (number, size) in sizes.iter().enumerate() {
            let path = format!("{number}");
            std::fs::write(fixture.at(&path), path.repeat(*size)).expect("written");
            fixture.write(&path, "", 2).expect("written");
        }
        assert!(fixture.history.bytes() <= limits.total_bytes_max, "{limits:?}");
        let dry = RewindFiles { to: Moment::Before(2), entry: 3, overwrites: false, dry_run: true };
        let found = fixture.history.rewind("s", dry).expect("it can be read");
        let reason = |file: &FileRewind| match &file.action {
            FileAction::Restore => None,
            FileAction::NotKept { why } => Some(*why),
            FileAction::Remove | FileAction::ChangedByOthers | FileAction::Failed { .. } => {
                panic!("{file:?}")
            }
        };
        assert_eq!(found.iter().map(reason).collect::<Vec<_>>(), expect, "{limits:?}");
    }
}

#[test]
fn sessions_are_forgotten_and_their_contents_with_them() {
    let mut fixture = Fixture::new(Limits::default());
    for (session, path) in [("s", "a"), ("other", "b"), ("s", "both"), ("other", "both2")] {
        std::fs::write(fixture.at(path), if path.starts_with("both") { "same" } else { path })
            .expect("written");
        let files = fixture.history.call(session, 0, 2);
        let replaced = fixture.workspace.replace(&fixture.locate(path), &Replacement::new(b"new"), &files);
        replaced.expect("it can be replaced");
    }
    let bytes_in = |fixture: &Fixture, folder: &str| {
        let files = std::fs::read_dir(fixture.folder.path().join("files").join(folder)).expect("it exists");
        files.map(|file| file.expect("a file").metadata().expect("it is there").len()).sum::<u64>()
    };
    let bytes = |fixture: &Fixture| {
        let (contents, journals) = (bytes_in(fixture, "contents"), bytes_in(fixture, "sessions"));
        assert_eq!(fixture.history.bytes(), contents + journals, "both count");
        contents
    };
    assert_eq!(bytes(&fixture), 6);
    fixture.history.forget("s").expect("it can be removed");
    assert_eq!(fixture.rewind(Moment::Before(0), 3, false), []);
    fixture.history.clean(|_| true).expect("it can be read");
    assert_eq!(bytes(&fixture), 5, "the other session has `same`, too");
    fixture.reopen(Limits::default());
    assert_eq!(bytes(&fixture), 5);
    fixture.history.clean(|session| session != "other").expect("it can be read");
    assert_eq!(bytes(&fixture), 0);
    let journals = std::fs::read_dir(fixture.folder.path().join("files/sessions")).expect("it exists");
    assert_eq!(journals.count(), 0);
}

/// The records of many changes are bounded, too; what they knew is said to be dropped, and never guessed.
#[test]
fn records_are_bounded() {
    let limits = Limits::new(20_000, 1_000, 100_000);
    let mut fixture = Fixture::new(limits);
    let put = |fixture: &Fixture, session: &str, path: &str, content: &str, entry: u64| {
        let files = fixture.history.call(session, entry, entry);
        let replaced =
            fixture.workspace.replace(&fixture.locate(path), &Replacement::new(content.as_bytes()), &files);
        replaced.expect("it can be replaced");
    };
    for path in ["old", "a", "b"] {
        std::fs::write(fixture.at(path), "the user's").expect("written");
    }
    put(&fixture, "old", "old", "one", 2);
    let mut most = 0;
    for round in 0..300 {
        put(&fixture, "s", ["a", "b"][round % 2], &format!("{round}"), 2 + round as u64);
        most = most.max(fixture.history.bytes());
    }
    assert!(most <= limits.total_bytes_max, "{most}");
    for is_reopened in [false, true] {
        if is_reopened {
            fixture.reopen(limits);
        }
        let dropped = |path: &str| (path.to_owned(), FileAction::NotKept { why: NotKept::Dropped });
        assert_eq!(fixture.rewind(Moment::Before(0), 400, true), [dropped("a"), dropped("b")]);
        let wanted = RewindFiles { to: Moment::Before(0), entry: 9, overwrites: true, dry_run: false };
        let old = fixture.history.rewind("old", wanted).expect("it can be read");
        assert!(matches!(&old[..], [FileRewind { action: FileAction::NotKept { .. }, .. }]), "{old:?}");
        assert_eq!(fixture.content("a").as_deref(), Some("298"), "nothing is guessed");
        // What was changed last is still known.
        assert_eq!(fixture.rewind(Moment::After(500), 501, false), []);
    }
    // A change from now on can be taken back.
    put(&fixture, "s", "a", "last", 600);
    assert_eq!(fixture.rewind(Moment::Before(600), 601, false), [restored("a")]);
    assert_eq!(fixture.content("a").as_deref(), Some("298"));
}

#[test]
fn closed_and_protected_files_are_never_brought_back() {
    let fixture = Fixture::new(Limits::default());
    let root = fixture.workspace.root().to_owned();
    for path in ["greenroom.yaml", ".git/config", "closed"] {
        std::fs::create_dir_all(fixture.at(path).parent().expect("it has one")).expect("made");
        std::fs::write(fixture.at(path), "one").expect("written");
        let files = fixture.history.call("s", 0, 2);
        let (before, after) = (FileState::Absent, FileState::of(b"one", 0o644));
        files.changes(&root, path, &before, &after).expect("it is recorded");
    }
    // A journal that says so is not believed either.
    let files = fixture.history.call("s", 0, 2);
    files.changes(&root, "../outside", &FileState::Absent, &FileState::Absent).expect("it is recorded");
    let history = FileHistory::open(
        &fixture.folder.path().join("files"),
        Limits::default(),
        vec![fixture.at("closed")],
    )
    .expect("it exists");
    for dry_run in [true, false] {
        let wanted = RewindFiles { to: Moment::Before(2), entry: 3, overwrites: true, dry_run };
        let found = history.rewind("s", wanted).expect("it can be read");
        assert_eq!(found.len(), 4);
        for file in found {
            assert!(matches!(file.action, FileAction::Failed { .. }), "{file:?}");
        }
    }
    assert!(["greenroom.yaml", ".git/config", "closed"].iter().all(|path| fixture.at(path).exists()));
}

#[test]
fn a_line_that_a_crash_cut_off_spoils_no_other() {
    let mut fixture = Fixture::new(Limits::default());
    std::fs::write(fixture.at("a"), "one").expect("written");
    fixture.write("a", "two", 2).expect("written");
    let journal = std::fs::read_dir(fixture.folder.path().join("files/sessions"))
        .expect("it exists")
        .next()
        .expect("there is one")
        .expect("it can be read")
        .path();
    let whole = std::fs::read(&journal).expect("it is there");
    let last = whole.iter().rposition(|byte| *byte == b'{').expect("a record");
    // Every length that the next record could have been cut to.
    for cut in 0..whole.len() - last {
        let torn = [&whole[..], b"\n", &whole[last - 9..last + cut]].concat();
        std::fs::write(&journal, torn).expect("written");
        fixture.reopen(Limits::default());
        fixture.write("a", "three", 4).expect("written");
        assert_eq!(fixture.rewind(Moment::After(3), 5, false), [restored("a")], "{cut}");
        assert_eq!(fixture.content("a").as_deref(), Some("two"), "{cut}");
    }
}

/// While a folder and a link to the outside are swapped, rewinds change nothing outside, and write or remove
/// nothing that somebody else put there.
#[test]
fn swapped_links_never_lead_outside() {
    let fixture = Fixture::new(Limits::default());
    let (outside, link, swap) =
        (fixture.folder.path().join("outside"), fixture.folder.path().join("link"), fixture.at("swap"));
    std::fs::create_dir(&outside).expect("made");
    std::fs::write(outside.join("file"), "secret").expect("written");
    std::fs::create_dir(&swap).expect("made");
    std::fs::write(swap.join("file"), "one").expect("written");
    symlink(&outside, &link).expect("a link is made");
    let wanted = crate::by_hand::wanted("GREENROOM_LINK_SWAPS", 1_000);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut done, mut refused) = (0, 0);
    let swaps = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let mut swaps = 0_u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) || swaps < wanted {
                let exchanged = rustix::fs::renameat_with(CWD, &link, CWD, &swap, RenameFlags::EXCHANGE);
                exchanged.expect("both are always there");
                swaps += 1;
            }
            swaps
        });
        for round in 0.. {
            if round >= 300 && done >= 20 && refused >= 20 {
                break;
            }
            let entry = 2 * round;
            if fixture.write("swap/file", &format!("{round}"), entry).is_ok() {
                let to = if round % 3 == 0 { Moment::Before(0) } else { Moment::Before(entry) };
                let wanted = RewindFiles { to, entry, overwrites: true, dry_run: false };
                for file in fixture.history.rewind("s", wanted).expect("it can be read") {
                    match file.action {
                        FileAction::Restore | FileAction::Remove => done += 1,
                        FileAction::Failed { .. }
                        | FileAction::NotKept { .. }
                        | FileAction::ChangedByOthers => {
                            refused += 1;
                        }
                    }
                }
            } else {
                refused += 1;
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        swapping.join().expect("the swapping thread did not fail")
    });
    assert!(swaps >= wanted && done > 0 && refused > 0, "{swaps} swaps, {done} done, {refused} refused");
    assert_eq!(std::fs::read_to_string(outside.join("file")).expect("it is there"), "secret");
    assert_eq!(std::fs::read_dir(&outside).expect("it is there").count(), 1);
}

/// Somebody swaps the file itself with another one while it is replaced: what was not examined and kept is not
/// replaced, so that no content is lost.
#[test]
fn a_file_that_is_swapped_while_it_is_replaced_is_not_lost() {
    let fixture = Fixture::new(Limits::default());
    let (here, there) = (fixture.at("here"), fixture.folder.path().join("there"));
    let mut contents: BTreeSet<String> = ["a", "b"].map(str::to_owned).into();
    std::fs::write(&here, "a").expect("written");
    std::fs::write(&there, "b").expect("written");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut replaced, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let exchanged = rustix::fs::renameat_with(CWD, &here, CWD, &there, RenameFlags::EXCHANGE);
                exchanged.expect("both are always there");
            }
        });
        for round in 0.. {
            if round >= 100 && replaced >= 20 && refused >= 20 {
                break;
            }
            match fixture.write("here", &format!("{round}"), 2 * round) {
                Ok(()) => {
                    contents.insert(format!("{round}"));
                    replaced += 1;
                }
                Err(ToolsError::Refused(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        swapping.join().expect("the swapping thread did not fail");
    });
    let kept = fixture.history.0.contents.lock();
    // A swap between the exchange and its reversal leaves somebody else's file under the temporary name.
    let names =
        std::fs::read_dir(fixture.at("")).expect("it exists").map(|file| file.expect("a file").path());
    let present: Vec<String> =
        names.chain([there]).map(|path| std::fs::read_to_string(path).expect("it is there")).collect();
    for content in contents {
        let is_kept = kept.has(&ContentsHash::of(content.as_bytes()));
        assert!(is_kept || present.contains(&content), "{content:?} is lost; {replaced}, {refused}");
    }
}
