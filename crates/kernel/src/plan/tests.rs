//! Cuts of drawn paths. In a drawing `|` stands where the cut is expected, and `/` where the turn prefix of a
//! split turn begins.

use super::*;
use crate::files::Touch;
use crate::message::ToolStatus;
use crate::tests::notation::{Random, draw, odd_path, path};

fn options(keep_recent: u64) -> PlanOptions {
    PlanOptions {
        keep_recent,
        keep_max: u64::MAX,
        preserve_messages: 0,
        cut: CutRule::TurnFirst,
        min_split_prefix: 5,
        force: false,
        estimator: Estimator::Classes,
        files: FileRule::Declared,
        as_read: false,
        pinned: Vec::new(),
        ratio: Ratio::default(),
        tokens_before: 100,
        overhead: 7,
        summary_cap: 30,
        prefix_cap: 20,
        words_max: crate::words::WordsMax { carried: 0, shown: 0 },
        facts_max: 0,
        skills_max: 0,
    }
}

fn nearest(keep_recent: u64) -> PlanOptions {
    PlanOptions { cut: CutRule::Nearest, min_split_prefix: 1, ..options(keep_recent) }
}

/// Returns the drawing's own words, with the marks where `plan` cuts.
fn marked(drawing: &str, plan: &Plan) -> String {
    let mut out = Vec::new();
    for (index, word) in drawing.split_whitespace().filter(|word| !["|", "/"].contains(word)).enumerate() {
        let id = EntryId(index as u64);
        if plan.turn_prefix.first().is_some_and(|entry| entry.id == id) {
            out.push("/");
        }
        if plan.first_kept == id {
            out.push("|");
        }
        out.push(word);
    }
    out.join(" ")
}

#[track_caller]
fn check(drawing: &str, options: &PlanOptions) -> Plan {
    let drawn = draw(drawing);
    let made = match plan(&drawn.path, options) {
        Ok(made) => made,
        Err(nothing) => panic!("{nothing}: {drawing}"),
    };
    assert_eq!(marked(drawing, &made), drawing, "with keep {}", options.keep_recent);
    assert_eq!((Some(made.first_kept), made.is_split_turn), (drawn.cut, drawn.prefix.is_some()));
    assert_whole(&drawn.path, &made);
    made
}

#[track_caller]
fn check_nothing(drawing: &str, options: &PlanOptions, why: &NothingToCompact) {
    assert_eq!(plan(&path(drawing), options).as_ref().err(), Some(why), "{drawing}");
}

/// The parts of a plan are consecutive, and cover the active part before the cut.
fn assert_whole(path: &[Arc<Entry>], plan: &Plan) {
    let ids: Vec<EntryId> = plan.history.iter().chain(&plan.turn_prefix).map(|entry| entry.id).collect();
    let expect: Vec<EntryId> =
        path.iter().map(|entry| entry.id).filter(|id| *id >= plan.first && *id < plan.first_kept).collect();
    assert_eq!(ids, expect);
    assert_eq!(ids.last(), Some(&plan.last));
    assert_eq!(ActivePath::of(path).entries()[0].id, plan.first);
    assert!(plan.messages_removed() > 0);
}

#[test]
fn nearest_is_the_first_legal_cut_where_enough_is_kept() {
    check("u:10 a:10 / u:10 | a:10", &nearest(10));
    check("u:10 a:10 | u:10 a:10", &nearest(11));
    check("u:10 a:10 | u:10 a:10", &nearest(20));
    // A result cannot be the cut: the next legal one.
    check("u:5 a:5 u:5 / u:5 c:5 r:50 | a:5", &nearest(20));
    check("u:5 a:5 / u:5 c:5 r:50 a:5 | c2:5 r:5 r:50", &nearest(40));
    // None after it: the last legal one.
    check("u:10 a:10 u:10 / u:5 | c:5 r:90", &nearest(50));
    // Never reached: the first legal cut, which replaces nothing here.
    check_nothing("u:10 a:10 u:10 a:10", &nearest(41), &NothingToCompact::AllRecent);
    check("r:10 r:10 | u:10 a:10", &nearest(50));
    // The size of the last compaction's summary does not count as kept.
    check_nothing("u:9 a:9 u:9 a:9 C@2:50 u:9 a:9", &nearest(30), &NothingToCompact::AllRecent);
}

