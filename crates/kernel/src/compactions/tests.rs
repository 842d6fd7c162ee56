//! The compactions that are read from a log.

use super::*;
use crate::bill::CompactionBill;
use crate::carried::{Carried, FactKind};
use crate::entry::{Prune, PrunedResult};
use crate::files::FileOps;
use crate::head::Head;
use crate::message::Part;
use crate::tests::notation::{Sketch, assistant, compaction, usage};

/// A price of one micro-dollar for a token of input, and a tenth for one that was cached.
fn price(_: &str, model: &str, usage: &Usage) -> Option<u64> {
    (model == "test-1").then(|| usage.input_tokens - usage.cached_tokens + usage.cached_tokens / 10)
}

fn fact(entry: u64, text: &str) -> Fact {
    Fact { entry: EntryId(entry), kind: FactKind::Path, text: text.into(), key: String::new(), times: 1 }
}

fn quote(entry: u64, text: &str) -> Quote {
    Quote { entry: EntryId(entry), text: text.into(), is_rule: false }
}

/// A session that grows.
#[derive(Default)]
struct Session(Sketch);

impl Session {
    fn add(&mut self, drawing: &str) -> &mut Self {
        self.0.add_all(drawing);
        self
    }

    fn answer(&mut self) -> &mut Self {
        let mut answer = assistant(vec![Part::Text("done".into())]);
        answer.usage = usage(100, 10);
        self.0.push(EntryKind::message(Message::Assistant(answer)), 5);
        self
    }

    /// Ends a compaction with this entry.
    fn end(&mut self, outcome: CompactionOutcome, entry: Option<EntryId>, sizes: (u64, u64)) -> EntryId {
        let ended = CompactionEnded {
            started: EntryId(0),
            trigger: Trigger::Threshold,
            outcome,
            entry,
            tokens_before: sizes.0,
            tokens_after: sizes.1,
            messages_before: 9,
            messages_after: 4,
            messages_removed: 5,
            duration_ms: 70,
            waited_ms: 30,
            prepared_ms: None,
            summary_usage: usage(1_000, 100).expect("given"),
            cost_microdollars: Some(50),
            recall: None,
        };
        self.0.push(EntryKind::CompactionEnded(Box::new(ended)), 0)
    }

    fn compact(&mut self, replaced: (u64, u64), first_kept: u64, sizes: (u64, u64)) -> EntryId {
        let mut compaction = compaction(
            Some(EntryId(first_kept)),
            "the summary names a.rs\n\nThe user's own words, with the entry of each:\n<user-words>\n[0] shown in\ntwo \
             lines\n[1] a par […] shown\n(More of them: recall with entry 1, 2, 3)\n</user-words>\n\n\
             ## Facts\n<facts>\nb.rs\n</facts>\n\n<read-files>\nd.rs\n</read-files>",
        );
        (compaction.first, compaction.last) = (Some(EntryId(replaced.0)), Some(EntryId(replaced.1)));
        (compaction.tokens_before, compaction.tokens_after) = sizes;
        compaction.model = "test-1".into();
        compaction.carried = Carried {
            facts: vec![fact(0, "a.rs"), fact(1, "b.rs"), fact(1, "c.rs"), fact(1, "d.rs")],
            words: vec![
                quote(0, "shown in\ntwo lines"),
                quote(1, "a part of it is shown"),
                quote(2, "carried, not shown"),
                quote(4, "the request"),
            ],
            words_left: vec![EntryId(3), EntryId(5)],
            request_from: Some(EntryId(4)),
            ..Carried::default()
        };
        let entry = self.0.push(EntryKind::Compaction(Box::new(compaction)), 20);
        self.end(CompactionOutcome::Completed, Some(entry), sizes);
        entry
    }

    fn prune(&mut self, result: u64, sizes: (u64, u64)) -> EntryId {
        let result =
            PrunedResult { entry: EntryId(result), text: "out".into(), keeps_images: false, tokens: 2 };
        let (tokens_before, tokens_after) = sizes;
        let prune = Prune { results: vec![result], trigger: Trigger::Threshold, tokens_before, tokens_after };
        let entry = self.0.push(EntryKind::Prune(Box::new(prune)), 0);
        self.end(CompactionOutcome::Pruned { reason: None }, Some(entry), sizes);
        entry
    }

