//! Chunks read by a pattern, beside the same chunks parsed.

use greenroom_kernel::random::Random;

use super::*;
use crate::dialect::chat::assemble::Assembler;

/// How servers write a chunk; `TEXT` is the JSON of the piece, `N` a number that changes with each chunk.
const FORMS: [&str; 19] = [
    r#"{"choices":[{"delta":{"content":TEXT}}]}"#,
    r#"{"id":"c","created":1,"model":"m","choices":[{"index":0,"delta":{"content":TEXT},"logprobs":null,"finish_reason":null}],"usage":null}"#,
    r#"{"id":"c","choices":[{"index":0,"delta":{"content":TEXT},"finish_reason":null}],"usage":null,"obfuscation":"xN"}"#,
    r#"{"choices":[{"delta":{"content":TEXT}}],"obfuscation":"N","other":{"obfuscation":"y"}}"#,
    r#"{"id":"N","choices":[{"delta":{"content":TEXT}}]}"#,
    r#"{"choices":[{"delta":{"role":"assistant","content":TEXT}}],"other":{"content":"N"}}"#,
    r#"{"other":{"content":TEXT},"choices":[{"delta":{"content" : "same"}}]}"#,
    r#"{"other":{"content":TEXT},"choices":[{"delta":{"content":[{"type":"text","text":TEXT}]}}]}"#,
    r#"{"choices":[{"delta":{"content":TEXT,"reasoning_content":"N"}}]}"#,
    r#"{"choices":[{"delta":{"content":TEXT}},{"index":1,"delta":{}}]}"#,
    r#"{"choices":[{"delta":{"content":TEXT}},{"delta":{"content":[{"text":"same"}]}}]}"#,
    r#"{"choices":[{"delta":{"content":TEXT,"refusal":"same"}}]}"#,
    r#"{"choices":[{"delta":{"content":TEXT,"reasoning":"same"}}]}"#,
    r#"{"choices":[{"delta":{"content":TEXT,"tool_calls":[{"id":"c","function":{"name":"f"}}]}}]}"#,
    r#"{"choices":[{"delta":{"content":TEXT},"finish_reason":"stop"}]}"#,
    r#"{"choices":[{"delta":{"content":TEXT},"usage":{"prompt_tokens":3,"completion_tokens":2}}]}"#,
    r#"{"choices":[{"delta":{"content":TEXT}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
    r#"{"error":{"content":TEXT},"choices":[{"delta":{}}]}"#,
    r#"{"choices":[{"delta":{"\"content":TEXT,"content":"N"}}]}"#,
];

/// The JSON of a piece. Some are broken.
const TEXTS: [&str; 12] = [
    r#""word ""#, r#""""#, r#""é漢😀""#, r#""line\nline\t\"quoted\" \\""#, r#""\u00e9\ud83d\ude00""#,
    r#""\ud83d""#, "\"a\tb\"", r#""a","b":"c""#, r#""a" "#, r#"null"#, r#"["a"]"#, r#""\""#,
];

#[test]
fn a_text_that_is_read_by_a_pattern_is_the_one_that_parsing_gives() {
    let (mut by_pattern, mut parsed, mut refused) = (0, 0, 0);
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let mut pattern = Pattern::default();
        let mut form = FORMS[random.index(FORMS.len())];
        for number in 0..40 {
            if random.index(20) == 0 {
                form = FORMS[random.index(FORMS.len())];
            }
            // Broken ones are rare, since they end the stream.
            let text = TEXTS[if random.index(8) == 0 { random.index(TEXTS.len()) } else { random.index(5) }];
            let mut data = form.replace("TEXT", text).replace('N', &number.to_string());
            if random.index(30) == 0 {
                let at = data.floor_char_boundary(random.index(data.len()));
                data.remove(at);
            }
            let chunk = serde_json::from_str::<Chunk>(&data);
            let shown = || format!("seed {seed}: {data}");
            match pattern.text(&data) {
                Some(text) => {
                    let chunk = chunk.unwrap_or_else(|error| panic!("{error}, {}", shown()));
                    assert!(chunk.error_body().is_none(), "{}", shown());
                    let (mut expect, mut got) = (Assembler::default(), Assembler::default());
                    let (mut expect_events, mut events) = (Vec::new(), Vec::new());
                    let expect_progress = expect.take(chunk, &mut expect_events);
                    let progress = got.take_text(text, &mut events);
                    assert_eq!((progress, events), (expect_progress, expect_events), "{}", shown());
                    assert_eq!(format!("{got:?}"), format!("{expect:?}"), "{}", shown());
                    by_pattern += 1;
                }
                None => match chunk {
                    Ok(chunk) => {
                        pattern.learn(&data, &chunk);
                        parsed += 1;
                    }
                    Err(_) => refused += 1,
                },
            }
        }
    }
    assert!(by_pattern > 7_000 && parsed > 20_000 && refused > 2_000, "{by_pattern} {parsed} {refused}");
}

/// Of these chunks, the ones at these positions are read by a pattern.
fn check(chunks: &[&str], expect: &[usize]) {
    let mut pattern = Pattern::default();
    let mut read = Vec::new();
    for (at, data) in chunks.iter().enumerate() {
        match pattern.text(data) {
            Some(_) => read.push(at),
            None => pattern.learn(data, &serde_json::from_str(data).expect("a chunk")),
        }
    }
    assert_eq!(read, expect, "{chunks:#?}");
}

#[test]
fn which_chunks_are_not_parsed() {
    let of = |id: &str, delta: &str| {
        format!(r#"{{"id":"{id}","choices":[{{"delta":{delta}}}],"obfuscation":"{id}"}}"#)
    };
    let text = |id: &str, text: &str| of(id, &format!(r#"{{"content":"{text}"}}"#));
    let plain = |piece: &str| format!(r#"{{"choices":[{{"delta":{{"content":"{piece}"}}}}]}}"#);
    let role = of("a", r#"{"role":"assistant","content":""}"#);
    let end = of("a", r#"{},"finish_reason":"stop""#);
    check(&[&role, &text("a", "x"), &text("a", "y"), &text("a", "\\n"), &end], &[2, 3]);
    // What changes beside the text is learned anew, but not for ever.
    let ids: Vec<String> = (0..9).map(|id| text(&id.to_string(), "x")).chain([text("8", "y")]).collect();
    check(&ids.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let seconds: Vec<String> =
        (0..9).flat_map(|id| [text(&id.to_string(), "x"), text(&id.to_string(), "y")]).collect();
    check(
        &seconds.iter().map(String::as_str).collect::<Vec<_>>(),
        &(0..9).map(|at| 2 * at + 1).collect::<Vec<_>>(),
    );
    check(&[&plain("a"), &plain("b\\\"c"), &plain("d"), &plain("")], &[1, 2, 3]);
}