#[test]
fn turn_first_prefers_the_beginning_of_a_turn() {
    // Before the point, as it keeps at most half as much again.
    check("u:10 a:10 | u:5 a:10 a:10", &options(20));
    check("u:10 a:10 | u:10 a:10 a:10", &options(20));
    // Before it would be too much; after it keeps at least half.
    check("u:10 a:10 u:10 a:10 a:15 | u:5 a:5", &options(20));
    // Neither: as nearest, inside the turn.
    check("u:10 a:10 u:10 a:10 a:10 a:10 a:10 | a:20", &PlanOptions { min_split_prefix: 9, ..options(20) });
    // One that keeps too much is skipped for a later one that keeps half.
    check("u:10 a:10 u:100 a:5 | u:5 a:5", &options(20));
    // A turn's start that replaces nothing does not count.
    check("u:1 a:5 | a:5 a:5 a:5", &options(14));
    check("/ u:1 a:5 a:5 a:5 a:5 | a:5 a:5", &options(10));
    // Shell commands, custom messages and branch summaries begin turns, too.
    for start in ["s:5", "m:5", "b:5", "u:5"] {
        check(&format!("u:10 a:10 | {start} a:20"), &options(20));
    }
}

#[test]
fn a_cut_never_parts_a_call_from_a_result() {
    check("u:9 a:9 / u:9 | c2:9 r:9 r:9 a:9", &nearest(30));
    check("u:9 a:9 / u:9 c2:9 r:9 r:9 | a:9", &nearest(20));
    check("u:9 c2:9 r:9 r:9 | a:9", &PlanOptions { min_split_prefix: 9, ..nearest(10) });
    // An open call at the end, a message between a call and its result.
    check("u:9 c=x:9 u:9 r=x:9 | a:1", &PlanOptions { min_split_prefix: 9, ..nearest(15) });
    check("u:9 a:1 | u:9 c:9", &nearest(12));
    // An open call holds up the messages after it, and only those; if none is open, any message may be kept
    // alone.
    check("u:9 a:9 u:9 | c:9 u:9", &PlanOptions { min_split_prefix: 9, ..nearest(9) });
    check("u:9 a:9 u:9 | u:9", &nearest(9));
    // A call that was never answered holds nothing up after the next answer; in a file before repair, not at
    // all.
    check("u:9 c=x:9 u:9 | a:9", &PlanOptions { min_split_prefix: 9, ..nearest(10) });
    check("u:9 c=x:9 | u:9 a:9", &PlanOptions { as_read: true, ..nearest(10) });
}

#[test]
fn a_turn_is_split_where_the_cut_is_inside_it() {
    let plan = check("u:9 a:9 / u:9 c:9 r:9 c:9 r:9 | a:9 a:9", &options(10));
    assert_eq!((plan.messages_to_summarize(), plan.turn_prefix_messages()), (2, 5));
    assert_eq!(plan.active_request.as_deref().map(|text| &text[..3]), Some("m2."));
    // Four messages of it are too few for a separate summary, but the request stays verbatim.
    let plan =
        check("u:9 a:9 u:9 c:9 r:9 c:9 r:9 | a:9 a:9", &PlanOptions { min_split_prefix: 6, ..options(10) });
    assert!(plan.active_request.is_some());
    // Only one turn.
    let plan = check("/ u:9 c:9 r:9 c:9 r:9 | a:9 a:9", &options(10));
    assert_eq!(plan.messages_to_summarize(), 0);
    // A clean cut.
    assert_eq!(check("u:9 a:9 u:9 a:9 | u:9 a:9", &options(15)).active_request, None);
}