    /// Returns a line for each compaction: number, outcome, state, and what it saved.
    fn lines(&self) -> Vec<String> {
        let leaf = self.0.path.iter().rev().find(|entry| entry.kind.is_on_path()).map(|entry| entry.id);
        let state = |record: &CompactionRecord| match (record.is_undone, record.is_active) {
            (false, false) => "",
            (true, false) => " undone",
            (false, true) => " active",
            (true, true) => " both",
        };
        let line = |record: &CompactionRecord| {
            let Saved { calls, tokens, microdollars } = record.saved;
            let outcome = &record.outcome;
            format!("{} {outcome}{}: {calls} calls, {tokens}, ${microdollars}", record.number, state(record))
        };
        list(&self.0.path, leaf, &price.into()).iter().map(line).collect()
    }

    /// Returns the bill of the head after all entries.
    fn bill(&self) -> CompactionBill {
        let mut head = Head::default();
        self.0.path.iter().for_each(|entry| head.record(entry, &price.into()));
        head.compaction_bill
    }
}

#[test]
fn the_summary_of_a_branch_is_listed() {
    let mut session = Session::default();
    session.add("u:10 a:5 u:100").answer();
    session.end(CompactionOutcome::Failed { reason: "the model is down".into() }, None, (115, 115));
    session.0.push(EntryKind::LeafMoved { to: Some(EntryId(1)) }, 0);
    let summary = "they looked at the harbour".to_owned();
    let branch =
        EntryKind::BranchSummary { from: EntryId(3), summary: summary.clone(), files: FileOps::default() };
    let entry = session.0.push(branch, 20);
    session.end(CompactionOutcome::Completed, Some(entry), (115, 35));
    session.answer();
    // It saves nothing: the branch is not continued.
    let lines = ["1 failed: 0 calls, 0, $0", "2 completed active: 0 calls, 0, $0"];
    assert_eq!(session.lines(), lines);
    assert_eq!(session.bill().saved_tokens, 0, "the bill agrees");
    let details = details(&session.0.path, Some(EntryId(8)), 2, &price.into()).expect("it is listed");
    assert_eq!((details.record.entry_id, details.summary), (entry, summary));
    assert_eq!((details.record.tokens_before, details.record.tokens_after), (115, Some(35)));
    assert_eq!(details.replaced, Replaced::default());
    // A later compaction replaces it.
    let kept = session.compact((0, 7), 8, (500, 100));
    assert!(kept > entry);
    assert_eq!(session.lines()[1], "2 completed: 0 calls, 0, $0");
}

#[test]
fn each_compaction_is_listed_with_what_it_saved_since() {
    let mut session = Session::default();
    session.add("u:10 c:5 r:30").answer();
    let results = session.prune(2, (1_000, 800));
    session.answer().answer();
    session.end(CompactionOutcome::Failed { reason: "the model is down".into() }, None, (1_000, 1_000));
    session.end(CompactionOutcome::Nothing { reason: "too short".into() }, None, (1_000, 1_000));
    let first = session.compact((0, 3), 6, (1_500, 500));
    session.answer();
    assert_eq!(
        session.lines(),
        [
            // A prune of what was replaced since shapes nothing any more.
            "1 pruned: 2 calls, 400, $40",
            "2 failed: 0 calls, 0, $0",
            "3 completed active: 1 calls, 1000, $100",
        ]
    );
    assert_eq!(results, EntryId(4));
    let bill = session.bill();
    assert_eq!((bill.saved_tokens, bill.saved_microdollars), (1_400, 140), "the bill agrees");
    assert_eq!((bill.tokens, bill.cost_microdollars, bill.waited_ms), (4 * 1_100, 4 * 50, 4 * 30));
    // Undone, it saves nothing more; and what is compacted next counts on its own.
    session.add(&format!("U@{first}")).answer();
    assert_eq!(session.lines()[2], "3 completed undone: 1 calls, 1000, $100");
    assert_eq!(session.lines()[0], "1 pruned active: 2 calls, 400, $40", "its line stands again");
    session.compact((0, 3), 6, (1_600, 600));
    session.answer();
    assert_eq!(session.lines()[3], "4 completed active: 1 calls, 1000, $100");
    assert_eq!(session.bill().saved_tokens, 2_400);
}

