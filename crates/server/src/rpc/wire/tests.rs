//! Lines, and what they hold.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncWriteExt as _, BufReader};

use super::{
    BATCH_MAX, BEGINNING_BYTES, Incoming, KEPT_BYTES, LINE_BYTES_MAX, Line, Message, Refusal, SKIPPED_BYTES,
    answer, answer_within, batch_answer_within, id_of, next_line,
};

/// How a message is taken: `request ID`, `notification`, or `invalid ID CODE`.
fn taken(message: &Message) -> String {
    match message {
        Message::Request { id, call } => format!("request {id} {}", call.method),
        Message::Notification(call) => format!("notification {}", call.method),
        Message::Invalid { id, refusal } => format!("invalid {id} {}", refusal.code),
    }
}

#[test]
fn a_message_is_taken_as_the_specification_says() {
    for (line, expected) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#, "request 1 m"),
        (r#"{"jsonrpc":"2.0","id":"x","method":"m","params":{}}"#, "request \"x\" m"),
        (r#"{"jsonrpc":"2.0","id":null,"method":"m","params":null}"#, "request null m"),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"m","params":[1],"more":2}"#, "request 1.5 m"),
        (r#"{"jsonrpc":"2.0","method":"m"}"#, "notification m"),
        (r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, "invalid null -32600"),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"m"}"#, "invalid null -32600"),
        (r#"{"jsonrpc":"2.0","id":true,"method":"m"}"#, "invalid null -32600"),
        (r#"{"jsonrpc":"1.0","id":7,"method":"m"}"#, "invalid 7 -32600"),
        (r#"{"jsonrpc":2.0,"id":7,"method":"m"}"#, "invalid 7 -32600"),
        (r#"{"id":7,"method":"m"}"#, "invalid 7 -32600"),
        (r#"{"method":"m"}"#, "invalid null -32600"),
        (r#"{"jsonrpc":"2.0","id":7}"#, "invalid 7 -32600"),
        (r#"{"jsonrpc":"2.0","id":7,"method":1}"#, "invalid 7 -32600"),
        (r#"{"jsonrpc":"2.0","method":1,"params":"bar"}"#, "invalid null -32600"),
        (r#"{"jsonrpc":"2.0","id":7,"method":"m","params":"bar"}"#, "invalid 7 -32600"),
        ("1", "invalid null -32600"),
        ("null", "invalid null -32600"),
        ("\"m\"", "invalid null -32600"),
    ] {
        let Ok(Incoming::One(message)) = Incoming::read(line.as_bytes()) else { panic!("{line}") };
        assert_eq!(taken(&message), expected, "{line}");
    }
}

#[test]
fn a_batch_is_taken_message_by_message() {
    let line = br#"[1,{"jsonrpc":"2.0","id":2,"method":"m"},{"jsonrpc":"2.0","method":"n"},[]]"#;
    let Ok(Incoming::Batch(batch)) = Incoming::read(line) else { panic!("it is a batch") };
    let taken: Vec<String> = batch.iter().map(taken).collect();
    assert_eq!(taken, ["invalid null -32600", "request 2 m", "notification n", "invalid null -32600"]);
    for (line, code) in [
        ("[]", -32_600),
        (&format!("[{}1]", "1,".repeat(BATCH_MAX)), -32_600),
        ("[1", -32_700),
        ("{", -32_700),
        ("\u{7}", -32_700),
    ] {
        assert_eq!(Incoming::read(line.as_bytes()).unwrap_err().code, code, "{:.20}", line);
    }
    assert!(Incoming::read(format!("[{}1]", "1,".repeat(BATCH_MAX - 1)).as_bytes()).is_ok());
}

#[test]
fn an_answer_bears_its_id_and_either_a_result_or_an_error() {
    let read = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
    assert_eq!(read(answer(&json!(1), Ok(json!({})))), json!({ "jsonrpc": "2.0", "id": 1, "result": {} }));
    let refusal = Refusal::new(Refusal::INVALID_PARAMS, "why");
    let error = json!({ "code": -32602, "message": "why" });
    assert_eq!(
        read(answer(&json!(null), Err(refusal))),
        json!({ "jsonrpc": "2.0", "id": null, "error": error })
    );
}

#[tokio::test]
async fn a_line_that_is_too_long_is_skipped_and_takes_no_memory() {
    let max = 3 * BEGINNING_BYTES;
    let bytes_max = max as u64;
    let longest = "x".repeat(max - 1);
    let long = "y".repeat(max);
    let very_long = "z".repeat(3 * usize::try_from(SKIPPED_BYTES).unwrap() + 5);
    let text = format!("a\n{longest}\n{long}\nb\n{very_long}\n\nc");
    let mut input = BufReader::new(text.as_bytes());
    let mut line = Vec::new();
    let mut seen = Vec::new();
    loop {
        let read = next_line(&mut input, &mut line, bytes_max).await.unwrap();
        assert!(line.capacity() <= 3 * max, "{}", line.capacity());
        match read {
            Line::End => break,
            Line::TooLong => {
                assert_eq!(line.len(), BEGINNING_BYTES);
                seen.push(format!("too long {}", char::from(line[0])));
            }
            Line::Read => seen.push(format!("{:.3}", String::from_utf8(line.clone()).unwrap().trim_end())),
        }
    }
    assert_eq!(seen, ["a", "xxx", "too long y", "b", "too long z", "", "c"]);
    // One that never ends ends with the input.
    let mut input = BufReader::new(very_long.as_bytes());
    assert_eq!(next_line(&mut input, &mut line, bytes_max).await.unwrap(), Line::TooLong);
    assert_eq!(next_line(&mut input, &mut line, bytes_max).await.unwrap(), Line::End);
}

#[tokio::test]
async fn the_memory_of_a_long_line_is_given_back_before_the_next_is_waited_for() {
    let (mut out, input) = tokio::io::duplex(64);
    let mut input = BufReader::new(input);
    let writing = tokio::spawn(async move {
        let long = format!("{}\n", "x".repeat(8 << 20));
        out.write_all(long.as_bytes()).await.unwrap();
        out
    });
    let mut line = Vec::new();
    assert_eq!(next_line(&mut input, &mut line, LINE_BYTES_MAX).await.unwrap(), Line::Read);
    assert_eq!(line.len(), (8 << 20) + 1);
    let open = writing.await.unwrap();
    let next = next_line(&mut input, &mut line, LINE_BYTES_MAX);
    assert!(tokio::time::timeout(Duration::ZERO, next).await.is_err(), "nothing comes");
    assert!(line.capacity() <= KEPT_BYTES, "{}", line.capacity());
    drop(open);
}

#[test]
fn the_id_of_a_line_that_is_too_long_is_found_where_it_is_in_the_beginning() {
    let long = "x".repeat(2 * BEGINNING_BYTES);
    for (line, id) in [
        (format!(r#"{{"id":7,"method":"m","params":"{long}"}}"#), json!(7)),
        (format!(r#"{{"jsonrpc":"2.0","params":{{"a":[1]}},"id":"x","more":"{long}"}}"#), json!("x")),
        (format!(r#"{{"id":"x","params":"{long}"}}"#), json!("x")),
        (format!(r#" {{ "id" : -1.5 , "params" : [[[["{long}"]]]]}}"#), json!(-1.5)),
        (format!(r#"{{"params":"{long}","id":7}}"#), json!(null)),
        (format!(r#"{{"id":{{}},"params":"{long}"}}"#), json!(null)),
        (format!(r#"{{"method":"m","params":{{"id":7,"a":"{long}"}}}}"#), json!(null)),
        (format!(r#"[{{"id":7,"params":"{long}"}}]"#), json!(null)),
        (long.clone(), json!(null)),
        (String::new(), json!(null)),
    ] {
        assert_eq!(id_of(line.as_bytes()), id, "{line:.60}");
    }
    // A number that is cut is no id.
    let cut = format!(r#"{{"a":"{}","id":12345}}"#, "x".repeat(BEGINNING_BYTES - 15));
    assert!(cut.as_bytes()[..BEGINNING_BYTES].ends_with(b"\"id\":12"), "{}", &cut[BEGINNING_BYTES - 8..]);
    assert_eq!(id_of(cut.as_bytes()), json!(null));
}

#[test]
fn an_answer_that_is_too_long_is_an_error_with_the_same_id() {
    // A byte of text that is six in JSON.
    let text = "\u{1}".repeat(200);
    let whole = answer_within(&json!(4), Ok(json!(text)), 10_000);
    assert!(whole.len() > 1_200, "{whole}");
    let bytes = whole.len() as u64;
    // The line break counts.
    assert_eq!(answer_within(&json!(4), Ok(json!(text)), bytes + 1), whole);
    let line = answer_within(&json!(4), Ok(json!(text)), bytes);
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&said["id"], &said["error"]["code"]), (&json!(4), &json!(Refusal::SERVER_ERROR)));
    let message = said["error"]["data"]["message"].as_str().unwrap();
    assert!(message.contains(&format!("has {bytes} bytes as a line of JSON, and {bytes} are")), "{message}");
    // In a batch, those that fit into their share are told.
    let answers =
        || vec![(json!(1), Ok(json!("short"))), (json!(2), Ok(json!(text))), (json!(3), Ok(json!(3)))];
    let said: serde_json::Value = serde_json::from_str(&batch_answer_within(answers(), 3_000)).unwrap();
    assert_eq!(said[1]["result"], json!(text));
    let line = batch_answer_within(answers(), bytes);
    assert!((line.len() as u64) < bytes, "{}", line.len());
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&said[0]["result"], &said[2]["result"]), (&json!("short"), &json!(3)));
    assert_eq!((&said[1]["id"], &said[1]["error"]["code"]), (&json!(2), &json!(Refusal::SERVER_ERROR)));
}
