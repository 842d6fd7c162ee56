//! Random histories beside a model: edits, commands, the user's own changes, rewinds to any moment, and crashes
//! at any step. After each step the files are those of the model.

use super::*;

/// The least number of steps of each kind that all histories together must have.
const STEPS_MIN: u64 = 20;
const PATHS: [&str; 5] = ["a", "b", "deep/c", "deep/d", "e"];

/// How a file is described by the model: its content, if there is one.
type Content = Option<String>;

/// A change that was recorded.
struct Recorded {
    key: u64,
    path: &'static str,
    before: Content,
    /// `None` for a command that was interrupted: it may have changed the file, or not.
    after: Option<Content>,
}

#[derive(Default)]
struct Model {
    disk: BTreeMap<&'static str, String>,
    recorded: Vec<Recorded>,
    /// What each moment was, as long as nobody else changed anything.
    moments: BTreeMap<u64, BTreeMap<&'static str, String>>,
    /// Whether somebody else, or an interrupted command, has changed a file.
    is_mixed: bool,
    /// What was on the disk and was overwritten or removed by us.
    replaced: BTreeSet<String>,
}

impl Model {
    fn content(&self, path: &str) -> Content {
        self.disk.get(path).cloned()
    }

    fn set(&mut self, path: &'static str, content: Content) {
        match content {
            Some(content) => self.disk.insert(path, content),
            None => self.disk.remove(path),
        };
    }

    fn change(&mut self, key: u64, path: &'static str, after: Content, applies: bool) {
        let before = self.content(path);
        self.replaced.extend(before.clone());
        self.recorded.push(Recorded { key, path, before, after: Some(after.clone()) });
        if applies {
            self.set(path, after);
        }
    }

    /// Brings the files back, and returns how many files were left because others changed them.
    fn rewind(&mut self, first_key: u64, entry: u64, overwrites: bool) -> usize {
        let mut left = 0;
        for path in PATHS {
            let of_path: Vec<&Recorded> = self.recorded.iter().filter(|change| change.path == path).collect();
            let Some(first) = of_path.iter().position(|change| change.key >= first_key) else { continue };
            let (target, present) = (of_path[first].before.clone(), self.content(path));
            // From each of the later changes to the next, and to now, nobody else changed the file.
            let later = &of_path[first..];
            let is_ours = later.iter().any(|change| change.after.is_some())
                && later.iter().enumerate().all(|(index, change)| {
                    let next = later.get(index + 1).map_or(&present, |next| &next.before);
                    change.before == *next || change.after.as_ref() == Some(next)
                });
            if present == target {
                continue;
            }
            if is_ours || overwrites {
                self.change(2 * entry + 1, path, target, true);
            } else {
                left += 1;
            }
        }
        left
    }
}

/// What the steps of all histories were.
#[derive(Debug, Default)]
struct Counts {
    writes: u64,
    commands: u64,
    others: u64,
    rewinds: u64,
    left: u64,
    crashes: u64,
    torn: u64,
    killed: u64,
    moments: u64,
}

