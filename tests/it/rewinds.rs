//! Going back in a session, with the files: what a run, its commands and its sub-agents changed, and nothing of
//! anybody else's. Random histories of sessions beside a model.

use std::collections::BTreeMap;
use std::path::Path;

use greenroom::EntryId;
use greenroom::files::{FileAction, FileHistory, Limits, Rewind, Rewound};
use greenroom::prelude::*;
use greenroom_kernel::Message;
use greenroom_kernel::random::Random;
use greenroom_simulator::scripts::{ByPurpose, Function};
use greenroom_simulator::{Answer, CallInfo, SeenRequest, Simulator, Summariser};
use greenroom_tools::Workspace;
use greenroom_tools::builtin::bash;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{agent, simulator};

/// The files of a workspace.
type Files = BTreeMap<String, String>;

/// A prompt, and the files before it.
type Turn = (String, Files);
type Turns = Vec<Turn>;

/// Calls the tools that the prompt names, in one answer: a prompt is a list of pairs of a tool and its arguments.
fn as_prompted(request: &SeenRequest, _call: CallInfo) -> Answer {
    let last = request.messages.last().expect("a request has messages");
    let Message::User(_) = &**last else { return Answer::text("done") };
    let Ok(calls) = serde_json::from_str::<Vec<(String, Value)>>(&request.last_user_text()) else {
        return Answer::text("done");
    };
    let mut calls = calls.into_iter();
    let Some((name, arguments)) = calls.next() else { return Answer::text("done") };
    let first = Answer::call(name, &arguments);
    calls.fold(first, |answer, (name, arguments)| answer.and_call(name, &arguments))
}

struct Fixture {
    folder: TempDir,
    model: Simulator,
    runtime: Runtime,
    session: SessionHandle,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        let model = simulator(ByPurpose::new(Function(as_prompted), Summariser::Obedient), 1_000_000);
        let (runtime, session) = open(folder.path(), &model).await;
        Self { folder, model, runtime, session }
    }

    /// As after the end of the process.
    async fn restart(&mut self) {
        self.runtime.clone().shutdown().await.unwrap();
        (self.runtime, self.session) = open(self.folder.path(), &self.model).await;
    }

    async fn prompt(&self, calls: &Value) {
        assert_eq!(self.session.prompt(calls.to_string()).await.unwrap().text, "done", "{calls}");
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("work").join(path)
    }

    fn put(&self, path: &str, content: &str) {
        let _ = std::fs::remove_file(self.path(path));
        std::fs::write(self.path(path), content).unwrap();
    }

    fn files(&self) -> Files {
        let files =
            std::fs::read_dir(self.folder.path().join("work")).unwrap().map(|file| file.unwrap().path());
        files
            .filter(|path| path.is_file())
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(path).unwrap())
            })
            .collect()
    }

    /// The prompts of the conversation.
    async fn prompts(&self) -> Vec<String> {
        let context = self.session.context().await.unwrap();
        context.iter().filter(|message| message.role() == "user").map(|message| message.text()).collect()
    }

    async fn rewind(&self, rewind: Rewind) -> Rewound {
        let planned = self.session.rewind(rewind.dry_run()).await.unwrap();
        let done = self.session.rewind(rewind).await.unwrap();
        assert_eq!(planned, done, "what was announced was done");
        done
    }
}

async fn open(folder: &Path, model: &Simulator) -> (Runtime, SessionHandle) {
    let history = FileHistory::open(&folder.join("files"), Limits::default(), Vec::new()).unwrap();
    let workspace = Workspace::open(folder.join("work")).unwrap();
    let tools = builtin::files_and_shell(workspace, bash::Options::default());
    let helper = agent(1_000_000).tools(&tools);
    let boss = agent(1_000_000).tools(&tools).sub_agent(sub_agent("helper", helper).describe("Helps."));
    let builder =
        Runtime::builder().provider(model.provider()).data_dir(folder.join("data")).keep_files(history);
    let runtime = builder.start().await.unwrap();
    let session = runtime.open("s", &boss).await.unwrap();
    (runtime, session)
}

fn write(path: &str, content: &str) -> Value {
    json!(["write", { "path": path, "content": content }])
}

fn command(command: &str) -> Value {
    json!(["bash", { "command": command }])
}

fn files<'a>(all: impl IntoIterator<Item = (&'a str, &'a str)>) -> Files {
    all.into_iter().map(|(path, content)| (path.to_owned(), content.to_owned())).collect()
}

