//! Which conversations are recognised as the continuation of another one.

use std::cell::Cell;
use std::sync::Arc;

use super::Messages;
use crate::message::Message;
use crate::random::Random;
use crate::reasoning::ResentReasoning;
use crate::unreported::Counted;

fn message(text: &str) -> Arc<Message> {
    Arc::new(Message::user(text))
}

fn conversation(words: &str) -> Messages {
    words.split_whitespace().map(message).collect()
}

fn check(messages: &Messages, expected: &str) {
    let texts: Vec<String> = messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts.join(" "), expected);
}

#[test]
fn an_extended_list_is_not_copied_and_continues_its_beginning() {
    let mut messages = conversation("a b");
    messages.push(message("c"));
    let (place, beginning) = (messages.as_ptr(), messages.beginning());
    // Neither a clone that is gone nor a beginning makes a copy necessary.
    drop(messages.clone());
    messages.push(message("d"));
    assert_eq!((messages.as_ptr(), beginning.len()), (place, 3));
    assert!(messages.continues(&beginning));
    check(&messages, "a b c d");
    // A beginning is no continuation of what is longer.
    let longer = messages.beginning();
    messages.truncate(3);
    assert!(!messages.continues(&longer));
}

#[test]
fn what_was_changed_continues_nothing() {
    let mut one = conversation("a b");
    let mut other = one.clone();
    let beginning = one.beginning();
    // Both are extended, each in its own way.
    one.push(message("c"));
    let of_one = one.beginning();
    other.push(message("d"));
    assert!(!other.continues(&of_one) && !one.continues(&other.beginning()));
    // The list of one was shared at that time: its beginning is unknown, but nothing false is known.
    assert!(!one.continues(&beginning) && other.continues(&beginning));
    check(&one, "a b c");
    check(&other, "a b d");
    // Something is taken away, and something else takes its place.
    let before = other.beginning();
    other.truncate(2);
    other.push(message("e"));
    assert!(!other.continues(&before));
    check(&other, "a b e");
}

#[test]
fn the_end_is_replaced_as_far_as_it_differs() {
    let mut messages = conversation("a b c");
    let (kept, beginning) = (Arc::clone(&messages[1]), messages.beginning());
    messages.replace_from(1, conversation("b c d").into_vec());
    check(&messages, "a b c d");
    assert!(messages.continues(&beginning) && Arc::ptr_eq(&messages[1], &kept));
    let beginning = messages.beginning();
    messages.replace_from(1, conversation("b x").into_vec());
    check(&messages, "a b x");
    assert!(!messages.continues(&beginning) && Arc::ptr_eq(&messages[1], &kept));
}

/// Whatever is done with a conversation and its clones, its count is that of its messages, and what was counted is not read
/// again.
#[test]
fn a_message_is_counted_once() {
    let count = |message: &Message, resent: &ResentReasoning| Counted {
        likely: message.text().len() as u64 + if resent.dialect.is_some() { 100 } else { 0 },
        least: 1,
    };
    let (mut random, mut counts, mut read, mut length) = (Random::new(7), 0, 0, 0);
    for _ in 0..300 {
        let mut lists = vec![Messages::default()];
        for _ in 0..60 {
            let at = usize::try_from(random.below(lists.len() as u64)).expect("small");
            let new = message(&"x".repeat(usize::try_from(random.below(50)).expect("small")));
            let len = usize::try_from(random.below(lists[at].len() as u64 + 1)).expect("small");
            match random.below(8) {
                0..4 => lists[at].push(new),
                4 => lists[at].truncate(len),
                5 => lists[at].replace_from(len, vec![new]),
                6 if lists.len() < 4 => lists.push(lists[at].clone()),
                _ => drop(lists.swap_remove(at)),
            }
            if lists.is_empty() {
                lists.push(conversation("a b c"));
            }
            for list in &lists {
                let resent = match random.below(20) {
                    0 => ResentReasoning { dialect: Some("d".to_owned()), ..ResentReasoning::default() },
                    _ => ResentReasoning::default(),
                };
                let seen = Cell::new(0);
                let counted = list.counted(&resent, |message| {
                    seen.set(seen.get() + 1);
                    count(message, &resent)
                });
                let whole = list.iter().map(|message| count(message, &resent));
                assert_eq!(counted, whole.fold(Counted::default(), Counted::plus));
                counts += 1;
                read += seen.get();
                length += list.len();
            }
        }
    }
    assert!(counts > 10_000 && read * 4 < length, "{counts} counts read {read} of {length} messages");
}