/// The start and the end of a compaction are not recorded for it: it is made and installed at once.
#[test]
fn what_a_hand_off_hides_is_listed_as_cut_without_a_summary() {
    for (trigger, line) in [
        (Trigger::HandOff, "1 truncated active: 1 calls, 400, $40"),
        // An imported one.
        (Trigger::Threshold, "1 completed active: 1 calls, 400, $40"),
    ] {
        let mut session = Session::default();
        session.add("u:10 a:5 u:10 a:5");
        let hidden = Compaction {
            trigger,
            truncated: true,
            tokens_before: 600,
            tokens_after: 200,
            ..compaction(Some(EntryId(2)), "hidden")
        };
        session.0.push(EntryKind::Compaction(Box::new(hidden)), 5);
        session.answer();
        assert_eq!(session.lines(), [line], "{trigger:?}");
    }
}

/// An imported compaction may not say how large the context was after it.
#[test]
fn what_a_compaction_of_unknown_size_saved_is_not_counted() {
    let mut session = Session::default();
    session.add("u:10 a:5 u:10 a:5");
    let imported = Compaction { tokens_before: 142_431, tokens_after: 0, ..compaction(None, "imported") };
    session.0.push(EntryKind::Compaction(Box::new(imported)), 5);
    session.answer();
    assert_eq!(session.lines(), ["1 completed active: 1 calls, 0, $0"]);
    assert_eq!(session.bill().saved_tokens, 0, "the bill agrees");
}

#[test]
fn all_about_a_compaction_says_what_it_replaced_and_what_is_missing() {
    let mut session = Session::default();
    session.add("u:10 c:5 r:30 a:4 u:10 a:4");
    let entry = session.compact((0, 3), 4, (1_500, 500));
    let path = &session.0.path;
    let leaf = Some(entry);
    let details = details(path, leaf, 1, &price.into()).expect("there is one");
    let Replaced { user, assistant, results, other, .. } = details.replaced;
    assert_eq!((user, assistant, results, other), (1, 2, 1, 0));
    let requests: Vec<u64> = details.replaced.requests.iter().map(|quote| quote.entry.0).collect();
    assert_eq!(requests, [0]);
    let names = |facts: &[Fact]| facts.iter().map(|fact| fact.text.clone()).collect::<Vec<_>>();
    assert_eq!(names(&details.facts_added), ["b.rs"], "the lists of files are not the ledger");
    assert_eq!(names(&details.facts_missing), ["c.rs"]);
    let words: Vec<(u64, &str)> =
        details.words.iter().map(|quote| (quote.entry.0, quote.text.as_str())).collect();
    let expected = [(0, "shown in\ntwo lines"), (1, "a par […] shown"), (4, "the request")];
    assert_eq!(words, expected, "what the summary shows");
    assert_eq!(details.words_left, [EntryId(1), EntryId(2), EntryId(3)]);
    assert!(details.summary.starts_with("the summary names a.rs"));
    assert_eq!((details.record.first_kept, details.record.model.as_str()), (Some(EntryId(4)), "test-1"));
    for number in [0, 2, u64::MAX] {
        assert_eq!(super::details(path, leaf, number, &price.into()), None, "{number}");
    }
    // Of a prune, the results that it shortened.
    session.add("c:5 r:30 a:4");
    let pruned = session.0.path.len() as u64 - 2;
    session.prune(pruned, (900, 700));
    let leaf = session.0.path.iter().rev().find(|entry| entry.kind.is_on_path()).map(|entry| entry.id);
    let second = super::details(&session.0.path, leaf, 2, &price.into()).expect("there is one");
    assert_eq!((second.shortened, second.record.is_active), (vec![EntryId(pruned)], true));
    let first = super::details(&session.0.path, leaf, 1, &price.into()).expect("there is one");
    assert!(first.record.is_active, "both shape the context");
}