#[tokio::test]
async fn the_newest_turn_is_taken_back_with_its_files_or_without() {
    let fixture = Fixture::new().await;
    fixture.put("a", "one");
    let nothing = fixture.rewind(Rewind::last_turn()).await;
    assert_eq!((nothing.prompt, nothing.conversation, nothing.files.len()), (None, false, 0));
    fixture.prompt(&json!([write("a", "two"), write("b", "new")])).await;
    let first = fixture.rewind(Rewind::last_turn().dry_run()).await;
    assert_eq!((first.prompt, first.to, first.files.len()), (Some(EntryId(0)), None, 2));
    fixture.prompt(&json!([write("a", "three"), command("echo made > c; rm b")])).await;
    let after = files([("a", "three"), ("c", "made\n")]);
    assert_eq!(fixture.files(), after);
    // The files alone, and back.
    let rewound = fixture.rewind(Rewind::last_turn().files_only()).await;
    assert_eq!((rewound.conversation, rewound.files.len()), (false, 3), "{rewound:?}");
    assert_eq!(fixture.files(), files([("a", "two"), ("b", "new")]));
    assert_eq!(fixture.prompts().await.len(), 2);
    fixture.rewind(Rewind::to(rewound.from.unwrap()).files_only()).await;
    assert_eq!(fixture.files(), after);
    // The conversation alone.
    let rewound = fixture.rewind(Rewind::last_turn().conversation_only()).await;
    assert_eq!((rewound.to, rewound.files.len()), (first.from, 0));
    assert_eq!((fixture.files(), fixture.prompts().await.len()), (after.clone(), 1));
    // Both, from the other branch.
    fixture.rewind(Rewind::to(rewound.from.unwrap())).await;
    let rewound = fixture.rewind(Rewind::last_turn()).await;
    assert_eq!((rewound.to, rewound.files.len(), rewound.keeps_files), (first.from, 3, true));
    assert_eq!((fixture.files(), fixture.prompts().await.len()), (files([("a", "two"), ("b", "new")]), 1));
    let rewound = fixture.rewind(Rewind::last_turn()).await;
    assert_eq!((rewound.prompt, rewound.to), (Some(EntryId(0)), None));
    assert_eq!((fixture.files(), fixture.prompts().await.len()), (files([("a", "one")]), 0));
    fixture.model.assert_clean();
}

/// What the model still sees does not decide: neither a compaction within the newest turn, nor a pinned older prompt.
#[tokio::test]
async fn the_newest_turn_is_taken_back_after_a_compaction() {
    let fixture = Fixture::new().await;
    fixture.prompt(&json!([write("a", "one")])).await;
    fixture.session.pin(EntryId(0)).await.unwrap();
    fixture.prompt(&json!([write("a", &"two ".repeat(500)), write("b", &"three ".repeat(500))])).await;
    let planned = fixture.rewind(Rewind::last_turn().dry_run()).await;
    let options = CompactOptions { keep_recent: Some(10), ..CompactOptions::default() };
    let compacted = fixture.session.compact(options).await.unwrap();
    assert!(compacted.is_installed(), "{compacted:?}");
    let prompts = fixture.prompts().await;
    assert_eq!(
        prompts.iter().filter(|prompt| prompt.starts_with("[[")).count(),
        1,
        "one was replaced: {prompts:?}"
    );
    let rewound = fixture.rewind(Rewind::last_turn()).await;
    assert_eq!((rewound.prompt, rewound.to, rewound.files.len()), (planned.prompt, planned.to, 2));
    assert_eq!(fixture.files(), files([("a", "one")]));
    fixture.model.assert_clean();
}

#[tokio::test]
async fn what_sub_agents_change_belongs_to_their_callers_turn() {
    let fixture = Fixture::new().await;
    fixture.put("a", "one");
    fixture.prompt(&json!([write("b", "before")])).await;
    let task = json!([write("a", "two"), write("c", "three")]).to_string();
    fixture.prompt(&json!([["helper", { "task": task }]])).await;
    assert_eq!(fixture.files(), files([("a", "two"), ("b", "before"), ("c", "three")]));
    fixture.rewind(Rewind::last_turn()).await;
    assert_eq!(fixture.files(), files([("a", "one"), ("b", "before")]));
    fixture.model.assert_clean();
}

