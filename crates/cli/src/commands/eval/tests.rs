//! The report of a replay.

use greenroom_kernel::{EntryId, EntryKind, Message};

use super::*;

/// Returns a session of `turns` turns, a minute apart, which begins with these messages.
fn session(first: &[&str], turns: usize) -> Vec<Arc<Entry>> {
    let filler = "word ".repeat(300);
    let texts = (0..turns).map(|turn| format!("turn {turn}: {filler}"));
    let texts = first.iter().map(|text| (*text).to_owned()).chain(texts);
    let entry = |(index, text): (usize, String)| {
        let id = index as u64;
        let message = Message::user(text);
        Arc::new(Entry {
            at_ms: 60_000 * (id + 1),
            ..Entry::recorded(EntryId(id), None, 0, EntryKind::message(message))
        })
    };
    texts.enumerate().map(entry).collect()
}

fn listed(question: &str, needle: &str) -> Listed {
    Listed { question: Some(question.to_owned()), needles: vec![needle.to_owned()] }
}

fn options(strategy: Strategy, change: impl FnOnce(&mut greenroom::CompactionSettings)) -> ReplayOptions {
    let mut settings = greenroom::CompactionSettings { strategy, ..greenroom::CompactionSettings::default() };
    change(&mut settings);
    ReplayOptions {
        window: 8_000,
        settings,
        summariser: Summariser::Lossy,
        compactions_max: 5,
        summary_ms: 20_000,
    }
}

#[test]
fn facts_are_in_the_context_or_one_recall_away_or_gone() {
    let messages =
        session(&["Never touch src/lamp.rs, please.", "the wick of the lamp is made of blue cotton"], 80);
    let facts = [
        listed("Which file is off limits?", "src/lamp.rs"),
        listed("What is the wick of the lamp made of?", "blue cotton"),
        listed("Who is Zorro?", "the wick of the lamp"),
        listed("When?", "it never came up"),
    ];
    let with =
        evaluated("s", &messages, Some(&facts), Summarises::Lossy, &options(Strategy::Summarize, |_| {}));
    let counts: Vec<usize> = with.iter().map(|row| row.compactions).collect();
    assert_eq!(counts, AFTER);
    assert!(with.iter().all(|row| row.facts == 3 && row.in_context >= 1), "{with:?}");
    // Without the user's words and the ledger, and with a summariser that drops everything, only a recall finds them.
    let bare = options(Strategy::Summarize, |settings| (settings.user_words, settings.ledger) = (None, None));
    let rows = evaluated("s", &messages, Some(&facts), Summarises::Lossy, &bare);
    for row in &rows {
        assert_eq!((row.facts, row.in_context, row.one_recall_away), (3, 0, Some(1)), "{row:?}");
        assert!(row.tokens_after < row.tokens_before && row.summary_tokens > 0, "{row:?}");
        // At a turn a minute, a summary of 20 s is ready before it is due.
        assert_eq!((row.waited_ms, row.waited_prepared_ms), (Some(20_000), Some(0)), "{row:?}");
    }
    // Without a list, the facts of the ledger are looked up, and no question is asked.
    let rows = evaluated("s", &messages, None, Summarises::Lossy, &options(Strategy::Digest, |_| {}));
    assert!(rows.iter().all(|row| row.facts > 0 && row.one_recall_away.is_none()), "{rows:?}");
    assert!(rows.iter().all(|row| row.summary_tokens == 0 && row.waited_ms == Some(0)), "{rows:?}");
    assert!(
        evaluated("s", &messages[..4], None, Summarises::Lossy, &bare).is_empty(),
        "nothing was compacted"
    );
}

#[test]
fn a_row_is_told_in_a_line() {
    let row = Evaluated {
        session: "s".into(),
        window: 8_000,
        strategy: Strategy::Summarize,
        summariser: Summarises::Obedient,
        compactions: 3,
        facts: 20,
        in_context: 15,
        one_recall_away: Some(4),
        prunes: 0,
        tokens_before: 6_001,
        tokens_after: 2_950,
        summary_tokens: 12_300,
        waited_ms: Some(20_000),
        waited_prepared_ms: None,
    };
    assert_eq!(
        line(&row),
        "  summarize obedient         3     75 %     95 %    5 %          6k → 3k      12.3k   20.0 s          –"
    );
    let other =
        Evaluated { strategy: Strategy::Digest, one_recall_away: None, facts: 0, in_context: 0, ..row };
    assert!(
        line(&other).starts_with("  digest                     3        –        –      –"),
        "{}",
        line(&other)
    );
}

#[test]
fn a_list_that_cannot_be_read_names_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let read = |text: &str| {
        let path = folder.path().join("facts.jsonl");
        std::fs::write(&path, text).expect("it is written");
        facts("s", Some(&path)).map(|facts| facts.map(|facts| facts.len())).map_err(|error| error.to_string())
    };
    assert_eq!(read("{\"question\":\"q\",\"needles\":[\"n\"]}\n\n{\"needles\":[\"m\"]}\n"), Ok(Some(2)));
    for (text, says) in [
        ("{}", "line 1: missing field `needles`"),
        ("\n{\"needles\":[\" \"]}", "line 2: `needles` has no text"),
    ] {
        let error = read(text).expect_err("it is wrong");
        assert!(error.contains(says), "{error}");
    }
    assert!(facts("no/such/file", None).expect("there is none").is_none());
}