#[test]
fn the_request_is_carried_on_while_its_turn_goes_on() {
    let mut path = path("u:9 a:9 a:9 a:9 C@3:9 a:9 a:9 a:9 a:9");
    let mut copy = (*path[4]).clone();
    let EntryKind::Compaction(compaction) = &mut copy.kind else { panic!("drawn as a compaction") };
    compaction.active_request = Some("do it".into());
    path[4] = Arc::new(copy);
    let made = plan(&path, &options(10)).expect("there is enough");
    assert_eq!(made.active_request.as_deref(), Some("do it"));
    assert_eq!((made.base, made.first), (Some(EntryId(4)), EntryId(3)));
    // A new turn has its own.
    let mut longer = path.clone();
    longer.extend(draw("u u u u u u u u u u:9 a:9 a:9 a:9").path.split_off(9));
    let made = plan(&longer, &options(10)).expect("there is enough");
    assert_eq!(made.active_request.as_deref().map(|text| &text[..3]), Some("m9."));
}

/// A steer begins no turn: no turn is cut there, and the request that it joined is carried with it, verbatim.
#[test]
fn a_steer_joins_the_request_in_progress() {
    let request = |plan: &Plan| plan.active_request.clone().unwrap_or_default();
    // If the steer were a turn's start, the cut would be there, and the request would be the steer alone.
    let plan = check("u:9 a:9 / u:9 c:9 r:9 a:9 t:9 | a:9 a:9", &options(18));
    let both = request(&plan);
    let (begun, joined) = both.split_once(STEER_LEAD).expect("both are there");
    assert!(begun.starts_with("m2.") && joined.trim_start().starts_with("m6."), "{both}");
    // One that is kept is not repeated; several come in order.
    let plan = check("/ u:9 a:9 t:9 a:9 t:9 | a:9 t:9 a:9", &options(25));
    let both = request(&plan);
    let marks: Vec<&str> =
        ["m0.", "m2.", "m4.", "m6."].into_iter().filter(|mark| both.contains(mark)).collect();
    assert_eq!(marks, ["m0.", "m2.", "m4."], "{both}");
    // The request of a turn that an earlier compaction cut includes later steers.
    let mut path = path("u:9 a:9 a:9 C@2:9 a:9 t:9 a:9 a:9 a:9");
    let mut copy = (*path[3]).clone();
    let EntryKind::Compaction(compaction) = &mut copy.kind else { panic!("drawn as a compaction") };
    compaction.active_request = Some("do it".into());
    path[3] = Arc::new(copy);
    let made = super::plan(&path, &options(10)).expect("there is enough");
    assert!(request(&made).starts_with(&format!("do it\n\n{STEER_LEAD}\nm5.")), "{:?}", made.active_request);
    // Many of them are bounded, and both the request and the newest are there.
    let many: String = (0..40).map(|_| "t:500 a:9 ").collect();
    let made = super::plan(&crate::tests::notation::path(&format!("u:9 {many}a:9 a:9")), &options(10))
        .expect("enough");
    let both = request(&made);
    assert!(both.len() < 2 * ACTIVE_REQUEST_BYTES + 100, "{} bytes", both.len());
    assert!(both.starts_with("m0.") && both.contains("bytes cut"), "{both}");
}

#[test]
fn entries_without_a_message_go_with_the_kept_side() {
    let plan = check("u:9 a:9 | l p@0 n u:9 a:9", &options(15));
    assert!(!plan.is_split_turn);
    // But a compaction before the cut does not.
    check("u:9 a:9 u:9 a:9 C@2:5 | u:9 a:9", &options(15));
    check("u:9 a:9 u:9 a:9 C@2:5 | l u:9 a:9", &options(15));
    check_nothing("l u:9 a:9", &options(30), &NothingToCompact::AllRecent);
}