#[tokio::test]
async fn a_run_in_progress_is_not_taken_back_and_a_refused_entry_changes_no_file() {
    let fixture = Fixture::new().await;
    fixture.prompt(&json!([write("a", "one")])).await;
    for refused in [Rewind::to(EntryId(999)), Rewind::to(EntryId(1)), Rewind::to(EntryId(999)).files_only()] {
        let error = fixture.session.rewind(refused).await.unwrap_err();
        assert!(matches!(error, Error::NoEntry { .. } | Error::BranchPoint(_)), "{error}");
    }
    assert_eq!(fixture.files(), files([("a", "one")]));
    let waits = command("touch began; while [ ! -e go ]; do sleep 0.01; done");
    let calls = json!([write("a", "two"), waits]).to_string();
    let run = fixture.session.prompt(calls).start().await.unwrap();
    while !fixture.path("began").exists() {
        tokio::task::yield_now().await;
    }
    let error = fixture.session.rewind(Rewind::last_turn()).await.unwrap_err();
    assert!(matches!(error, Error::NotIdle { .. }), "{error}");
    assert_eq!(fixture.files()["a"], "two");
    fixture.put("go", "");
    run.reply().await.unwrap();
    assert_eq!(fixture.files().len(), 3);
}

#[tokio::test]
async fn a_run_is_aborted_and_taken_back_before_queued_input_begins() {
    let fixture = Fixture::new().await;
    fixture.prompt(&json!([write("a", "one")])).await;
    for (number, dry_run) in [(0, true), (1, false)] {
        let began = format!("began{number}");
        let waits = command(&format!("touch {began}; sleep 100"));
        let run =
            fixture.session.prompt(json!([write("a", "two"), waits]).to_string()).start().await.unwrap();
        while !fixture.path(&began).exists() {
            tokio::task::yield_now().await;
        }
        let later = fixture.session.follow_up(json!([command("cat a >> seen")]).to_string()).await.unwrap();
        let wanted = Rewind::last_turn().aborting();
        let rewound = fixture.session.rewind(if dry_run { wanted.dry_run() } else { wanted }).await.unwrap();
        assert!(matches!(run.reply().await, Err(Error::Aborted)));
        let back: Vec<&str> = rewound.files.iter().map(|file| &*file.path).collect();
        assert_eq!(back, ["a", &began], "{rewound:?}");
        assert!(rewound.conversation);
        later.reply().await.unwrap();
        // The queued input has seen what was there after the rewind.
        let seen = if dry_run { "two" } else { "twoone" };
        assert_eq!(fixture.files()["seen"], seen);
        assert_eq!(fixture.path(&began).exists(), dry_run);
        // For the next round.
        fixture.prompt(&json!([write("a", "one")])).await;
    }
    // Nothing is in progress: it is an ordinary rewind.
    let rewound = fixture.session.rewind(Rewind::last_turn().aborting()).await.unwrap();
    assert!(rewound.prompt.is_some());
}

#[tokio::test]
async fn the_files_of_a_deleted_session_are_forgotten() {
    let fixture = Fixture::new().await;
    fixture.put("a", "one");
    fixture.prompt(&json!([write("a", "two")])).await;
    let kept = || {
        let in_folder = |name: &str| std::fs::read_dir(fixture.folder.path().join(name)).unwrap().count();
        (in_folder("files/contents"), in_folder("files/sessions"))
    };
    assert_eq!(kept(), (1, 1));
    fixture.runtime.delete("s").await.unwrap();
    while kept() != (0, 0) {
        tokio::task::yield_now().await;
    }
}

/// A random history: prompts with edits and commands, changes by the user, rewinds, restarts.
struct History {
    fixture: Fixture,
    random: Random,
    next: u64,
    /// Whether the user changes files, too.
    is_calm: bool,
    /// The conversation: each prompt, and the files before it.
    turns: Turns,
    /// The last entry, the conversation and the files after each turn that ever was.
    ends: Vec<(EntryId, Turns, Files)>,
    /// What the user wrote last.
    users: Files,
}

#[derive(Debug, Default)]
struct Counts {
    turns: u64,
    users: u64,
    undone: u64,
    branches: u64,
    restarts: u64,
    left: u64,
}

impl History {
    async fn new(seed: u64) -> Self {
        Self {
            fixture: Fixture::new().await,
            random: Random::new(seed),
            next: 0,
            is_calm: seed.is_multiple_of(2),
            turns: Vec::new(),
            ends: Vec::new(),
            users: Files::new(),
        }
    }

    fn name(&mut self) -> String {
        ["a", "b", "c", "d"][usize::try_from(self.random.below(4)).unwrap()].to_owned()
    }

    fn content(&mut self) -> String {
        self.next += 1;
        format!("{}", self.next)
    }

