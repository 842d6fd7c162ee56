//! The provider's own count of a request: asked for near a trigger, and nowhere else.

use std::sync::atomic::{AtomicU64, Ordering};

use greenroom::futures_util::future::BoxFuture;
use greenroom::provider::{Provider, ProviderError, ReplyStream, Request, ResentReasoning, classify};
use greenroom::{BeforeModel, EventKind};
use greenroom_simulator::Counting;

use super::*;
use crate::compaction_fixtures::{chat, opened, talker};
use crate::support::{drain, store};

const WINDOW: u64 = 20_000;

/// Returns a model that counts so many tokens for a hundred by its own measure, which is about 117 by ours.
fn counting(percent: u64, counts_tokens: bool) -> Simulator {
    let counting = Counting { percent, ..Counting::default() };
    let script = ByPurpose::new(talker(20), Summariser::Obedient);
    Simulator::new(SimulatorOptions {
        window: WINDOW,
        counting,
        counts_tokens,
        ..SimulatorOptions::new(script)
    })
}

fn trigger() -> u64 {
    CompactionSettings::default().trigger_tokens(WINDOW).unwrap()
}

/// Prompts a session with an imported history of about this many tokens by our estimate. Returns whether it was compacted
/// before the answer.
async fn prompted(provider: Arc<dyn Provider>, tokens: usize) -> bool {
    let builder = Runtime::builder().provider(provider).engine(store()).compact_between_runs(false);
    let runtime = builder.start().await.unwrap();
    let session = opened(&runtime, "s", &agent(WINDOW), chat(10, tokens / 20)).await;
    let mut events = session.subscribe();
    session.prompt("Go on.").await.unwrap();
    let compacts = |event: &Arc<Event>| matches!(event.kind, EventKind::CompactionStart { .. });
    let is_compacted = drain(&mut events).iter().any(compacts);
    runtime.shutdown().await.unwrap();
    is_compacted
}

/// An estimate that is too small does not come too late, and one that is too large not too early.
#[tokio::test]
async fn the_compaction_comes_at_the_real_trigger() {
    // The estimate is below the trigger and the context above it, or the other way round.
    for (percent, tokens, is_above) in [(120, 11_500, true), (70, 16_500, false)] {
        for api in [None, Some(Api::Anthropic), Some(Api::Responses), Some(Api::Gemini)] {
            for counts in [true, false] {
                let model = counting(percent, counts);
                let mut server = None;
                let provider: Arc<dyn Provider> = match api {
                    None => model.provider(),
                    Some(api) => {
                        let (provider, serves) = served(&model, "vendor", api).await;
                        server = Some(serves);
                        Arc::new(provider)
                    }
                };
                let is_compacted = prompted(provider, tokens).await;
                let case = format!("{percent} %, {api:?}, counts: {counts}");
                // Without a count the estimate decides, and is wrong.
                assert_eq!(is_compacted, is_above == counts, "{case}");
                assert_eq!(model.counts(), 1, "{case}");
                if counts {
                    let largest = model.requests().iter().map(|logged| logged.request.tokens).max();
                    assert!(largest.is_some_and(|tokens| tokens < trigger()), "{case}: {largest:?}");
                }
                drop(server);
                model.assert_clean();
            }
        }
    }
}

/// Far from the trigger nothing is counted, and near it not for every call: only where enough has come since the last
/// report.
#[tokio::test]
async fn few_requests_are_counted() {
    let model = counting(120, true);
    let builder = Runtime::builder().provider(model.provider()).engine(store()).compact_between_runs(false);
    let runtime = builder.start().await.unwrap();
    let session = opened(&runtime, "s", &agent(WINDOW), chat(10, 300)).await;
    for run in 0..20 {
        session.prompt(format!("{run}")).await.unwrap();
    }
    assert_eq!(model.counts(), 0, "the context is far from the trigger");
    let (mut compactions, mut steps) = (0, 0);
    for run in 0..40 {
        let reply = session.prompt(text(&format!("{run}."), 300)).await.unwrap();
        compactions += reply.compactions.len();
        steps += 1;
    }
    assert!(compactions >= 1, "{compactions} compactions");
    assert_eq!(model.counts(), 0, "each addition is small, and each answer has a report");
    // Each addition may reach the trigger, or not.
    for run in 0..10 {
        let reply = session.prompt(text(&format!("{run}."), 4_000)).await.unwrap();
        compactions += reply.compactions.len();
    }
    let counts = model.counts();
    assert!((1..=10).contains(&counts), "{counts} counts, {compactions} compactions, {steps} steps");
    model.assert_clean();
}