#[test]
fn a_plan_begins_at_what_the_last_active_compaction_kept() {
    let first = |drawing: &str| check(drawing, &options(15)).first;
    assert_eq!(first("u:9 a:9 u:9 a:9 C@2:5 u:9 a:9 | u:9 a:9"), EntryId(2));
    // Missing: after the compaction. Undone: the one before it, or the path's beginning.
    assert_eq!(first("u:9 a:9 u:9 a:9 C@99:5 u:9 a:9 | u:9 a:9"), EntryId(5));
    assert_eq!(first("u:9 a:9 u:9 a:9 C:5 u:9 a:9 | u:9 a:9"), EntryId(5));
    assert_eq!(first("u:9 a:9 u:9 a:9 C@2:5 U@4 u:9 a:9 | u:9 a:9"), EntryId(0));
    assert_eq!(first("u:9 a:9 u:9 a:9 C@2:5 u:9 C@3:5 U@6 a:9 | u:9 a:9"), EntryId(2));
    let plan = check("u:9 a:9 u:9 a:9 C@2:5 u:9 a:9 | u:9 a:9", &options(15));
    assert!(plan.previous_summary.is_some_and(|summary| summary.starts_with("m4.")));
    assert_eq!(plan.messages_before, 7);
}

#[test]
fn a_number_of_messages_is_preserved() {
    let preserve = |count| PlanOptions { preserve_messages: count, ..options(1) };
    check("u:9 a:9 u:9 | u:9 a:9 u:9 a:9", &preserve(4));
    // If the number falls on a result: more, not fewer.
    check("u:9 a:9 u:9 | c2:9 r:9 r:9 a:9", &preserve(3));
    // Just enough to replace two.
    check("u:9 a:9 | u:9 a:9", &preserve(2));
    let needs = |messages, needed| NothingToCompact::TooShort { messages, needed };
    check_nothing("u:9 a:9 u:9 a:9 u:9", &preserve(4), &needs(5, 6));
    check_nothing("u:9 l a:9", &preserve(1), &needs(2, 3));
    check_nothing("u:9 a:9", &preserve(u64::MAX), &needs(2, u64::MAX));
    // A minimum on top of the tokens, not instead of them.
    check("u:9 a:9 | u:9 a:9 u:9 a:9", &PlanOptions { keep_recent: 30, ..preserve(1) });
    let mut planned = 0;
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let length = 5 + random.below(40);
        let path = odd_path(&mut random, length);
        let count = 1 + random.below(10);
        let options = PlanOptions { keep_recent: random.below(200), ..preserve(count) };
        let Ok(plan) = plan(&path, &options) else { continue };
        planned += 1;
        let kept = |from: EntryId| {
            path.iter().filter(|entry| entry.id >= from && is_message(&entry.kind)).count() as u64
        };
        // If the active part begins with orphaned results, there may be no cut that keeps so many.
        let first_cut = legal_cuts(&ActivePath::of(&path), false).first().map(|index| path[*index].id);
        if first_cut.is_some_and(|cut| kept(cut) >= count) {
            let kept = kept(plan.first_kept);
            assert!(kept >= count, "seed {seed}: {kept} of {count} kept");
        }
    }
    assert!(planned > 200, "only {planned} paths had something to compact");
}

#[test]
fn what_is_kept_gives_way_to_the_trigger() {
    let most = |keep, keep_max| PlanOptions { keep_max, ..options(keep) };
    // As much as fits, and no less.
    check("u:9 a:9 u:9 a:9 | u:9 a:9", &most(30, 18));
    check("u:9 a:9 u:9 a:9 / u:9 | a:9", &PlanOptions { min_split_prefix: 1, ..most(30, 17) });
    // A turn's start that would keep half as much again is too much as well.
    check("u:9 a:9 | u:9 a:9 u:9 a:9", &most(24, 36));
    check("u:9 a:9 u:9 a:9 | u:9 a:9", &most(24, 35));
    // A large message at the point where enough is kept.
    check("u:9 a:90 | u:9 a:9", &most(20, 99));
    let nearest_most = |keep_max| PlanOptions { keep_max, min_split_prefix: 9, ..nearest(20) };
    check("u:9 | a:90 u:9 a:9", &nearest_most(108));
    check("u:9 a:90 | u:9 a:9", &nearest_most(107));
    // Messages to be preserved give way, too, if they are too large.
    check("u:9 a:9 u:9 a:9 | u:9 a:9", &PlanOptions { preserve_messages: 4, ..most(1, 20) });
    check("u:9 a:9 | u:9 a:9 u:9 a:9", &PlanOptions { preserve_messages: 4, ..most(1, 36) });
    check("u:9 a:9 | u:9 a:9", &PlanOptions { preserve_messages: 9, ..most(1, 20) });
    check_nothing(
        "u:9 a:9 u:9 a:9",
        &PlanOptions { preserve_messages: 9, ..most(1, 36) },
        &NothingToCompact::TooShort { messages: 4, needed: 11 },
    );
    // If nothing fits, the limit is ignored.
    check("u:9 a:9 u:9 | a:90", &most(20, 5));
}