    async fn turn(&mut self) {
        let mut calls = Vec::new();
        for _ in 0..=self.random.below(3) {
            let (name, content) = (self.name(), self.content());
            calls.push(match self.random.below(4) {
                0 => command(&format!("rm -f {name}; echo {content} > new{content}")),
                1 => command(&format!("rm -f {name}; echo {content} > {name}")),
                2 => json!(["helper", { "task": json!([write(&name, &content)]).to_string() }]),
                _ => write(&name, &content),
            });
            self.users.remove(&name);
        }
        // Tools know the files before commands change them.
        let reads = ["a", "b", "c", "d"].map(|name| json!(["read", { "path": name }]));
        let calls = json!(reads.into_iter().chain(calls).collect::<Vec<_>>());
        self.turns.push((calls.to_string(), self.fixture.files()));
        self.fixture.prompt(&calls).await;
        let end = self.fixture.session.rewind(Rewind::last_turn().dry_run()).await.unwrap().from.unwrap();
        self.ends.push((end, self.turns.clone(), self.fixture.files()));
    }

    /// Goes back, and compares the files and the conversation with what they have to be.
    async fn back(&mut self, target: Rewind, turns: &[Turn], files: &Files, counts: &mut Counts) {
        let scope = self.random.below(3);
        let (rewind, conversation, with_files) = match scope {
            0 => (target, true, true),
            1 => (target.conversation_only(), true, false),
            _ => (target.files_only(), false, true),
        };
        let before = self.fixture.files();
        let done = self.fixture.rewind(rewind).await;
        if conversation {
            self.turns = turns.to_vec();
        }
        let after = self.fixture.files();
        if !with_files {
            assert_eq!(after, before);
        } else if self.is_calm {
            assert_eq!(&after, files, "{done:?}");
        }
        // What the user wrote last is there, as nobody wanted it overwritten.
        for (name, content) in &self.users {
            assert_eq!(after.get(name), Some(content), "{done:?}");
        }
        counts.left +=
            done.files.iter().filter(|file| file.action == FileAction::ChangedByOthers).count() as u64;
    }

    async fn step(&mut self, counts: &mut Counts) {
        match self.random.below(10) {
            0..=2 => {
                self.turn().await;
                counts.turns += 1;
            }
            3 | 8 | 9 if !self.is_calm => {
                let (name, content) = (self.name(), format!("the user's {}", self.content()));
                self.fixture.put(&name, &content);
                self.users.insert(name, content);
                counts.users += 1;
            }
            4 => {
                self.fixture.restart().await;
                counts.restarts += 1;
            }
            5 | 6 => {
                if let Some((_, files)) = self.turns.last().cloned() {
                    let turns = self.turns[..self.turns.len() - 1].to_vec();
                    self.back(Rewind::last_turn(), &turns, &files, counts).await;
                    counts.undone += 1;
                }
            }
            _ => {
                let count = self.ends.len() as u64;
                if count > 0 {
                    let at = usize::try_from(self.random.below(count)).unwrap();
                    let (end, turns, files) = self.ends[at].clone();
                    self.back(Rewind::to(end), &turns, &files, counts).await;
                    counts.branches += 1;
                }
            }
        }
        let prompts: Vec<&String> = self.turns.iter().map(|(prompt, _)| prompt).collect();
        assert_eq!(self.fixture.prompts().await.iter().collect::<Vec<_>>(), prompts);
    }
}

/// `GREENROOM_REWINDS=500 cargo nextest run -p greenroom-tests rewinds` is the long form. A failure names its
/// seed; `GREENROOM_REWIND_SEED=N` replays it.
#[test]
#[expect(clippy::disallowed_methods, reason = "who runs it says how many")]
fn sessions_and_their_files_agree_with_the_model() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (seeds, only) = (number("GREENROOM_REWINDS").unwrap_or(8), number("GREENROOM_REWIND_SEED"));
    let mut counts = Counts::default();
    for seed in only.map_or(0..seeds, |only| only..only + 1) {
        let case = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio.block_on(async {
                let mut history = History::new(seed).await;
                for _ in 0..24 {
                    history.step(&mut counts).await;
                }
                history.fixture.model.assert_clean();
            });
        }));
        assert!(case.is_ok(), "seed {seed} failed");
    }
    if only.is_some() {
        return;
    }
    let Counts { turns, users, undone, branches, restarts, left } = counts;
    for (count, each) in [(turns, 2), (users, 1), (undone, 1), (branches, 1), (restarts, 1)] {
        assert!(count >= seeds * each, "{counts:?}");
    }
    assert!(left >= seeds / 8, "{counts:?}");
}
