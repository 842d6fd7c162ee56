//! Bodies that are cut anywhere give the same events, whatever they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::poll_fn;
use futures_util::stream;

use greenroom_kernel::random::Random;

use super::*;

/// What a body came to: its events, how it was interrupted, and whether bytes were replaced.
#[derive(Debug, PartialEq)]
struct Read {
    events: Vec<String>,
    interruption: Option<Interruption>,
    had_invalid_utf8: bool,
}

/// The text of the next event.
fn next(body: &mut Body) -> Option<Result<String, Interruption>> {
    let event = poll_fn(|context| body.poll_next(context)).now_or_never().expect("it is there");
    event.map(|event| event.map(|data| data.to_owned()))
}

fn read_within(chunks: &[&[u8]], limit_bytes: usize) -> Read {
    let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    let mut body = Body::events(stream::iter(chunks).boxed(), limit_bytes);
    let (mut events, mut interruption) = (Vec::new(), None);
    while let Some(event) = next(&mut body) {
        match event {
            Ok(event) => events.push(event),
            Err(why) => interruption = Some(why),
        }
    }
    Read { events, interruption, had_invalid_utf8: body.had_invalid_utf8() }
}

fn read(chunks: &[&[u8]]) -> Read {
    read_within(chunks, usize::MAX)
}

fn events(chunks: &[&[u8]]) -> Vec<String> {
    let read = read(chunks);
    assert_eq!((read.interruption, read.had_invalid_utf8), (None, false), "{chunks:?}");
    read.events
}

#[test]
fn bodies_and_their_events() {
    let check = |body: &str, expected: &[&str]| assert_eq!(events(&[body.as_bytes()]), expected, "{body:?}");
    check("data: a\n\ndata:b\n\ndata:  c\n\n", &["a", "b", " c"]);
    check("data: a\r\n\r\ndata: b\r\rdata: c\n\n", &["a", "b", "c"]);
    check("data: a\ndata: b\n\n", &["a\nb"]);
    // Without data an event counts for nothing: proxies send such events to keep a connection open.
    check("data\n\ndata:\n\ndata: \n\ndata:  \n\nevent: ping\ndata: \n\ndata:\ndata:\n\ndata: a\n\n", &["a"]);
    check(": ping\n\nid: 1\n\nretry: 5\n\nevent: x\n\nother: y\n\nplain text\n\n", &[]);
    check("event: error\nid: 1\ndata: a\n\n", &["a"]);
    check("event: keepalive\ndata: a\n\ndata: b\n\n", &["b"]);
    // An end that closes nothing.
    check("data: a\n\ndata: b", &["a", "b"]);
    check("data: a\r", &["a"]);
    check("data: a\r\n", &["a"]);
    check("", &[]);
    // Nothing after `[DONE]` counts.
    check("data: a\n\ndata: [DONE]\n\ndata: b\n\n", &["a"]);
    // Marks of byte order.
    check("\u{feff}data: a\n\ndata: \u{feff}b\n\n", &["a", "\u{feff}b"]);
    check("\u{feff}\u{feff}\u{feff}data: a\n\n", &["a"]);
}

#[test]
fn bytes_that_are_not_utf8_are_replaced_and_noted() {
    let check = |chunks: &[&[u8]], events: &[&str], had_invalid_utf8: bool| {
        let events = events.iter().map(|event| (*event).to_owned()).collect();
        assert_eq!(read(chunks), Read { events, interruption: None, had_invalid_utf8 }, "{chunks:?}");
    };
    check(&[b"data: a\xc3", b"\xa9b\n\n"], &["a\u{e9}b"], false);
    check(&[b"data: \xf0", b"\x9f", b"\xa6", b"\x80!\n\n"], &["\u{1f980}!"], false);
    check(&["data: \u{fffd}\n\n".as_bytes()], &["\u{fffd}"], false);
    check(&[b"data: a\xffb\n\n"], &["a\u{fffd}b"], true);
    check(&[b"data: a\xc3", b"c\n\ndata: d\n\n"], &["a\u{fffd}c", "d"], true);
    check(&[b"data: a\n\ndata: b\xf0\x9f"], &["a", "b\u{fffd}"], true);
}

