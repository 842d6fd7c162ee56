//! Texts with and without tags, in one piece and cut at every place.

use super::{Split, Think};

fn split(pieces: &[&str]) -> Split {
    let mut think = Think::default();
    let mut all = Split::default();
    let taken: Vec<Split> = pieces.iter().map(|piece| think.take((*piece).to_owned())).collect();
    for Split { reasoning, text } in taken.into_iter().chain([think.end()]) {
        assert!(reasoning.is_empty() || all.text.is_empty(), "reasoning after text: {pieces:?}");
        all.reasoning.push_str(&reasoning);
        all.text.push_str(&text);
    }
    all
}

/// Whole, cut in two at every place, and byte by byte.
fn check(answer: &str, reasoning: &str, text: &str) {
    let expected = Split { reasoning: reasoning.to_owned(), text: text.to_owned() };
    assert_eq!(split(&[answer]), expected, "{answer:?}");
    for (at, _) in answer.char_indices() {
        assert_eq!(split(&[&answer[..at], &answer[at..]]), expected, "{answer:?} cut at {at}");
    }
    let letters: Vec<String> = answer.chars().map(String::from).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    assert_eq!(split(&letters), expected, "{answer:?} letter by letter");
}

#[test]
fn a_leading_tag_is_reasoning() {
    check("<think>a bird?</think>It is one.", "a bird?", "It is one.");
    check("\n <think>\na < b </ü\n</think>\n\nIt is one.\n", "\na < b </ü\n", "It is one.\n");
    check("<think></think>Yes.", "", "Yes.");
    check("<think>one</think><think>two</think>", "one", "<think>two</think>");
    // The answer was cut off within its reasoning.
    check("<think>a bird</thi", "a bird</thi", "");
    check("<think>", "", "");
}

#[test]
fn everything_else_is_text() {
    for text in [
        "", "Yes.", "  Yes.", "<thinking>", "<th", "< think>no</think>", "a <think>b</think>", "\n",
        "</think>",
    ] {
        check(text, "", text);
    }
}
