//! A disk that fails while input waits: every waiting caller is answered, accepted input is recorded exactly
//! once, and nothing stays in the inbox of an idle session.

use std::future::IntoFuture;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_provider::{Provider, ProviderError, ReplyStream, Request};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, Summariser,
};
use greenroom_store::faults::{EIO, ENOSPC, Fault, FaultyFiles, MemoryFiles};
use greenroom_store::files::{Files, OpenMode};
use greenroom_store::{Store, StoreOptions};

use tokio::sync::watch;

use crate::support::{agent, simulator};

const WINDOW: u64 = 6_000;
/// Nothing here takes longer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn talk() -> Simulator {
    let runs = Function(|_: &SeenRequest, info: CallInfo| {
        Said::text(format!("answer {} {}", info.session_call, "word ".repeat(100)))
    });
    simulator(ByPurpose::new(runs, Summariser::Obedient), WINDOW)
}

/// A model that answers while its gate is open.
struct Gated {
    model: Arc<dyn Provider>,
    gate: watch::Receiver<bool>,
}

impl Provider for Gated {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        let (model, mut gate) = (Arc::clone(&self.model), self.gate.clone());
        async move {
            let _ = gate.wait_for(|is_open| *is_open).await;
            model.stream(request).await
        }
        .boxed()
    }
}

async fn start(model: Arc<dyn Provider>, dir: &Path, files: &FaultyFiles) -> Runtime {
    let options = StoreOptions { files: Arc::new(files.clone()), ..StoreOptions::new(dir) };
    Runtime::builder().provider(model).store_options(options).start().await.unwrap()
}

/// The user's messages with this text.
async fn said_as(runtime: &Runtime, text: &str) -> Vec<EntryId> {
    let entries = runtime.entries("waiting", EntryId(0)).await.unwrap();
    let is_it = |entry: &&greenroom_kernel::Entry| {
        let message = entry.kind.as_message();
        message.is_some_and(|message| message.role() == "user" && message.text() == text)
    };
    entries.iter().filter(is_it).map(|entry| entry.id).collect()
}

/// How often a user's message with this text is recorded.
async fn said(runtime: &Runtime, text: &str) -> usize {
    said_as(runtime, text).await.len()
}

/// Makes the disk fail in some way during a run, while two prompts and a follow-up wait and a compaction may be
/// in progress. Returns how many prompts failed.
async fn check(fault: Fault, heals: bool, compacts: bool) -> usize {
    let context = format!("{fault:?}, heals: {heals}, compacts: {compacts}");
    let dir = tempfile::tempdir().unwrap();
    let model = talk();
    let files = FaultyFiles::new(Arc::new(MemoryFiles::new()));
    let (gate, gated) = watch::channel(true);
    let runtime = start(Arc::new(Gated { model: model.provider(), gate: gated }), dir.path(), &files).await;
    let session = runtime.open("waiting", &agent(WINDOW)).await.unwrap();
    if compacts {
        for number in 0..4 {
            session.prompt(format!("{number} {}", "thing ".repeat(300))).await.unwrap();
        }
        until(&session, |state| state.status == Status::Idle).await;
    }
    gate.send_replace(false);
    let compaction = compacts.then(|| {
        let session = session.clone();
        let options = CompactOptions { force: true, ..CompactOptions::default() };
        tokio::spawn(async move { session.compact(options).await })
    });
    if compacts {
        until(&session, |state| state.status == Status::Compacting).await;
    }
    let mut prompts = Vec::new();
    for (number, text) in ["first", "second", "third"].into_iter().enumerate() {
        let asked = session.clone();
        prompts.push((text, tokio::spawn(async move { asked.prompt(text).await })));
        // The first one begins at once if nothing is in progress.
        let waiting = number + usize::from(compacts);
        until(&session, |state| state.status != Status::Idle && state.waiting == waiting).await;
    }
    session.follow_up("followed up").await.unwrap();
    files.set(fault);
    gate.send_replace(true);
    let mut failed = Vec::new();
    for (text, prompt) in prompts {
        let answer = tokio::time::timeout(PATIENCE, prompt).await;
        match answer.unwrap_or_else(|_| panic!("{context}: {text} was never answered")).unwrap() {
            Ok(_) => {}
            Err(Error::Store(_)) => failed.push(text),
            Err(error) => panic!("{context}: {text}: {error:?}"),
        }
    }
    if let Some(compaction) = compaction {
        let end = tokio::time::timeout(PATIENCE, compaction).await;
        let _ = end.unwrap_or_else(|_| panic!("{context}: the compaction never ended")).unwrap();
    }
    assert!(files.fired() > 0, "{context}: it never happened");
    if heals {
        files.set(Fault::None);
        // There are no further requests: acknowledged input is recorded nevertheless.
        until(&session, |state| state.status == Status::Idle && state.waiting == 0).await;
    } else {
        let refused = session.prompt("fourth").await;
        assert!(matches!(refused, Err(Error::Store(_))), "{context}: {refused:?}");
        files.set(Fault::None);
    }
    session.prompt("last").await.unwrap_or_else(|error| panic!("{context}: it works no more: {error:?}"));
    let state = session.state().await.unwrap();
    assert_eq!((state.status, state.waiting), (Status::Idle, 0), "{context}");
    assert_eq!(said(&runtime, "followed up").await, 1, "{context}: what was acknowledged");
    assert_eq!(said(&runtime, "last").await, 1, "{context}");
    for text in ["first", "second", "third", "fourth"] {
        let times = said(&runtime, text).await;
        assert!(times <= 1, "{context}: {text} was said {times} times");
        if !failed.contains(&text) && text != "fourth" {
            assert_eq!(times, 1, "{context}: {text} was answered");
        }
    }
    let head = runtime.engine().head("waiting").await.unwrap().unwrap();
    assert!(head.inbox.is_empty() && head.open_run.is_none(), "{context}: {head:?}");
    assert_eq!(head.open_compaction, None, "{context}");
    runtime.shutdown().await.unwrap();
    model.assert_clean();
    failed.len()
}