#[test]
fn plain_json_is_one_event() {
    let mut body = Body::whole(b"{\n \"a\": \"b\\nc\"\r\n}\n");
    assert_eq!(next(&mut body), Some(Ok("{\n \"a\": \"b\\nc\"\r\n}".to_owned())));
    assert_eq!(next(&mut body), None);
    assert!(!body.had_invalid_utf8() && Body::whole(b"{\"a\": \"\xff\"}").had_invalid_utf8());
}

#[test]
fn bodies_that_are_too_large() {
    let too_large = |what: String| Some(Interruption::TooLarge(what));
    // What came before is read.
    let given_up = read_within(&[b"data: a\n\n", b"data: b\n\n"], 17);
    assert_eq!(given_up.events, ["a"]);
    assert_eq!(given_up.interruption, too_large(more_than(17)));
    assert_eq!(read_within(&[b"data: a\n\n", b"data: b\n\n"], 18).interruption, None);
    // A line without an end, be it data, a comment or something unknown.
    let half = vec![b'x'; LINE_BYTES_MAX / 2];
    for begin in ["data: ", ": ", "other", "data"] {
        let (begin, end) = (begin.as_bytes(), &half[begin.len()..]);
        assert_eq!(read(&[begin, &half, end]).interruption, None);
        let given_up = read(&[b"data: a\n\n", begin, &half, end, b"x", b"\n\n"]);
        assert_eq!(given_up.events, ["a"]);
        assert_eq!(given_up.interruption, too_large(format!("a line of more than {LINE_BYTES_MAX} bytes")));
    }
}

#[test]
fn the_sample_is_the_beginning_as_it_came() {
    let chunks = [Ok(Bytes::from_static(b"\xef\xbb\xbfthe model ")), Ok(Bytes::from(vec![b'x'; 5_000]))];
    let mut body = Body::events(stream::iter(chunks).boxed(), usize::MAX);
    assert_eq!(next(&mut body), None);
    assert!(body.sample().starts_with("\u{feff}the model xxx") && body.sample().ends_with('x'));
    assert_eq!(body.sample().len(), SAMPLE_BYTES_MAX);
}

#[test]
fn there_is_no_sample_where_there_is_an_event() {
    let chunks =
        [b"the model\n".as_slice(), b"data: a\n\nand more\n"].map(|chunk| Ok(Bytes::from_static(chunk)));
    let mut body = Body::events(stream::iter(chunks).boxed(), usize::MAX);
    assert!(next(&mut body).is_some());
    assert_eq!(body.sample(), "");
}

/// A body of random lines. Only one in eight has bytes that are not UTF-8.
fn random_body(random: &mut Random) -> Vec<u8> {
    const LINES: [&[u8]; 16] = [
        b"data: a",
        b"data:b",
        b"data:  c",
        b"data",
        b"data:",
        b"data: {\"d\": \"\xc3\xa9\xf0\x9f\xa6\x80\"}",
        b"data: \xef\xbb\xbf",
        b"",
        b"",
        b": ping",
        b"event: keepalive",
        b"event: error",
        b"id: 7",
        b"retry: 9",
        b"datum: e",
        b"data: [DONE]",
    ];
    const ENDS: [&[u8]; 4] = [b"\n", b"\n\n", b"\r\n", b"\r"];
    const INVALID: [&[u8]; 3] = [b"data: \xff", b"data: f\xc3", b"data: \xf0\x9f\xa6"];
    let mut body = Vec::new();
    if random.index(4) == 0 {
        body.extend_from_slice("\u{feff}".as_bytes());
    }
    let is_invalid = random.index(8) == 0;
    for _ in 0..=random.index(8) {
        // An end of the stream is seldom, so that there is something after most lines.
        let lines = if random.index(8) == 0 { LINES.len() } else { LINES.len() - 1 };
        body.extend_from_slice(LINES[random.index(lines)]);
        if is_invalid && random.index(2) == 0 {
            body.extend_from_slice(INVALID[random.index(INVALID.len())]);
        }
        body.extend_from_slice(ENDS[random.index(ENDS.len())]);
    }
    body.truncate(body.len() - random.index(2));
    body
}

