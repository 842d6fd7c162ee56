//! The suite itself: our providers pass it, and providers that break a promise are caught.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use futures_util::future::BoxFuture;
use futures_util::stream;
use greenroom_provider::{Api, HttpProvider, ReplyStream, ServerOptions};

use super::*;

#[tokio::test]
async fn our_openai_provider_conforms() {
    for stream in [true, false] {
        let report = check_openai(|base_url| async move {
            let options = ServerOptions { base_url, stream, ..ServerOptions::default() };
            Arc::new(HttpProvider::new(options).unwrap()) as Arc<dyn Provider>
        })
        .await
        .unwrap();
        report.assert_passed();
        let unseen: Vec<_> =
            report.checks.iter().filter(|(_, verdict)| *verdict != Verdict::Passed).collect();
        assert!(unseen.is_empty() && report.checks.len() > 20, "{stream}: {unseen:?}\n{report}");
    }
}

/// The other APIs, each of which has no field for some of the settings.
#[tokio::test]
async fn our_provider_conforms_with_every_api() {
    for api in [Api::Anthropic, Api::Responses, Api::Gemini] {
        for stream in [true, false] {
            let report = check_openai(|base_url| async move {
                let options = ServerOptions { api, base_url, stream, ..ServerOptions::default() };
                Arc::new(HttpProvider::new(options).unwrap()) as Arc<dyn Provider>
            })
            .await
            .unwrap();
            let unseen: Vec<_> =
                report.checks.iter().filter(|(_, verdict)| *verdict != Verdict::Passed).collect();
            assert!(unseen.is_empty() && report.checks.len() > 20, "{api:?} {stream}: {unseen:?}\n{report}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_provider_in_this_process_conforms() {
    let simulator = Simulator::new(SimulatorOptions::new(Function(obey)));
    let report = check(&simulator.provider(), "simulated").await;
    report.assert_passed();
    assert!(report.checks.iter().all(|(_, verdict)| *verdict == Verdict::Passed), "{report}");
    simulator.assert_clean();
}

/// A provider whose answers are spoilt.
struct Spoilt {
    inner: Arc<dyn Provider>,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    NoUsage,
    PieceLost,
    DoneTwice,
    NoDone,
    OtherModel,
    SameIds,
}

impl Provider for Spoilt {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        let (answer, how) = (self.inner.stream(request), self.how);
        Box::pin(async move {
            let mut events: Vec<_> = answer.await?.collect().await;
            let done = events.iter_mut().find_map(|event| match event {
                Ok(ReplyEvent::Done(answer)) => Some(answer),
                Ok(_) | Err(_) => None,
            });
            let done = done.unwrap();
            match how {
                How::NoUsage => done.usage = None,
                How::OtherModel => done.model = "another".into(),
                How::SameIds => {
                    for part in &mut done.content {
                        if let greenroom_kernel::Part::ToolCall(call) = part {
                            call.id = String::new();
                        }
                    }
                }
                How::PieceLost => drop(events.remove(0)),
                How::DoneTwice => events.push(events.last().unwrap().clone()),
                How::NoDone => drop(events.pop()),
            }
            Ok(stream::iter(events).boxed())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_breaks_a_promise_is_caught_and_the_promise_is_named() {
    for (how, promise, told) in [
        (How::NoUsage, "usage is reported", "no usage"),
        (How::PieceLost, "the pieces of the text", "the pieces are"),
        (How::DoneTwice, "exactly one `Done`", "followed `Done`"),
        (How::NoDone, "exactly one `Done`", "neither"),
        (How::OtherModel, "the requested model", "another"),
        (How::SameIds, "a tool call is whole", "id"),
    ] {
        let simulator = Simulator::new(SimulatorOptions::new(Function(obey)));
        let spoilt: Arc<dyn Provider> = Arc::new(Spoilt { inner: simulator.provider(), how });
        let report = check(&spoilt, "simulated").await;
        let caught = report.failures().any(|(name, reason)| name.contains(promise) && reason.contains(told));
        assert!(caught, "{how:?}: {report}");
    }
}
