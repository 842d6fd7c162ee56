//! The results of a search, their order, and the part of a text that they show.

use std::sync::Arc;

use super::*;
use crate::message::{Block, Message, ToolResult, ToolStatus};
use crate::tests::notation::{Random, says};

fn entry(id: u64, parent: Option<u64>, message: Message) -> Arc<Entry> {
    let kind = EntryKind::message(message);
    let (id, parent) = (EntryId(id), parent.map(EntryId));
    Arc::new(Entry { id, parent, at_ms: 0, tokens: 1, reasoning_tokens: 0, origin: None, kind })
}

fn index(texts: &[&str]) -> Index {
    let mut index = Index::default();
    for (id, text) in (0..).zip(texts) {
        let message = if id % 2 == 0 { Message::user(*text) } else { Message::Assistant(says(text)) };
        index.add(&entry(id, id.checked_sub(1), message));
    }
    index
}

fn found(index: &Index, query: &str) -> Vec<u64> {
    index.find(&index.query(query), 3, |_| true).iter().map(|hit| hit.entry.0).collect()
}

#[test]
fn entries_are_found_by_their_words() {
    let index = index(&[
        "Please migrate the database to Postgres 16, and never touch the staging server.",
        "The migration has begun. I created `src/db/migrate.rs`.",
        "Which port does the proxy listen on?",
        "It listens on port 8443, as set by PROXY_PORT.",
        "Die Prüfung schlägt fehl, weil der Zähler überläuft.",
        "数据库迁移失败",
        "databaseUrl is read from the environment.",
    ]);
    let check = |query: &str, first: u64| {
        let hits = found(&index, query);
        assert_eq!(hits.first(), Some(&first), "{query}: {hits:?}");
    };
    check("What may not be touched?", 0);
    check("migrating databases", 0);
    check("migrate.rs", 1);
    check("the port of the proxy", 3);
    check("proxy_port", 3);
    check("Zähler", 4);
    check("迁移", 5);
    check("database url", 6);
    assert_eq!(found(&index, "zebra quagga"), [0u64; 0]);
    assert!(index.query("zebra").is_empty() && index.query("").is_empty());
    // A query of common words alone is searched as it is.
    assert!(!found(&index, "it is").is_empty());
    // Only what is meant.
    let query = index.query("port proxy");
    let meant = index.find(&query, 9, |id| id != EntryId(3));
    assert_eq!(meant.iter().map(|hit| hit.entry.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn forms_of_a_word_are_one_word() {
    for (one, other) in [
        ("uses", "using"),
        ("used", "use"),
        ("retries", "retry"),
        ("stopped", "stop"),
        ("stopping", "stops"),
        ("files", "file"),
        ("caches", "cache"),
        ("process", "process"),
    ] {
        assert_eq!(stem(one), stem(other), "{one}, {other}");
    }
    for (one, other) in [("pass", "pas"), ("port", "part"), ("bus", "bu")] {
        assert_ne!(stem(one), stem(other), "{one}, {other}");
    }
}

#[test]
fn entries_on_another_branch_are_not_on_the_path() {
    let mut index = Index::default();
    for (id, parent) in [(0, None), (1, Some(0)), (2, Some(1)), (3, Some(0)), (4, Some(3))] {
        index.add(&entry(id, parent, Message::user("word")));
    }
    assert_eq!(index.path_to(Some(EntryId(4))), [true, false, false, true, true]);
    assert_eq!(index.path_to(Some(EntryId(2))), [true, true, true, false, false]);
    assert_eq!(index.path_to(None), [false; 5]);
}

/// The whole text beside the path counts for the result that follows it, which is on the path.
#[test]
fn a_shortened_result_is_found_by_its_whole_text() {
    let result = |text: &str| {
        let content = vec![Block::Text(text.into())];
        let (call_id, tool_name) = ("x".to_owned(), "read".to_owned());
        ToolResult { call_id, tool_name, content, status: ToolStatus::Ok, touched: Vec::new() }
    };
    let whole = EntryKind::WholeResult {
        call_id: "x".into(),
        content: vec![Block::Text("the start, a platypus, the end".into())],
    };
    let mut index = Index::default();
    index.add(&entry(0, None, Message::user("read it")));
    index.add(&Entry { kind: whole, ..(*entry(1, Some(0), Message::user(""))).clone() });
    index.add(&entry(2, Some(0), Message::ToolResult(result("the start [shortened]"))));
    index.add(&entry(3, Some(2), Message::ToolResult(result("a platypus"))));
    assert_eq!(found(&index, "platypus"), [3, 2], "the second result is as it came");
    assert_eq!(index.path_to(Some(EntryId(3))), [true, false, true, true]);
}

#[test]
fn a_passage_is_the_part_that_matches() {
    let filler = "Nothing of interest stands in this sentence here. ".repeat(40);
    let text =
        format!("{filler}\nThe retry limit is seven attempts. It was raised for the slow mirror.\n{filler}");
    let index = index(&[&text]);
    let query = index.query("How many attempts does a retry have?");
    let (from, passage) = query.passage(&text, 300);
    assert!(passage.contains("seven attempts"), "{passage}");
    assert!(passage.len() <= 300, "{}", passage.len());
    assert!(text.chars().skip(from).collect::<String>().starts_with(passage));
    // A short text is shown as a whole.
    assert_eq!(query.passage("Seven.", 300), (0, "Seven."));
    assert_eq!(query.passage("", 300), (0, ""));
}

/// Any text: the pieces are the text, a passage is a part of it, and an index is bounded by it.
#[test]
fn any_text_can_be_searched() {
    let mut random = Random::new(7);
    let signs = ["a", "B", "é", "漢", "\n", ". ", " ", "_", "\u{301}", "😀", "word", "x".repeat(500).leak()];
    let mut cases = 0;
    for _ in 0..2_000 {
        let length = random.below(120);
        let text: String =
            (0..length).map(|_| signs[usize::try_from(random.below(12)).expect("small")]).collect();
        assert_eq!(pieces(&text).concat(), text);
        let mut index = Index::default();
        index.add(&entry(0, None, Message::user(text.clone())));
        let query = index.query("word B 漢");
        let bytes_max = usize::try_from(1 + random.below(300)).expect("small");
        let (from, passage) = query.passage(&text, bytes_max);
        assert!(passage.len() <= bytes_max, "{} of {bytes_max}", passage.len());
        let rest: String = text.chars().skip(from).collect();
        assert!(rest.starts_with(passage));
        let hits = index.find(&query, 5, |_| true);
        assert_eq!(hits.is_empty(), query.is_empty());
        cases += 1;
    }
    assert_eq!(cases, 2_000);
    // A huge entry counts in part.
    let mut index = Index::default();
    index.add(&entry(0, None, Message::user((0..200_000).map(|n| format!("w{n} ")).collect::<String>())));
    assert!(index.bytes() < 200_000, "{}", index.bytes());
    assert_eq!(index.find(&index.query("w199999"), 1, |_| true).len(), 1, "its end counts");
}
