//! The parts of an answer's reasoning that are sent back and counted, by provider and dialect.

use super::*;
use crate::entry::NativeSummary;
use crate::entry::{EntryId, EntryKind};
use crate::path::project;
use crate::size::{Estimator, entry_reasoning_tokens, entry_tokens};
use crate::tests::notation::{assistant, compaction};

fn entry(parts: Vec<Part>) -> Entry {
    let mut answer = assistant(parts);
    answer.provider = "deepseek".to_owned();
    let kind = EntryKind::message(Message::Assistant(answer));
    let tokens = entry_tokens(&kind, Estimator::Classes);
    let reasoning_tokens = entry_reasoning_tokens(&kind);
    Entry { id: EntryId(0), parent: None, at_ms: 0, tokens, reasoning_tokens, origin: None, kind }
}

fn opaque(dialect: &str) -> Part {
    Part::OpaqueReasoning { dialect: dialect.to_owned(), data: "x".repeat(400) }
}

#[test]
fn reasoning_counts_where_the_rule_of_the_request_carries_it() {
    let text = Part::Text("It is forty-two.".to_owned());
    let thought = Part::Reasoning("six times seven is what was asked for ".repeat(20));
    let plain = entry(vec![text.clone()]).tokens;
    let mixed = entry(vec![thought.clone(), opaque("anthropic"), text.clone()]);
    assert_eq!(mixed.tokens, plain, "reasoning is stored apart");
    assert!(mixed.reasoning_tokens > 100, "{}", mixed.reasoning_tokens);
    let readable = mixed.reasoning_tokens;
    let check = |readable_of: Option<&str>, dialect: Option<&str>, expected: u64| {
        let readable_of = readable_of.map(str::to_owned);
        let rule = ResentReasoning { readable_of, dialect: dialect.map(str::to_owned), opaque_of: None };
        assert_eq!(rule.tokens(&mixed), expected, "{rule:?}");
        assert_eq!(rule.sent_tokens(&mixed), plain + expected, "{rule:?}");
        let path = [Arc::new(mixed.clone())];
        assert_eq!(rule.sized(&path)[0].tokens, plain + expected, "{rule:?}");
        assert_eq!(matches!(rule.sized(&path), Cow::Borrowed(_)), expected == 0, "{rule:?}");
        // The count is that of the rest of the message.
        let message = Arc::new(mixed.kind.as_message().expect("it is one").as_ref().clone());
        let Message::Assistant(sent) = &**rule.strip(&message) else { panic!("it is an answer") };
        assert_eq!(rule.tokens(&entry(sent.content.clone())), expected, "{rule:?}");
        let Message::Assistant(whole) = &*message else { panic!("it is an answer") };
        let is_whole = dialect == Some("anthropic");
        assert_eq!(sent.content.len() == whole.content.len(), is_whole, "{rule:?}");
    };
    check(None, None, 0);
    check(Some("openai"), Some("google"), 0);
    check(Some("deepseek"), None, readable);
    // Readable reasoning goes along with its signature, which holds it too: it is counted once.
    check(None, Some("anthropic"), readable);
    check(Some("deepseek"), Some("anthropic"), readable);
    // An answer of reasoning alone is not sent.
    let all = ResentReasoning {
        readable_of: Some("deepseek".to_owned()),
        dialect: Some("anthropic".to_owned()),
        opaque_of: None,
    };
    assert_eq!(all.tokens(&entry(vec![thought, opaque("anthropic")])), 0);
    assert_eq!(all.tokens(&entry(vec![text.clone()])), 0);
    // Encrypted reasoning is longer than its readable digest.
    let brief = entry(vec![Part::Reasoning("hm".to_owned()), opaque("anthropic"), text]);
    assert_eq!(all.tokens(&brief), 100);
    // Opaque content is sent without any readable part, and is counted with the message.
    let block = Part::OpaqueBlock { dialect: "anthropic".to_owned(), data: "x".repeat(400) };
    let block = entry(vec![block, opaque("anthropic")]);
    assert_eq!((all.tokens(&block), block.tokens >= 100), (100, true));
    assert!(
        !block.kind.as_message().and_then(|message| message.as_answer()).expect("it is an answer").is_empty()
    );
}

/// The path of a pinned message, and of a compaction whose summary has a provider's own form.
fn compacted(summary: &str) -> (Vec<Arc<Entry>>, Vec<Arc<Entry>>) {
    let entry = |id: u64, kind: EntryKind| {
        let tokens = entry_tokens(&kind, Estimator::Classes);
        let parent = id.checked_sub(1).map(EntryId);
        let id = EntryId(id);
        Arc::new(Entry { id, parent, at_ms: 0, tokens, reasoning_tokens: 0, origin: None, kind })
    };
    let mut compaction = compaction(Some(EntryId(1)), summary);
    let native =
        Native { provider: "own".to_owned(), dialect: "d".to_owned(), blocks: vec!["{}".to_owned()] };
    compaction.native = Some(NativeSummary { native, tokens: 7 });
    let user = |text: &str| EntryKind::message(Message::user(text));
    let path = vec![
        entry(0, user("pinned")),
        entry(1, user("kept")),
        entry(2, EntryKind::Compaction(Box::new(compaction))),
    ];
    (path.clone(), path[..1].to_vec())
}

#[test]
fn one_form_of_a_summary_is_sent_and_counted() {
    let summary = "## Goal\ng\n\n<read-files>\na.rs\n</read-files>";
    let (path, pinned) = compacted(summary);
    let sent = project(&path, &pinned);
    let texts: Vec<String> = sent.iter().map(|message| message.text()).collect();
    assert_eq!((texts.len(), &texts[1][..], &texts[2][..]), (3, "pinned", "kept"), "it stands first");
    let of = |dialect: &str, opaque_of: Option<&str>| ResentReasoning {
        readable_of: None,
        dialect: Some(dialect.to_owned()),
        opaque_of: opaque_of.map(str::to_owned),
    };
    let own = [of("d", None), of("d", Some("own"))];
    let others = [of("d", Some("other")), of("e", None), of("e", Some("own")), ResentReasoning::default()];
    for (rule, is_own) in own.iter().map(|rule| (rule, true)).chain(others.iter().map(|rule| (rule, false))) {
        let expected = if is_own { 7 } else { path[2].tokens };
        assert_eq!(rule.sent_tokens(&path[2]), expected, "{rule:?}");
        assert_eq!(rule.sized(&path)[2].tokens, expected, "{rule:?}");
        let Message::User(blocks) = &**rule.strip(&sent[0]) else { panic!("{rule:?}") };
        assert_eq!(blocks.iter().any(|block| matches!(block, Block::Native(_))), is_own, "{rule:?}");
        let text = crate::message::blocks_text(blocks);
        assert_eq!(text.contains("## Goal"), !is_own, "{rule:?}: {text}");
        assert_eq!(text.matches("a.rs").count(), 1, "what code wrote stands beside either: {text}");
    }
}