/// How another caller's prompt ends while `resume_all` waits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Aborted,
    RefusedByTheDisk,
}

/// `resume_all` waits for the work of an earlier process, while another caller's prompt is queued behind that work and
/// never starts.
async fn resume_beside(end: End) {
    let (model, other) = (talk(), talk());
    let files = FaultyFiles::new(Arc::new(MemoryFiles::new()));
    let store = Store::memory_on(files.open(Path::new("disk"), OpenMode::Create).unwrap());
    let (gate, gated) = watch::channel(false);
    let stuck = Gated { model: model.provider(), gate: gated.clone() };
    let before = Runtime::builder().provider(Arc::new(stuck)).store(store.clone()).start().await.unwrap();
    for (id, prompts) in [("first", 1), ("waiting", 3)] {
        let session = before.open(id, &agent(WINDOW)).await.unwrap();
        for number in 0..prompts {
            let mut run = session.prompt(format!("left {number}")).start().await.unwrap();
            run.recorded().await.unwrap();
            run.detach();
        }
        before.close(id).await.unwrap();
    }
    drop(before);

    let (heard, mut hears) = watch::channel(false);
    let probe = move |id: &str, point: &'static str| {
        heard.send_if_modified(|heard| {
            let is_it = (id, point) == ("waiting", "session/finish");
            is_it && !std::mem::replace(heard, true)
        });
    };
    let (first_gate, first_gated) = watch::channel(false);
    let first = Named("first", Gated { model: other.provider(), gate: first_gated });
    let runtime = Runtime::builder().provider(Arc::new(Gated { model: model.provider(), gate: gated }));
    let runtime = runtime.provider(Arc::new(first)).store(store).probe(probe).start().await.unwrap();
    let resuming = runtime.resume_all(|summary| {
        let agent = agent(WINDOW);
        Some(if summary.id == "first" { agent.provider("first") } else { agent })
    });
    let resuming = tokio::spawn(resuming.at_once(1).into_future());
    // It is at the first session while the other one is opened.
    while runtime.live().await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let session = runtime.open("waiting", &agent(WINDOW)).await.unwrap();
    let mut mine = session.prompt("mine").start().await.unwrap();
    mine.recorded().await.unwrap();
    until(&session, |state| state.status == Status::Working && state.waiting == 3).await;
    first_gate.send_replace(true);
    tokio::time::timeout(PATIENCE, hears.wait_for(|heard| *heard)).await.unwrap().unwrap();
    until(&session, |state| state.waiting == 3).await;

    match end {
        End::Aborted => mine.abort(),
        End::RefusedByTheDisk => {
            files.set(Fault::FailFrom { at: 1, errno: ENOSPC });
            gate.send_replace(true);
        }
    }
    let refused = mine.reply().await;
    match end {
        End::Aborted => assert!(matches!(refused, Err(Error::Aborted)), "{refused:?}"),
        End::RefusedByTheDisk => assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}"),
    }
    files.set(Fault::None);
    gate.send_replace(true);
    // The store is tried again with the next request.
    session.prompt("last").await.unwrap();
    let resumed = tokio::time::timeout(PATIENCE, resuming).await;
    let resumed = resumed.unwrap_or_else(|_| panic!("{end:?}: `resume_all` was never answered"));
    let left = said_as(&runtime, "left 2").await;
    let replies: Vec<EntryId> =
        resumed.unwrap().unwrap().into_iter().map(|resumed| resumed.result.unwrap().run).collect();
    assert_eq!(replies[1..], left, "{end:?}: the last prompt that was left");
    assert_eq!(said(&runtime, "mine").await, 0, "{end:?}");
    runtime.shutdown().await.unwrap();
    model.assert_clean();
    other.assert_clean();
}