#[test]
fn force_cuts_where_everything_is_recent() {
    let force = |keep| PlanOptions { force: true, ..options(keep) };
    check_nothing("u:9 a:9 u:9 a:9", &options(900), &NothingToCompact::AllRecent);
    check("u:9 a:9 | u:9 a:9", &force(900));
    // The last two begin with a result: the nearest legal cut, the earlier one of two as near.
    check("u:9 | c:9 r:9 a:9", &force(900));
    check("/ u:9 a:9 c2:9 r:9 r:9 | a:9", &force(900));
    check("u:9 | c:9 r:9", &force(900));
    // It is not needed if a cut is in reach.
    check("u:9 a:9 u:9 a:9 | u:9 a:9", &force(15));
    check_nothing("u:9", &force(900), &NothingToCompact::AllRecent);
    // The next rung of an overflow's ladder: messages kept by the last compaction.
    check("u:9 a:9 u:9 a:9 | u:9 a:9 C@2:5", &force(15));
    check("u:9 a:9 u:9 | a:9 C@2:5", &force(900));
}

#[test]
fn nothing_has_a_reason() {
    check_nothing("", &options(10), &NothingToCompact::Empty);
    check_nothing("l n", &options(10), &NothingToCompact::Empty);
    check_nothing("u:9 a:9 C@1:5", &options(1), &NothingToCompact::JustCompacted);
    check_nothing("u:9 a:9 C:5 l", &options(1), &NothingToCompact::Empty);
    check_nothing("r:9", &options(1), &NothingToCompact::NoCut);
    check_nothing("u:9 a:9", &options(100), &NothingToCompact::AllRecent);
}

#[test]
fn files_are_cumulative_and_what_failed_may_have_changed_and_read_nothing() {
    let files = |path: &[Arc<Entry>]| {
        let made = plan(path, &options(1)).expect("there is enough");
        let list = |paths: Vec<&str>| paths.join(" ");
        (list(made.files.read().collect()), list(made.files.modified().collect()))
    };
    let whole = path("u c3 r<b r>a r<a u a:9");
    assert_eq!(files(&whole), ("b".into(), "a".into()));
    let failed = |index: usize| {
        let mut failed = whole.clone();
        let mut copy = (*failed[index]).clone();
        let EntryKind::Message { message, .. } = &mut copy.kind else { panic!("drawn as a result") };
        let Message::ToolResult(result) = Arc::make_mut(message) else { panic!("drawn as a result") };
        result.status = ToolStatus::Error;
        failed[index] = Arc::new(copy);
        failed
    };
    assert_eq!(files(&failed(2)), (String::new(), "a".into()), "it was not read");
    assert_eq!(files(&failed(3)), ("b".into(), "a".into()), "it was changed, whatever came after that");
    // Files known to the last compaction stay known; a file that was read and is now modified is only
    // modified.
    let mut again = path("u a u C@2 c2 r>b r<c u a:9");
    let mut copy = (*again[3]).clone();
    let EntryKind::Compaction(compaction) = &mut copy.kind else { panic!("drawn as a compaction") };
    compaction.files = FileOps::new(["a", "b"], ["d"]);
    again[3] = Arc::new(copy);
    assert_eq!(files(&again), ("a c".into(), "b d".into()));
    let made = plan(&again, &PlanOptions { files: FileRule::EveryCall, ..options(1) }).expect("enough");
    assert_eq!(made.files.read().collect::<Vec<_>>(), ["a", "b", "x"]);
    // A hook's compaction carries its lists, but not in the comparison with other systems.
    let mut copy = (*again[3]).clone();
    let EntryKind::Compaction(compaction) = &mut copy.kind else { panic!("drawn as a compaction") };
    compaction.from_hook = true;
    again[3] = Arc::new(copy);
    assert_eq!(files(&again), ("a c".into(), "b d".into()));
    let made = plan(&again, &PlanOptions { files: FileRule::EveryCall, ..options(1) }).expect("enough");
    assert_eq!(made.files.read().collect::<Vec<_>>(), ["x"]);
}