struct History {
    fixture: Fixture,
    model: Model,
    random: Random,
    /// Whether nobody else changes anything, so that the files are those of each moment.
    is_calm: bool,
    entry: u64,
    next: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut history = Self {
            fixture: Fixture::new(Limits::default()),
            model: Model::default(),
            random: Random::new(seed),
            is_calm: seed.is_multiple_of(3),
            entry: 1,
            next: 0,
        };
        for path in PATHS {
            if history.random.below(3) > 0 {
                let content = history.content();
                history.put(path, Some(&content));
                history.model.set(path, Some(content));
            }
            // Tools know all files from the start; others have a test of their own.
            let located = history.fixture.locate(path);
            history.fixture.workspace.touched(ToolOutput::default(), &located, Touch::Read);
        }
        history
    }

    /// A content; some of them occur more than once.
    fn content(&mut self) -> String {
        self.next += 1;
        if self.random.below(4) == 0 {
            format!("again {}", self.random.below(3))
        } else {
            format!("{}", self.next)
        }
    }

    fn path(&mut self) -> &'static str {
        PATHS[usize::try_from(self.random.below(PATHS.len() as u64)).expect("small")]
    }

    /// Changes a file behind the history's back.
    fn put(&self, path: &str, content: Option<&str>) {
        let at = self.fixture.at(path);
        match content {
            Some(content) => {
                std::fs::create_dir_all(at.parent().expect("it has one")).expect("made");
                // A new file: a change of the same length within a tick of the clock would not be seen.
                let _ = std::fs::remove_file(&at);
                std::fs::write(at, content).expect("written");
            }
            None => {
                let _ = std::fs::remove_file(at);
            }
        }
    }

    fn crash(&mut self) {
        self.fixture.reopen(Limits::default());
        for path in PATHS {
            let located = self.fixture.locate(path);
            self.fixture.workspace.touched(ToolOutput::default(), &located, Touch::Read);
        }
    }

    fn step(&mut self, counts: &mut Counts) {
        let entry = self.entry;
        self.entry += 2;
        self.model.moments.insert(entry - 1, self.model.disk.clone());
        match self.random.below(13) {
            0..=3 => {
                let (path, content) = (self.path(), self.content());
                self.fixture.write(path, &content, entry).expect("it can be written");
                self.model.change(2 * entry, path, Some(content), true);
                counts.writes += 1;
            }
            4 | 5 => {
                let changes = self.changes();
                let of_fixture = &self.fixture;
                let not_kept = of_fixture.command(entry, || {
                    changes.iter().for_each(|(path, content)| self.put(path, content.as_deref()));
                });
                assert_eq!(not_kept, Vec::<String>::new());
                for (path, content) in changes {
                    if self.model.content(path) != content {
                        self.model.change(2 * entry, path, content, true);
                    }
                }
                counts.commands += 1;
            }
            6 if !self.is_calm => {
                let (path, content) = (self.path(), self.content());
                let content = Some(content).filter(|_| self.random.below(4) > 0);
                self.put(path, content.as_deref());
                self.model.is_mixed |= self.model.content(path) != content;
                self.model.set(path, content);
                counts.others += 1;
            }
            7 => {
                self.crash();
                counts.crashes += 1;
            }
            8 => {
                self.cut_off(entry);
                counts.torn += 1;
            }
            9 if !self.is_calm => {
                self.kill_command(entry);
                counts.killed += 1;
            }
            _ => self.rewind(entry, counts),
        }
    }

    /// A crash while a command runs.
    fn kill_command(&mut self, entry: u64) {
        let changes = self.changes();
        let before = self.fixture.workspace.snapshot();
        let files = self.fixture.history.call("s", 0, entry);
        drop(CommandFiles::before(&self.fixture.workspace, &before, &files).expect("they are kept"));
        for path in PATHS {
            let before = self.model.content(path);
            self.model.recorded.push(Recorded { key: 2 * entry, path, before, after: None });
        }
        for (path, content) in changes {
            self.put(path, content.as_deref());
            self.model.is_mixed |= self.model.content(path) != content;
            self.model.set(path, content);
        }
        self.crash();
    }

    /// What a command does.
    fn changes(&mut self) -> BTreeMap<&'static str, Content> {
        let count = 1 + self.random.below(3);
        (0..count)
            .map(|_| {
                let content = self.content();
                (self.path(), Some(content).filter(|_| self.random.below(4) > 0))
            })
            .collect()
    }

    /// A crash in the middle of a change: its content is kept, or also recorded, and the file is the old one.
    fn cut_off(&mut self, entry: u64) {
        let (path, content) = (self.path(), self.content());
        let files = self.fixture.history.call("s", 0, entry);
        let located = self.fixture.locate(path);
        let kept = self.fixture.workspace.keep_now(&located, &files).expect("it is kept");
        let (before, _) = kept.expect("it is a file, or nothing");
        if self.random.below(2) == 0 {
            let after = FileState::of(content.as_bytes(), 0o644);
            let root = self.fixture.workspace.root().to_owned();
            files.changes(&root, path, &before, &after).expect("it is recorded");
            self.model.change(2 * entry, path, Some(content), false);
        }
        self.crash();
    }

    fn rewind(&mut self, entry: u64, counts: &mut Counts) {
        let (to, overwrites) = (self.random.below(entry), self.random.below(4) == 0);
        let (moment, first_key) = match self.random.below(2) {
            0 => (Moment::Before(to), 2 * to),
            _ => (Moment::After(to), 2 * to + 1),
        };
        let newest = entry - 1;
        let found = self.fixture.rewind(moment, newest, overwrites);
        let left = self.model.rewind(first_key, newest, overwrites);
        let is_left = |(_, action): &&(String, FileAction)| *action == FileAction::ChangedByOthers;
        assert_eq!(found.iter().filter(is_left).count(), left, "{found:?}");
        let is_done = |(_, action): &(String, FileAction)| {
            matches!(action, FileAction::Restore | FileAction::Remove | FileAction::ChangedByOthers)
        };
        assert!(found.iter().all(is_done), "{found:?}");
        counts.rewinds += 1;
        counts.left += left as u64;
        // Without changes of others, all files are as they were at that moment.
        if !self.model.is_mixed
            && matches!(moment, Moment::After(_))
            && let Some(then) = self.model.moments.get(&to)
        {
            assert_eq!(&self.model.disk, then, "the model is right about the moment {to}");
            counts.moments += 1;
        }
    }

    fn check(&self) {
        for path in PATHS {
            assert_eq!(self.fixture.content(path), self.model.content(path), "{path}");
        }
        let contents = self.fixture.history.0.contents.lock();
        for content in &self.model.replaced {
            assert!(contents.has(&ContentsHash::of(content.as_bytes())), "{content:?} is kept");
        }
    }
}

/// `GREENROOM_REWINDS=500 cargo nextest run -p greenroom-tools histories` is the long form; a failure names its seed.
#[test]
fn histories_agree_with_the_model() {
    let mut counts = Counts::default();
    for seed in 0..crate::by_hand::wanted("GREENROOM_REWINDS", 24) {
        let case = std::panic::catch_unwind(|| {
            let (mut history, mut counts) = (History::new(seed), Counts::default());
            for _ in 0..40 {
                history.step(&mut counts);
                history.check();
            }
            counts
        });
        let Ok(of_case) = case else { panic!("seed {seed} failed") };
        counts.writes += of_case.writes;
        counts.commands += of_case.commands;
        counts.others += of_case.others;
        counts.rewinds += of_case.rewinds;
        counts.left += of_case.left;
        counts.crashes += of_case.crashes;
        counts.torn += of_case.torn;
        counts.killed += of_case.killed;
        counts.moments += of_case.moments;
    }
    let Counts { writes, commands, others, rewinds, left, crashes, torn, killed, moments } = counts;
    for count in [writes, commands, others, rewinds, left, crashes, torn, killed, moments] {
        assert!(count >= STEPS_MIN, "{counts:?}");
    }
}
