//! The provider's own compaction: each API's, in process and over HTTP, through restarts, undos, forks and changes of the
//! provider; and a session that never depends on it.

use greenroom::EventKind;
use greenroom::futures_util::future::BoxFuture;
use greenroom::provider::{
    Provider, ProviderError, Purpose, ReplyStream, Request, ResentReasoning, classify,
};
use greenroom_kernel::Block;
use greenroom_kernel::{Compaction, EntryKind};

use super::*;
use crate::support::{drain, store};

const WINDOW: u64 = 6_000;

fn model_with(compaction: Option<NativeCompaction>) -> Simulator {
    let script = ByPurpose::new(Function(thinks), Summariser::Obedient);
    Simulator::new(SimulatorOptions { window: WINDOW, compaction, ..SimulatorOptions::new(script) })
}

fn natively(strategy: Strategy) -> Agent {
    looking(WINDOW).compaction(CompactionSettings { strategy, ..CompactionSettings::default() })
}

/// Returns the compactions of a session that are recorded, oldest first.
pub(super) async fn compactions(runtime: &Runtime, session: &str) -> Vec<Compaction> {
    let entries = runtime.entries(session, greenroom::EntryId(0)).await.unwrap();
    let compaction = |entry: &greenroom::Entry| match &entry.kind {
        EntryKind::Compaction(compaction) => Some(Compaction::clone(compaction)),
        _ => None,
    };
    entries.iter().filter_map(compaction).collect()
}

fn purposes(model: &Simulator) -> (usize, usize) {
    let requests = model.requests();
    let count = |purpose| requests.iter().filter(|logged| logged.request.purpose == purpose).count();
    (count(Purpose::Compaction), count(Purpose::Summary))
}

/// Whether the newest request of a run begins with a summary that the model reads.
fn reads_summary(model: &Simulator) -> bool {
    let requests = model.requests();
    let newest = requests.iter().rev().find(|logged| logged.request.purpose == Purpose::Step).unwrap();
    // An API may keep the user's messages in front of it.
    let before_answers = newest.request.messages.iter().take_while(|message| message.as_answer().is_none());
    before_answers.map(|message| message.text()).any(|text| text.contains("## Goal"))
}

async fn talk(session: &SessionHandle, from: usize, runs: usize) -> usize {
    let mut compacted = 0;
    for run in from..from + runs {
        let reply = session.prompt(format!("Look, {run}.")).await.unwrap();
        assert!(reply.text.starts_with("answer "), "{reply:?}");
        compacted += reply.compactions.len();
    }
    compacted
}

/// Each way of compacting, with two lives of a store.
#[tokio::test]
async fn every_provider_that_can_compacts_by_itself() {
    use NativeCompaction::{Opaque, Readable};
    for (form, api) in
        [(Readable, None), (Opaque, None), (Readable, Some(Api::Anthropic)), (Opaque, Some(Api::Responses))]
    {
        let model = model_with(Some(form));
        let dir = tempfile::tempdir().unwrap();
        let mut compacted = 0;
        for life in 0..2 {
            let mut server = None;
            let provider: Arc<dyn Provider> = match api {
                None => model.provider(),
                Some(api) => {
                    let (provider, serves) = served(&model, "vendor", api).await;
                    server = Some(serves);
                    Arc::new(provider)
                }
            };
            let builder = Runtime::builder().provider(provider).data_dir(dir.path());
            // A compaction after the last run would be cut off.
            let runtime = builder.compact_between_runs(false).start().await.unwrap();
            let session = runtime.open("s", &natively(Strategy::Native)).await.unwrap();
            compacted += talk(&session, 12 * life, 12).await;
            runtime.shutdown().await.unwrap();
            drop(server);
        }
        let case = format!("{form:?} {api:?}");
        let runtime =
            Runtime::builder().provider(model.provider()).data_dir(dir.path()).start().await.unwrap();
        let recorded = compactions(&runtime, "s").await;
        assert!(recorded.len() >= 2 && compacted >= 2, "{case}: {} recorded", recorded.len());
        for compaction in &recorded {
            let native = compaction.native.as_ref().expect("the provider's own form");
            assert!(!native.native.blocks.is_empty() && native.tokens > 0, "{case}");
            assert!(
                compaction.summary.contains("## Goal"),
                "{case}: people can read it: {}",
                compaction.summary
            );
            assert!(compaction.debt.is_empty() && !compaction.truncated, "{case}");
        }
        let (native, summaries) = purposes(&model);
        assert_eq!(native, recorded.len(), "{case}: one request each, and {summaries}");
        assert_eq!(summaries == 0, form == Readable, "{case}: {summaries} summaries of ours");
        assert!(reads_summary(&model), "{case}");
        model.assert_clean();
    }
}