#[test]
fn files_are_those_that_results_declare_or_well_known_calls_name() {
    let touched = touched_files(&path("u c2 r<b r>a"));
    assert_eq!((touched.read().collect(), touched.modified().collect()), (vec!["b"], vec!["a"]));
    let file = |tool, arguments| call_file(tool, arguments);
    assert_eq!(file("read", r#"{"path":"x"}"#), Some(("x".into(), Touch::Read)));
    assert_eq!(file("write", r#"{"path":"x"}"#), Some(("x".into(), Touch::Modified)));
    assert_eq!(file("edit", r#"{"path":"x"}"#), Some(("x".into(), Touch::Modified)));
    for (tool, arguments) in [
        ("bash", r#"{"path":"x"}"#),
        ("read", r#"{"path":""}"#),
        ("read", r#"{"path":1}"#),
        ("read", "{}"),
        ("read", "{"),
    ] {
        assert_eq!(file(tool, arguments), None, "{tool} {arguments}");
    }
}

#[test]
fn a_call_is_cut_where_its_result_stays_and_it_does_not() {
    let check = |drawing: &str, expect: bool| {
        let drawn = draw(drawing);
        let at = usize::try_from(drawn.cut.expect("a cut is drawn").0).expect("small");
        let (replaced, kept) = drawn.path.split_at(at);
        assert_eq!(is_call_cut(replaced, kept), expect, "{drawing}");
    };
    check("u c=x | r=x a", true);
    check("u c=x r=x | a", false);
    check("u | c=x r=x a", false);
    check("u c=x,y r=x | u r=y", true);
    // A result without a call; a second call with the same id.
    check("u a | r=x a", false);
    check("u c=x r=x | c=x r=x", false);
    check("u c=x | u c=x r=x", false);
}

#[test]
fn a_hook_may_move_the_cut_to_a_legal_place_only() {
    let path = path("u:9 a:9 u:9 c:9 r:9 a:9 u:9 a:9");
    let made = plan(&path, &options(10)).expect("there is enough");
    let moved = |id| made.moved_to(&path, EntryId(id)).map(|plan| plan.first_kept.0);
    assert_eq!((moved(2), moved(5), moved(7)), (Some(2), Some(5), Some(7)));
    assert_eq!((moved(4), moved(0), moved(99)), (None, None, None));
    // An entry without a message represents the next one that has one.
    let labelled = crate::tests::notation::path("u:9 a:9 l n u:9 a:9");
    let moved = made.moved_to(&labelled, EntryId(3)).expect("there is a cut after it");
    assert_eq!((moved.first_kept, moved.kept_tokens), (EntryId(2), 18));
    assert_eq!(made.moved_to(&path, EntryId(5)).map(|plan| plan.active_request.is_some()), Some(true));
}

/// The expectation of a plan is neither the caps of the summaries nor less than anything useful, and never
/// more than there is.
#[test]
fn the_expected_size_is_the_fixed_part_a_tenth_and_what_is_kept() {
    let large = PlanOptions { tokens_before: 90_000, summary_cap: 5_000, prefix_cap: 3_000, ..options(15) };
    let sizes = |drawing: &str| {
        let plan = check(drawing, &large);
        let beside = 7 + plan.kept_tokens + plan.frame_tokens();
        (plan.replaced_tokens, plan.tokens_after_estimate() - beside, plan.tokens_after_max() - beside)
    };
    assert_eq!(sizes("u:9000 a:9000 | u:10 a:11"), (18_000, 1_800, 5_000));
    assert_eq!(sizes("u:90 a:90 | u:10 a:11"), (180, 64, 5_000));
    assert_eq!(sizes("u:40000 a:40000 | u:10 a:11"), (80_000, 5_000, 5_000));
    // The previous summary is merged, and two summaries have two caps.
    assert_eq!(sizes("u:90 a:90 C@1:900 u:9000 a:9 | u:10 a:11").0, 90 + 900 + 9_009);
    assert_eq!(sizes("u:900 a:9 / u:9 c:9 r:900 c:9 r:900 | a:15"), (2_736, 273, 8_000));
    let plan = check("u:9 a:9 | u:10 a:11", &options(15));
    assert_eq!((plan.tokens_before, plan.kept_tokens), (100, 21));
    assert_eq!((plan.tokens_after_estimate(), plan.tokens_after_max()), (100, 100), "it is never more");
    assert!(matches!(plan.check_gain(), Err(NothingToCompact::TooSmall { tokens: 18, .. })));
}

/// A requested compaction works on any conversation: by default a quarter of it is kept.
#[test]
fn a_manual_plan_keeps_a_quarter_of_the_conversation() {
    let settings = CompactionSettings { cut: CutRule::Nearest, ..CompactionSettings::default() };
    let drawing = |messages: usize| vec!["u:750 a:750"; messages / 2].join(" ");
    for messages in [8, 20, 160] {
        let path = path(&drawing(messages));
        let tokens = 750 * messages as u64 + 400;
        let options = PlanOptions::new(&settings, 200_000, Occasion::Manual, tokens, 400);
        let made = plan(&path, &options).expect("there is enough");
        assert_eq!(made.kept_tokens, 750 * messages as u64 / 4, "{messages}");
        let options = PlanOptions::new(&settings, 200_000, Occasion::Automatic, tokens, 400);
        let by_itself = plan(&path, &options).ok().map(|made| made.kept_tokens);
        assert_eq!(by_itself, (messages == 160).then_some(50_250));
    }
}

#[test]
fn whatever_was_recorded_a_plan_is_whole_and_legal() {
    let mut planned = 0;
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let length = 2 + random.below(60);
        let path = odd_path(&mut random, length);
        let options = PlanOptions {
            preserve_messages: random.below(4),
            cut: *random.pick(&[CutRule::Nearest, CutRule::TurnFirst]),
            min_split_prefix: 1 + random.below(6),
            force: random.one_in(2),
            ..options(1 + random.below(600))
        };
        let made = plan(&path, &options);
        assert_eq!(made, plan(&path, &options), "seed {seed}: the same input gives the same plan");
        let Ok(made) = made else { continue };
        planned += 1;
        assert_whole(&path, &made);
        // No kept result answers a replaced call.
        let active = ActivePath::of(&path);
        let mut open: Vec<&str> = Vec::new();
        for entry in active.entries() {
            if entry.id == made.first_kept {
                let kept = entry.id.0..;
                let later = path.iter().filter(|later| kept.contains(&later.id.0));
                for later in later.take_while(|later| !answers(later)) {
                    let Some(Message::ToolResult(result)) = later.kind.as_message().map(|message| &**message)
                    else {
                        continue;
                    };
                    assert!(!open.contains(&result.call_id.as_str()), "seed {seed}: {made:?}");
                }
            }
            match entry.kind.as_message().map(|message| &**message) {
                Some(Message::Assistant(answer)) if !answer.is_empty() => {
                    open = answer.tool_calls().map(|call| call.id.as_str()).collect();
                }
                Some(Message::ToolResult(result)) => open.retain(|id| *id != result.call_id),
                Some(Message::User(_) | Message::Assistant(_)) | None => {}
            }
        }
    }
    assert!(planned > 1_000, "only {planned} paths had something to compact");
}

fn answers(entry: &Entry) -> bool {
    matches!(entry.kind.as_message().map(|message| &**message), Some(Message::Assistant(answer)) if !answer.is_empty())
}
