//! The runs of a log's events.

use greenroom_kernel::{Message, RunOutcome};

use super::*;
use crate::events::event::tests::context;

/// The run of each entry of a drawn log: `m` is a message, `n5` a note that run 5 continues, `e5` the end of
/// run 5.
fn runs(drawn: &str, open_run: Option<u64>) -> Vec<Option<u64>> {
    let entries: Vec<Entry> = (0..)
        .zip(drawn.split_whitespace())
        .map(|(id, what)| {
            let run = EntryId(what[1..].parse().unwrap_or_default());
            let kind = match &what[..1] {
                "m" => EntryKind::message(Message::User(Vec::new())),
                "n" => EntryKind::Note { kind: RUN_RESUMED.into(), data: run.to_string() },
                _ => EntryKind::RunEnded {
                    run,
                    outcome: RunOutcome::Completed,
                    context: context(),
                    bill: Box::default(),
                },
            };
            Entry {
                id: EntryId(id),
                parent: None,
                at_ms: id,
                tokens: 0,
                reasoning_tokens: 0,
                origin: None,
                kind,
            }
        })
        .collect();
    let session = Arc::from("s");
    let from = |first: usize| -> Vec<Option<u64>> {
        of_entries(&session, None, 7, &entries[first..], open_run.map(EntryId))
            .inspect(|event| assert_eq!(event.at_ms, event.seq, "the entry's time"))
            .map(|event| event.run.map(|run| run.0))
            .collect()
    };
    let all = from(0);
    for first in 0..entries.len() {
        assert_eq!(from(first), all[first..], "the same from {first} on");
    }
    all
}

#[test]
fn an_entry_belongs_to_the_run_that_was_going_on() {
    assert_eq!(runs("m m m e0", None), [Some(0); 4]);
    assert_eq!(runs("m m e1", None), [None, Some(1), Some(1)], "before the prompt there was no run");
    assert_eq!(runs("m e0 m m", None), [Some(0), Some(0), None, None], "between runs");
    assert_eq!(runs("m e0 m m", Some(2)), [Some(0), Some(0), Some(2), Some(2)], "one is still going on");
    assert_eq!(
        runs("m e0 m n0 m e3", None),
        [Some(0), Some(0), None, Some(3), Some(3), Some(3)],
        "it was resumed, as another run"
    );
    assert_eq!(runs("m e7 m", None), [None; 3], "an imported end of a run that is not here");
}