/// A server without the operation is asked once.
#[tokio::test]
async fn a_server_that_does_not_count_is_asked_once() {
    for api in [Api::Anthropic, Api::Responses, Api::Gemini] {
        let model = counting(120, false);
        let (provider, _server) = served(&model, "vendor", api).await;
        let runtime = Runtime::builder().provider(Arc::new(provider)).engine(store()).start().await.unwrap();
        for number in 0..4 {
            let id = format!("s{number}");
            let session = opened(&runtime, &id, &agent(WINDOW), chat(10, 575)).await;
            session.prompt("Go on.").await.unwrap();
        }
        assert_eq!(model.counts(), 1, "{api:?}");
        model.assert_clean();
    }
}

/// How a provider fails to count.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    Fails,
    Panics,
    PanicsAtOnce,
    NeverAnswers,
    IsWrong,
}

/// A provider whose counts are in trouble.
struct Troubled(Arc<dyn Provider>, Trouble, Arc<AtomicU64>);

impl Provider for Troubled {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        self.0.stream(request)
    }

    fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        self.0.resent_reasoning(settings)
    }

    fn count_tokens(&self, _: Request) -> BoxFuture<'static, Result<Option<u64>, ProviderError>> {
        self.2.fetch_add(1, Ordering::Relaxed);
        let trouble = self.1;
        assert!(trouble != Trouble::PanicsAtOnce, "injected");
        Box::pin(async move {
            match trouble {
                Trouble::Fails => Err(ProviderError::new(classify(Some(529), "busy", Some(60_000)), "busy")),
                Trouble::Panics | Trouble::PanicsAtOnce => panic!("injected"),
                Trouble::NeverAnswers => std::future::pending().await,
                Trouble::IsWrong => Ok(Some(9_000_000)),
            }
        })
    }
}

/// Whatever becomes of a count, the run goes on with the estimate, and the provider is not asked at every step.
#[tokio::test(start_paused = true)]
async fn a_count_that_fails_changes_nothing() {
    crate::support::quiet_injected_panics();
    for trouble in
        [Trouble::Fails, Trouble::Panics, Trouble::PanicsAtOnce, Trouble::NeverAnswers, Trouble::IsWrong]
    {
        let (model, asked) = (counting(100, false), Arc::new(AtomicU64::new(0)));
        let provider = Arc::new(Troubled(model.provider(), trouble, Arc::clone(&asked)));
        let before = tokio::time::Instant::now();
        let builder = Runtime::builder().provider(provider).engine(store()).compact_between_runs(false);
        let runtime = builder.start().await.unwrap();
        let session = opened(&runtime, "s", &agent(WINDOW), chat(10, 575)).await;
        for _ in 0..5 {
            session.prompt("Go on.").await.unwrap();
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1, "{trouble:?}");
        let waited = before.elapsed();
        let is_bounded = waited < std::time::Duration::from_secs(10);
        assert!(is_bounded, "{trouble:?}: waited {waited:?}");
        model.assert_clean();
    }
}

/// A hook may take something out of every request, which a count must not send.
#[tokio::test]
async fn nothing_is_counted_before_a_hook_has_seen_it() {
    let model = counting(120, true);
    let runtime = Runtime::builder().provider(model.provider()).engine(store()).start().await.unwrap();
    let hooked = agent(WINDOW).before_model(|_| async { BeforeModel::Continue });
    let session = opened(&runtime, "s", &hooked, chat(10, 575)).await;
    session.prompt("Go on.").await.unwrap();
    assert_eq!(model.counts(), 0);
    model.assert_clean();
}

/// A run that is aborted while the provider counts ends at once.
#[tokio::test(start_paused = true)]
async fn an_abort_does_not_wait_for_a_count() {
    let (model, asked) = (counting(100, false), Arc::new(AtomicU64::new(0)));
    let provider = Arc::new(Troubled(model.provider(), Trouble::NeverAnswers, Arc::clone(&asked)));
    let runtime = Runtime::builder().provider(provider).engine(store()).start().await.unwrap();
    let session = opened(&runtime, "s", &agent(WINDOW), chat(10, 575)).await;
    let before = tokio::time::Instant::now();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("Go on.").await }
    });
    while asked.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    session.abort();
    let result = run.await.unwrap();
    assert!(!matches!(&result, Ok(reply) if reply.text.starts_with('m')), "{result:?}");
    assert_eq!(before.elapsed(), std::time::Duration::ZERO);
    assert_eq!(model.calls(), 0);
}