/// A provider with another name.
struct Named(&'static str, Gated);

impl Provider for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        self.1.stream(request)
    }
}

#[tokio::test]
async fn resume_all_does_not_wait_for_a_prompt_that_its_caller_takes_back() {
    resume_beside(End::Aborted).await;
}

#[tokio::test]
async fn resume_all_does_not_wait_for_a_prompt_that_the_disk_refuses() {
    resume_beside(End::RefusedByTheDisk).await;
}

/// While the disk fails, a caller that repeated a queued prompt gets the error like its first caller.
#[tokio::test]
async fn whoever_repeats_a_prompt_that_the_disk_refuses_is_answered() {
    let model = talk();
    let files = FaultyFiles::new(Arc::new(MemoryFiles::new()));
    let dir = tempfile::tempdir().unwrap();
    let (gate, gated) = watch::channel(false);
    let runtime = start(Arc::new(Gated { model: model.provider(), gate: gated }), dir.path(), &files).await;
    let session = runtime.open("waiting", &agent(WINDOW)).await.unwrap();
    let running = session.prompt("running").start().await.unwrap();
    let mut prompts = Vec::new();
    for _ in 0..2 {
        let mut prompt = session.prompt("said twice").once("k").start().await.unwrap();
        prompt.recorded().await.unwrap();
        prompts.push(prompt);
    }
    files.set(Fault::FailFrom { at: 1, errno: ENOSPC });
    gate.send_replace(true);
    for prompt in prompts {
        let answer = tokio::time::timeout(PATIENCE, prompt.reply()).await.expect("it is answered");
        assert!(matches!(answer, Err(Error::Store(_))), "{answer:?}");
    }
    assert!(running.reply().await.is_err());
    files.set(Fault::None);
    session.prompt("said twice").once("k").await.unwrap();
    assert_eq!(said(&runtime, "said twice").await, 1);
    runtime.shutdown().await.unwrap();
    model.assert_clean();
}

/// Waits until the session has the expected state.
async fn until(session: &SessionHandle, is_so: impl Fn(&greenroom::State) -> bool) {
    let look = async {
        loop {
            let state = session.state().await.unwrap();
            if is_so(&state) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, look).await.is_err() {
        panic!("it never comes to that: {:?}", session.state().await);
    }
}

#[tokio::test]
async fn whoever_waits_while_the_disk_fails_is_answered() {
    let mut cases = Vec::new();
    for compacts in [false, true] {
        for at in 1..=8 {
            cases.push((Fault::FailOnce { at, errno: EIO }, true, compacts));
            cases.push((Fault::FailOnce { at, errno: ENOSPC }, true, compacts));
            cases.push((Fault::FailFrom { at, errno: ENOSPC }, true, compacts));
            cases.push((Fault::FailFrom { at, errno: ENOSPC }, false, compacts));
        }
    }
    let cases = cases.into_iter().map(|(fault, heals, compacts)| tokio::spawn(check(fault, heals, compacts)));
    let failed: Vec<usize> =
        futures_util::future::join_all(cases).await.into_iter().map(Result::unwrap).collect();
    let failed: usize = failed.iter().sum();
    assert!(failed > 20, "only {failed} prompts failed");
}