/// The events of a whole text, read line by line as the standard says, without regard to speed.
fn expected_events(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body).replace("\r\n", "\n").replace('\r', "\n") + "\n\n";
    let (mut events, mut data, mut name) = (Vec::new(), Vec::new(), "");
    for line in text.trim_start_matches('\u{feff}').split('\n') {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        match field {
            "data" => data.push(value.strip_prefix(' ').unwrap_or(value)),
            "event" => name = value.trim_start(),
            "" if line.is_empty() => {
                let (lines, name) = (std::mem::take(&mut data), std::mem::take(&mut name));
                match lines.join("\n").as_str() {
                    "[DONE]" => return events,
                    event if !event.trim().is_empty() && name != "keepalive" => events.push(event.to_owned()),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    events
}

#[test]
fn the_same_bytes_give_the_same_events_wherever_they_are_cut() {
    let (mut cuts, mut with_events, mut invalid) = (0, 0, 0);
    for seed in 1..=600_u64 {
        let mut random = Random::new(seed);
        let body = random_body(&mut random);
        let whole = read(&[&body]);
        let shown = || format!("seed {seed}: {:?}", String::from_utf8_lossy(&body));
        assert_eq!(whole.events, expected_events(&body), "{}", shown());
        assert_eq!(whole.interruption, None, "{}", shown());
        with_events += usize::from(!whole.events.is_empty());
        invalid += usize::from(whole.had_invalid_utf8);
        for at in 0..=body.len() {
            let (before, after) = body.split_at(at);
            assert_eq!(read(&[before, after]), whole, "cut at {at}, {}", shown());
            cuts += 1;
        }
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(read(&bytes), whole, "byte by byte, {}", shown());
        let pieces: Vec<&[u8]> = body.chunks(1 + random.index(5)).collect();
        assert_eq!(read(&pieces), whole, "in pieces, {}", shown());
        cuts += 2;
    }
    assert!(cuts >= 20_000 && with_events >= 400 && invalid >= 30, "{cuts} {with_events} {invalid}");
}

#[tokio::test]
async fn reading_gives_way_to_other_tasks_however_fast_the_body_comes() {
    for chunk in ["data: a\n\n", ": ping\n\n", "data: a\n"] {
        let chunks = stream::repeat_with(move || Ok(Bytes::from_static(chunk.as_bytes())));
        let mut body = Body::events(chunks.boxed(), usize::MAX);
        let polls = poll_fn(|context| {
            let polls = (0..10_000).find(|_| body.poll_next(context).is_pending());
            Poll::Ready(polls)
        });
        assert!(polls.await.is_some(), "{chunk:?} was read without end");
    }
}

/// A chunk that is part of the connection's buffer.
struct Buffer(Arc<AtomicUsize>);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        b"data: a\n\ndata: b\n\n"
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_chunk_that_was_read_is_given_back_before_the_next_is_waited_for() {
    let given_back = Arc::new(AtomicUsize::new(0));
    let chunks = [Ok(Bytes::from_owner(Buffer(Arc::clone(&given_back))))];
    let mut body = Body::events(stream::iter(chunks).chain(stream::pending()).boxed(), usize::MAX);
    let read = [(); 2].map(|()| next(&mut body).expect("an event"));
    assert_eq!(read, ["a", "b"].map(|text| Ok(text.to_owned())));
    assert!(poll_fn(|context| body.poll_next(context)).now_or_never().is_none());
    assert_eq!(given_back.load(Ordering::Relaxed), 1);
}

#[test]
fn nothing_is_read_ahead_of_the_reader() {
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let chunks = stream::repeat_with(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(Bytes::from_static(b"data: a\n\ndata: b\n\n"))
    });
    let mut body = Body::events(chunks.boxed(), usize::MAX);
    for events in 1..=100_usize {
        let event = poll_fn(|context| body.poll_next(context)).now_or_never().expect("there is more");
        assert!(matches!(event, Some(Ok(_))), "{event:?}");
        assert_eq!(taken.load(Ordering::Relaxed), events.div_ceil(2), "after {events} events");
    }
}
