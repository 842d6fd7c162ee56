//! The cost of one streamed piece of an answer, in CPU time.
//!
//! The baseline is a bare HTTP client that parses the stream and joins the text: no checks, no typed errors,
//! no events. The server runs in a separate process and is in no row; the rows take turns, so that other load
//! on the machine affects all of them.

mod bare;
mod mock_server;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, Provider, Purpose, ReplyEvent, Request, ServerOptions};
use greenroom_kernel::Message;
use greenroom_tests::measure::{cpu_s, figure, ratio, scaled, title};
use mock_server::{Ids, MockServer};

/// The pieces of one answer.
const PIECES: usize = 200;
/// The number of answers that stream at the same time.
const IN_FLIGHT: usize = 64;

/// The reader of the stream.
#[derive(Debug, Clone, Copy)]
enum Way {
    Bare,
    Provider,
    Session,
}

const WAYS: [Way; 3] = [Way::Bare, Way::Provider, Way::Session];

fn main() {
    mock_server::serve_if_asked();
    title(
        &format!("one streamed piece: answers of {PIECES} pieces, {IN_FLIGHT} at a time"),
        "a bare HTTP client that parses the same stream",
    );
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        println!("pieces as fast as they can be read:");
        table("at_once", Duration::ZERO, Ids::One, scaled(1_000)).await;
        println!("a piece a millisecond:");
        table("each_ms", Duration::from_millis(1), Ids::One, scaled(256)).await;
        println!("a piece a millisecond, with an id of its own:");
        table("each_ms_other", Duration::from_millis(1), Ids::Own, scaled(256)).await;
    });
}

async fn table(row: &str, pause: Duration, ids: Ids, answers: usize) {
    const ROUNDS: usize = 5;
    let server = MockServer::start(PIECES, pause, ids);
    let client = bare::client(IN_FLIGHT, &server.base_url);
    let base_url = server.base_url.parse().expect("a URL");
    let provider =
        HttpProvider::new(ServerOptions { base_url, ..ServerOptions::default() }).expect("a provider");
    let runtime = Runtime::builder()
        .provider_with(Arc::new(provider.clone()), IN_FLIGHT)
        .in_memory()
        .idle_after(Duration::ZERO)
        .start()
        .await
        .expect("a runtime");
    let mut events = runtime.subscribe(Filter::all());
    let subscriber = tokio::spawn(async move { while events.next().await.is_some() {} });
    let sessions = stream::iter(0..IN_FLIGHT)
        .then(|number| {
            let agent = Agent::new("bench").context_window(1_000_000_000);
            let runtime = &runtime;
            async move { runtime.open(&format!("s{number}"), &agent).await.expect("a session") }
        })
        .collect::<Vec<_>>()
        .await;
    let mut figures = WAYS.map(|_| Vec::new());
    // The first round warms up.
    for round in 0..=ROUNDS {
        for (way, figures) in WAYS.iter().zip(&mut figures) {
            let before = cpu_s();
            let each = (0..IN_FLIGHT).map(|place| {
                let (client, provider, session) = (client.clone(), provider.clone(), sessions[place].clone());
                let way = *way;
                tokio::spawn(async move {
                    for _ in 0..answers.div_ceil(IN_FLIGHT) {
                        match way {
                            Way::Bare => bare_answer(&client).await,
                            Way::Provider => provider_answer(&provider).await,
                            Way::Session => drop(session.prompt("go on").await.expect("an answer")),
                        }
                    }
                })
            });
            for task in each.collect::<Vec<_>>() {
                task.await.expect("no reader panics");
            }
            #[expect(clippy::cast_precision_loss, reason = "a few hundred thousand")]
            let pieces = (answers.next_multiple_of(IN_FLIGHT) * PIECES) as f64;
            if round > 0 {
                figures.push((cpu_s() - before) * 1e6 / pieces);
            }
        }
    }
    println!("|          | CPU µs/piece | ratio, median and range |");
    println!("|----------|--------------|-------------------------|");
    for (way, own) in WAYS.iter().zip(&figures) {
        let mut ratios: Vec<f64> =
            own.iter().zip(&figures[0]).map(|(own, bare)| ratio(*own, *bare)).collect();
        ratios.sort_by(f64::total_cmp);
        let mut own = own.clone();
        own.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[ROUNDS - 1]);
        let name = format!("{way:?}").to_lowercase();
        println!(
            "| {name:<8} | {:>12.2} | {:>8.2}  ({least:.2} … {most:.2}) |",
            own[ROUNDS / 2],
            ratios[ROUNDS / 2]
        );
        figure(&format!("pieces/{row}/{name}"), own[ROUNDS / 2], "µs", Some(ratios[ROUNDS / 2]));
    }
    println!();
    runtime.shutdown().await.expect("an orderly end");
    subscriber.await.expect("the subscriber does not panic");
}

async fn bare_answer(client: &bare::BareClient) {
    let body = r#"{"model":"bench","messages":[{"role":"user","content":"go on"}],"stream":true}"#;
    let answer = bare::answer(client, body).await;
    assert_eq!(answer.pieces, PIECES);
    std::hint::black_box(answer);
}

async fn provider_answer(provider: &HttpProvider) {
    let request = Request {
        model: "bench".to_owned(),
        system: None,
        messages: vec![Arc::new(Message::user("go on"))].into(),
        tools: Arc::from([]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: String::new(),
    };
    let mut stream = provider.stream(request).await.expect("a stream");
    let mut pieces = 0;
    while let Some(event) = stream.next().await {
        pieces += usize::from(matches!(event.expect("a whole answer"), ReplyEvent::Text(_)));
    }
    assert_eq!(pieces, PIECES);
}
