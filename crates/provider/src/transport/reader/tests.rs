//! The deadlines of a stream, without a socket and with a clock that is moved by hand where time may be paused.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::poll_fn;
use futures_util::stream::{self, Stream};
use greenroom_kernel::{Message, Part, StopReason, ToolCall};
use tokio::time::{Instant, sleep};

use super::*;
use crate::transport::{HttpProvider, ServerOptions};

const FIRST: Duration = Duration::from_secs(20);
const IDLE: Duration = Duration::from_secs(3);

fn no_call() -> Call {
    Call { model: String::new(), messages: Vec::new().into(), purpose: Purpose::Step }
}

fn reader(chunks: impl Stream<Item = Result<Bytes, Unsent>> + Send + 'static, first: Duration) -> Reader {
    let options = ServerOptions {
        base_url: "http://localhost/v1".parse().expect("a URL"),
        first_event_timeout: first,
        idle_timeout: IDLE,
        ..ServerOptions::default()
    };
    let server = HttpProvider::new(options).expect("good options").server;
    let timer = Box::pin(sleep_until(deadline_after(first)));
    Reader::new(Body::events(chunks.boxed(), usize::MAX), timer, no_call(), server)
}

fn text(text: &str) -> Bytes {
    Bytes::from(format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"))
}

/// Chunks, each after a wait, and then silence.
fn after(waits: Vec<(Duration, Bytes)>) -> impl Stream<Item = Result<Bytes, Unsent>> + Send {
    let chunks = stream::iter(waits).then(|(wait, chunk)| async move {
        sleep(wait).await;
        Ok(chunk)
    });
    chunks.chain(stream::pending())
}

/// How a stream failed.
#[derive(Debug)]
struct Failed {
    /// How many pieces had come.
    pieces: usize,
    took: Duration,
    /// How often it was looked at.
    polls: usize,
    message: String,
}

async fn failed(mut reader: Reader) -> Failed {
    let began = Instant::now();
    let (mut pieces, mut polls) = (0, 0);
    loop {
        let next = poll_fn(|context| {
            polls += 1;
            reader.poll_next_unpin(context)
        });
        match next.await.expect("it ends with an error") {
            Ok(_) => pieces += 1,
            Err(error) => {
                return Failed { pieces, took: began.elapsed(), polls, message: error.failure.message };
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_piece_moves_the_deadline_and_silence_does_not() {
    let second = Duration::from_secs(1);
    // Each piece comes in time, all of them take longer than any limit.
    let waits = vec![(2 * second, text("a")); 30];
    let end = failed(reader(after(waits), FIRST)).await;
    assert_eq!((end.pieces, end.took), (30, 60 * second + IDLE), "{end:?}");
    assert!(end.message.contains("nothing new for 3 s"), "{end:?}");
    // It sleeps in between.
    assert!(end.polls <= 4 * 30, "{end:?}");
    // The first piece may take longer than the others; one that comes late counts as none.
    let end = failed(reader(after(vec![(19 * second, text("a"))]), FIRST)).await;
    assert_eq!((end.pieces, end.took), (1, 19 * second + IDLE), "{end:?}");
    let end = failed(reader(after(vec![(21 * second, text("a"))]), FIRST)).await;
    assert_eq!((end.pieces, end.took), (0, FIRST), "{end:?}");
    assert!(end.message.contains("no answer from") && end.message.contains("within 20 s"), "{end:?}");
    // Pings and roles move nothing.
    let role = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n");
    let waits = [text("a"), Bytes::from_static(b": ping\n\n"), role].map(|chunk| (second, chunk)).to_vec();
    let end = failed(reader(after(waits), FIRST)).await;
    assert_eq!((end.pieces, end.took), (1, second + IDLE), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_its_time_does_not_shorten_the_wait() {
    let second = Duration::from_secs(1);
    let mut reader = reader(after(vec![(second, text("a")), (second, text("b"))]), FIRST);
    let first = reader.next().await.expect("a piece");
    sleep(2 * IDLE).await;
    let second = reader.next().await.expect("a piece");
    assert!(first.is_ok() && second.is_ok(), "{second:?}");
}

/// The clock is the real one: paused time stands still while there is something to do.
#[tokio::test]
async fn pings_that_come_without_a_pause_do_not_hold_the_deadline_up() {
    let limit = Duration::from_millis(50);
    let pings = stream::repeat_with(|| Ok(Bytes::from_static(b": ping\n\n")));
    let end = failed(reader(pings, limit)).await;
    assert_eq!(end.pieces, 0);
    assert!(end.took >= limit && end.message.contains("within 50 ms"), "{end:?}");
}

/// Some servers count the calls of each answer from 0.
#[tokio::test]
async fn a_call_has_no_id_that_a_call_of_the_conversation_has() {
    let call = |id: &str| {
        let call = format!("{{\"id\":\"{id}\",\"function\":{{\"name\":\"read\",\"arguments\":\"{{}}\"}}}}");
        Ok(Bytes::from(format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n")))
    };
    let end = Ok(Bytes::from_static(b"data: {\"choices\":[{\"finish_reason\":\"tool_calls\"}]}\n\n"));
    let mut reader = reader(stream::iter([call("call_0"), call("call_1"), end]), FIRST);
    let earlier = ToolCall { id: "call_0".to_owned(), name: "read".to_owned(), arguments: "{}".to_owned() };
    let answer = AssistantMessage::new(vec![Part::ToolCall(earlier)], "test", "m", StopReason::ToolCalls);
    reader.call.messages.push(Arc::new(Message::Assistant(answer)));
    while let Some(event) = reader.next().await {
        if let ReplyEvent::Done(answer) = event.expect("an answer") {
            let ids: Vec<&str> = answer.tool_calls().map(|call| call.id.as_str()).collect();
            assert!(ids.len() == 2 && ids[0] != "call_0" && ids[1] == "call_1", "{ids:?}");
            return;
        }
    }
    panic!("no answer");
}

/// A stream of Gemini's, with a signature on a part of its own and a character of four bytes.
const GEMINI: &str = concat!(
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"Hm.\",\"thought\":true}]}}],\"usageMetadata\":{\"promptTokenCount\":5}}\r\n\r\n",
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"So \u{1f600}\"}]}}]}\r\n\r\n",
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"functionCall\":{\"id\":\"f\",\"name\":\"read\",\"args\":{\"n\": 1e3}},\"thoughtSignature\":\"A+/=\"}]}}]}\r\n\r\n",
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"\",\"thoughtSignature\":\"B+/=\"}]},\"finishReason\":\"STOP\"}],\"usageMetadata\":{\"promptTokenCount\":5,\"candidatesTokenCount\":6}}\r\n\r\n",
);

/// A stream of OpenAI's Responses, with encrypted reasoning and characters of several bytes.
const RESPONSES: &str = concat!(
    "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\"}}\n\n",
    "event: response.output_item.done\ndata: {\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{\"type\":\"reasoning\",\"id\":\"rs\",\"summary\":[],\"encrypted_content\":\"A+/=\u{e9}\"}}\n\n",
    "data: {\"type\":\"response.output_text.delta\",\"output_index\":1,\"delta\":\"So \u{1f600}\"}\n\n",
    "data: {\"type\":\"response.output_item.done\",\"output_index\":1,\"item\":{\"type\":\"message\",\"id\":\"m\",\"content\":[{\"type\":\"output_text\",\"text\":\"So \u{1f600}\"}]}}\n\n",
    "data: {\"type\":\"response.function_call_arguments.delta\",\"output_index\":2,\"delta\":\"{\\\"n\\\": 1e3\"}\n\n",
    "data: {\"type\":\"response.output_item.done\",\"output_index\":2,\"item\":{\"type\":\"function_call\",\"id\":\"fc\",\"call_id\":\"c\",\"name\":\"read\",\"arguments\":\"{\\\"n\\\": 1e3}\"}}\n\n",
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"usage\":{\"input_tokens\":5,\"output_tokens\":6}}}\n\n",
);

/// A stream of Anthropic's, with signed thinking, a block that nobody knows and characters of several bytes.
const ANTHROPIC: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"Hm \u{e9}\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"A+/=\"}}\n\n",
    "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n: ping\n\n",
    "data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"novelty\",\"data\":\"n\u{1f600}\"}}\n\n",
    "data: {\"type\":\"content_block_stop\",\"index\":1}\n\n",
    "data: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"text_delta\",\"text\":\"So \u{1f600}\"}}\n\n",
    "data: {\"type\":\"content_block_stop\",\"index\":2}\n\n",
    "data: {\"type\":\"content_block_start\",\"index\":3,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"read\",\"input\":{}}}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":3,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"n\\\": 1e3}\"}}\n\n",
    "data: {\"type\":\"content_block_stop\",\"index\":3}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":9}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

/// The answer of a stream that came in these chunks.
async fn answer_in(server: Arc<Server>, chunks: Vec<Bytes>) -> Result<AssistantMessage, ProviderError> {
    let body = Body::events(stream::iter(chunks.into_iter().map(Ok)).boxed(), usize::MAX);
    let timer = Box::pin(sleep_until(deadline_after(FIRST)));
    let mut reader = Reader::new(body, timer, no_call(), server);
    while let Some(event) = reader.next().await {
        if let ReplyEvent::Done(answer) = event? {
            return Ok(*answer);
        }
    }
    panic!("a stream ends with an answer or an error");
}

async fn check_cuts(options: ServerOptions, events: &'static str, parts: usize) {
    let bytes = Bytes::from_static(events.as_bytes());
    let server = HttpProvider::new(options).expect("good options").server;
    let answer = |chunks: Vec<Bytes>| answer_in(Arc::clone(&server), chunks);
    let whole = answer(vec![bytes.clone()]).await.expect("an answer");
    assert_eq!(whole.content.len(), parts, "{whole:?}");
    for at in 1..bytes.len() {
        let cut = answer(vec![bytes.slice(..at), bytes.slice(at..)]).await.expect("an answer");
        assert_eq!(cut, whole, "cut at {at}");
    }
    // A stream that ends too early is no answer, wherever it ends.
    let says_why = ["finishReason", "response.completed\",\"response", "stop_reason"];
    let end = says_why.into_iter().find_map(|why| events.rfind(why)).expect("it says why it ends");
    let last = events[..end].rfind("data: ").expect("there are events");
    for end in 0..last {
        let error = answer(vec![bytes.slice(..end)]).await.expect_err("it is not whole");
        assert_eq!(error.failure.class, FailureClass::Malformed, "ends at {end}");
    }
}

#[tokio::test]
async fn an_answer_is_the_same_wherever_it_is_cut() {
    check_cuts(ServerOptions::gemini("k"), GEMINI, 6).await;
    check_cuts(ServerOptions::responses("k"), RESPONSES, 5).await;
    check_cuts(ServerOptions::anthropic("k"), ANTHROPIC, 5).await;
}
