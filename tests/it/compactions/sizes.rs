//! A context's size in lists is the size that the session itself reports, wherever its path ends.

use greenroom_kernel::EntryId;
use greenroom_simulator::{ByPurpose, Summariser};

use crate::compaction_fixtures::{chat, keep, opened, settings, talker, text};
use crate::support::{agent, runtime, simulator};

/// The context's size in the list of sessions, by the live session, and by the session after a restart.
#[track_caller]
fn assert_same(listed: u64, live: u64, slept: u64, what: &str) {
    assert!(listed == live && listed == slept, "{what}: listed {listed}, live {live}, slept {slept}");
}

#[tokio::test(start_paused = true)]
async fn the_size_in_lists_is_right_after_a_branch_an_undo_and_a_fork() {
    let model = simulator(ByPurpose::new(talker(200), Summariser::Obedient), 40_000);
    let runtime = runtime(&model).await;
    // Half of this conversation is the user's.
    let definition = agent(40_000).compaction(settings(|settings| settings.user_words = None));
    let session = opened(&runtime, "s", &definition, chat(6, 300)).await;
    let sizes = async |id: &str, what: &str| {
        let listed = runtime.sessions().await.unwrap();
        let listed = listed.iter().find(|info| info.id == id).unwrap().context_tokens;
        let live = runtime.open(id, &definition).await.unwrap().state().await.unwrap().context.tokens;
        runtime.close(id).await.unwrap();
        let slept = runtime.open(id, &definition).await.unwrap().state().await.unwrap().context.tokens;
        assert_same(listed, live, slept, what);
        listed
    };
    for _ in 0..3 {
        session.prompt(text("more", 300)).await.unwrap();
    }
    session.pin(EntryId(2)).await.unwrap();
    let full = sizes("s", "after runs").await;
    let session = runtime.open("s", &definition).await.unwrap();
    assert!(session.compact(keep(700)).await.unwrap().is_installed());
    let compacted = sizes("s", "after a compaction").await;
    assert!(compacted < full / 2, "{compacted} of {full}");
    let session = runtime.open("s", &definition).await.unwrap();
    session.prompt(text("on", 300)).await.unwrap();
    let later = sizes("s", "after a run on a compacted path").await;
    // Back to before the compaction, and to a place after it.
    let session = runtime.open("s", &definition).await.unwrap();
    let leaf = runtime.engine().head("s").await.unwrap().unwrap().leaf;
    session.branch(Some(EntryId(5))).await.unwrap();
    let early = sizes("s", "after a branch to before the compaction").await;
    assert!((1_500..2_300).contains(&early), "{early}");
    let session = runtime.open("s", &definition).await.unwrap();
    session.branch(leaf).await.unwrap();
    assert_eq!(sizes("s", "after a branch back").await, later);
    let session = runtime.open("s", &definition).await.unwrap();
    session.undo_compaction().await.unwrap();
    let undone = sizes("s", "after an undo").await;
    assert!(undone > full, "{undone}");
    // The same answers do not train the ratio again.
    runtime.fork("s", "f", &definition).await.unwrap();
    assert_eq!(sizes("f", "a fork").await, undone);
    let session = runtime.open("s", &definition).await.unwrap();
    session.branch(None).await.unwrap();
    let empty = sizes("s", "after a branch to the beginning").await;
    assert!(empty < 300, "{empty}");
}