/// A provider that does not offer it is asked once, and the session goes on with summaries of ours.
#[tokio::test]
async fn a_server_without_it_is_asked_once() {
    for api in [Api::Anthropic, Api::Responses] {
        let model = model_with(None);
        let (provider, _server) = served(&model, "vendor", api).await;
        let runtime = Runtime::builder().provider(Arc::new(provider)).engine(store()).start().await.unwrap();
        let session = runtime.open("s", &natively(Strategy::Auto)).await.unwrap();
        let mut events = session.subscribe();
        talk(&session, 0, 24).await;
        let recorded = compactions(&runtime, "s").await;
        assert!(recorded.len() >= 2 && recorded.iter().all(|compaction| compaction.native.is_none()));
        let (native, summaries) = purposes(&model);
        assert_eq!(native, 1, "{api:?}");
        assert!(summaries >= recorded.len(), "{api:?}");
        let mut warnings = 0;
        for event in drain(&mut events) {
            if let EventKind::Warning { message } = &event.kind {
                assert!(message.contains("could not compact the conversation"), "{message}");
                warnings += 1;
            }
        }
        assert_eq!(warnings, 1, "{api:?}");
        model.assert_clean();
    }
}

/// Another provider reads the text, the first one its own form again; undone and forked, nothing is lost.
#[tokio::test]
async fn it_is_read_by_its_provider_alone() {
    for (form, api) in
        [(NativeCompaction::Readable, Api::Anthropic), (NativeCompaction::Opaque, Api::Responses)]
    {
        let (first, second) = (model_with(Some(form)), model_with(None));
        let (own, _one) = served(&first, "own", api).await;
        // The same API at another provider: only the form's maker can read it.
        let (other, _two) = served(&second, "other", Api::Chat).await;
        let builder = Runtime::builder().provider(Arc::new(own)).provider(Arc::new(other));
        let runtime = builder.engine(store()).start().await.unwrap();
        let at = |name: &str| natively(Strategy::Auto).provider(name);
        let session = runtime.open("s", &at("own")).await.unwrap();
        talk(&session, 0, 6).await;
        let options = CompactOptions { keep_recent: Some(500), ..CompactOptions::default() };
        let done = session.compact(options).await.unwrap();
        assert_eq!(done.outcome, greenroom::CompactionOutcome::Completed);
        assert!(compactions(&runtime, "s").await[0].native.is_some());
        let counted = session.state().await.unwrap().context.tokens;
        talk(&session, 6, 1).await;
        let sent = first.requests().last().unwrap().request.tokens;
        assert!(counted * 10 >= sent * 4, "what is sent is counted: {counted}, then {sent}");
        assert!(reads_summary(&first));
        runtime.fork("s", "f", at("own")).await.unwrap();
        for name in ["f", "s"] {
            runtime.close("s").await.unwrap();
            let session = runtime.open(name, &at("other")).await.unwrap();
            talk(&session, 7, 1).await;
            assert!(reads_summary(&second), "as text");
            runtime.close(name).await.unwrap();
            let session = runtime.open(name, &at("own")).await.unwrap();
            talk(&session, 8, 1).await;
            assert!(reads_summary(&first), "in its own form");
            if name == "s" {
                session.undo_compaction().await.unwrap();
                talk(&session, 9, 1).await;
                assert!(!reads_summary(&first), "the messages themselves");
            }
        }
        first.assert_clean();
        second.assert_clean();
    }
}

/// A provider that takes nothing back that only it can read: its keys have changed.
struct Forgetful(Arc<dyn Provider>);

impl Provider for Forgetful {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        self.0.resent_reasoning(settings)
    }

    fn stream(
        &self,
        request: Request,
    ) -> BoxFuture<'static, std::result::Result<ReplyStream, ProviderError>> {
        let is_opaque = |message: &Arc<Message>| match &**message {
            Message::User(blocks) => blocks.iter().any(|block| matches!(block, Block::Native(_))),
            Message::Assistant(answer) => {
                answer.content.iter().any(|part| matches!(part, Part::OpaqueReasoning { .. }))
            }
            Message::ToolResult(_) => false,
        };
        if !request.messages.iter().any(is_opaque) {
            return self.0.stream(request);
        }
        let body = r#"{"error":{"message":"The encrypted content gAAA could not be verified.","code":"invalid_encrypted_content"}}"#;
        Box::pin(async move { Err(ProviderError::new(classify(Some(400), body, None), body)) })
    }
}

/// Sessions elsewhere are lost when their provider refuses what it sent itself.
#[tokio::test]
async fn a_provider_that_refuses_its_own_summary_gets_the_text() {
    let model = model_with(Some(NativeCompaction::Opaque));
    let dir = tempfile::tempdir().unwrap();
    for life in 0..2 {
        let own = model.provider();
        let provider: Arc<dyn Provider> = if life == 0 { own } else { Arc::new(Forgetful(own)) };
        let builder = Runtime::builder().provider(provider).data_dir(dir.path());
        let runtime = builder.compact_between_runs(false).start().await.unwrap();
        let session = runtime.open("s", &natively(Strategy::Native)).await.unwrap();
        let mut events = session.subscribe();
        talk(&session, 14 * life, 14).await;
        assert!(reads_summary(&model));
        let is_told = |event: &greenroom::Event| matches!(&event.kind, EventKind::Warning { message } if message.contains("continues without them"));
        assert_eq!(drain(&mut events).iter().any(|event| is_told(event)), life == 1);
        runtime.shutdown().await.unwrap();
    }
    model.assert_clean();
}
